"""The results of all parts: as JSON, as Markdown, and as the one sentence docs/fleet.md may say."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "benchmarks" / "results" / "gpu.md"
NOT_RUN = "Nothing here has run on a GPU yet."
_CLAIM = "docs/fleet.md may say: "


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


@dataclass(slots=True)
class Results:
    """What is known of the parts so far."""

    commit: str | None = None
    small: bool = False
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    facts: dict[str, str] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Ask git for the commit where none is given."""
        self.commit = self.commit or _commit()

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `to_json` gave."""
        return cls(**json.loads(path.read_text()))

    @classmethod
    def merged(cls, several: Iterable[Results]) -> Results:
        """One of several runs of one commit and machine; a later part wins, unless it was skipped.

        Where their weights differ, each part names its own.

        Raises:
            ValueError: they are of different commits, sizes or machines.
        """
        first, *others = several
        first._name_weights()
        for other in others:
            other._name_weights()
            mine, theirs = ((one.commit, one.small, one.facts) for one in (first, other))
            if mine != theirs:
                raise ValueError(
                    f"results are of different runs: {mine} and {theirs}; make a page of "
                    "those that agree in commit, size and machine"
                )
            for name, part in other.parts.items():
                if part["state"] != "skipped" or name not in first.parts:
                    first.parts[name] = part
        named = {part["weights"] for part in first.parts.values()}
        if len(named) == 1:
            first.facts["weights"] = named.pop()
            for part in first.parts.values():
                del part["weights"]
        return first

    def passed_before(self, file: Path) -> dict[str, dict[str, Any]]:
        """Parts that an earlier run of the same commit, size and machine has passed."""
        try:
            earlier = Results.load(file)
        except (OSError, ValueError, TypeError):  # none yet, or no results of ours
            return {}
        mine, theirs = ((one.commit, one.small, one.facts) for one in (self, earlier))
        if mine != theirs:
            return {}
        return {n: part for n, part in earlier.parts.items() if part["state"] == "passed"}

    def _name_weights(self) -> None:
        """Move the weights from the facts to each part."""
        weights = self.facts.pop("weights", "unknown")
        for part in self.parts.values():
            part.setdefault("weights", weights)

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def save(self, path: Path) -> None:
        """Write `to_json`, whole or not at all."""
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(self.to_json(), indent=1) + "\n")
        beside.replace(path)

    @property
    def on_gpu(self) -> bool:
        """True for results of a GPU, at the sizes whose figures count."""
        return not self.small and "cuda" in self.facts

    @property
    def passed(self) -> bool:
        """True if a part has run and every part that ran has passed."""
        ran = [part["state"] for part in self.parts.values() if part["state"] != "skipped"]
        return bool(ran) and set(ran) == {"passed"}

    def named(self, *states: str) -> list[str]:
        """Parts in one of these states."""
        return [name for name, part in self.parts.items() if part["state"] in states]

    def headline(self) -> str:
        """Device, versions and commit in one line."""
        versions = ", ".join(f"{k} {v}" for k, v in self.facts.items() if k != "device")
        return f"agentrl: {self.facts.get('device', 'none')}, commit {self.commit}, {versions}"

    def part_text(self, name: str) -> str:
        """A part for the terminal."""
        part = self.parts[name]
        lines = [f"{name}: {part['state']} after {part['seconds']:g} s"]
        lines += [f"  {line}" for line in part["reason"].splitlines()]
        lines += [f"  {reading['text']}" for reading in part["readings"]]
        return "\n".join(lines)


def claim(results: Results) -> str:
    """The sentence on GPUs that these results allow."""
    done = results.named("passed")
    if not results.on_gpu or not done:
        return NOT_RUN
    text = (
        f"Run on one {results.facts['device'].split(',')[0]} on {results.date} at commit "
        f"{results.commit}: {', '.join(done)} passed"
    )
    failed = results.named("failed", "crashed", "timed out")
    return f"{text}; {', '.join(failed)} did not." if failed else f"{text}."


def claim_of(report: str) -> str:
    """The sentence that a written report allows; `NOT_RUN` where it has none."""
    for line in report.splitlines():
        if line.startswith(_CLAIM):
            return line.removeprefix(_CLAIM)
    return NOT_RUN


def markdown(results: Results) -> str:
    """The page benchmarks/results/gpu.md."""
    lines = [
        "# Results on a GPU",
        "",
        "Written by `python benchmarks/gpu/run.py --report FILE`.",
        "",
    ]
    lines += [_CLAIM + claim(results), ""]
    lines += ["| | |", "| --- | --- |"]
    if results.on_gpu:
        lines += [f"| date | {results.date} |", f"| commit | {results.commit} |"]
        lines += [f"| {name} | {value} |" for name, value in results.facts.items()]
    else:
        lines += ["| status | not run |"]
        return "\n".join([*lines, ""])
    for name, part in results.parts.items():
        lines += ["", f"## {name}: {part['state']}, {part['seconds']:g} s", ""]
        lines += [f"Weights: {part['weights']}.", ""] if "weights" in part else []
        if part["reason"]:
            lines += ["```", part["reason"].strip(), "```", ""]
        if part["readings"]:
            lines += ["| reading | value | unit | bound |", "| --- | --- | --- | --- |"]
        for row in part["readings"]:
            bound = "" if row["bound"] is None else f"{row['bound']:g}"
            lines.append(f"| {row['name']} | {row['value']:.4g} | {row['unit']} | {bound} |")
    return "\n".join([*lines, ""])
