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
from contextlib import AsyncExitStack, suppress

from agentrl.env import Action, AgentInstance, ProgramEnv
from agentrl.plugins.own_threads import keep_pool_free
from agentrl.sandbox import SandboxBackend, SandboxLimits
from agentrl.testing.env_check.actions import EMPTY, HUGE, MALFORMED, ordinary
from agentrl.testing.env_check.answers import check_shown
from agentrl.testing.env_check.elsewhere import Elsewhere
from agentrl.testing.env_check.episode import (
    CheckLimits,
    Episode,
    Failed,
    NoSuchTool,
    Setting,
    TriedCounts,
    close,
)
from agentrl.testing.env_check.findings import broken
from agentrl.testing.env_check.grading import Grading, label_text
from agentrl.testing.env_check.intrusion import check_cancelled, check_code
from agentrl.testing.env_check.process import process_changes
from agentrl.testing.env_check.repeat import (
    at_once,
    check_again,
    check_neighbours,
    check_second_reset,
)
from agentrl.testing.env_check.script import EpisodeScript, Played
from agentrl.testing.env_check.stays import Belongings, clear_away, made_files
from agentrl.testing.env_check.tool_calls import check_tools, scripts_of_calls
from agentrl.testing.env_check.watch import BlockingWatch
from agentrl.tool import Tool
from agentrl.types import Task
from agentrl.types.finding import Finding

_GRACE_S = 2.0
"""Time that what close has cancelled gets to end; a loaded machine may need it."""
_LOOK_S = 0.1
_AT_ONCE = 6
"""Episodes that go on at once where they do not disturb each other."""
_PLAY_S = 3.0
"""Seconds after which further tasks are played with one answer alone, the right one if known."""

_HOPELESS = frozenset({"E101", "E205", "E206", "E209"})
"""After these every further episode would only fail, or wait, in the same way."""

_STAYS = frozenset({"E404", "E405", "E406"})
_BAD_TOOLS = frozenset({"E601", "E602"})


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
    labelled: bool = True,
    paid: bool = True,
    elsewhere: Elsewhere | None = None,
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
        labelled: whether the labels are those of the environment, by which its pay is judged.
        paid: whether the environment itself pays; False where reward functions do.
        elsewhere: plays the same episodes in other processes; None compares within this one.

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
        with watch.armed(), made_files(), process_changes(setting.add):
            few = tasks[: limits.tasks]
            kept = await _run(setting, few, findings, elsewhere, labelled=labelled, paid=paid)
        if kept is None:
            await _report_left(setting, before)
        if _STAYS & findings.keys():
            kept = None
    finally:
        await clear_away(kept or before)
    return sorted(findings.values(), key=lambda finding: finding.name)


async def _report_left(setting: Setting, before: Belongings) -> None:
    """Report what stays after a while."""
    leaks: list[Finding] = []
    for _ in range(round(_GRACE_S / _LOOK_S)):
        await asyncio.sleep(_LOOK_S)
        leaks = list(Belongings.now().leaked_since(before))
        if not leaks:
            break
    for finding in leaks:
        setting.add(finding)


async def _run(
    setting: Setting,
    tasks: Sequence[Task],
    findings: Mapping[str, Finding],
    elsewhere: Elsewhere | None,
    *,
    labelled: bool,
    paid: bool,
) -> Belongings | None:
    """All phases; those that compare only where there is something to compare with.

    Returns:
        What this process held when every script had been played once; None if there was none.
    """
    grading = Grading(setting, tasks)
    solo = await play_all(setting, tasks, await grading.scripts(), findings)
    kept = Belongings.now()
    if _HOPELESS & findings.keys():
        return None
    unlike = ""
    if solo:
        unlike = await check_again(setting, tasks, solo)
        if _HOPELESS & findings.keys():
            return kept
        # What all episodes share, made by the first, is left behind by none of them; and an
        # instance of a run has one reset, so what a second one leaves says nothing.
        await _report_left(setting, kept)
        if not unlike:
            await check_second_reset(setting, tasks, solo)
            await check_neighbours(setting, tasks, solo)
    # One that disturbs its neighbours has none from here on.
    most = 1 if "E104" in findings or unlike else _AT_ONCE
    await check_tools(setting, tasks[0])
    if "E201" not in findings:  # what ordinary text breaks, strange text breaks too
        grading.strange = await check_fuzz(setting, tasks[0], most=most)
        await check_code(setting, tasks[0], calls=not _BAD_TOOLS & findings.keys())
    await check_cancelled(setting, tasks[0])
    await check_close(setting, tasks[0])
    if labelled and not unlike:
        if paid:
            await grading.check(solo, most=most)
        await check_shown(setting, tasks, [*solo, *grading.strange], grading)
    if elsewhere is not None and solo:
        for finding in await elsewhere.compare(setting, solo, unlike=unlike):
            setting.add(finding)
    elif unlike:
        setting.add(broken("E105", unlike))
    return kept


async def play_all(
    setting: Setting,
    tasks: Sequence[Task],
    solutions: Sequence[EpisodeScript],
    findings: Mapping[str, Finding],
) -> list[Played]:
    """Play for each task ordinary turns, calls of its tools, and its solution."""
    solo: list[Played] = []
    for index, task in enumerate(tasks):
        setting.tried.tasks += 1
        scripts = [
            EpisodeScript(task=index, turns=(text,)) for text in dict.fromkeys(ordinary(task))
        ]
        if (label := label_text(task)) is not None:
            scripts.append(EpisodeScript(task=index, turns=("I do not know.", label)))
        scripts += [script for script in solutions if script.task == index]
        if index and sum(one.seconds for one in solo) > _PLAY_S:
            scripts = scripts[-1:]
        calls: Sequence[EpisodeScript] | None = None
        while scripts:
            script = scripts.pop(0)
            async with AsyncExitStack() as stack:
                try:
                    episode = await Episode.begin(setting, stack, task)
                    if isinstance(episode.env, ProgramEnv) and script.kind != "ordinary":
                        continue  # its turns are asked for by a program
                    if calls is None:
                        calls = scripts_of_calls(index, episode.tools)
                        scripts += calls
                    solo.append(await episode.play(script))
                except NoSuchTool as error:
                    message = (
                        f"the solution of task {task.id!r} calls {error.args[0]!r}, which is not "
                        "offered; name its tool with --tool"
                    )
                    setting.add(broken("E502", message))
                    continue
                except Failed:
                    if _HOPELESS & findings.keys():
                        return []
                    continue
                # The same turn again: another one may be worth something else by rights.
                if (
                    episode.done
                    and len(script.turns) == 1
                    and isinstance(text := script.turns[0], str)
                ):
                    await episode.step_after_done(text)
    return solo


async def check_fuzz(setting: Setting, task: Task, *, most: int) -> list[Played]:
    """Empty, huge and malformed turns, each followed by an ordinary one.

    Returns:
        What those turns earned by themselves, and what was shown after them.
    """
    kinds = (("E202", "empty", EMPTY), ("E203", "huge", HUGE), ("E204", "malformed", MALFORMED))
    earned: list[Played] = []

    async def play(code: str, action: Action) -> None:
        async with AsyncExitStack() as stack:
            with suppress(Failed):
                episode = await Episode.begin(setting, stack, task)
                await episode.step(action, code=code)
                played = Played(
                    script=EpisodeScript(task=0, turns=(action.text,)),
                    lines=(),
                    total=episode.total,
                    score=episode.score,
                    shown=tuple(episode.shown),
                )
                earned.append(played)
                if not episode.done:
                    await episode.step(Action(text="42", raw_text="42", turn=1), code=code)

    for code, kind, actions in kinds:
        setting.tried.malformed[kind] = len(actions)
        await at_once((play(code, action) for action in actions), most=most)
    return earned


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
