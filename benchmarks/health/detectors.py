"""Detectors against labelled streams: how many faults are named, how many healthy runs accused.

    .venv/bin/python benchmarks/health/detectors.py [--all]

Streams are synthetic (faults/{healthy,ill,fits}.yaml beside this file) and recorded
from real small runs with planted faults (record_faults.py). Thresholds were tuned on the odd places
of each list only; the even places say what that is worth.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from faults.planted import HEALTHY, HEALTHY_FITS, ILL, ILL_FITS
from faults.scenarios import SCENARIOS
from faults.streams import RECORDED, load, until
from faults.synthetic import Stream, drawn
from harness import options

from agentrl.health import History, diagnose

LEAST_FOUND, MOST_ACCUSED = 0.9, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What detectors said of one stream."""

    stream: Stream
    """The stream."""
    spoke: tuple[str, ...]
    """Detectors that warned or failed."""
    half: str
    """`tuned` (odd places) or `unseen` (even places)."""
    source: str
    """`synthetic` or `recorded`."""
    accused_before: float
    """Share of the tenths of a healthy run at whose end any detector spoke."""

    @property
    def right(self) -> bool:
        """A fault that was named, or a healthy run that was left alone."""
        if self.stream.expected:
            return bool(self.stream.expected & set(self.spoke))
        return not self.spoke


def recorded() -> list[Stream]:
    """Streams of real runs that are in the repository."""
    expected = {scenario.name: scenario.expected for scenario in SCENARIOS}
    return [
        Stream(
            name=path.name.removesuffix(".json.gz"),
            expected=expected.get(path.name.removesuffix(".json.gz"), frozenset()),
            history=load(path),
        )
        for path in sorted(RECORDED.glob("*.json.gz"))
    ]


def judge(streams: Sequence[Stream], source: str, *, tenths: bool) -> list[Judged]:
    """Every stream judged at its end, and with `tenths` a healthy one at every tenth of it, too."""
    judged: list[Judged] = []
    places = {True: 0, False: 0}
    for stream in streams:
        ill = bool(stream.expected)
        half = "tuned" if places[ill] % 2 else "unseen"
        places[ill] += 1
        shares = [tenth / 10 for tenth in range(1, 10)] if tenths and not ill else []
        last = max(series.steps[-1] for series in stream.history.metrics.values())
        said = [bool(speaking(until(stream.history, share * last))) for share in shares]
        judged.append(
            Judged(
                stream=stream,
                spoke=speaking(stream.history),
                half=half,
                source=source,
                accused_before=sum(said) / max(1, len(said)),
            )
        )
    return judged


def speaking(history: History) -> tuple[str, ...]:
    """Detectors that warn or fail."""
    return tuple(v.name for v in diagnose(history) if v.status in ("warn", "fail"))


def summary(judged: Sequence[Judged]) -> list[str]:
    """The table: one line for each half and source, and for all."""
    lines = ["| streams | faults named | healthy accused |", "|---|---|---|"]
    for source in ("synthetic", "recorded", "all"):
        for half in ("tuned", "unseen", "all"):
            part = [
                item
                for item in judged
                if (source == "all" or item.source == source)
                and (half == "all" or item.half == half)
            ]
            ill = [item.right for item in part if item.stream.expected]
            well = [not item.right for item in part if not item.stream.expected]
            lines.append(f"| {source}, {half} | {_share(ill)} | {_share(well)} |")
    return lines


def _share(marks: Sequence[bool]) -> str:
    return f"{sum(marks)} of {len(marks)} ({sum(marks) / max(1, len(marks)):.0%})"


def passes(judged: Sequence[Judged]) -> bool:
    """Whether the measure of the project is met on all streams."""
    ill = [item.right for item in judged if item.stream.expected]
    well = [not item.right for item in judged if not item.stream.expected]
    return sum(ill) >= LEAST_FOUND * len(ill) and sum(well) <= MOST_ACCUSED * len(well)


def all_judged(*, tenths: bool) -> list[Judged]:
    """Every stream there is."""
    synthetic = [*drawn(HEALTHY), *drawn(ILL), *drawn(HEALTHY_FITS), *drawn(ILL_FITS)]
    return [
        *judge(synthetic, "synthetic", tenths=tenths),
        *judge(recorded(), "recorded", tenths=tenths),
    ]


def main() -> None:
    args = options(__doc__, all=False)
    begun = time.monotonic()
    judged = all_judged(tenths=True)
    if args.all:
        print("| stream | half | expected | said | |\n|---|---|---|---|---|")
    for item in judged:
        if args.all or not item.right:
            said, wanted = (", ".join(sorted(n)) or "-" for n in (item.spoke, item.stream.expected))
            mark = "" if item.right else "WRONG"
            name = f"{item.source}: {item.stream.name}"
            print(f"| {name} | {item.half} | {wanted} | {said} | {mark} |")
    print("\n" + "\n".join(summary(judged)))
    well = [item.accused_before for item in judged if not item.stream.expected]
    print(f"\nhealthy runs while they run: accused at {sum(well) / len(well):.1%} of the tenths")
    print(f"{len(judged)} streams, {time.monotonic() - begun:.1f} s")
    raise SystemExit(0 if passes(judged) else 1)


if __name__ == "__main__":
    main()
