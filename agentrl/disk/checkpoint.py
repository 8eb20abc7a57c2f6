"""Checkpoints that are either complete or not there.

A checkpoint is written into a folder with a temporary name, every file is flushed to the disk,
`state.json` with the sizes of all files goes in last, and one rename makes it visible. Which one
is the latest, and which are the best, is found by looking, never by trusting a pointer file.
Invariant: a folder named `step-N` whose `state.json` matches its files can be resumed from;
anything else is debris.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from agentrl.config.schema import CheckpointSection
from agentrl.errors import RunError, some_of
from agentrl.machine.files import flush, write_whole
from agentrl.machine.inside import within

logger = logging.getLogger(__name__)

_NAME = re.compile(r"^step-(\d+)$")
_SCORE = re.compile(r"^eval/(.+)/score$")
PARTS_FOLDER = "trainer"
"""Folder of the trainer's state in a checkpoint, as in `agentrl.train.checkpoint`."""
ROUNDED_FOLDER = "trainer-rounded"
"""The same in less room, once a run has ended."""
STATE_FILE = "state.json"
"""File that makes a folder a checkpoint; written last."""
_MAKING = ".making-"
_AGAIN = "copy the folder once more, whole"
_DELETING = ".deleting-"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """State of a run beside weights and optimizer, with which it goes on."""

    step: int
    """Training steps done."""
    version: int
    """Policy version of the weights."""
    cursor: dict[str, Any]
    """`TaskCursor.state()` after the last task of `step`."""
    elapsed_s: float
    """Wall time spent on the run so far, over all its processes, in seconds."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """`eval/...` metrics of the evaluation at this step; none if there was none."""
    rm_version: int = 0
    """Version of the refreshed reward model that paid when it was saved; 0 where none is."""
    resumes: bool = True
    """It has the state of the trainer; without it, weights alone (`checkpoint.save: model`)."""

    def score(self, best_by: str) -> float | None:
        """The score of this checkpoint; None without an evaluation.

        Args:
            best_by: as `CheckpointSection.best_by`: a metric, or empty for the mean of all
                `eval/NAME/score`.
        """
        names = [best_by] if best_by else filter(_SCORE.match, self.scores)
        values = [self.scores[name] for name in names if name in self.scores]
        score = fmean(values) if values else math.nan
        return None if math.isnan(score) else score

    def missing(self, best_by: str, datasets: Collection[str]) -> dict[str, float]:
        """Share of the tasks that `score` lacks, by dataset; those that lack none are left out.

        Args:
            best_by: as of `score`.
            datasets: that have a score at some step; all of one without a score here is missing.
        """
        share = {
            name: self.scores.get(f"eval/{name}/missing", 0.0)
            if best_by or f"eval/{name}/score" in self.scores
            else 1.0
            for name in datasets
            if best_by.startswith(f"eval/{name}/") or not best_by
        }
        return {name: value for name, value in share.items() if value > 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on the disk."""

    path: Path
    """A folder that `AutoModelForCausalLM.from_pretrained` loads."""
    state: CheckpointState
    """State that was saved with it."""


def save_checkpoint(
    root: Path,
    state: CheckpointState,
    write: Callable[[Path], None],
    section: CheckpointSection,
    *,
    keep: Collection[int] = (),
) -> Path:
    """Write one checkpoint and delete those that the section does not keep.

    Args:
        root: the folder that holds the checkpoints.
        state: saved as `state.json`.
        write: fills the folder it is given with weights, tokenizer and trainer state.
        section: says how many of the last and of the best are left afterwards.
        keep: steps of checkpoints that stay besides.

    Raises:
        OSError: as while writing (a full disk); nothing half-written stays and earlier checkpoints
            are untouched.
    """
    root.mkdir(parents=True, exist_ok=True)
    sweep(root)

    def write_all(making: Path) -> None:
        write(making)
        flush_tree(making)
        sizes = {
            str(path.relative_to(making)): path.stat().st_size
            for path in sorted(making.rglob("*"))
            if path.is_file()
        }
        document = {**asdict(state), "files": sizes}
        del document["resumes"]  # so has every checkpoint that says nothing else
        write_whole(making / STATE_FILE, json.dumps(document, indent=1).encode())

    target = make_folder(root / f"step-{state.step}", write_all)
    _prune(root, section, keep)
    return target


def score_checkpoint(
    root: Path, state: CheckpointState, section: CheckpointSection, *, keep: Collection[int] = ()
) -> None:
    """Give the checkpoint of `state.step` its scores, where it was saved before they were known.

    That is so where a signal ended the evaluation of its step early. Without such a checkpoint, and
    without scores, nothing is done. Afterwards those that the section does not keep are deleted.

    Args:
        root: the folder that holds the checkpoints.
        state: its `scores` are written; all else stays as it was saved.
        section: says how many of the last and of the best are left.
        keep: steps of checkpoints that stay besides.

    Raises:
        OSError: as while writing; the checkpoint stays as it was.
    """
    ours = next((item for item in list_checkpoints(root) if item.state.step == state.step), None)
    if ours is None or not state.scores or ours.state.scores == state.scores:
        return
    file = ours.path / STATE_FILE
    document = {**json.loads(file.read_bytes()), "scores": dict(state.scores)}
    write_whole(file, json.dumps(document, indent=1).encode())
    _prune(root, section, keep)


def _prune(root: Path, section: CheckpointSection, keep: Collection[int]) -> None:
    found = list_checkpoints(root)
    kept = {item.path for item in (*found[-section.keep_last :], *_best(found, section))}
    kept |= {item.path for item in found if item.state.step in keep}
    newest = [item.path for item in found if item.state.resumes][-1:]
    for old in found:
        if old.path not in (*kept, *newest):
            _remove(old.path)
        elif section.save == "model" and old.path not in newest and old.state.step not in keep:
            _drop_state(old)


def round_state(
    root: Path,
    section: CheckpointSection,
    write: Callable[[Path, Path], None],
    *,
    keep: Collection[int] = (),
) -> None:
    """Bring the newest state of the trainer into less room at the end of a run.

    A state of adapters stays: it is small.

    Args:
        root: the folder that holds the checkpoints.
        section: says what is saved; with `all` nothing is done.
        write: called with the folder of the checkpoint and one to fill.
        keep: steps of checkpoints that stay as they are.

    Raises:
        OSError: the disk does not take it; no checkpoint is torn.
    """
    for item in list_checkpoints(root) if section.save == "model" else ():
        sizes = json.loads((item.path / STATE_FILE).read_bytes())["files"]
        state = _state_files(sizes)
        if item.state.step in keep or not state or _of_adapters(sizes):
            continue
        if any(Path(name).parts[0] == ROUNDED_FOLDER for name in state):
            continue

        def write_all(folder: Path, item: Checkpoint = item) -> None:
            write(item.path, folder)
            flush_tree(folder)

        made = make_folder(item.path / ROUNDED_FOLDER, write_all)
        files = {name: size for name, size in sizes.items() if name not in state}
        files |= {f"{ROUNDED_FOLDER}/{one.name}": one.stat().st_size for one in made.iterdir()}
        _name_files(item.path, files)


def _state_files(sizes: Mapping[str, int]) -> set[str]:
    """Names of the files of a checkpoint that hold the state of the trainer."""
    return {name for name in sizes if Path(name).parts[0] in (PARTS_FOLDER, ROUNDED_FOLDER)}


def _of_adapters(sizes: Mapping[str, int]) -> bool:
    """The state is much smaller than the weights, which cannot go on without it."""
    return 4 * sum(sizes[name] for name in _state_files(sizes)) < sum(sizes.values())


def _drop_state(item: Checkpoint) -> None:
    """Leave the weights alone; the checkpoint is complete before, meanwhile and after.

    The state of adapters stays: it is small, and their weights cannot go on without it.
    """
    sizes = json.loads((item.path / STATE_FILE).read_bytes())["files"]
    state = _state_files(sizes)
    if state and not _of_adapters(sizes):
        rest = {name: size for name, size in sizes.items() if name not in state}
        _name_files(item.path, rest, resumes=False)


def _name_files(path: Path, files: Mapping[str, int], **changes: Any) -> None:
    """Write the list of files of a checkpoint, and delete folders that are not in it."""
    document = json.loads((path / STATE_FILE).read_bytes())
    document = {**document, **changes, "files": files}
    write_whole(path / STATE_FILE, json.dumps(document, indent=1).encode())
    _remove_rest(path, files)


def _remove_rest(path: Path, files: Mapping[str, int]) -> None:
    """Delete folders of the state that are no part of a checkpoint.

    Each is out of sight in one rename first, as with `_remove`.
    """
    known = {Path(name).parts[0] for name in files}
    for name in {PARTS_FOLDER, ROUNDED_FOLDER} - known:
        doomed = path.with_name(f"{_DELETING}{path.name}-{name}")
        shutil.rmtree(doomed, ignore_errors=True)
        if (path / name).is_dir():
            (path / name).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def make_folder(target: Path, write: Callable[[Path], None]) -> Path:
    """Fill a folder so that it is there whole or not at all; one of that name is replaced.

    Args:
        target: the folder; its parent exists.
        write: fills the folder it is given, and flushes what must be on the disk.

    Raises:
        OSError: as while writing; what stood there stays.
    """
    making = target.with_name(f"{_MAKING}{target.name}")
    shutil.rmtree(making, ignore_errors=True)  # what a kill left
    try:
        making.mkdir()
        write(making)
        if target.exists():
            _remove(target)
        making.rename(target)
        flush(target.parent)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return target


def would_be_kept(root: Path, state: CheckpointState, section: CheckpointSection) -> bool:
    """A checkpoint of this state would be among the best that are kept."""
    if section.best_count == 0 or state.score(section.best_by) is None:
        return False
    found = [item for item in list_checkpoints(root) if item.state.step != state.step]
    ours = Checkpoint(path=root / f"step-{state.step}", state=state)
    return ours in _best([*found, ours], section)


def _best(found: Sequence[Checkpoint], section: CheckpointSection) -> list[Checkpoint]:
    """The best by score, at most `best_count`; of equal scores the later steps.

    A mean over what failures left of an evaluation is no score to win by: what is missing counts as
    0, and those that lack a dataset come last; so do those that lack a task where scores are below
    0, since 0 is no lower bound of them.
    """
    by = section.best_by
    datasets = _datasets(found)
    scored = [item for item in found if item.state.score(by) is not None]
    counted = {by} if by else {f"eval/{name}/score" for name in datasets}
    below = any(item.state.scores.get(name, 0.0) < 0 for item in scored for name in counted)

    def rank(item: Checkpoint) -> tuple[bool, float, bool, int]:
        scores, missing = item.state.scores, item.state.missing(by, datasets)
        if by:
            value = scores[by] * (1.0 - sum(missing.values()))
        else:
            value = fmean(
                scores.get(f"eval/{name}/score", 0.0) * (1.0 - missing.get(name, 0.0))
                for name in datasets
            )
        last = bool(missing) if below else any(share >= 1.0 for share in missing.values())
        return not last, value, not missing, item.state.step

    return sorted(scored, key=rank, reverse=True)[: section.best_count]


def _datasets(found: Sequence[Checkpoint]) -> list[str]:
    """Datasets that have a score at some step."""
    matches = [_SCORE.match(name) for item in found for name in item.state.scores]
    return sorted({match[1] for match in matches if match})


def best_checkpoint(root: Path, best_by: str) -> Checkpoint:
    """The complete checkpoint with the highest score.

    Raises:
        RunError: none below `root` has that score.
    """
    found = list_checkpoints(root)
    best = _best(found, CheckpointSection(keep_best={best_by: 1} if best_by else 1))
    if not best:
        known = sorted({name for item in found for name in item.state.scores})
        raise RunError(
            f"no checkpoint in {root} has {best_by or 'a score eval/NAME/score'}; "
            f"{len(found)} are complete, and their metrics are: {', '.join(known) or 'none'}. A "
            "checkpoint has scores if the run was evaluated at its step (eval.every_steps, "
            "checkpoint.keep_best)"
        )
    lacks = best[0].state.missing(best_by, _datasets(found))
    if lacks:
        logger.warning(
            "the evaluation of the best checkpoint in %s, of step %d, lacks %s, which count as 0",
            root,
            best[0].state.step,
            ", ".join(f"{share:.1%} of the tasks of {name}" for name, share in lacks.items()),
        )
    return best[0]


def list_checkpoints(root: Path) -> list[Checkpoint]:
    """Every complete checkpoint below `root`, by step. Incomplete ones are passed over."""
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        if _NAME.match(path.name) and (state := _read_state(path)) is not None:
            found.append(Checkpoint(path=path, state=state))
    return sorted(found, key=lambda checkpoint: checkpoint.state.step)


def latest_checkpoint(root: Path) -> Checkpoint | None:
    """The complete checkpoint with the most steps, if there is one."""
    found = list_checkpoints(root)
    return found[-1] if found else None


def checkpoint_to_resume(root: Path, *, steps: int) -> Checkpoint | None:
    """The complete checkpoint from which a run goes on, if there is one.

    That is the newest with the state of the trainer; the newest of all where no step is left.

    Args:
        root: the folder that holds the checkpoints.
        steps: of the run.
    """
    found = list_checkpoints(root)
    if found and found[-1].state.step >= steps:
        return found[-1]
    return next((item for item in reversed(found) if item.state.resumes), None)


def damaged_after(root: Path, step: int) -> tuple[Path, ...]:
    """Folders of checkpoints of later steps; `step` is that of the newest complete one."""
    found = {int(match[1]): path for path in root.glob("*") if (match := _NAME.match(path.name))}
    return tuple(found[number] for number in sorted(found) if number > step)


def resolve_model_path(path: str) -> str:
    """A run directory stands for its latest checkpoint; everything else for itself.

    Raises:
        RunError: a run directory without a complete checkpoint.
    """
    root = Path(path).expanduser() / "checkpoints"
    if not root.is_dir():
        return path
    latest = latest_checkpoint(root)
    if latest is None:
        raise none_complete(path, root)
    return str(latest.path)


def sweep(root: Path) -> None:
    """Delete what an interrupted save or delete left behind."""
    for item in list_checkpoints(root):
        _remove_rest(item.path, json.loads((item.path / STATE_FILE).read_bytes())["files"])
    for name in (f"{_MAKING}*", f"{_DELETING}*"):
        for path in (*root.glob(name), *root.glob(f"*/{name}")):
            shutil.rmtree(path, ignore_errors=True)


def _read_state(path: Path) -> CheckpointState | None:
    found = _state_or_fault(path)
    if isinstance(found, str):
        logger.warning("checkpoint %s is not complete and is passed over: %s", path, found)
        return None
    return found


def _state_or_fault(path: Path) -> CheckpointState | str:
    """The state of a checkpoint, or why it is none."""
    try:
        document = json.loads((path / STATE_FILE).read_bytes())
        sizes: dict[str, int] = document.pop("files")
        state = CheckpointState(**document)
        files = {name: within(path.parent, path / name) for name in sizes}
        if gone := [name for name, file in files.items() if not file.exists()]:
            return f"of its {len(files)} files {len(gone)} are missing ({some_of(gone)}); {_AGAIN}"
        found = {name: file.stat().st_size for name, file in files.items()}
        if other := [name for name in sizes if found[name] != sizes[name]]:
            first = f"{other[0]} has {found[other[0]]} bytes, expected {sizes[other[0]]}"
            return f"{len(other)} of its {len(files)} files changed size ({first}); {_AGAIN}"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{STATE_FILE} or a file in it cannot be read ({error}); {_AGAIN}"
    return state


def none_complete(run: str | Path, root: Path) -> RunError:
    """The error of a run of which no checkpoint is complete, with what is wrong with each."""
    names = sorted(path for path in root.glob("*") if _NAME.match(path.name))
    faults = [f"of {path.name}: {fault}" for path in names if (fault := _fault(path))]
    why = f": {some_of(faults)}" if faults else " yet"
    return RunError(f"run {run} has no complete checkpoint below {root}{why}")


def _fault(path: Path) -> str:
    found = _state_or_fault(path)
    return found if isinstance(found, str) else ""


def _remove(path: Path) -> None:
    """Out of sight in one rename first: a kill half-way leaves no half checkpoint."""
    doomed = path.with_name(f"{_DELETING}{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def flush_tree(root: Path) -> None:
    """Bring a folder and everything in it onto the disk."""
    for path in sorted(root.rglob("*")):
        flush(path)
    flush(root)
