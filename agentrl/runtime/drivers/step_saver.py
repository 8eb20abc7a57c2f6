"""When a driver saves a checkpoint, and what it does where the disk does not take it."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config.schema import CheckpointSection
from agentrl.runtime.disk.checkpoint import (
    CheckpointState,
    save_checkpoint,
    score_checkpoint,
    would_be_kept,
)
from agentrl.runtime.drivers.run_clock import RunClock
from agentrl.runtime.progress import Progress
from agentrl.serving.threads import run_computing

if TYPE_CHECKING:
    from agentrl.runtime.disk.run_directory import RunDir

logger = logging.getLogger(__name__)


class StepSaver:
    """Saves the steps of one run."""

    def __init__(
        self,
        run_dir: RunDir,
        section: CheckpointSection,
        *,
        saved: int,
        write: Callable[[Path], None],
        clock: RunClock,
        progress: Progress,
    ) -> None:
        """Go on where the run stands.

        Args:
            run_dir: of the run.
            section: says how often, and how many are kept.
            saved: the step that the run goes on from.
            write: fills a folder with weights, tokenizer and trainer state.
            clock: told how long a checkpoint takes.
            progress: told what happens.
        """
        self._run_dir, self._section, self._saved = run_dir, section, saved
        self._write, self._clock, self._progress = write, clock, progress

    def due(self, state: CheckpointState) -> bool:
        """Whether this step is to be saved."""
        if state.step % self._section.every_steps == 0:
            return True
        return would_be_kept(self._run_dir.checkpoints, state, self._section)

    async def save(self, state: CheckpointState, keep: Callable[[], Collection[int]]) -> None:
        """Save, or score what was saved when a signal cut its evaluation short.

        A failure is reported and the run goes on; earlier checkpoints stay as they are.

        Args:
            state: of the step.
            keep: steps of checkpoints that stay whatever the section says.
        """
        began = time.monotonic()
        root = self._run_dir.checkpoints
        try:
            kept = keep()
            if state.step <= self._saved:
                await run_computing(score_checkpoint, root, state, self._section, keep=kept)
                return
            self._progress.phase("checkpoint")
            await run_computing(save_checkpoint, root, state, self._write, self._section, keep=kept)
        except Exception as error:  # recording boundary: writers raise OSError, RuntimeError, ...
            logger.exception("checkpoint of step %d failed", state.step)
            self._progress.note(disk_full(self._run_dir.path, error))
            return
        self._saved = state.step
        self._clock.checkpoint_s = time.monotonic() - began


def disk_full(run: Path, error: BaseException) -> str:
    """What a disk that does not take something means to a run."""
    free = shutil.disk_usage(run).free / 2**30
    return (
        f"{run} could not be written ({error}); {free:.1f} GiB are free there; "
        "earlier checkpoints and trajectories are intact"
    )
