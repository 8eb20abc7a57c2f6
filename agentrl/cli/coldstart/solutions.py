"""Episodes that are learned from: the environment's own solutions, or those of a served teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agentrl.cli.console.options import watched
from agentrl.config.plan import Plan
from agentrl.data import TrajectoryStore
from agentrl.disk.stored_groups import stored_groups
from agentrl.env import Solution
from agentrl.errors import ConfigError, some_of
from agentrl.machine.processes.stop import StopSwitch
from agentrl.runtime.progress import Progress
from agentrl.served import ServedSettings, read_settings
from agentrl.types import CallStatus, FinishReason, ToolCall, Trajectory
from agentrl.types.solved import reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartTeacher:
    """A served model whose episodes are learned from."""

    url: str
    """Address of its API, as http://HOST:PORT/v1."""
    model: str
    """Its name there."""
    attempts: int
    """Most rollouts of one task; the first that is paid is taken."""
    key_env: str
    """Variable that holds the key; empty for none."""

    @classmethod
    def named(
        cls, url: str | None, model: str | None, *, attempts: int, key_env: str
    ) -> ColdStartTeacher:
        """The teacher that the options name.

        Raises:
            ConfigError: one of the two is not given, or the settings are wrong.
        """
        if url is None or model is None:
            raise ConfigError(
                "coldstart: a teacher needs both --teacher URL and --teacher-model NAME, the name "
                "of the model at its server"
            )
        teacher = cls(url=url, model=model, attempts=attempts, key_env=key_env)
        teacher.settings().require_key()
        return teacher

    def settings(self) -> ServedSettings:
        """Bounds within which its server is asked."""
        values = {"url": self.url, "model": self.model, "api_key_env": self.key_env}
        return read_settings(values, "--teacher")


def require_paid(folder: Path, *, min_score: float, own: bool, parser: str) -> str:
    """One line about the recorded episodes; a teacher's that are no good are taken out.

    Args:
        folder: of `record_solutions`.
        min_score: least score that is learned from.
        own: whether they are the environment's own, all of which have to be paid.
        parser: `chat.tool_parser`, which has to read their calls.

    Raises:
        ConfigError: one of the environment's own is not paid, or none is; names tasks and scores.
    """
    store = TrajectoryStore(folder / "trajectories")
    groups = stored_groups(store, "train", 0)
    faults = {group.group_id: _fault(group.trajectories, min_score) for group in groups}
    good = [group for group in groups if not faults[group.group_id]]
    bad = [group for group in groups if faults[group.group_id]]
    named = some_of(f"task {group.task_id!r} ({faults[group.group_id]})" for group in bad)
    if not good or (own and bad):
        raise ConfigError(
            f"{len(bad)} of {len(groups)} solutions cannot be learned from: {named}; see one with "
            f"agentrl traj show {folder}; mend solution() or the reward, raise the limits of "
            f"rollout, lower --min-score, or set chat.tool_parser ({parser}) so that calls are read"
        )
    if bad:
        store.write(0, "train", good, None)
        return f"solutions: {len(good)} tasks; left out when played again: {named}"
    return f"solutions: {len(good)} tasks, each with a score of at least {min_score:g}"


def _fault(rows: Sequence[Trajectory], min_score: float) -> str:
    """Why an episode must not be learned from; empty where it may."""
    last, turns = rows[-1], [turn for row in rows for turn in row.turns]
    if any(turn.finish_reason == FinishReason.LENGTH for turn in turns):
        return "a turn is cut off at rollout.max_turn_tokens"
    wrong = [call for turn in turns for call in turn.tool_calls if call.status != CallStatus.OK]
    if wrong:
        return f"a call cannot be read: {wrong[0].error}"
    if not _is_paid(last, min_score):
        score = last.reward if last.score is None else last.score
        scored = "no score" if score is None else f"score {score:g}"
        return f"{scored}, {last.termination}"
    return ""


def _is_paid(row: Trajectory, min_score: float) -> bool:
    score = row.reward if row.score is None else row.score
    return row.rule.reward_trusted and score is not None and reaches(score, min_score)


def teacher_solutions(
    plan: Plan,
    teacher: ColdStartTeacher,
    *,
    tasks: int | None,
    min_score: float,
    out: Path,
    console: Console,
) -> Mapping[str, Solution]:
    """Turns of a served model where it was paid, by task id.

    Each task's attempts are on disk as soon as they have ended; those that are there are not made
    again.

    Raises:
        ConfigError: it solves no task.
        AgentrlError: it cannot be asked.
    """
    watched(
        console,
        lambda progress: _ask(plan, teacher, tasks=tasks, out=out, progress=progress),
        stopped="stopped; the same command goes on, and asks nothing again that is there",
    )
    solved: dict[str, Solution] = {}
    asked: set[str] = set()
    for stored in TrajectoryStore(out / "trajectories").read("train"):
        row = stored.trajectory
        asked.add(row.task_id)
        if row.row_index == 0 and _is_paid(row, min_score) and row.task_id not in solved:
            solved[row.task_id] = turns_said(row)
    if not solved:
        raise ConfigError(
            f"the teacher {teacher.model} at {teacher.url} solved none of {len(asked)} tasks in "
            f"{teacher.attempts} attempts each; see what it said with agentrl traj show {out}, "
            "take a stronger one or easier tasks, or write solution() in the environment"
        )
    return solved


def turns_said(row: Trajectory) -> Solution:
    """The turns of the model in an episode; words beside a call are left out."""
    turns: list[str | ToolCall] = []
    for turn in row.turns:
        if turn.role == "assistant":
            calls = [call for call in turn.tool_calls if call.status == CallStatus.OK]
            turns += calls or [turn.text]
    return turns


async def _ask(
    plan: Plan,
    teacher: ColdStartTeacher,
    *,
    tasks: int | None,
    out: Path,
    progress: Progress,
) -> None:
    """Roll the training tasks out that are not stored yet; each group is a step of its own."""
    from agentrl.runtime.checks.task_faults import training_tasks
    from agentrl.runtime.drivers.concurrency import RolloutLimit
    from agentrl.runtime.drivers.groups import run_groups, stable_seed
    from agentrl.runtime.launch import check_parts
    from agentrl.runtime.sampling.api import open_api_policy
    from agentrl.runtime.sampling.sample import logged, policy_sampling
    from agentrl.runtime.stages import HeldGroup

    stop, settings = StopSwitch(), teacher.settings()
    store = TrajectoryStore(out / "trajectories")
    with stop.on_signals():
        check_parts(plan)
        there = store.steps() if "train" in store.kinds() else []
        done = {stored.trajectory.task_id for stored in store.read("train")} if there else set()
        left = [task for task in training_tasks(plan).train[:tasks] if task.id not in done]
        number = max(there, default=0)
        if not left:
            return

        def keep(group: HeldGroup) -> None:
            nonlocal number
            number += 1
            store.write(number, "train", [group.group], None)
            progress.advance(teacher.attempts, group.report.tokens)

        seed, section = plan.schedule.run.seed, plan.rollouts.rollout
        opened = open_api_policy(plan.rollouts, settings, native_tools=True)
        async with logged(opened, out) as policy:
            progress.phase(f"teacher {teacher.model}", len(left) * teacher.attempts)
            await stop.guard(
                run_groups(
                    policy.rollouts,
                    left,
                    name="teacher",
                    n=teacher.attempts,
                    sampling=policy_sampling(section, policy, section.temperature),
                    seed=lambda task: stable_seed(seed, "teacher", task.id),
                    limit=RolloutLimit(2 * settings.max_in_flight),
                    on_group=keep,
                )
            )
