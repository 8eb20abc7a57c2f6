"""Plays known answers through the rollout loop of a run, each several times.

A grader that raises now and then, or pays by luck, is seen only in repeats; so there are no second
attempts, which would hide it, and all gradings of a task have the same seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.chat import ChatFormat
from agentrl.chat.pictures.slots import ImageReader
from agentrl.config.plan import RolloutPlan
from agentrl.env import Solution
from agentrl.preflight.loop_time import held_up
from agentrl.preflight.reward.known_answers import (
    IN_FLIGHT,
    LIMITS,
    SOLVED,
    AnswerKind,
    AskedAnswer,
    TriedAnswer,
    answer_of,
    answers_to,
    find_solutions,
)
from agentrl.preflight.reward.scripted_generator import ScriptedGenerator, script_of
from agentrl.rollout import RolloutWorker
from agentrl.runtime.assembly.parts import make_worker, open_sandboxes
from agentrl.runtime.assembly.tools import open_tools
from agentrl.runtime.drivers.concurrency import RolloutLimit
from agentrl.runtime.drivers.groups import run_groups, stable_seed
from agentrl.types import SamplingParams, Task

_NAME = "preflight"
REPEATS = 5
"""Times that every answer is graded: what is paid by luck, or raises sometimes, shows then."""
REPEATS_S = 120.0
"""Seconds after which no further round begins that would take longer; two are always made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedAnswers:
    """All that was tried on the reward code."""

    answers: tuple[TriedAnswer, ...]
    """Every grading; those of one answer share `kind` and `task_id`."""
    solutions: Mapping[str, Solution]
    """Solutions that the environment gives, by task id."""
    held_up_s: float
    """Seconds in which the event loop stood still for a grading, on average."""


async def try_answers(
    plan: RolloutPlan,
    *,
    seed: int,
    tokenizer: Any,
    chat: ChatFormat,
    tasks: Sequence[Task],
    more: Sequence[Task] = (),
    make_env: Callable[[], Any],
    images: ImageReader | None = None,
) -> TriedAnswers:
    """Put every kind of answer through the rollout loop of the run, without retries.

    Each is graded `REPEATS` times with the same seed, or fewer where a round takes long.

    Args:
        plan: of the run.
        seed: of the run.
        tokenizer: of the policy.
        chat: made of it.
        tasks: a few.
        more: those that the solution is tried on, once, if it solves none of `tasks`.
        make_env: makes a fresh environment, which may know what solves them.
        images: image processor of the policy; None for one that reads text only.

    Raises:
        AgentrlError: the loop cannot be put together, or `solution` fails.
    """
    plan = replace(plan, rollout=plan.rollout.model_copy(update={"retries": 0}))
    async with open_tools(plan.env, base=plan.base) as tools:
        solutions = await find_solutions(make_env, tasks, tools)
        asked = answers_to(plan.rollout, chat, tasks, solutions)
        scripted = ScriptedGenerator({})
        sandboxes = await open_sandboxes(plan.sandbox, base=plan.base)
        try:
            worker, _ = make_worker(
                plan,
                generator=scripted,
                tokenizer=tokenizer,
                sandboxes=sandboxes,
                tools=tools,
                images=images,
            )
            player = _AnswerPlayer(plan, seed, worker=worker, scripted=scripted, chat=chat)
            async with held_up() as held:
                answers = await _rounds(player, asked)
            held_up_s = held.total_s / max(1, len(answers))
            if _solves_none(answers):
                solutions |= await find_solutions(make_env, more, tools)
                known = [task for task in more if task.id in solutions]
                asked = [
                    AskedAnswer(kind=AnswerKind.SOLUTION, task=task, said=solutions[task.id])
                    for task in known
                ]
                answers += await player.play(asked, "more")
        finally:
            await sandboxes.close()
    return TriedAnswers(answers=tuple(answers), solutions=solutions, held_up_s=held_up_s)


class _AnswerPlayer:
    """Plays scripted answers as groups of one."""

    def __init__(
        self,
        plan: RolloutPlan,
        seed: int,
        *,
        worker: RolloutWorker,
        scripted: ScriptedGenerator,
        chat: ChatFormat,
    ) -> None:
        self._plan, self._seed = plan, seed
        self._worker, self._scripted, self._chat = worker, scripted, chat

    async def play(self, asked: Sequence[AskedAnswer], name: str) -> list[TriedAnswer]:
        """Grade each answer once; the same task has the same seed in all rounds."""
        plan, chat, name = self._plan, self._chat, f"{_NAME}-{name}"
        for position, each in enumerate(asked):
            group_id = f"{name}/{position:04d}-{each.task.id}"
            self._scripted.add(group_id, script_of(each.said, chat, plan.chat))
        groups = await run_groups(
            self._worker,
            [each.task for each in asked],
            name=name,
            n=1,
            sampling=SamplingParams(
                max_tokens=plan.rollout.max_turn_tokens, stop_token_ids=chat.stop_token_ids
            ),
            seed=lambda task: stable_seed(self._seed, _NAME, task.id),
            limit=RolloutLimit(IN_FLIGHT),
        )
        return [
            answer_of(group.trajectories[-1], each.kind)
            for each, group in zip(asked, groups, strict=True)
        ]


async def _rounds(player: _AnswerPlayer, asked: Sequence[AskedAnswer]) -> list[TriedAnswer]:
    began, answers = time.monotonic(), list[TriedAnswer]()
    for number in range(REPEATS):
        answers += await player.play(asked, str(number))
        spent_s = time.monotonic() - began
        if number and spent_s * (number + 2) / (number + 1) > REPEATS_S:
            break
    return answers


def _solves_none(answers: Sequence[TriedAnswer]) -> bool:
    known = [a for a in answers if a.kind == AnswerKind.SOLUTION and a.reward is not None]
    fit = [a for a in known if a.termination not in LIMITS and not a.truncated]
    return bool(fit) and all(a.score is not None and a.score < SOLVED for a in fit)
