"""Arithmetic in several steps, with a calculator the model may call.

Nothing here is about code: it is the second environment, and shows what the first one does not
use, tool calls that the loop runs and turns that end with an answer in words.

    env:
      target: agentrl_envs.arithmetic:ArithmeticTask
      tools: ["agentrl_tools.calculator:calculator"]
    dataset:
      source: agentrl_envs.arithmetic:make_tasks
    chat:
      tool_parser: hermes
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import ConfigError, choices
from agentrl.types import Explanation, Task

_NUMBER = r"-?\d[\d,]*+(?:\.\d++)?+"
_ANSWER = re.compile(rf"answer\s*+(?:is|=|:)?+\s*+\$?+({_NUMBER})", re.IGNORECASE)
_ANY = re.compile(rf"(?<![\w.]){_NUMBER}")
_TAIL_CHARS = 2000
_NAMES = ("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Mia", "Tom")
_THINGS = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps")


class ArithmeticTask(AgentInstance):
    """Solve a problem, calling tools as needed; a turn without a call is the answer.

    The last number after the word "answer" counts, or else the last number of the turn. The label
    of a task is the number.

    Args:
        max_turns: model turns; the last one is graded whatever it holds.
        tool_weight: shaping; added once if a tool call worked and the answer is wrong.
    """

    reward_range = (0.0, 1.0)

    def __init__(self, max_turns: int = 4, tool_weight: float = 0.0) -> None:
        if max_turns < 1 or not 0 <= tool_weight <= 1:
            raise ConfigError(
                "ArithmeticTask needs max_turns >= 1 and 0 <= tool_weight <= 1, got "
                f"{max_turns} and {tool_weight}"
            )
        self.max_turns = max_turns
        self.tool_weight = tool_weight

    async def reset(self, task: Task) -> Observation:
        """Show the model its problem.

        Raises:
            ValueError: the label is not a number.
        """
        try:
            self._expected = float(task.label)
        except (TypeError, ValueError):
            raise ValueError(
                f"task {task.id!r}: ArithmeticTask needs a number as label, got {task.label!r}"
            ) from None
        self._label = str(task.label)
        self._turns = 0
        self._calls = 0
        self._worked = 0
        return Observation(content=task.prompt)

    async def step(self, action: Action) -> StepResult:
        """Wait while the model calls tools; grade the turn in which it does not."""
        self._turns += 1
        self._calls += len(action.tool_calls)
        self._worked += sum(result.status == "ok" for result in action.tool_results)
        if action.tool_calls and not action.last and self._turns < self.max_turns:
            return StepResult()
        answer = final_number(action.text)
        solved = answer is not None and abs(answer - self._expected) <= 1e-6
        parts = {"answer": float(solved)}
        if self.tool_weight and not solved:
            parts["tool"] = self.tool_weight * float(self._worked > 0)
        return StepResult(
            rewards=sum(parts.values()),
            done=True,
            scores=float(solved),
            reward_parts=parts,
            extra_logs={
                "solved": float(solved),
                "answered": float(answer is not None),
                "calls": float(self._calls),
            },
            explanation=Explanation(
                reference=self._label,
                reason="The turn ends without a number."
                if answer is None
                else f"The turn ends on {answer:g}, expected {self._expected:g}.",
            ),
        )

    def solution(self, task: Task) -> str:
        """The answer, as a model would put it that needs no calculator."""
        return f"Answer: {task.label}"


def final_number(text: str) -> float | None:
    """The number a turn ends on.

    Example:
        >>> final_number("12 boxes of 3. Answer: 36, so 36 pens in 2 bags")
        36.0
    """
    tail = text[-_TAIL_CHARS:]
    found = _ANSWER.findall(tail) or _ANY.findall(tail)
    return float(found[-1].replace(",", "")) if found else None


def make_tasks(split: str = "train", n: int = 256, seed: int = 0) -> list[Task]:
    """Draw problems; the same arguments give the same problems on every machine.

    Args:
        split: `train` or `held_out`; they share no kind of problem.
        n: how many.
        seed: draws the kinds, the numbers and the names.

    Raises:
        ConfigError: an unknown split, or n below 1.
    """
    if split not in KINDS:
        raise ConfigError(f"agentrl_envs.arithmetic split: {choices(split, KINDS)}")
    if n < 1:
        raise ConfigError(f"agentrl_envs.arithmetic: n must be at least 1, got {n}")
    kinds = KINDS[split]
    tasks = []
    for index in range(n):
        kind = kinds[index % len(kinds)]
        name = kind.__name__.strip("_")
        text, answer = kind(Random(f"{seed}/{name}/{index}"))
        tasks.append(
            Task(
                id=f"{name}-{seed}-{index}",
                prompt=f"{text} End with 'Answer:' and the number.",
                label=answer,
                metadata={"family": name},
                split=split,
            )
        )
    return tasks


def _expression(r: Random) -> tuple[str, int]:
    a, b, c = r.randint(2, 40), r.randint(2, 20), r.randint(2, 60)
    return f"What is {a} * {b} + {c}?", a * b + c


def _bracket(r: Random) -> tuple[str, int]:
    a, b, c = r.randint(2, 60), r.randint(2, 60), r.randint(2, 12)
    return f"What is ({a} + {b}) * {c}?", (a + b) * c


def _give_away(r: Random) -> tuple[str, int]:
    name, thing = r.choice(_NAMES), r.choice(_THINGS)
    a, b, c = r.randint(3, 20), r.randint(3, 15), r.randint(2, 9)
    return (
        f"{name} has {a} boxes with {b} {thing} each and gives {c} {thing} away. "
        f"How many {thing} are left?",
        a * b - c,
    )


def _share(r: Random) -> tuple[str, int]:
    name, thing = r.choice(_NAMES), r.choice(_THINGS)
    each, people, more = r.randint(3, 20), r.randint(2, 8), r.randint(2, 15)
    return (
        f"{name} shares {each * people} {thing} equally among {people} friends. One of them had "
        f"{more} {thing} before. How many does that friend have now?",
        each + more,
    )


def _shop(r: Random) -> tuple[str, int]:
    name, thing = r.choice(_NAMES), r.choice(_THINGS)
    a, price = r.randint(3, 12), r.randint(2, 15)
    paid = a * price + r.randint(1, 40)
    return (
        f"{name} buys {a} {thing} for {price} dollars each and pays with {paid} dollars. "
        "How many dollars come back?",
        paid - a * price,
    )


def _difference(r: Random) -> tuple[str, int]:
    a, b, c = r.randint(50, 200), r.randint(2, 12), r.randint(2, 12)
    return f"What is {a} - {b} * {c}?", a - b * c


def _two_trips(r: Random) -> tuple[str, int]:
    name = r.choice(_NAMES)
    a, b, c, d = (r.randint(2, 9), r.randint(20, 70), r.randint(2, 9), r.randint(20, 70))
    return (
        f"{name} drives {a} hours at {b} km per hour and then {c} hours at {d} km per hour. "
        "How many km is that in all?",
        a * b + c * d,
    )


KINDS: dict[str, tuple[Callable[[Random], tuple[str, int]], ...]] = {
    "train": (_expression, _bracket, _give_away, _share, _shop),
    "held_out": (_difference, _two_trips),
}
"""Kinds of problems by split."""
