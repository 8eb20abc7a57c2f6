"""Mean and deviation of all rewards a run has seen, as three numbers that a checkpoint keeps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from agentrl.errors import DataError

_SMALLEST_STD = 1e-8
"""Below it the rewards are all one value, and dividing would only blow rounding up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMoments:
    """Count, mean and sum of squared deviations of a stream of numbers.

    Steps are added one after the other; inside a step the order of the numbers does not matter, to
    the bit.

    Example:
        >>> moments = RunningMoments().after([0.0, 1.0]).after([2.0])
        >>> moments.mean, moments.std
        (1.0, 1.0)
    """

    count: int = 0
    """Numbers so far."""
    mean: float = 0.0
    """Their mean; 0 before the first."""
    squares: float = 0.0
    """Sum of (number - mean)^2."""
    rm_version: int = 0
    """Version of the refreshed reward model that paid them; another one begins them anew."""

    def after(self, values: Iterable[float]) -> RunningMoments:
        """With more numbers (Chan, Golub, LeVeque 1983, eq. 2.1).

        Raises:
            DataError: one of them is not finite.
        """
        numbers = list(values)
        bad = [number for number in numbers if not math.isfinite(number)]
        if bad:
            raise DataError(f"running reward statistics: got {bad[0]}, expected finite numbers")
        if not numbers:
            return self
        added = len(numbers)
        mean = math.fsum(numbers) / added
        squares = math.fsum((number - mean) ** 2 for number in numbers)
        total = self.count + added
        apart = mean - self.mean
        return RunningMoments(
            count=total,
            mean=self.mean + apart * added / total,
            squares=self.squares + squares + apart * apart * self.count * added / total,
            rm_version=self.rm_version,
        )

    def of_version(self, rm_version: int) -> RunningMoments:
        """The same if this version of the reward model paid them; else empty, of that version."""
        return self if rm_version == self.rm_version else RunningMoments(rm_version=rm_version)

    @property
    def std(self) -> float:
        """Standard deviation with ddof 1; 1 where there is none, so that it can be divided by."""
        if self.count < 2:
            return 1.0
        std = math.sqrt(self.squares / (self.count - 1))
        return std if std >= _SMALLEST_STD else 1.0

    def dump(self) -> str:
        """As JSON, exact to the bit."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | bytes) -> RunningMoments:
        """Read back what `dump` returned.

        Raises:
            DataError: it is something else.
        """
        try:
            document: dict[str, Any] = json.loads(text)
            return cls(
                count=int(document["count"]),
                mean=float(document["mean"]),
                squares=float(document["squares"]),
                rm_version=int(document.get("rm_version", 0)),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f"running reward statistics cannot be read ({error!r}); expected count, mean and "
                "squares"
            ) from error
