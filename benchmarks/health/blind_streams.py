"""Runs the detectors over streams that were labelled without sight of them.

    blind_streams.py            # in benchmarks/health: the first set, labelled before any run
    blind_streams.py --fresh    # wider ranges, other run lengths

A fault is named when a detector of its label warns; it is noticed when that one or one of its known
consequences does. A sound run with any warning at all is a false alarm.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from blind.draws import Draw
from blind.labels import STREAMS, Stream
from harness import options

from agentrl.health import Status, diagnose


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One stream and the detectors that warned."""

    stream: Stream
    spoke: frozenset[str]

    @property
    def named(self) -> bool:
        return bool(self.spoke & self.stream.named_by)

    @property
    def noticed(self) -> bool:
        return bool(self.spoke & (self.stream.named_by | self.stream.also))

    @property
    def stray(self) -> frozenset[str]:
        """Detectors that speak of what the stream does not have."""
        return self.spoke - self.stream.named_by - self.stream.also


def judge(seed: int, *, fresh: bool) -> list[Judged]:
    """Every stream drawn from the seed, and what was said of it."""
    found: list[Judged] = []
    for stream in STREAMS:
        history = stream.make(Draw(seed, stream.name, fresh=fresh))
        spoke = {v.name for v in diagnose(history) if v.status in (Status.WARN, Status.FAIL)}
        found.append(Judged(stream=stream, spoke=frozenset(spoke)))
    return found


def report(found: Sequence[Judged]) -> str:
    """The table by fault, then every stream that came out wrong."""
    sick = [one for one in found if one.stream.fault]
    well = [one for one in found if not one.stream.fault]
    stray = Counter(name for one in found for name in one.stray)
    loud = Counter(name for one in well for name in one.stray)
    lines = ["| fault | streams | named | noticed |", "|--|--|--|--|"]
    for fault in dict.fromkeys(one.stream.fault for one in sick):
        of = [one for one in sick if one.stream.fault == fault]
        lines.append(
            f"| {fault} | {len(of)} | {sum(o.named for o in of)} | {sum(o.noticed for o in of)} |"
        )
    alarms = sum(bool(one.spoke) for one in well)
    lines += [
        "",
        f"named {sum(o.named for o in sick)}/{len(sick)}, "
        f"noticed {sum(o.noticed for o in sick)}/{len(sick)}, "
        f"sound runs accused {alarms}/{len(well)}",
        f"accusations of sound runs by detector: {dict(loud) or 'none'}",
        f"verdicts beside the fault, sound runs included: {dict(stray) or 'none'}",
        "",
    ]
    for one in found:
        if not one.named if one.stream.fault else one.spoke:
            lines.append(f"- {one.stream.name}: said {sorted(one.spoke) or 'nothing'}")
    return "\n".join(lines)


def main() -> None:
    args = options(__doc__, seed=0, fresh=False)
    print(report(judge(args.seed, fresh=args.fresh)))


if __name__ == "__main__":
    main()
