"""Images that sandboxes start from: made, found and listed."""

from agentrl_sandboxes.image.build import Built, SandboxImage, build, find, listing
from agentrl_sandboxes.image.pull import PullProgress, absent_images, pull_images
from agentrl_sandboxes.image.recipe import Recipe

__all__ = [
    "Built",
    "PullProgress",
    "Recipe",
    "SandboxImage",
    "absent_images",
    "build",
    "find",
    "listing",
    "pull_images",
]
