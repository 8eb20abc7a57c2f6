"""Turns to an engine in another process: one connection, binary frames, only new tokens.

Importing this package imports neither torch nor vLLM.
"""

from __future__ import annotations

from agentrl.serving.lean.client import LeanEngine
from agentrl.serving.lean.frames import PROTOCOL
from agentrl.serving.lean.server import EngineServer

__all__ = ["PROTOCOL", "EngineServer", "LeanEngine"]
