"""Chooses tasks by what the run itself has seen of them, so that few groups are flat.

A group is open if its rollouts were scored differently, and flat if all of them were scored the
same: then a baseline of siblings leaves no gradient. With 0-1 scores, a pass rate p and n siblings
a group is open with probability 1 - p^n - (1 - p)^n, which is highest for p in the middle. That
probability is estimated directly, by the share of open groups, so it holds for any reward, and for
a key whose tasks are some too easy and some too hard.

Thompson sampling (Thompson 1933, Biometrika 25(3/4), p. 285; Chapelle and Li 2011, "An Empirical
Evaluation of Thompson Sampling", algorithm 2) over Bernoulli outcomes, in two levels: a value q is
drawn for each key from Beta(1 + open, 1 + flat) of its last `MEMORY` groups, and the key with the
largest comes; of its tasks then one, in the same way by its own groups. Older groups are forgotten,
because the policy changes. Left out: any prior on how fast it changes.

A fixed share of the places in the stream, at equal distances, takes the tasks of the dataset in
their order instead, each once before any twice: no task is lost for good, and these groups alone
say what the policy scores on the whole dataset.

Counts are whole numbers, and a draw is a pure function of the seed, the place in the stream, the
outcomes and the tasks that are under way; `random.Random.random` is the same in every version of
Python.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.config.schema import SelectionSection
from agentrl.errors import DataError, choices
from agentrl.types import Task

MEMORY = 8
"""Groups of a key, and of a task, that count: the last ones."""
UNIFORM_SHARE = 0.25
"""Share of the groups whose tasks come in the order of the dataset."""
_ONE = 2**32
_FLAT, _OPEN = "01"


class TaskSelection:
    """Outcomes of the groups so far, and the draws that follow from them."""

    def __init__(self, tasks: Sequence[Task], section: SelectionSection, *, seed: int) -> None:
        """Nothing is known of any task.

        Args:
            tasks: all of them.
            section: the metadata key.
            seed: of the draws.

        Raises:
            DataError: see `tasks_by_key`.
        """
        self._section, self._seed = section, seed
        self._tasks_by_key = tasks_by_key(tasks, section.by)
        self._key_of = {name: key for key, names in self._tasks_by_key.items() for name in names}
        self._uniform = round(UNIFORM_SHARE * _ONE)
        self._keys: dict[str, str] = {}  # key -> outcomes, the newest last
        self._tasks: dict[str, str] = {}  # task id -> the same

    def uniform_turn(self, index: int) -> int | None:
        """Which of the uniform turns this place in the stream is, from 0; None if it is chosen.

        Example:
            >>> selection = TaskSelection([Task(id="a", prompt="?")], SelectionSection(), seed=0)
            >>> [selection.uniform_turn(index) for index in range(8)]
            [None, None, None, 0, None, None, None, 1]
        """
        before, after = index * self._uniform // _ONE, (index + 1) * self._uniform // _ONE
        return before if after > before else None

    def draw(self, index: int, busy: Iterable[str]) -> str:
        """The id of the task at this place in the stream.

        Args:
            index: place in the stream.
            busy: ids of tasks that are under way; they come only where there is no other.
        """
        digest = hashlib.blake2b(f"{self._seed}/select/{index}".encode(), digest_size=8).digest()
        rng = random.Random(int.from_bytes(digest, "big"))
        taken = set(busy)
        busy_of = Counter(self._key_of[name] for name in taken)
        by_key = self._tasks_by_key
        keys = [key for key, names in by_key.items() if busy_of[key] < len(names)] or list(by_key)
        key = _best(rng, keys, self._keys)
        names = by_key[key]
        return _best(rng, [name for name in names if name not in taken] or names, self._tasks)

    def observe(self, outcomes: Mapping[str, Sequence[bool]]) -> None:
        """Add the groups of a step: by task id, whether they were open."""
        for name in sorted(outcomes):
            said = "".join(_OPEN if is_open else _FLAT for is_open in outcomes[name])
            key = self._key_of[name]
            self._tasks[name] = (self._tasks.get(name, "") + said)[-MEMORY:]
            self._keys[key] = (self._keys.get(key, "") + said)[-MEMORY:]

    def state(self) -> dict[str, Any]:
        """Everything `restore` needs, JSON-serialisable."""
        return {"by": self._section.by, "keys": dict(self._keys), "tasks": dict(self._tasks)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            DataError: it is not that, or of another key.
        """
        keys, tasks = state.get("keys"), state.get("tasks")
        if state.get("by") != self._section.by:
            raise DataError(
                f"dataset.selection.by is {self._section.by!r}, but this run learned of its tasks "
                f"by {state.get('by')!r}; put it back, or start a new run"
            )
        if not _are_outcomes(keys, self._tasks_by_key) or not _are_outcomes(tasks, self._key_of):
            raise DataError(
                "task cursor state: 'selection' must hold outcomes of known keys and tasks as text "
                f"of 0 and 1, got {str(state)[:200]}; expected what TaskCursor.state() returned"
            )
        self._keys, self._tasks = dict(keys or {}), dict(tasks or {})


def tasks_by_key(tasks: Iterable[Task], by: str | None) -> dict[str, list[str]]:
    """Ids of the tasks by the value of a metadata key, or each under its own without one; sorted.

    Raises:
        DataError: a task does not have the key.
    """
    found: dict[str, list[str]] = {}
    for task in tasks:
        if by is not None and task.metadata.get(by) is None:
            raise DataError(
                f"dataset.selection.by: task {task.id!r} has no such metadata; "
                + choices(by, sorted(task.metadata))
            )
        found.setdefault(task.id if by is None else str(task.metadata[by]), []).append(task.id)
    return {key: sorted(found[key]) for key in sorted(found)}


def _best(rng: random.Random, names: Sequence[str], outcomes: Mapping[str, str]) -> str:
    """The name with the largest draw from its posterior."""
    return max(names, key=lambda name: _beta(rng, outcomes.get(name, "")))


def _beta(rng: random.Random, outcomes: str) -> float:
    """A draw from Beta(1 + open, 1 + flat), as the order statistic that it is the law of.

    Of a + b - 1 uniform numbers the a-th smallest is distributed as Beta(a, b).
    """
    drawn = [rng.random() for _ in range(len(outcomes) + 1)]
    return drawn[0] if not outcomes else sorted(drawn)[outcomes.count(_OPEN)]


def _are_outcomes(value: Any, known: Mapping[str, Any]) -> bool:
    return isinstance(value, dict) and all(
        name in known and isinstance(said, str) and set(said) <= {_FLAT, _OPEN}
        for name, said in value.items()
    )
