"""Requests of a client besides turns: name, arguments and answer of each."""

from __future__ import annotations

from typing import Any

from agentrl.engine import Engine, WeightTicket
from agentrl.errors import EngineError, choices


async def run_control(engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    """Run the request of a CONTROL frame.

    Returns:
        The answer; the version is added to it.

    Raises:
        EngineError: an unknown request, or the engine failed.
    """
    op, arguments = str(body.get("op")), body.get("arguments") or {}
    if op == "pause":
        await engine.pause()
    elif op == "resume":
        await engine.resume()
    elif op == "prepare_weights":
        await engine.prepare_weights(arguments["backend"], arguments["info"])
    elif op == "load_weights":
        await engine.load_weights(WeightTicket(**arguments))
    elif op == "health":
        health = await engine.health()
        return {
            "ready": health.ready,
            "version": health.version,
            "in_flight": health.in_flight,
            "detail": health.detail,
            "metrics": None if health.metrics is None else dict(health.metrics),
        }
    elif op == "close":
        await engine.close()
    elif op != "version":
        known = ("pause", "resume", "prepare_weights", "load_weights", "health", "version", "close")
        raise EngineError(f"unknown control request: {choices(op, known)}")
    return {}
