"""One checkpoint of a run as one Hugging Face directory, without what only the trainer reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentrl.disk.checkpoint import (
    STATE_FILE,
    Checkpoint,
    best_checkpoint,
    flush_tree,
    list_checkpoints,
    make_folder,
    none_complete,
)
from agentrl.disk.run_directory import read_any_identity
from agentrl.errors import RunError
from agentrl.reward.posterior import POSTERIOR_FILE
from agentrl.reward.scale import SCALE_FILE

ADAPTER_FOLDER = "adapter"
"""Same name as in `agentrl.train.model.lora`, which would load torch."""

_OF_THE_TRAINER = ("trainer", "critic", "reference", "reward")
"""Prefixes of files and folders that do not belong to the policy."""
_OF_THE_MODEL = (SCALE_FILE, POSTERIOR_FILE)
"""Files that belong to the model all the same: what a reward model's scores are worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The folder that `export` made."""

    path: Path
    """A folder that `AutoModelForCausalLM.from_pretrained` loads, a reward model with
    `AutoModelForSequenceClassification`, tokenizer included; or that peft loads, if the adapters
    were asked for."""
    step: int
    """Training steps behind it."""
    score: float | None
    """Of the evaluation at that step, by `checkpoint.keep_best`; None if there was none."""


def export(
    run: Path,
    out: Path,
    *,
    step: int | None = None,
    best: bool = False,
    adapter: bool = False,
    check: Callable[[Path], None] | None = None,
) -> Exported:
    """Write one checkpoint of a run to `out`, whole or not at all. The run may go on meanwhile.

    The weights of a run that trained adapters are the merged ones.

    Args:
        run: a run directory, also one of `agentrl fit`.
        out: where to write; must not exist, or be an empty folder.
        step: of the checkpoint; None takes the latest one.
        best: take the one with the best evaluation, by `checkpoint.keep_best` of the run.
        adapter: write the adapters alone, in peft's format.
        check: refuses a folder that is not a whole model; called before anything is written.

    Raises:
        RunError: no such run, checkpoint or adapters, `out` is taken, or the disk takes no more.
    """
    config, _ = read_any_identity(run)
    chosen = _choose(run, step=step, best=best, best_by=config.checkpoint.best_by)
    _check_free(out)
    source = chosen.path / ADAPTER_FOLDER if adapter else chosen.path
    if adapter and not source.is_dir():
        raise RunError(f"{chosen.path} has no adapters: the run trained all weights")
    if check is not None:
        check(source)

    def write(making: Path) -> None:
        _copy_policy(source, making)
        flush_tree(making)

    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        make_folder(out.absolute(), write)
    except OSError as error:
        gone = not chosen.path.is_dir()
        why = f"{chosen.path} was deleted meanwhile; try again" if gone else str(error)
        raise RunError(f"{out} could not be written: {why}") from error
    score = chosen.state.score(config.checkpoint.best_by)
    return Exported(path=out, step=chosen.state.step, score=score)


def _choose(run: Path, *, step: int | None, best: bool, best_by: str) -> Checkpoint:
    root = run / "checkpoints"
    found = list_checkpoints(root)
    if not found:
        raise none_complete(run, root)
    if step is not None and best:
        raise RunError("a step and the best step were asked for; give --step or --best, not both")
    if best:
        return best_checkpoint(root, best_by)
    if step is None:
        return found[-1]
    for checkpoint in found:
        if checkpoint.state.step == step:
            return checkpoint
    steps = ", ".join(str(checkpoint.state.step) for checkpoint in found)
    raise RunError(f"run {run} has no checkpoint of step {step}; it has those of steps {steps}")


def _check_free(out: Path) -> None:
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise RunError(f"{out} exists already; nothing is overwritten: name another folder")


def _copy_policy(source: Path, target: Path) -> None:
    for entry in sorted(source.iterdir()):
        own = entry.name.startswith(_OF_THE_TRAINER) and entry.name not in _OF_THE_MODEL
        if entry.name in (STATE_FILE, ADAPTER_FOLDER) or own:
            continue
        if entry.is_dir():
            shutil.copytree(entry, target / entry.name)
        else:
            shutil.copy2(entry, target / entry.name)
