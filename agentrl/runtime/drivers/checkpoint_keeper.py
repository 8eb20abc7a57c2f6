"""The checkpoints of a run: which steps are saved, and a disk that does not take one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from agentrl.config.schema import CheckpointSection
from agentrl.disk.checkpoint import (
    CheckpointState,
    save_checkpoint,
    score_checkpoint,
    would_be_kept,
)
from agentrl.disk.full_disk import disk_full
from agentrl.errors import in_words
from agentrl.fit.reward_models.versions import RewardRefresher
from agentrl.machine.compute_threads import run_computing
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
            refresh: knows the version of the reward model.
        """
        self._refresh = refresh
        self._run_dir, self._section, self._saved = run_dir, section, position.done
        self._learner, self._position, self._book = learner, position, book
        self._protected, self._clock, self._progress = protected, clock, progress

    @property
    def saved(self) -> int:
        """Step of the last checkpoint."""
        return self._saved

    def wanted(self, step: int) -> bool:
        """The section asks for a checkpoint of this step."""
        if step % self._section.every_steps == 0:
            return True
        return would_be_kept(self._run_dir.checkpoints, self._state(step), self._section)

    async def save(self, step: int) -> None:
        """Save, or score what was saved when a signal interrupted its evaluation.

        A failure is reported and the run goes on; earlier checkpoints stay as they are.

        Raises:
            RankLost: a rank died while it wrote.
        """
        if self._learner.mid_step and step > self._saved:
            self._progress.note(
                f"step {step} is not saved: some minibatches of step {step + 1} are trained "
                "already; --resume trains from the stored trajectories of the last checkpoint on"
            )
            return
        began = self._clock.now()
        root, state = self._run_dir.checkpoints, self._state(step)
        try:
            keep = self._protected(step)
            if step <= self._saved:
                await run_computing(score_checkpoint, root, state, self._section, keep=keep)
                return
            self._progress.phase("checkpoint")
            write = self._learner.save
            await run_computing(save_checkpoint, root, state, write, self._section, keep=keep)
        except RankLost:
            raise
        except Exception as error:  # recording boundary: writers raise OSError, RuntimeError, ...
            logger.error("checkpoint of step %d failed: %s", step, in_words(error))
            self._progress.note(disk_full(self._run_dir.path, error))
            return
        self._saved = step
        self._clock.note_checkpoint(self._clock.now() - began)

    async def score(self, step: int) -> None:
        """Add the scores of a step to its checkpoint, if it has one that is still there."""
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
