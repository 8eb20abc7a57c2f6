"""Pass rates of tasks, measured before: kept in a file, and read again.

`agentrl tasks profile` writes one line of JSON a task into a file beside the data, at once when the
task is done; a killed profile goes on where it stopped. The last line of a task counts, and a line
that is not whole is none. A line names the task by id and by a digest of what it asks, so a
dataset that was changed under the same ids is measured again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agentrl.config.schema import DatasetSection
from agentrl.errors import DataError
from agentrl.machine.files import require_plain
from agentrl.metrics.intervals import wilson_interval
from agentrl.types import Task

_SUFFIX = ".pass-rates.jsonl"


def profile_file(section: DatasetSection, base: Path) -> Path:
    """Default file of the pass rates of a dataset: one that is no data file.

    Beside the data: `_NAME.pass-rates.jsonl` beside a file, `_SPLIT.pass-rates.jsonl` in a folder,
    and `_NAME-SPLIT.pass-rates.jsonl` beside the folder or file that is the `path` of a function's
    `args`, as of a Harbor directory. What has no path on this machine, a function or a dataset of
    the hub, is kept beside the run file, named after the source, the split and a digest of `args`.

    Args:
        section: source, split and arguments.
        base: folder that relative paths start from.
    """
    source, split = section.source, section.split.replace("/", "-")
    path = base / Path(source).expanduser()
    if not source.startswith("hf:"):
        if path.is_dir():
            return path / f"_{split}{_SUFFIX}"
        if path.is_file():
            return path.with_name(f"_{path.name.partition('.')[0]}{_SUFFIX}")
        named = section.args.get("path")
        if isinstance(named, str) and named and (base / Path(named).expanduser()).exists():
            given = (base / Path(named).expanduser()).resolve()
            return given.with_name(f"_{given.name}-{split}{_SUFFIX}")
    text = source.replace(f"{base}/", "")
    words = [re.sub(r"[^\w.]+", "-", text).strip("-."), split]
    if section.args:
        text = json.dumps(section.args, sort_keys=True, default=str)
        words.append(hashlib.blake2b(text.encode(), digest_size=4).hexdigest())
    return base / f"_{'-'.join(words)}{_SUFFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """Measured scores of one task."""

    mean: float
    """Mean score of its rollouts."""
    n: int
    """Rollouts that were scored."""
    digest: str = ""
    """Digest of the task, see `task_digest`; empty where the source gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One line of the file."""

    task_id: str
    """`Task.id`."""
    digest: str
    """Digest of its question and its grading."""
    n: int
    """Rollouts that were scored."""
    failed: int
    """Rollouts that could not be scored, and count for nothing."""
    mean: float | None
    """Mean score, an estimate of pass@1; None if none was scored."""
    low: float | None
    """Lower end of its 95 % interval; None where scores lie outside 0 to 1."""
    high: float | None
    """Upper end."""
    scores: tuple[float, ...]
    """Score of each rollout."""
    model: str
    """Model that was sampled from."""
    temperature: float
    """Temperature of sampling."""
    limits: str = ""
    """What else decides how far a rollout gets, as `top_p 1, max_turn_tokens 512`; empty in files
    of earlier versions."""

    @classmethod
    def of(
        cls,
        task: Task,
        scores: Sequence[float],
        *,
        failed: int,
        model: str,
        temperature: float,
        limits: str = "",
    ) -> Measured:
        """Sum up the rollouts of one task."""
        interval = wilson_interval(scores)
        return cls(
            task_id=task.id,
            digest=task_digest(task),
            n=len(scores),
            failed=failed,
            mean=math.fsum(scores) / len(scores) if scores else None,
            low=None if interval is None else interval[0],
            high=None if interval is None else interval[1],
            scores=tuple(scores),
            model=model,
            temperature=temperature,
            limits=limits,
        )


def task_digest(task: Task) -> str:
    """16 hexadecimal digits of what a task asks and how it is judged, the same on any machine."""
    prompt = task.prompt
    said = (
        prompt
        if isinstance(prompt, str)
        else [[m.role, m.content, *(image.digest for image in m.images)] for m in prompt]
    )
    # A label may be anything; what JSON does not know counts by its type, as addresses differ.
    text = json.dumps([said, task.label], sort_keys=True, default=lambda v: type(v).__name__)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def read_measured(path: Path) -> dict[str, Measured]:
    """The latest measurement of each task; a file that is not there has none.

    Raises:
        DataError: it cannot be read, or is no such file.
    """
    try:
        lines = require_plain(path).read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    found: dict[str, Measured] = {}
    broken = 0
    for line in filter(bytes.strip, lines):
        try:
            item = _measured(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            broken += 1  # a killed writer leaves at most one; another kind of file has many
            continue
        found[item.task_id] = item
    if broken > 1 or (broken and not found):
        raise DataError(
            f"{path}: {broken} lines are no pass rates; expected a file that 'agentrl tasks "
            "profile' wrote, or a folder with trajectories"
        )
    return found


def append_measured(file: BinaryIO, item: Measured) -> None:
    """Add a line; it is on the disk when this returns."""
    file.write(json.dumps(asdict(item)).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def end_torn_line(path: Path) -> None:
    """Put what comes next on a line of its own, where a killed writer left half of one."""
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def variance_weight(rate: PassRate | None) -> float:
    """Weight of a task with `dataset.selection: variance`, up to a common factor.

    Rewards of 0 and 1 have the variance p (1 - p) in a group of a task with pass rate p, and with
    it the size of a group-relative advantage (https://arxiv.org/abs/2502.12272 trains on what it
    calls learnability, the same product). p is not known but measured, s of n: this is its
    expectation under a uniform prior, (s + 1) (n - s + 1) / ((n + 2) (n + 3)). It is never 0, so
    no task is lost for good, and 1/6 for a task that was not measured.

    Example:
        >>> variance_weight(None) == 1 / 6, variance_weight(PassRate(mean=0.0, n=8)) == 9 / 110
        (True, True)
    """
    if rate is None:
        return 1 / 6
    n = rate.n
    solved = min(max(rate.mean, 0.0), 1.0) * n
    return (solved + 1) * (n - solved + 1) / ((n + 2) * (n + 3))


def _measured(values: Mapping[str, Any]) -> Measured:
    scores = tuple(float(score) for score in values["scores"])
    mean = values["mean"]
    if mean is not None and not math.isfinite(float(mean)):
        raise ValueError(f"mean is {mean}")
    return Measured(
        task_id=str(values["task_id"]),
        digest=str(values["digest"]),
        n=int(values["n"]),
        failed=int(values["failed"]),
        mean=None if mean is None else float(mean),
        low=values["low"],
        high=values["high"],
        scores=scores,
        model=str(values["model"]),
        temperature=float(values["temperature"]),
        limits=str(values.get("limits", "")),
    )
