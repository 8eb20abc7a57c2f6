"""The embedded engine: samples in this process from the very weights the trainer updates."""

from agentrl.serving.embedded.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
