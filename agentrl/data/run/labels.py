"""`RUN/labels.jsonl`: reviewers' labels of rollouts and tokens, beside what the run has written.

Appended to and never rewritten, so that two reviewers lose nothing of each other's and a kill
nothing but the line that it tears. A label is taken back by a line that says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.data.run.read import read_objects
from agentrl.errors import DataError
from agentrl.machine.files import append_line

JUDGE = "judge:"
"""Before the name of a judge where a reviewer's name stands."""
LONGEST_COMMENT = 10_000
"""Characters of a comment, at most."""
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLabel:
    """One label or comment that a reviewer gives a rollout, or tokens of it."""

    kind: str
    """`train` or `eval/NAME`."""
    step: int
    """Step of the file that holds the rollout."""
    rollout: str
    """`Trajectory.rollout_id`."""
    by: str
    """Name of the reviewer, or of the judge."""
    label: str = ""
    """One word, as `hacked`; empty for a comment alone."""
    comment: str = ""
    """Free text."""
    first_token: int | None = None
    """Position of the first token that is meant, in the responses of the rollout's rows one after
    the other; None means the whole rollout."""
    end_token: int | None = None
    """Position after the last one."""
    time: float = 0.0
    """Seconds since 1970; set when it is written."""

    def __post_init__(self) -> None:
        """Check what was typed.

        Raises:
            DataError: neither label nor comment, a label with spaces, tokens that are no range.
        """
        if not self.label and not self.comment:
            raise DataError("a label needs a word or a comment, got neither: give --label")
        if len(self.label.split()) > 1 or len(self.label) > _LONGEST_NAME:
            raise DataError(f"label {self.label!r}: expected one word, as in hacked or well-done")
        if not self.by.strip() or len(self.by) > _LONGEST_NAME:
            raise DataError(f"the reviewer {self.by!r}: expected a name, as in --by ann")
        if len(self.comment) > LONGEST_COMMENT:
            raise DataError(
                f"the comment has {len(self.comment)} characters, expected at most "
                f"{LONGEST_COMMENT}: shorten it"
            )
        if (self.first_token is None) != (self.end_token is None) or (
            self.first_token is not None
            and self.end_token is not None
            and not 0 <= self.first_token < self.end_token
        ):
            raise DataError(
                f"tokens {self.first_token}:{self.end_token}: expected A:B with 0 <= A < B"
            )

    @property
    def key(self) -> tuple[str, int, str]:
        """The rollout, as its file has it."""
        return self.kind, self.step, self.rollout


def add_label(path: Path, label: RolloutLabel, *, taken_back: bool = False) -> RolloutLabel:
    """Append a label, or that it is taken back.

    Args:
        path: of the file.
        label: as it is, or as it was given.
        taken_back: whether this reviewer no longer says so.

    Returns:
        The label with its time.

    Raises:
        OSError: it is not on the disk.
    """
    label = replace(label, time=round(time.time(), 3))
    data = {name: value for name, value in asdict(label).items() if value not in ("", None)}
    append_line(path, json.dumps(data | ({"taken_back": True} if taken_back else {})).encode())
    return label


def read_labels(path: Path) -> list[RolloutLabel]:
    """The labels that stand, oldest first; none where there is no file.

    The same word of the same reviewer for the same tokens stands once, with the last comment.
    """
    found: dict[tuple[object, ...], RolloutLabel] = {}
    for data in read_objects(path):
        label = None if data is None else _label(data)
        if data is None or label is None:
            continue
        # A comment alone stands beside others; one is taken back by its text.
        said = label.label or ("", label.comment)
        key = (*label.key, label.by, said, label.first_token, label.end_token)
        found.pop(key, None)
        if not data.get("taken_back"):
            found[key] = label
    return list(found.values())


def labels_by_rollout(path: Path) -> dict[tuple[str, int, str], list[RolloutLabel]]:
    """The labels that stand, by kind, step and id of their rollout."""
    found: dict[tuple[str, int, str], list[RolloutLabel]] = {}
    for label in read_labels(path):
        found.setdefault(label.key, []).append(label)
    return found


_TYPES: Mapping[str, type] = {
    "kind": str, "step": int, "rollout": str, "by": str, "label": str, "comment": str,
    "first_token": int, "end_token": int, "time": float,
}  # fmt: skip


def _label(data: Mapping[str, Any]) -> RolloutLabel | None:
    known = {name: data[name] for name in _TYPES if name in data}
    if isinstance(known.get("time"), int):
        known["time"] = float(known["time"])
    if not {"kind", "step", "rollout", "by"} <= known.keys():
        return None
    if not all(isinstance(value, _TYPES[name]) for name, value in known.items()):
        return None
    try:
        return RolloutLabel(**known)
    except DataError:
        return None  # a line that somebody edited
