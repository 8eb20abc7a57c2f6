"""State of a running run for the page: its phase, its engines, the rollouts in flight.

The run writes it about once a second (`agentrl.runtime.live_state`). A run that was killed leaves
its file behind, so nothing of it is shown unless the run goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.data.run.read import read_object
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import run_state
from agentrl.inspect.read.safe_json import number, shown

_MOST = 256
_CHARS = 300


def pulse_answer(reader: RunReader) -> dict[str, Any]:
    """Revision and state of a run, and its live file if it goes on."""
    state = run_state(reader.path)
    going = state in ("running", "paused")
    return {
        "revision": reader.revision(),
        "state": state,
        "live": live_answer(reader) if going else None,
    }


def live_answer(reader: RunReader, now: Callable[[], float] = time.time) -> dict[str, Any] | None:
    """The live file as the page shows it; None where there is none that can be read.

    Args:
        reader: of a run that goes on.
        now: seconds since 1970.
    """
    found = read_object(reader.paths.live_file)
    written = number(found.get("written"))
    if written is None:
        return None
    phase, rollouts, queue = (
        _object(found.get(name)) for name in ("phase", "rollouts", "finished_groups")
    )
    return {
        "age_s": max(0.0, now() - written),
        "steps_done": number(found.get("steps_done")),
        "steps": number(found.get("steps")),
        "step_s": number(found.get("step_s")),
        "phase": {"name": _text(phase.get("name"))} | _numbers(phase, _PHASE),
        "engines": [
            {name: _text(one.get(name)) for name in ("name", "state", "why")}
            | _numbers(one, ("version", "in_flight", "slots"))
            for one in _objects(found.get("engines"))
        ],
        "rollouts": _rollouts(rollouts) if rollouts else None,
        "finished_groups": _numbers(queue, ("count", "oldest_s")),
    }


_PHASE = ("for_s", "rollouts_done", "rollouts", "tokens", "batches_done", "batches")


def _rollouts(found: Mapping[str, Any]) -> dict[str, Any]:
    waits = list(_object(found.get("waits")).items())[:_MOST]
    return {
        "count": number(found.get("count")),
        "waits": {_text(k): _numbers(_object(v), ("count", "longest_s")) for k, v in waits},
        "oldest": [
            {
                name: _text(one.get(name))
                for name in ("rollout_id", "task_id", "waits_for", "engine")
            }
            | _numbers(one, ("turn", "age_s", "waits_s"))
            for one in _objects(found.get("oldest"))
        ],
    }


def _numbers(found: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float | None]:
    return {name: number(found.get(name)) for name in names}


def _text(value: Any) -> str:
    return shown(value[:_CHARS]) if isinstance(value, str) else ""


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [_object(one) for one in value[:_MOST]] if isinstance(value, list) else []
