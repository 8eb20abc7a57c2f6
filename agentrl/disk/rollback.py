"""Going back to an earlier checkpoint so that a kill at any moment loses nothing.

    rule fires -> RollBack -> stages closed -> plan.json written -> files moved -> rollback.json
                                                    ^                  |
                                                    +--- any kill: the next start goes on here

A rollback is a resume of a shortened run. What came after the checkpoint is moved to
`RUN/rolled-back/N/`: trajectories, tokens, checkpoints, records of refreshes and lines of
`metrics.jsonl`; nothing is deleted. A plan that is written is carried out, by this process or by
the next; before it is written, nothing has happened, and the rule decides the same again from the
same metrics.

What then goes on is not the run that collapsed: rollouts get other seeds (the number of the
rollback is part of them), and the tasks are those after the ones that were rolled back. The same
steps from the same weights would collapse again; skipping the data around a loss spike is what PaLM
did (Chowdhery et al. 2022, arXiv:2204.02311, section 5.1).

Checkpoints stay as they were saved. That the tasks leap after step `to` stands in `rollback.json`
alone, so a run whose checkpoint of that step is damaged goes on from any older one: it trains the
stored steps up to `to` again, and leaps there.

Invariants: `rolled-back/N/` with `plan.json` is to be carried out, with `rollback.json` it is done.
Every move is a rename within the run directory, so carrying out twice is the same as once.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl.disk.checkpoint import flush_tree
from agentrl.errors import RunError
from agentrl.machine.files import flush, write_whole
from agentrl.metrics.sinks import read_metrics

logger = logging.getLogger(__name__)

_PLAN, _DONE = "plan.json", "rollback.json"
_STEP_FILE = re.compile(r"^step_(\d+)\.")
_CHECKPOINT = re.compile(r"^step-(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """The plan of a rollback, as it stands on the disk."""

    step: int
    """Steps that were done."""
    to: int
    """Step of the checkpoint that is gone back to."""
    why: str
    """The rule and its evidence."""
    cursor: dict[str, Any]
    """`TaskCursor.state()` after the last task of `step`: those are not rolled out again."""
    elapsed_s: float
    """Wall time of the run so far in seconds, the rolled back steps included."""


class RollBack(Exception):
    """A driver ends for a rollback, as it ends for a signal; the only argument is the plan."""

    @property
    def plan(self) -> RollbackPlan:
        """The plan to carry out."""
        return self.args[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """One that is done."""

    plan: RollbackPlan
    """Plan that was carried out."""
    folder: Path
    """Folder of what was moved aside."""

    def metrics(self) -> dict[int, dict[str, float]]:
        """Step to its metrics, of the steps that were rolled back."""
        path = self.folder / "metrics.jsonl"
        return logged_metrics(path) if path.is_file() else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollbacks:
    """All that a run has had."""

    count: int = 0
    """Number of rollbacks."""
    in_effect: tuple[Rollback, ...] = ()
    """Ascending by `plan.to`: those whose checkpoint no later one has gone back behind."""
    elapsed_s: float = 0.0
    """Wall time of the run at the last of them, in seconds."""


def read_rollbacks(run: Path) -> Rollbacks:
    """The rollbacks that are done.

    Raises:
        RunError: one of them cannot be read.
    """
    done = [folder for folder in _folders(run) if (folder / _DONE).is_file()]
    in_effect: list[Rollback] = []
    elapsed_s = 0.0
    for folder in sorted(done, key=lambda folder: int(folder.name)):
        plan = _read_plan(folder / _DONE)
        in_effect = [earlier for earlier in in_effect if earlier.plan.to < plan.to]
        in_effect.append(Rollback(plan=plan, folder=folder))
        elapsed_s = max(elapsed_s, plan.elapsed_s)
    return Rollbacks(count=len(done), in_effect=tuple(in_effect), elapsed_s=elapsed_s)


def begin_rollback(run: Path, plan: RollbackPlan) -> None:
    """Write the plan; from here on the rollback happens, in this process or the next.

    Raises:
        OSError: the disk does not take it; nothing has happened.
    """
    number = max((int(folder.name) for folder in _folders(run)), default=0) + 1
    folder = run / "rolled-back" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _PLAN, json.dumps(asdict(plan), indent=1).encode())
    flush_tree(run / "rolled-back")


def finish_rollbacks(run: Path) -> None:
    """Carry out every plan that is written, also one that a kill interrupted.

    Raises:
        RunError: a plan cannot be read.
        OSError: the disk does not take it; the next call goes on.
    """
    pending = [folder for folder in _folders(run) if (folder / _PLAN).is_file()]
    for folder in sorted(pending, key=lambda folder: int(folder.name)):
        plan = _read_plan(folder / _PLAN)
        _move_aside(run, folder, after=plan.to)
        (folder / _PLAN).rename(folder / _DONE)
        flush_tree(folder)
        logger.warning("rolled back from step %d to step %d: %s", plan.step, plan.to, plan.why)


def logged_metrics(path: Path) -> dict[int, dict[str, float]]:
    """Step to its metrics; NaN where one was not finite.

    Raises:
        OSError: no such file.
    """

    logged: dict[int, dict[str, float]] = {}
    for line in read_metrics(path):
        known = {name: math.nan if value is None else value for name, value in line.items()}
        logged.setdefault(line["step"], {}).update(known)
    return logged


def _folders(run: Path) -> list[Path]:
    root = run / "rolled-back"
    return [path for path in root.iterdir() if path.name.isdecimal()] if root.is_dir() else []


def _read_plan(path: Path) -> RollbackPlan:
    try:
        return RollbackPlan(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        what = (
            "what a rollback still has to do; remove its folder to go on from the newest "
            "checkpoint instead"
            if path.name == _PLAN
            else "which tasks come after a rollback; put it back, or remove it to go on with the "
            "tasks that were rolled back"
        )
        raise RunError(f"{path} cannot be read: {error}. It says {what}") from error


def _move_aside(run: Path, folder: Path, *, after: int) -> None:
    for path in _later(run, after):
        target = folder / path.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.replace(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # A folder of the run that is a link to another disk keeps it, under a name that is not
            # searched for.
            path.replace(path.with_name(f".rolled-back-{folder.name}-{path.name}"))
    _move_metrics(run / "metrics.jsonl", folder / "metrics.jsonl", after=after)
    for name in ("checkpoints", "trajectories", "tokens", "refresh"):
        if (run / name).is_dir():
            flush_folders(run / name)


def _later(run: Path, after: int) -> Iterator[Path]:
    """Files, records of refreshes and checkpoints of later steps."""
    for name in ("trajectories", "tokens", "refresh"):
        for path in sorted((run / name).rglob("step_*")):
            found = _STEP_FILE.match(path.name)
            if found and int(found[1]) > after:
                yield path
    for path in sorted((run / "checkpoints").glob("step-*")):
        found = _CHECKPOINT.match(path.name)
        if found and int(found[1]) > after:
            yield path


def _move_metrics(path: Path, aside: Path, *, after: int) -> None:
    """Lines of later steps go into `aside`; whole there before they are gone here."""
    if not path.is_file():
        return
    kept: list[bytes] = []
    later: list[bytes] = []
    for line in path.read_bytes().splitlines(keepends=True):
        (later if _step_of(line) > after else kept).append(line)
    if later:
        write_whole(aside, b"".join(later))
        write_whole(path, b"".join(kept))


def _step_of(line: bytes) -> int:
    """-1 for a torn line, which stays where it is."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return -1
    return step if isinstance(step, int) else -1


def flush_folders(root: Path) -> None:
    """Bring the names in a folder, and in those below it, onto the disk."""
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        flush(folder)
