"""Labels of pairs: which of two rollouts is better, by a function or by the environment."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agentrl.config import resolve_callable
from agentrl.config.reward import RefreshSection
from agentrl.errors import ConfigError, GraderError
from agentrl.fit.refresh.candidates import CandidatePair, NewestPairs, preference
from agentrl.reward.target import ENV_PART, ask_grader
from agentrl.types import PreferencePair, Task, Trajectory

VERIFIER = "verifier"
"""Labeller that compares the environment's own part of the rewards."""
HUMAN = "human"
"""Labeller that is a queue of files which a person answers."""
_TOGETHER = 32
"""Pairs that a function is asked about at once."""


@dataclass(slots=True)
class PairLabels:
    """Labelled pairs, and the number of those without a label."""

    pairs: list[PreferencePair] = field(default_factory=list[PreferencePair])
    """Pairs of which one rollout is better."""
    ties: int = 0
    """Pairs of which neither is better, or that the labeller has no opinion on."""
    failures: int = 0
    """Pairs that could not be labelled."""
    error: str = ""
    """The first failure in words."""
    waiting: int = 0
    """Pairs that wait for a person."""
    answers: list[str] = field(default_factory=list[str])
    """Ids of the pairs of the queue that were answered."""

    def add(self, pair: CandidatePair, probability: float | None) -> None:
        """Count one pair; None or 0.5 is a tie."""
        if probability is None or probability == 0.5:
            self.ties += 1
        else:
            self.pairs.append(preference(pair, probability))

    def fail(self, error: str) -> None:
        """Count a pair without a label."""
        self.failures += 1
        self.error = self.error or error


class PairLabeller(Protocol):
    """Labels pairs of rollouts."""

    async def label(self, newest: NewestPairs, most: int) -> PairLabels:
        """Label at most `most` pairs; those that cannot be labelled are counted.

        Args:
            newest: gives pairs.
            most: labelled and failed ones.
        """
        ...


class FunctionLabeller:
    """Asks a function `(task, a, b) -> P(a better)`, plain or async."""

    def __init__(
        self,
        call: Callable[..., Any],
        args: Mapping[str, Any],
        *,
        name: str,
        timeout_s: float,
    ) -> None:
        """Keep the function.

        Args:
            call: gives a number in [0, 1], or None for no opinion.
            args: more keyword arguments.
            name: import string, for messages.
            timeout_s: limit of one call; the wait in line for a served model does not count.
        """
        self._call, self._args, self._name = call, dict(args), name
        self._timeout_s = timeout_s

    async def label(self, newest: NewestPairs, most: int) -> PairLabels:
        """`label` as in `PairLabeller.label`."""
        labels = PairLabels()
        while (missing := most - len(labels.pairs) - labels.failures) > 0:
            asked = await newest.take(min(missing, _TOGETHER))
            if not asked:
                break
            found = await asyncio.gather(*(self._ask(pair) for pair in asked))
            for pair, answer in zip(asked, found, strict=True):
                if isinstance(answer, GraderError):
                    labels.fail(str(answer))
                else:
                    labels.add(pair, answer)
        return labels

    async def _ask(self, pair: CandidatePair) -> float | GraderError | None:
        where = f"labeller {self._name}, {pair.a.rollout_id} and {pair.b.rollout_id}"
        call = functools.partial(self._call, pair.task, pair.a, pair.b, **self._args)
        try:
            value = await ask_grader(call, where, timeout_s=self._timeout_s)
        except GraderError as error:
            return error
        return _probability(value, where)


def verified(task: Task, a: Trajectory, b: Trajectory) -> float | None:
    """Label by the environment's own reward: 1 or 0, and None where both have the same.

    Args:
        task: of both.
        a: one rollout.
        b: the other.

    Raises:
        GraderError: a rollout has no such part.
    """
    parts = [row.reward_parts.get(ENV_PART) for row in (a, b)]
    if None in parts:
        raise GraderError(f"a rollout of task {task.id} has no part {ENV_PART!r} of its reward")
    first, second = (float(part or 0.0) for part in parts)
    return None if first == second else float(first > second)


def load_function(section: RefreshSection, *, base: Path, timeout_s: float) -> FunctionLabeller:
    """The function of a section, resolved now.

    Args:
        section: names it; not `human`.
        base: folder that relative files start from.
        timeout_s: limit of one call.

    Raises:
        ConfigError: it does not resolve, cannot be called, or refuses its arguments.
    """
    name = section.labelled_by or ""
    if name == VERIFIER:
        _require_no_args(section)
        return FunctionLabeller(verified, {}, name=name, timeout_s=timeout_s)
    where = f"reward.refresh.labeller {name!r}"
    try:
        call = resolve_callable(name, base=base)
    except ConfigError as error:
        raise ConfigError(
            f"{where}: {error}; expected {VERIFIER!r}, {HUMAN!r}, or the import string of a "
            "function (task, a, b) -> P(a better), as agentrl.judges:pair_labeller"
        ) from None
    try:
        inspect.signature(call).bind(None, None, None, **section.labeller_args)
    except ValueError:  # something built in has no signature: the first call will show
        pass
    except TypeError as error:
        given = "".join(f", {key}=..." for key in section.labeller_args)
        raise ConfigError(
            f"{where} cannot be called with (task, a, b{given}): {error}; its signature is "
            f"{inspect.signature(call)}, and args of the labeller gives the keywords"
        ) from None
    check = getattr(call, "check_args", None)
    if check is not None:
        try:
            check(**section.labeller_args)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    return FunctionLabeller(call, section.labeller_args, name=name, timeout_s=timeout_s)


def _require_no_args(section: RefreshSection) -> None:
    if section.labeller_args:
        raise ConfigError(
            f"reward.refresh.labeller: args has {', '.join(sorted(section.labeller_args))}, but "
            f"labeller {section.labelled_by!r} takes none; remove them"
        )


def check_human(section: RefreshSection) -> None:
    """Refuse arguments, which a queue of files does not take.

    Raises:
        ConfigError: there are some.
    """
    _require_no_args(section)


def _probability(value: Any, where: str) -> float | GraderError | None:
    if value is None:
        return None
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        value = value.item()  # a scalar of an array library
    # No comparison holds for NaN.
    wrong = not isinstance(value, (int, float)) or not 0 <= value <= 1
    if wrong:
        return GraderError(f"{where}: returned {value!r}, expected a number in [0, 1]")
    return float(value)
