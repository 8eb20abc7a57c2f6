"""Families of small functions, and the draws that make one of their variants.

A family is one idea ("n times k"); its variants differ in constants, names and wording. Splits go
by family, so a held-out score says something about ideas that were never trained on. Everything is
a pure function of a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
Arguments = tuple[Any, ...]

WORDS = (  # short, and one token each for most tokenizers
    *("apple", "banana", "cherry", "tree", "river", "house", "garden", "window", "music", "yellow"),
    *("table", "paper", "dog", "cat", "sun", "moon", "star", "bread", "cloud", "stone", "happy"),
    *("little", "green", "silver", "winter", "summer", "ocean", "mountain"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One concrete function to write."""

    name: str
    """Name of the function."""
    params: str
    """Its parameters as written between the parentheses."""
    task: str
    """Completes "Write a Python function `name(params)` that ..."."""
    reference: str
    """Source of a correct solution."""
    inputs: tuple[Arguments, ...]
    """Distinct argument tuples, edge cases first."""
    edges: int
    """How many of `inputs` are edge cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFamily:
    """A named generator of variants."""

    name: str
    """Unique."""
    level: int
    """1 easy, 2 middle, 3 hard, for a small model."""
    build: Callable[[Draw], Variant]
    """Makes one variant from seeded draws."""


class Draw:
    """Seeded choices, in the words a family definition needs."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)

    def pick(self, *options: T) -> T:
        """One of the options."""
        return self._random.choice(options)

    def int(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        return self._random.randint(low, high)

    def ints(self, low: int, high: int, *, least: int = 2, most: int = 5) -> list[int]:
        """A list of whole numbers in [low, high]."""
        return [self.int(low, high) for _ in range(self.int(least, most))]

    def word(self) -> str:
        """A short English word."""
        return self._random.choice(WORDS)

    def words(self, *, least: int = 2, most: int = 4) -> str:
        """Some words with single spaces between them."""
        return " ".join(self.word() for _ in range(self.int(least, most)))

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """The items in a drawn order."""
        items = list(items)
        self._random.shuffle(items)
        return items

    def function(
        self,
        name: str,
        params: str,
        task: str,
        body: str | Sequence[str],
        *,
        edges: Sequence[Arguments],
        more: Callable[[], Arguments],
        count: int = 12,
    ) -> Variant:
        """Assemble a variant of a family.

        Args:
            name: what the function is called.
            params: its parameters.
            task: what it does, after the word "that".
            body: the lines of a correct body, without their first indentation.
            edges: argument tuples that are always tested.
            more: draws one further argument tuple.
            count: how many to draw; repeated ones are left out.
        """
        lines = [body] if isinstance(body, str) else list(body)
        reference = f"def {name}({params}):\n" + "\n".join(f"    {line}" for line in lines) + "\n"
        seen = {repr(arguments): arguments for arguments in edges}
        for _ in range(count):
            arguments = more()
            seen.setdefault(repr(arguments), arguments)
        return Variant(
            name=name,
            params=params,
            task=task,
            reference=reference,
            inputs=tuple(seen.values()),
            edges=len({repr(arguments) for arguments in edges}),
        )


class FamilyList:
    """The families of one module, in the order in which they are written."""

    def __init__(self) -> None:
        self.families: list[FunctionFamily] = []

    def __call__(
        self, name: str, *, level: int
    ) -> Callable[[Callable[[Draw], Variant]], Callable[[Draw], Variant]]:
        """Decorate a function that draws a variant."""

        def add(build: Callable[[Draw], Variant]) -> Callable[[Draw], Variant]:
            self.families.append(FunctionFamily(name=name, level=level, build=build))
            return build

        return add
