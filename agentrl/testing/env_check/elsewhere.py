"""Compares episodes with the same episodes in other processes.

Three processes differ in everything that must not matter: the seed of `hash`, the time zone, the
clock, the order of the episodes. Only where they disagree do more of them tell which it was, each
with one thing changed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from agentrl.machine.processes.child import ChildEnded, ChildProcess
from agentrl.testing.env_check.episode import Setting
from agentrl.testing.env_check.findings import broken
from agentrl.testing.env_check.repeat import difference, within
from agentrl.testing.env_check.script import Played
from agentrl.types.finding import Finding

_ANSWER_S = 60.0
_GRACE_S = 1.0
"""Time that a process, and what it has started, gets to end."""
_DAY_S = 86400.0
_PLAY_S = 2.0
"""Seconds of episodes, as they took here, that another process plays."""
_PAIR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conditions:
    """One way in which a process may differ."""

    code: str = "E105"
    what: str = "in another process the same seed and actions gave"
    hash_seed: int = 0
    zone: str = "UTC0"
    clock_s: float = 0.0
    reversed: bool = False


_HERE = _Conditions()
# Noon lies between two of them, by local time and by UTC, at whatever hour a check begins.
_FIRST = (
    _HERE,
    _Conditions(hash_seed=1, zone="AAA-14", clock_s=200.5 * _DAY_S, reversed=True),
    _Conditions(hash_seed=2, zone="BBB+12", clock_s=-100 * _DAY_S),
)
_HASH = "with another PYTHONHASHSEED the same seed and actions gave"
_ZONE = "in another time zone the same seed and actions gave"
_CLOCK = "at another time of the clock the same seed and actions gave"
_SECOND = (
    _HERE,
    _Conditions(code="E106", what=_HASH, hash_seed=1),
    _Conditions(code="E106", what=_HASH, hash_seed=2),
    _Conditions(code="E107", what=_ZONE, zone="AAA-14"),
    _Conditions(code="E107", what=_ZONE, zone="BBB+12"),
    _Conditions(code="E107", what=_CLOCK, clock_s=200.5 * _DAY_S),
    _Conditions(code="E107", what=_CLOCK, clock_s=-100 * _DAY_S),
    _Conditions(code="E104", what="with the episodes in another order one gave", reversed=True),
)


class Elsewhere(AbstractContextManager["Elsewhere"]):
    """Processes that play what a check has played; they begin at once, and end with the block."""

    def __init__(self, target: Mapping[str, Any]) -> None:
        """Start the first processes at once.

        Args:
            target: `env`, `dataset`, `sandbox` (sections as plain data) and `base`.
        """
        self._target = target
        self._started = [_start(place) for place in _FIRST]

    def __exit__(self, *error: object) -> None:
        """End all processes that were started."""
        for process in self._started:
            process.close()

    async def compare(
        self, setting: Setting, solo: Sequence[Played], *, unlike: str
    ) -> list[Finding]:
        """Findings about what differs between processes, and about the cause of what differs here.

        Args:
            setting: of the check.
            solo: what was played, of which some is played again.
            unlike: how one episode differed from itself in this process; empty if none did.
        """
        chosen = within(solo, _PLAY_S)
        request = {
            **self._target,
            "seed": setting.seed,
            "tasks": setting.limits.tasks,
            "limits": asdict(setting.limits),
            "scripts": [one.script.as_json() for one in chosen],
        }
        if not setting.tried.sandbox:
            request["sandbox"] = None
        first = await self._answers(setting, _FIRST, request, self._started)
        here = first[0]
        if unlike:
            # As a process of its own shows the same each time, what went before is what counts.
            again = here and (await self._answers(setting, [_HERE], request))[0]
            kept = again is not None and _differs(here, again) is None
            return [broken("E104" if kept else "E105", unlike)]
        if not any(_differs(here, other) for other in first[1:]):
            return []
        # Alone, with nothing else changed; in pairs, as the machine may have two cores.
        for at in range(0, len(_SECOND), _PAIR):
            places = _SECOND[at : at + _PAIR]
            others = await self._answers(setting, places, request)
            for place, other in zip(places, others, strict=True):
                if (found := _differs(here, other)) is not None:
                    code = "E109" if found.tasks and place.code == "E105" else place.code
                    return [broken(code, f"{place.what} {found.text}")]
        return []

    async def _answers(
        self,
        setting: Setting,
        places: Sequence[_Conditions],
        request: Mapping[str, Any],
        started: Sequence[ChildProcess] = (),
    ) -> list[Mapping[str, Any] | None]:
        processes = started or [_start(place) for place in places]
        if not started:
            self._started += processes
        pairs = zip(processes, places, strict=True)
        answers = await asyncio.gather(*(_asked(*pair, request) for pair in pairs))
        for process in processes:
            await asyncio.to_thread(process.close)
        setting.tried.processes += sum(answer is not None for answer in answers)
        return answers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    text: str
    tasks: bool


def _start(place: _Conditions) -> ChildProcess:
    changed = {"PYTHONHASHSEED": str(place.hash_seed), "TZ": place.zone, "OMP_NUM_THREADS": "1"}
    return ChildProcess(
        "agentrl.testing.env_check.replay:serve", env={**os.environ, **changed}, grace_s=_GRACE_S
    )


async def _asked(
    process: ChildProcess, place: _Conditions, request: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """The answer of a process; None if it gave none."""
    told = {**request, "clock_s": place.clock_s, "reversed": place.reversed}
    try:
        return (await process.ask_async(told, timeout_s=_ANSWER_S)).head
    except (ChildEnded, TimeoutError, ValueError):
        return None


def _differs(here: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> _Difference | None:
    if here is None or other is None:
        return None
    if here["tasks"] != other["tasks"]:
        pairs = zip(here["tasks"], other["tasks"], strict=False)
        one, two = next(((a, b) for a, b in pairs if a != b), (here["tasks"], other["tasks"]))
        return _Difference(text=f"the task {two}, and before {one}", tasks=True)
    for mine, theirs in zip(here["plays"], other["plays"], strict=True):
        # One that failed there alone may have stumbled over the clock that is not the real one.
        if mine is not None and theirs is not None and mine != theirs:
            return _Difference(text=difference("", mine, theirs).strip(), tasks=False)
    return None
