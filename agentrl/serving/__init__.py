"""Engines and the client in front of them. Importing this package does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl.serving.balancer import LoadBalancer
from agentrl.serving.client import TokenClient
from agentrl.serving.records import EngineState, EngineStats, Routed

if TYPE_CHECKING:
    from agentrl.serving.embedded import EmbeddedEngine

__all__ = ["EmbeddedEngine", "EngineState", "EngineStats", "LoadBalancer", "Routed", "TokenClient"]


def __getattr__(name: str) -> Any:
    if name == "EmbeddedEngine":
        from agentrl.serving.embedded import EmbeddedEngine

        return EmbeddedEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
