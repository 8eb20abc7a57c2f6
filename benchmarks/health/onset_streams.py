"""Asks of streams with a known onset whether doctor names the cause, ranks it first and dates it.

    onset_streams.py                      # in benchmarks/health: the set as it was labelled
    onset_streams.py --fresh --seed 7     # wider ranges, onsets moved
    onset_streams.py --live               # blow-ups, read every two steps while they run

A cause is named when the detector of its label warns or fails. The error of the onset is the
distance in steps from the verdict's first step to the step at which the generator began the fault.
A sound run with any warning is a false alarm. Live, a history is cut at each second step; rollouts
are those stored by then of the steps that the whole run samples.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
from faults.streams import until
from harness import options
from onset.labels import ONSET_STREAMS, OnsetStream
from onset.times import Times

from agentrl.health import Status, Verdict, causes, diagnose

_BLOW_UPS = frozenset({"grad_norm", "entropy_explosion", "not_finite"})
_NEAR = 5
"""Steps by which a dated onset may be off."""
_LIVE_EVERY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One stream and what was said of it."""

    stream: OnsetStream
    times: Times
    first: str
    """The finding ranked first; empty where there is none."""
    dated: dict[str, int | None]
    """First step by detector that warned or failed."""

    @property
    def named(self) -> bool:
        return self.stream.fault in self.dated

    @property
    def error(self) -> int | None:
        """Steps from the true onset to the dated one; None where it is not named or not dated."""
        return _apart(self.dated.get(self.stream.fault), self.times.onset)

    @property
    def second_error(self) -> int | None:
        """The same of the second fault."""
        return _apart(self.dated.get(self.stream.second), self.times.second)

    @property
    def stray(self) -> frozenset[str]:
        """Detectors that speak of what neither is in the stream nor follows."""
        return frozenset(self.dated) - self.stream.expected


def first_cause(verdicts: Sequence[Verdict]) -> str:
    """Name of the cause that doctor puts first; empty where nothing was found."""
    return next((cause.verdict.name for cause in causes(verdicts)), "")


def _loud(verdict: Verdict) -> bool:
    return verdict.status in (Status.WARN, Status.FAIL)


def _apart(said: int | None, true: int | None) -> int | None:
    return None if said is None or true is None else abs(said - true)


def hear(seed: int, *, fresh: bool) -> list[Heard]:
    """Every stream of the seed, and what was said of it."""
    found: list[Heard] = []
    for stream in ONSET_STREAMS:
        times, history = stream.draw(seed, fresh=fresh)
        verdicts = diagnose(history)
        found.append(
            Heard(
                stream=stream,
                times=times,
                first=first_cause(verdicts),
                dated={v.name: v.first_step for v in verdicts if _loud(v)},
            )
        )
    return found


def _line(label: str, of: Sequence[Heard]) -> str:
    errors = [one.error for one in of if one.error is not None]
    near, middle = sum(error <= _NEAR for error in errors), np.median(errors) if errors else "-"
    first = sum(one.first == one.stream.fault for one in of)
    named = sum(one.named for one in of)
    return f"| {label} | {len(of)} | {named} | {first} | {len(errors)} | {near} | {middle} |"


def report(found: Sequence[Heard]) -> str:
    """Tables by kind and by fault, the shares, and every miss."""
    sick = [one for one in found if one.stream.fault]
    well = [one for one in found if not one.stream.fault]
    head = f"streams | named | first | dated | within {_NEAR} steps | median error |"
    rule = "|--|--|--|--|--|--|--|"
    lines = [f"| kind | {head}", rule]
    for kind in dict.fromkeys(one.stream.kind for one in sick):
        lines.append(_line(kind, [one for one in sick if one.stream.kind == kind]))
    lines += [_line("all", sick), "", f"| fault | {head}", rule]
    for fault in dict.fromkeys(one.stream.fault for one in sick):
        lines.append(_line(fault, [one for one in sick if one.stream.fault == fault]))
    two = [one for one in sick if one.stream.second]
    later = [one for one in two if one.stream.second in one.dated]
    close = sum(one.second_error is not None and one.second_error <= _NEAR for one in later)
    alarms = [one for one in well if one.dated]
    near = sum(one.error is not None and one.error <= _NEAR for one in sick)
    ill_stray = Counter(name for one in sick for name in one.stray)
    lines += [
        "",
        f"named {_share(sum(one.named for one in sick), len(sick))}, "
        f"ranked first {_share(sum(one.first == one.stream.fault for one in sick), len(sick))}, "
        f"onset within {_NEAR} steps {_share(near, len(sick))}, "
        f"false alarms {_share(len(alarms), len(well))}",
        f"second fault of mixed runs: named {len(later)}/{len(two)}, within {_NEAR} steps {close}",
        f"neither fault nor consequence, in runs with a fault: {dict(ill_stray) or 'none'}",
        "",
        *(_miss(one) for one in found if _missed(one)),
    ]
    return "\n".join(lines)


def _share(count: int, of: int) -> str:
    return f"{count}/{of} ({100 * count / max(1, of):.0f} %)"


def _missed(one: Heard) -> bool:
    if not one.stream.fault:
        return bool(one.dated)
    right = one.first == one.stream.fault and one.error is not None and one.error <= _NEAR
    return not right or bool(one.stream.second and one.stream.second not in one.dated)


def _miss(one: Heard) -> str:
    said = ", ".join(f"{name} from {step}" for name, step in one.dated.items()) or "nothing"
    if not one.stream.fault:
        return f"- {one.stream.name}: false alarm: {said}"
    wrong = [
        "" if one.named else "not named",
        "" if one.first == one.stream.fault or not one.named else f"first is {one.first}",
        "" if not one.named or one.error is not None else "not dated",
        f"off by {one.error}" if one.error is not None and one.error > _NEAR else "",
        "" if not one.stream.second or one.stream.second in one.dated else "second not named",
    ]
    why = ", ".join(part for part in wrong if part)
    return f"- {one.stream.name}, onset {one.times.onset}: {why}; said {said}"


def live(seed: int, *, fresh: bool) -> str:
    """When each blow-up was first named by one who reads the run while it goes on."""
    lines = ["| blow-up | onset | first named | steps later | said before the onset |"]
    lines.append("|--|--|--|--|--|")
    for stream in ONSET_STREAMS:
        if stream.fault not in _BLOW_UPS or stream.kind != "sudden":
            continue
        times, history = stream.draw(seed, fresh=fresh)
        early: set[str] = set()
        named: int | None = None
        for step in range(_LIVE_EVERY, times.steps + 1, _LIVE_EVERY):
            said = {v.name for v in diagnose(until(history, step)) if _loud(v)}
            if step < times.onset:
                early |= said
            elif stream.fault in said:
                named = step
                break
        later = "never" if named is None else str(named - times.onset)
        before = ", ".join(sorted(early)) or "nothing"
        lines.append(f"| {stream.name} | {times.onset} | {named or '-'} | {later} | {before} |")
    return "\n".join(lines)


def main() -> None:
    args = options(__doc__, seed=0, fresh=False, live=False)
    if args.live:
        print(live(args.seed, fresh=args.fresh))
    else:
        print(report(hear(args.seed, fresh=args.fresh)))


if __name__ == "__main__":
    main()
