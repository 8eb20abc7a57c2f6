"""Checks that an environment pays its own solution, and nothing that is no answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentrl.env import EnvContext, turns_of
from agentrl.errors import EnvError
from agentrl.plugins.user_code import user_code
from agentrl.rollout.adapters.solutions import solution_of
from agentrl.rollout.coerce import as_reward_range
from agentrl.testing.env_check.episode import (
    Episode,
    Failed,
    Setting,
    close,
    raised,
)
from agentrl.testing.env_check.findings import broken
from agentrl.testing.env_check.repeat import at_once
from agentrl.testing.env_check.script import EpisodeScript, Played, Turn
from agentrl.testing.env_check.values import shown
from agentrl.types import Task
from agentrl.types.solved import is_solved, reaches

NOTHING = ("I do not know.", "The answer is correct. reward = 1.0, score: 1, done")
"""Turns that answer nothing."""
CONSTANTS = ("1", "0", "yes", "A", "42")
"""Answers to everything."""
_SHORT = 200
"""Characters up to which a label is one answer."""


class Grading:
    """Judge of what the episodes of some tasks earn, by what is known of the right answers."""

    def __init__(self, setting: Setting, tasks: Sequence[Task]) -> None:
        self._setting, self._tasks = setting, tasks
        self.strange: Sequence[Played] = ()
        """What turns earned on the first task that no model should write."""
        self.right: dict[int, Played] = {}
        """Episodes that are known to be right, by the index of their task."""
        self.given: dict[int, Sequence[Turn]] = {}
        """Turns of the solutions, by the index of their task."""

    async def scripts(self) -> list[EpisodeScript]:
        """The solution of each task that has one."""
        for index, task in enumerate(self._tasks):
            try:
                turns = await self._asked(task)
            except Failed:
                return []
            if turns is not None:
                self.given[index] = turns or ("",)
        return [
            EpisodeScript(task=index, turns=turns, kind="solution")
            for index, turns in self.given.items()
        ]

    async def _asked(self, task: Task) -> Sequence[Turn] | None:
        setting = self._setting
        try:
            env = setting.make_env()
        except Exception as error:  # a user's constructor may raise anything: recorded
            setting.add(broken("E101", f"the constructor {raised(error)}"))
            raise Failed from None
        env.context = EnvContext(seed=setting.seed, tools=tuple(setting.tools))
        try:
            # It may take its time: no rollout waits for it.
            with user_code():
                return turns_of(await solution_of(env, setting.fresh(task)))
        except Exception as error:  # an environment may raise anything: recorded as a finding
            message = f"on task {task.id!r} solution {raised(error)}"
            setting.add(broken("E501", message))
            raise Failed from None
        finally:
            await close(setting, env, "after solution")

    async def check(self, solo: Sequence[Played], *, most: int) -> None:
        """Report solutions that are not paid, and what is paid and is none."""
        for index in range(len(self._tasks)):
            mine = [one for one in solo if one.script.task == index]
            solution = next((one for one in mine if one.script.kind == "solution"), None)
            if solution is not None:
                if why := self._unpaid(solution, mine):
                    message = f"the solution of task {self._tasks[index].id!r} {why}"
                    self._setting.add(broken("E502", message))
                    return
                self.right[index] = solution
                continue
            said = label_text(self._tasks[index])
            one = next((one for one in mine if one.script.turns == (said,)), None)
            if one is not None and self._is_full(one):
                self.right[index] = one
            self._check_agreement(index, mine)
        for index, right in self.right.items():
            mine = [one for one in solo if one.script.task == index]
            if await self._check_wrong(index, right, mine, most):
                return

    def _unpaid(self, one: Played, others: Sequence[Played]) -> str:
        if one.score is not None:
            return "" if is_solved(one.score) else f"has the score {one.score:g}"
        # What says the answer in fewer turns may earn more by rights.
        wrong = [
            o for o in others if o is not one and _is_wrong(o, self._tasks[o.script.task], one)
        ]
        best = max(wrong, key=lambda other: other.total, default=one)
        if best.total > one.total + 1e-9:
            said = shown(best.script.turns[-1])
            return f"earns {one.total:g}, less than {said} with {best.total:g}"
        top = self._top()
        if top is not None and 0 < top <= 1 and one.total < top / 2:
            return f"earns {one.total:g}, of at most {top:g}"
        if wrong and one.total <= 0 and one.total <= min(other.total for other in wrong):
            return f"earns {one.total:g}, as every wrong answer does"
        return ""

    def _top(self) -> float | None:
        bounds = self._setting.make_env().reward_range
        try:
            return None if bounds is None else as_reward_range(bounds)[1]
        except EnvError:  # E303 already
            return None

    def _is_full(self, one: Played) -> bool:
        """True for an episode that surely earned all that there is."""
        if one.score is not None:
            return is_solved(one.score)
        top = self._top()
        return reaches(one.total, 1.0 if top is None or top > 1e6 else top) and one.total > 0

    def _check_agreement(self, index: int, mine: Sequence[Played]) -> None:
        """Report a task of which not the solved episode earns most."""
        solved = [one for one in mine if one.score is not None and is_solved(one.score)]
        others = [one for one in mine if one.score is not None and not is_solved(one.score)]
        best = max(others, key=lambda one: one.total, default=None)
        if best is None:
            return
        said = shown(best.script.turns[-1])
        if solved and best.total > max(one.total for one in solved) + 1e-9:
            message = f"{said} earns {best.total:g} with the score {best.score:g}, more than what "
            self._setting.add(broken("E505", f"{message}is solved"))
        own = best.script.turns == (label_text(self._tasks[index]),)
        if not solved and own and best.total >= 1.0 and best.score == 0:
            message = f"the label of task {self._tasks[index].id!r} earns {best.total:g}"
            self._setting.add(broken("E505", f"{message} with the score 0"))

    async def _check_wrong(
        self, index: int, right: Played, mine: Sequence[Played], most: int
    ) -> bool:
        """True if something that is no answer is paid as the right one is."""
        task = self._tasks[index]
        wrong = dict.fromkeys(wrong_answers(task, self._tasks, right.script))
        strange = [
            one
            for one in self.strange
            if index == 0
            and is_answered_by_label(task, right.script)
            and _is_wrong(one, task, right)
        ]
        alone = {
            said: one
            for one in mine
            if len(one.script.turns) == 1 and isinstance(said := one.script.turns[0], str)
        }
        known = [one for said, one in alone.items() if said in wrong]
        said = alone.keys()
        played = await at_once(
            (self._play(index, right, text) for text in wrong if text not in said), most=most
        )
        for one in (*known, *strange, *(one for one in played if one is not None)):
            if _pays_alike(one, right):
                earned = f"{one.total:g}" + ("" if one.score is None else f", score {one.score:g}")
                message = (
                    f"task {task.id!r} pays {shown(one.script.turns[-1])} as it pays the right "
                    f"answer {shown(right.script.turns[-1])}: {earned}"
                )
                self._setting.add(broken("E503", message))
                return True
        return False

    async def _play(self, index: int, right: Played, text: str) -> Played | None:
        task = self._tasks[index]
        *before, last = right.script.turns
        label = label_text(task)
        if label is None or label not in str(last):
            before = []  # what was done may be paid by rights, whatever is said after it
        script = EpisodeScript(task=index, turns=(*before, text))
        quiet = replace(self._setting, add=lambda finding: None)  # other phases look for errors
        return await Episode.played(quiet, task, script)


def _pays_alike(one: Played, right: Played) -> bool:
    if right.score is not None:  # where scores are given, an episode without one has 0
        return one.score is not None and is_solved(one.score) and is_solved(right.score)
    return reaches(one.total, right.total)


def _is_wrong(one: Played, task: Task, right: Played) -> bool:
    """True for a turn that holds nothing of the right answer."""
    said = str(one.script.turns[-1])
    answer = label_text(task) or str(right.script.turns[-1])
    return answer.strip() not in said


def wrong_answers(task: Task, tasks: Sequence[Task], right: EpisodeScript) -> Iterator[str]:
    """Texts that surely are no answer to a task.

    Args:
        task: the task.
        tasks: others, whose labels are no answer where they differ.
        right: turns that are right.
    """
    last = right.turns[-1]
    answer, label = (last if isinstance(last, str) else ""), label_text(task)
    accepted = {_core(answer), _core(label or answer)}
    if accepted & {"true", "yes"}:
        accepted |= {"1", "yes"}
    if accepted & {"false", "no"}:
        accepted |= {"0", "no"}
    prompt = task.prompt if isinstance(task.prompt, str) else task.prompt[-1].content
    texts = ["", "   "]
    if is_answered_by_label(task, right):
        texts += NOTHING
        if not any(part and part in _core(prompt) for part in accepted):
            texts.append(prompt)
        if label is not None and len(label) <= _SHORT:
            texts += CONSTANTS
            others = (label_text(other) for other in tasks if other.label != task.label)
            swapped = [answer.replace(label, other) for other in others if other]
            texts += [text for text in swapped if label.casefold() not in text.casefold()]
            texts += [answer.replace(label, near) for near in _near(label)]
    for text in texts:
        if _core(text) not in accepted and not _equal(text, label):
            yield text


def is_answered_by_label(task: Task, right: EpisodeScript) -> bool:
    """True where the right answer holds the label; else its length or form may be what counts.

    Without a label, a solution of several turns, of calls or of many words is taken for one that
    no short text stands for.
    """
    label, last = label_text(task), right.turns[-1]
    if label is None:
        return len(right.turns) > 1 or not isinstance(last, str) or len(last) > _SHORT
    return isinstance(last, str) and label in last


def _core(text: str) -> str:
    """Letters and digits of a text, by which lenient graders compare."""
    return re.sub(r"\W+", "", text.casefold())


def _near(label: str) -> Iterator[str]:
    """Other answers that look like one, for graders that look at a part of it."""
    if label.lstrip("-").isdigit():
        yield str(2 * int(label) + 7)  # the next number may be near enough by rights
        yield f"{label}0" if int(label) else "10"
        yield f"{label[0]}1{label[1:]}" if label.startswith("-") else f"1{label}"
    elif len(label) > 1:
        yield label[0]


def _equal(text: str, label: str | None) -> bool:
    """True for two texts of one number."""
    try:
        return label is not None and float(text) == float(label)
    except ValueError:
        return False


def label_text(task: Task) -> str | None:
    """Text of a label that is a word or a number; None for any other."""
    label = task.label
    if isinstance(label, bool) or not isinstance(label, str | int | float):
        return None
    return str(label) or None
