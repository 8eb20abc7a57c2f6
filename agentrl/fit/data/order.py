"""Which examples a step trains on: a pure function of seed and step, so a resume needs no state."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from agentrl.batch.examples import Example


class ExampleOrder:
    """Every epoch is a permutation of its own; each example comes once in it."""

    def __init__(self, examples: Sequence[Example], *, per_step: int, seed: int | str) -> None:
        """Take the data of a fit.

        Args:
            examples: at least one.
            per_step: examples of a step; the last step of an epoch may have fewer.
            seed: of the permutations.
        """
        self._examples, self._per_step, self._seed = examples, per_step, seed
        self._epoch, self._order = -1, list[int]()
        self.steps_per_epoch = math.ceil(len(examples) / per_step)
        """Steps after which each example was trained once."""

    def step(self, step: int) -> list[Example]:
        """The examples of a step, counted from 0."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:  # with millions of examples a shuffle takes a second
            self._epoch, self._order = epoch, list(range(len(self._examples)))
            random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
        taken = self._order[index * self._per_step : (index + 1) * self._per_step]
        return [self._examples[number] for number in taken]
