"""Sequences without their elements: run lengths of them, or their length alone."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from agentrl.errors import DataError


@dataclass(frozen=True, slots=True)
class Runs(Sequence[int]):
    """A sequence of whole numbers as runs of equal ones.

    Example:
        >>> runs = Runs.of((1, 1, 0, 0, 0, 1))
        >>> runs.values, runs.ends, list(runs[1:3])
        ((1, 0, 1), (2, 5, 6), [1, 0])
    """

    values: tuple[int, ...]
    """The number of each run."""
    ends: tuple[int, ...]
    """Ends of the runs, ascending."""

    @classmethod
    def of(cls, numbers: ArrayLike) -> Runs:
        """The runs of a sequence."""
        array = np.asarray(numbers, dtype=np.int64)
        if not len(array):
            return cls((), ())
        ends = np.append(np.flatnonzero(array[1:] != array[:-1]) + 1, len(array))
        return cls(tuple(array[ends - 1].tolist()), tuple(ends.tolist()))

    def counts(self) -> Counter[int]:
        """By number, how often it comes."""
        found: Counter[int] = Counter()
        for value, size in zip(self.values, self._sizes(), strict=True):
            found[value] += size
        return found

    def _sizes(self) -> list[int]:
        return [end - start for start, end in pairwise((0, *self.ends))]

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | slice) -> int | Runs:
        if isinstance(index, int):
            position = range(len(self))[index]
            return self.values[bisect_right(self.ends, position)]
        start, stop, step = index.indices(len(self))
        if step != 1:
            return Runs.of(np.asarray(self)[index])
        if stop <= start:
            return Runs((), ())
        first, last = bisect_right(self.ends, start), bisect_right(self.ends, stop - 1)
        ends = (*(end - start for end in self.ends[first:last]), stop - start)
        return Runs(self.values[first : last + 1], ends)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(map(repeat, self.values, self._sizes()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The whole sequence as an array, made at each call."""
        values = np.array(self.values, dtype=np.int64 if dtype is None else dtype)
        return np.repeat(values, self._sizes())


@dataclass(frozen=True, slots=True)
class Hidden(Sequence[Any]):
    """A sequence of which nothing is here but its length."""

    length: int
    """Number of elements."""

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        """Refuse.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"an element of {self.length} tokens was read of an outline, which holds none; fetch "
            "the group"
        )

    def __iter__(self) -> Iterator[Any]:
        return iter((self[0],))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Refuse, as every element."""
        return self[0]
