"""Engines and the client in front of them. Importing this package does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl.serving.balancer import EngineState, LoadBalancer
from agentrl.serving.client import TokenClient

if TYPE_CHECKING:
    from agentrl.serving.embedded import EmbeddedEngine

__all__ = ["EmbeddedEngine", "EngineState", "LoadBalancer", "TokenClient"]


def __getattr__(name: str) -> Any:
    if name == "EmbeddedEngine":
        from agentrl.serving.embedded import EmbeddedEngine

        return EmbeddedEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
