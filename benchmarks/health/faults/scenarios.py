"""What is planted in each recorded run, and what a doctor may call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from faults.pleased_judge import judged_by, pleased_judge
from faults.project import train


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run to record."""

    name: str
    """Of the run and of the file it is recorded in."""
    expected: frozenset[str] = frozenset()
    """Detectors of which one at least has to speak; empty for a healthy run, where none may."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Config keys with `__` for `.`."""
    judged: bool = False
    """Whether a judge that is pleased by colours is a part of the reward."""

    def train(self, folder: Path, **more: Any) -> tuple[Path, int, str]:
        """Train it; as `faults.project.train`, with more config keys."""
        changes = self.changes | more
        if not self.judged:
            return train(folder, self.name, **changes)
        with pleased_judge() as url:
            return train(folder, self.name, **changes, reward__functions=judged_by(url))


def _scenario(row: Mapping[str, Any]) -> Scenario:
    keys = {name.replace(".", "__"): value for name, value in row["keys"].items()}
    return Scenario(
        name=row["name"],
        expected=frozenset(row.get("expected", "").split()),
        changes={**keys, "env__args": row["env"]},
        judged=row.get("judged", False),
    )


_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SCENARIOS = tuple(map(_scenario, _TABLE["runs"]))
"""Every recorded run but the quickstart's own."""
