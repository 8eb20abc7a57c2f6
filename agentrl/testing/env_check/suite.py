"""Fuzzes an environment and lists what would go wrong in a run.

Plain functions that return findings: `agentrl env check` prints them, a test of a user's own
environment asserts that there are none. Every phase works on fresh instances, as a run does, and
everything is closed before what is left behind is counted. A failing sandbox is not a finding; it
raises `SandboxError`.

Example:
    async def test_my_env():
        assert await check_env(MyEnv, [Task(id="0", prompt="Say 4", label="4")]) == []
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from agentrl.env import Action, AgentInstance
from agentrl.plugins.own_threads import keep_pool_free
from agentrl.sandbox import SandboxBackend, SandboxLimits
from agentrl.testing.env_check.actions import EMPTY, HUGE, MALFORMED, ordinary
from agentrl.testing.env_check.episode import (
    CheckLimits,
    Episode,
    Failed,
    Setting,
    TriedCounts,
    close,
)
from agentrl.testing.env_check.findings import broken
from agentrl.testing.env_check.solution import check_solution
from agentrl.testing.env_check.values import shown
from agentrl.testing.env_check.watch import Belongings, BlockingWatch, clear_away
from agentrl.tool import Tool
from agentrl.types import Task
from agentrl.types.finding import Finding

_GRACE_S = 2.0
"""Time that what close has cancelled gets to end; a loaded machine may need it."""
_LOOK_S = 0.1

_HOPELESS = frozenset({"E101", "E205", "E206", "E209"})
"""After these every further episode would only fail, or wait, in the same way."""

Solo = Mapping[tuple[int, str], tuple[str, ...]]
"""What an episode alone showed, by the task's index and the text sent every turn."""


async def check_env(
    make_env: Callable[[], AgentInstance],
    tasks: Sequence[Task],
    *,
    limits: CheckLimits | None = None,
    tools: Sequence[Tool] = (),
    backend: SandboxBackend | None = None,
    sandbox_limits: SandboxLimits | None = None,
    seed: int = 0,
    tried: TriedCounts | None = None,
) -> list[Finding]:
    """Everything wrong with an environment, at most one finding per code, in order of code.

    Args:
        make_env: makes a fresh instance, as for each rollout.
        tasks: what it is tried on; at least one.
        limits: time limits of the check.
        tools: offered to the environment in its context.
        backend: makes its sandboxes; None if it needs none. Stays open.
        sandbox_limits: limits of each sandbox.
        seed: `EnvContext.seed` of every episode.
        tried: counts what is tried.

    Raises:
        SandboxError: a sandbox failed, so nothing can be said.
        ValueError: no task was given.
    """
    if not tasks:
        raise ValueError("check_env needs at least one task")
    limits = limits or CheckLimits()
    findings: dict[str, Finding] = {}
    watch = BlockingWatch(limits.block_s)
    setting = Setting(
        make_env=make_env,
        limits=limits,
        tools=tools,
        backend=backend,
        sandbox_limits=sandbox_limits or SandboxLimits(),
        seed=seed,
        watch=watch,
        tried=tried if tried is not None else TriedCounts(),
        add=lambda finding: findings.setdefault(finding.name, finding) and None,
    )
    keep_pool_free()
    before = Belongings.now()
    kept = None
    try:
        with watch.armed():
            kept = await _run(setting, tasks[: limits.tasks], findings)
        # One process for all episodes, started by the first, is not left behind by any of them.
        leaks = await _left_behind(kept or before)
        for finding in leaks:
            setting.add(finding)
        if leaks:
            kept = None
    finally:
        await clear_away(kept or before)
    return sorted(findings.values(), key=lambda finding: finding.name)


async def _left_behind(before: Belongings) -> list[Finding]:
    """Findings about what stays after a while."""
    leaks: list[Finding] = []
    for _ in range(round(_GRACE_S / _LOOK_S)):
        await asyncio.sleep(_LOOK_S)
        leaks = list(Belongings.now().leaked_since(before))
        if not leaks:
            break
    return leaks


async def _run(
    setting: Setting, tasks: Sequence[Task], findings: Mapping[str, Finding]
) -> Belongings | None:
    """All phases; those that compare only where there is something to compare with.

    Returns:
        What this process held when the first episode was closed; None if there was none.
    """
    solo, kept = await check_ordinary(setting, tasks, findings)
    if _HOPELESS & findings.keys():
        return None
    if solo:
        await check_determinism(setting, tasks, solo)
        if "E105" not in findings:
            await check_second_reset(setting, tasks, solo)
            await check_neighbours(setting, tasks, solo)
    if "E201" not in findings:  # what ordinary text breaks, strange text breaks too
        await check_fuzz(setting, tasks[0])
    await check_close(setting, tasks[0])
    if not findings:  # what else is wrong with it, a solution would only show again
        await check_solution(setting, tasks)
    return kept


async def check_ordinary(
    setting: Setting, tasks: Sequence[Task], findings: Mapping[str, Finding]
) -> tuple[Solo, Belongings | None]:
    """Send each ordinary turn again and again until done, for each task.

    Returns:
        What was shown, and what this process held when the first episode was closed.
    """
    solo: dict[tuple[int, str], tuple[str, ...]] = {}
    kept = None
    for index, task in enumerate(tasks):
        setting.tried.tasks += 1
        for text in ordinary(task):
            async with AsyncExitStack() as stack:
                try:
                    episode = await Episode.begin(setting, stack, task)
                    await episode.play(text)
                except Failed:
                    if _HOPELESS & findings.keys():
                        return {}, None
                    continue
                solo[index, text] = tuple(episode.lines)
                if episode.done:
                    await episode.step_after_done(text)
            kept = kept or Belongings.now()
    return solo, kept


async def check_determinism(setting: Setting, tasks: Sequence[Task], solo: Solo) -> None:
    """The same seed and actions must show the same."""
    for (index, text), expected in solo.items():
        async with AsyncExitStack() as stack:
            try:
                episode = await Episode.begin(setting, stack, tasks[index])
                await episode.play(text)
            except Failed:
                continue
            if tuple(episode.lines) != expected:
                what = "the same seed and actions gave"
                setting.add(_differs("E105", what, expected, episode.lines))
                return


async def check_second_reset(setting: Setting, tasks: Sequence[Task], solo: Solo) -> None:
    """A second reset of one instance must begin as afresh as the first."""
    for (index, text), expected in solo.items():
        async with AsyncExitStack() as stack:
            try:
                episode = await Episode.begin(setting, stack, tasks[index])
                await episode.step(Action(text=text, raw_text=text))
                await episode.reset(code="E102")
                await episode.play(text)
            except Failed:
                return
            if tuple(episode.lines) != expected:
                what = "after a second reset an instance gave"
                setting.add(_differs("E102", what, expected, episode.lines))
                return


async def check_neighbours(setting: Setting, tasks: Sequence[Task], solo: Solo) -> None:
    """Episodes stepped in turn, none of them closed, must each go as they went alone."""
    chosen = dict([*list(solo.items())[:2], *list(solo.items())[-2:]])
    async with AsyncExitStack() as stack:
        episodes: dict[tuple[int, str], Episode] = {}
        try:
            for index, text in chosen:
                begun = await Episode.begin(setting, stack, tasks[index], code="E104")
                episodes[index, text] = begun
            limit = setting.limits.max_steps
            for turn in range(limit):
                for (_, text), episode in episodes.items():
                    if not episode.done:
                        last = turn == limit - 1
                        action = Action(text=text, raw_text=text, turn=turn, last=last)
                        await episode.step(action, code="E104")
        except Failed:
            return
        for key, episode in episodes.items():
            if tuple(episode.lines) != chosen[key]:
                what = "beside other instances one gave"
                setting.add(_differs("E104", what, chosen[key], episode.lines))
                return


async def check_fuzz(setting: Setting, task: Task) -> None:
    """Empty, huge and malformed turns, each followed by an ordinary one."""
    kinds = (("E202", "empty", EMPTY), ("E203", "huge", HUGE), ("E204", "malformed", MALFORMED))
    for code, kind, actions in kinds:
        for number, action in enumerate(actions, 1):
            setting.tried.malformed[kind] = number
            async with AsyncExitStack() as stack:
                try:
                    episode = await Episode.begin(setting, stack, task)
                    await episode.step(action, code=code)
                    if not episode.done:
                        await episode.step(Action(text="42", raw_text="42", turn=1), code=code)
                except Failed:
                    break


async def check_close(setting: Setting, task: Task) -> None:
    """Close before reset, and twice."""
    try:
        await close(setting, setting.make_env(), "before reset")
        async with AsyncExitStack() as stack:
            episode = await Episode.begin(setting, stack, task)
            await episode.close("after reset")
            await episode.close("a second time", code="E403")
    except Failed:
        return


def _differs(code: str, what: str, expected: Sequence[str], got: Sequence[str]) -> Finding:
    pairs = list(zip(expected, got, strict=False))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    a = expected[position] if position < len(expected) else "nothing"
    b = got[position] if position < len(got) else "nothing"
    return broken(code, f"{what} {shown(b)}, and before {shown(a)}")
