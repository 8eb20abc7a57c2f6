"""Images that sandboxes start from: made, found and listed."""

from agentrl_sandboxes.image.build import Built, SandboxImage, build, find, listing
from agentrl_sandboxes.image.recipe import Recipe

__all__ = ["Built", "Recipe", "SandboxImage", "build", "find", "listing"]
