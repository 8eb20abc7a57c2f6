"""The checkpoints of a run: which steps are saved, and a disk that does not take one.

save    waits for the save before, holds weights and state      blocks the step, shortly
(task)  writes them, makes them visible, deletes old ones       beside the next steps
settle  waits for the task                                      where the files are needed
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config.schema import CheckpointSection
from agentrl.disk.checkpoint import (
    CheckpointState,
    round_state,
    save_checkpoint,
    score_checkpoint,
    would_be_kept,
)
from agentrl.disk.full_disk import disk_full
from agentrl.errors import in_words
from agentrl.fit.reward_models.versions import RewardRefresher
from agentrl.machine.compute_threads import run_beside, run_computing
from agentrl.metrics.run_clock import RunClock
from agentrl.runtime.drivers.position import RunPosition
from agentrl.runtime.progress import Progress
from agentrl.runtime.rank_restarts import RankLost
from agentrl.runtime.scoring.score_book import ScoreBook
from agentrl.runtime.stages import LearnStage

if TYPE_CHECKING:
    from agentrl.disk.run_directory import RunDir

logger = logging.getLogger(__name__)


class CheckpointKeeper:
    """Saves the steps of one run."""

    def __init__(
        self,
        run_dir: RunDir,
        section: CheckpointSection,
        *,
        learner: LearnStage,
        position: RunPosition,
        book: ScoreBook,
        protected: Callable[[int], Collection[int]],
        clock: RunClock,
        progress: Progress,
        log: Callable[[int, Mapping[str, float]], None],
        refresh: RewardRefresher | None = None,
    ) -> None:
        """Go on from the step that the run stands at, which is saved already.

        Args:
            run_dir: of the run.
            section: says how often, and how many are kept.
            learner: writes weights, tokenizer and trainer state.
            position: of the tasks.
            book: scores of the step.
            protected: steps of checkpoints that stay after this step, whatever the section says.
            clock: gets the duration of each checkpoint.
            progress: notified of what happens.
            log: adds numbers to the line of a step that others may have followed.
            refresh: knows the version of the reward model.
        """
        self._refresh = refresh
        self._run_dir, self._section, self._saved = run_dir, section, position.done
        self._learner, self._position, self._book = learner, position, book
        self._protected, self._clock, self._progress = protected, clock, progress
        self._log = log
        self._writing: asyncio.Task[None] | None = None

    @property
    def saved(self) -> int:
        """Step of the last checkpoint that is there."""
        return self._saved

    async def wanted(self, step: int) -> bool:
        """The section asks for a checkpoint of this step."""
        if step % self._section.every_steps == 0:
            return True
        if self._section.best_count:
            await self.settle()  # it may be among the best
        return would_be_kept(self._run_dir.checkpoints, self._state(step), self._section)

    async def save(self, step: int) -> None:
        """Hold a step, which is written beside the next ones, or score one that was saved when a
        signal interrupted its evaluation.

        A failure is reported and the run goes on; earlier checkpoints stay as they are. One save
        is written at a time: this waits for the one before.

        Raises:
            RankLost: a rank died while it held or wrote.
        """
        if self._learner.mid_step and step > self._saved:
            self._progress.note(
                f"step {step} is not saved: some minibatches of step {step + 1} are trained "
                "already; --resume trains from the stored trajectories of the last checkpoint on"
            )
            return
        await self.settle()
        if step <= self._saved:
            await self.score(step)
            return
        began, state = self._clock.now(), self._state(step)
        try:
            keep = self._protected(step)
            self._progress.phase("checkpoint")
            write = await self._learner.hold()
        except RankLost:
            raise
        except Exception as error:  # recording boundary: libraries raise RuntimeError, ...
            self._note_failure(step, error)
            return
        held_s = self._clock.now() - began
        writing = self._write(state, write, keep, held_s=held_s)
        self._writing = asyncio.create_task(writing, name=f"checkpoint of step {step}")

    async def settle(self) -> None:
        """Wait until what is being written is there, or was given up.

        Raises:
            RankLost: a rank died while it wrote.
        """
        writing = self._writing
        if writing is None:
            return
        try:
            await asyncio.shield(writing)
        finally:
            if writing.done() and self._writing is writing:
                self._writing = None

    async def finish(self) -> None:
        """Bring the state with which further steps would begin into less room."""
        from agentrl.train.saving.rounded import write_rounded

        await self.settle()
        root, keep = self._run_dir.checkpoints, self._protected(self._saved)
        try:
            await run_computing(round_state, root, self._section, write_rounded, keep=keep)
        except (OSError, ValueError) as error:
            logger.warning("the state of the trainer stays as it is: %s", error)

    async def _write(
        self,
        state: CheckpointState,
        write: Callable[[Path], None],
        keep: Collection[int],
        *,
        held_s: float,
    ) -> None:
        root, step, began = self._run_dir.checkpoints, state.step, time.perf_counter()
        try:
            await run_beside(save_checkpoint, root, state, write, self._section, keep=keep)
            self._saved = step
            seconds = held_s + time.perf_counter() - began
            self._clock.note_checkpoint(seconds)
            self._log(step, {"timing_s/checkpoint": seconds, "timing_s/checkpoint_held": held_s})
        except RankLost:
            raise
        except Exception as error:  # recording boundary: writers raise OSError, RuntimeError, ...
            self._note_failure(step, error)

    def _note_failure(self, step: int, error: Exception) -> None:
        logger.error("checkpoint of step %d failed: %s", step, in_words(error))
        self._progress.note(disk_full(self._run_dir.path, error))

    async def score(self, step: int) -> None:
        """Add the scores of a step to its checkpoint, if it has one that is still there."""
        await self.settle()
        if step > self._saved:
            return
        root, state, keep = self._run_dir.checkpoints, self._state(step), self._protected(step)
        try:
            await run_computing(score_checkpoint, root, state, self._section, keep=keep)
        except OSError as error:
            logger.warning("scores of the checkpoint of step %d are not stored: %s", step, error)
            self._progress.note(disk_full(self._run_dir.path, error))

    def _state(self, step: int) -> CheckpointState:
        return CheckpointState(
            step=step,
            version=self._learner.version,
            cursor=self._position.cursor_state,
            elapsed_s=self._clock.elapsed_s,
            scores=self._book.metrics(step),
            rm_version=self._refresh.version if self._refresh is not None else 0,
        )
