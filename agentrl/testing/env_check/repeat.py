"""Compares episodes with the same episodes again: later, after another, beside others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

from agentrl.testing.env_check.episode import Episode, Failed, NoSuchTool, Setting
from agentrl.testing.env_check.findings import broken
from agentrl.testing.env_check.script import Played
from agentrl.testing.env_check.stays import open_files
from agentrl.testing.env_check.values import shown
from agentrl.types import Task

T = TypeVar("T")

_ROUNDS = 8
"""Times that every episode is repeated, as long as `CheckLimits.repeat_s` lasts."""
_CLOSING_S = 0.5
"""Time that connections get to end once their environment is closed."""
_FEWEST = 2
"""Episodes that are played again however long they take."""
_AGAIN_S = 2.0
_RESETS_S = 1.0
"""Seconds of episodes, as they took at first, that are played again, and behind a second reset."""
_LEAD = 30
"""Characters shown before the place in which two lines begin to differ."""


async def check_again(setting: Setting, tasks: Sequence[Task], solo: Sequence[Played]) -> str:
    """The same seed and actions must show the same, and hold up nobody, and close what they open.

    Returns:
        What differed, whose cause is still to be told; empty if nothing did.
    """
    began, left = time.monotonic(), 0
    solo, stalls = within(solo, _AGAIN_S), setting.watch.stalls
    held: list[Played] = []
    for round_ in range(_ROUNDS):
        for one in solo:
            if round_ and time.monotonic() - began > setting.limits.repeat_s:
                return ""
            before = open_files()
            stalls.clear()
            async with AsyncExitStack() as stack:
                try:
                    episode = await Episode.begin(setting, stack, tasks[one.script.task])
                    again = await episode.play(one.script)
                except (Failed, NoSuchTool):
                    continue
            if again.lines != one.lines:
                return difference("the same seed and actions gave", one.lines, again.lines)
            if round_ == 0:
                held += [one] * bool(stalls)
                opened = await _opened_since(before)
                left += bool(opened)
                if opened and left >= min(_FEWEST, len(solo)):
                    message = f"after close {len(opened)} are still open: {', '.join(opened[:3])}"
                    setting.add(broken("E409", message))
        if round_ == 0 and held:
            await _check_stalls(setting, tasks, held)
    return ""


async def _check_stalls(setting: Setting, tasks: Sequence[Task], held: Sequence[Played]) -> None:
    """Report episodes that hold the event loop each time; once is the machine's doing."""
    stalls = setting.watch.stalls
    for one in held[:_FEWEST]:
        for _ in range(_FEWEST):
            stalls.clear()
            if await Episode.played(setting, tasks[one.script.task], one.script) is None:
                return
            if not stalls:
                break
        else:
            seconds, place = max(stalls)
            at = f" in {place}" if place else ""
            message = f"the event loop was held for {seconds:.1f} s that nothing computed{at}"
            setting.add(broken("E206", message))
            return


async def _opened_since(before: frozenset[tuple[str, str]]) -> list[str]:
    """Names of what was opened since and stays so; the environment must still be held."""
    ends = time.monotonic() + _CLOSING_S
    while (opened := open_files() - before) and time.monotonic() < ends:
        await asyncio.sleep(0.02)
    return sorted(name for _, name in opened)


async def check_second_reset(
    setting: Setting, tasks: Sequence[Task], solo: Sequence[Played]
) -> None:
    """A second reset of one instance must begin as afresh as the first."""
    for one in within(solo, _RESETS_S):
        async with AsyncExitStack() as stack:
            try:
                episode = await Episode.begin(setting, stack, tasks[one.script.task])
                await episode.step(await episode.act(one.script.turns[0]))
                await episode.reset(code="E102")
                again = await episode.play(one.script)
            except (Failed, NoSuchTool):
                return
            if again.lines != one.lines:
                what = "after a second reset an instance gave"
                setting.add(broken("E102", difference(what, one.lines, again.lines)))
                return


async def check_neighbours(setting: Setting, tasks: Sequence[Task], solo: Sequence[Played]) -> None:
    """Episodes that go on at once, none of them closed, must each go as they went alone."""
    chosen = _spread(solo)
    limit = setting.limits.max_steps
    async with AsyncExitStack() as stack:
        try:
            episodes = await at_once(
                Episode.begin(setting, stack, tasks[one.script.task], code="E104") for one in chosen
            )
            pairs = list(zip(episodes, chosen, strict=True))
            for turn in range(limit):
                await at_once(
                    _turn(episode, one, turn, last=turn == limit - 1)
                    for episode, one in pairs
                    if not episode.done
                )
        except (Failed, NoSuchTool):
            return
        for episode, one in pairs:
            if tuple(episode.lines) != one.lines:
                what = "beside other instances one gave"
                setting.add(broken("E104", difference(what, one.lines, episode.lines)))
                return


async def _turn(episode: Episode, one: Played, turn: int, *, last: bool) -> None:
    said = one.script.turns[min(turn, len(one.script.turns) - 1)]
    action = await episode.act(said)
    await episode.step(replace(action, turn=turn, last=last), code="E104")


async def at_once(works: Iterable[Coroutine[Any, Any, T]], *, most: int = 0) -> list[T]:
    """Results of works that go on at once; the first error of them once all have ended.

    Args:
        works: coroutines.
        most: how many go on at once; 0 for all.
    """
    given = list(works)
    places = asyncio.Semaphore(most or max(1, len(given)))

    async def one(work: Coroutine[Any, Any, T]) -> T:
        async with places:
            return await work

    found = await asyncio.gather(*map(one, given), return_exceptions=True)
    results: list[T] = []
    for result in found:
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def within(solo: Sequence[Played], seconds: float) -> list[Played]:
    """Episodes to play again, as long as the time lasts: of each task first the best paid."""
    order = [*_spread(solo), *solo]
    chosen: list[Played] = []
    for one in {id(one): one for one in order}.values():
        seconds -= one.seconds
        if len(chosen) < _FEWEST or seconds >= 0:
            chosen.append(one)
    return chosen


def _spread(solo: Sequence[Played]) -> list[Played]:
    """Of each task what earned most and the first that was played; the first of each kind."""
    first = {(one.script.task, one.script.kind): one for one in reversed(solo)}
    best = {one.script.task: one for one in sorted(solo, key=lambda one: one.total)}
    return list({id(one): one for one in (*best.values(), *first.values())}.values())


def difference(what: str, expected: Sequence[str], got: Sequence[str]) -> str:
    """A message with the first line in which two episodes differ.

    Args:
        what: words before what was got.
        expected: lines of the one before.
        got: lines of the other.
    """
    pairs = list(zip(expected, got, strict=False))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    a = expected[position] if position < len(expected) else "nothing"
    b = got[position] if position < len(got) else "nothing"
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    start = max(0, same - _LEAD)
    return f"{what} {shown(b[start:])}, and before {shown(a[start:])}"
