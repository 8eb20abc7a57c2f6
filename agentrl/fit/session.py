"""The steps of a fit in one process: train, evaluate, save, until the last step or a signal."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config.fit import FitConfig
from agentrl.data.store.example_columns import ShownAnswer
from agentrl.disk.checkpoint import (
    CheckpointState,
    save_checkpoint,
    score_checkpoint,
    would_be_kept,
)
from agentrl.disk.full_disk import disk_full
from agentrl.disk.model_source import model_source
from agentrl.disk.run_directory import RunDir
from agentrl.errors import AgentrlError, DataError, RunError, in_words
from agentrl.fit.crew import FitCrew
from agentrl.fit.model import FitModel
from agentrl.fit.progress import FitProgress, FitResult
from agentrl.fit.rollouts import CheckpointScorer, rollout_plan
from agentrl.fit.shown import ShownExamples
from agentrl.fit.updates import FitUpdate, FitUpdates
from agentrl.machine.compute_threads import run_computing
from agentrl.machine.processes.stop import StopSwitch
from agentrl.metrics.run_clock import RunClock, expected_s

if TYPE_CHECKING:
    from agentrl.metrics.sinks import MetricsLog


logger = logging.getLogger(__name__)

DATA = "data"
"""Key in `CheckpointState.cursor` of the digest of what is trained on."""
REFERENCE = "reference"
"""Key there of the path of the reference."""
WEIGHTS = "reference_weights"
"""Key there of the digest of its weights."""


@dataclass(slots=True, kw_only=True)
class FitSession:
    """One process of a fit."""

    config: FitConfig
    model: FitModel
    crew: FitCrew
    updates: FitUpdates
    evals: Mapping[str, FitUpdate]
    shown: ShownExamples
    directory: RunDir
    metrics: MetricsLog
    progress: FitProgress
    scorer: CheckpointScorer | None
    done: int
    clock: RunClock
    cursor: dict[str, str]
    base: Path
    began: float = field(default_factory=time.monotonic)
    scoring_s: dict[int, float] = field(default_factory=dict)
    """By step, the seconds that its evaluation took."""
    saved: int = -1
    tried: int = -1
    evaluated: int = -1
    failed: bool = False
    scores: dict[str, float] = field(default_factory=dict)

    async def run(self, stop: StopSwitch) -> FitResult:
        """Train to the last step; also what a signal ends is saved.

        Raises:
            Interrupted: SIGINT or SIGTERM.
            RunError: a checkpoint could not be written.
        """
        steps, first = self.config.train.steps, self.done
        self.saved = first
        before = await self._evaluate()
        if first == 0 and before:
            self.metrics.log(0, before)
        before |= await self._roll_out(stop, again=first > 0)
        after = before
        try:
            while self.done < steps and not self.clock.is_up(evaluation_s=self._owed_s):
                stop.check()
                values = await self._step()
                try:
                    if self._wants_evaluation(steps):
                        after = await self._evaluate()
                        values |= after
                finally:
                    # Also when it fails: what is saved below has its line.
                    self.metrics.log(self.done, values)
                if self._wants_checkpoint(steps):
                    await self._save(last=self.done == steps)
                if self._wants_evaluation(steps):
                    after = {**after, **await self._roll_out(stop)}
        finally:
            await self._keep_last_step()
        if self.evaluated < self.done:
            after = await self._evaluate()
            if after:
                self.metrics.log(self.done, after)
            after |= await self._roll_out(stop)
            root, section = self.directory.checkpoints, self.config.checkpoint
            await run_computing(score_checkpoint, root, self._state(), section)
        result = FitResult(
            path=self.directory.path,
            steps=self.done,
            seconds=time.monotonic() - self.began,
            before=before,
            after=after,
        )
        scores = {"steps": self.done, "before": dict(before), "after": dict(after)}
        try:
            self.directory.write_result(scores)
        except OSError as error:
            raise RunError(disk_full(self.directory.path, error)) from error
        return result

    async def _keep_last_step(self) -> None:
        """Save what is not saved, also when a signal or an error ends the fit.

        After an error in a step the other ranks are leaving. A backend that has divided the model
        among them cannot save without them; what is saved must not hide the error.

        Raises:
            RunError: no error ended it, and its last checkpoint could not be written.
        """
        if self.done <= max(self.saved, self.tried):
            return
        if not self.failed:
            await self._save(last=True)
            return
        backend = self.model.fitter.backend
        if backend.lockstep and backend.world_size > 1:
            text = f"the weights after step {self.done} are lost; --resume trains from step"
            self.progress.note(f"{text} {max(self.saved, 0)} again")
            return
        await self._save(last=False)

    async def _step(self) -> dict[str, float]:
        began = self.clock.now()
        self.progress.phase("train")
        update = self.updates.step(self.done)
        self.failed = True
        self.crew.order("step", step=self.done)
        bag = await run_computing(
            self.model.fitter.step, update.trained, self.progress.trained, measured=update.measured
        )
        self.failed = False
        self.done += 1
        self.scores = {}
        bag.merge(self.clock.note_step(self.clock.now() - began, fresh=True))
        values = bag.result()
        values["fit/epoch"] = self.done / self.updates.steps_per_epoch
        self.progress.step_done(self.done, self.config.train.steps, values)
        return values

    async def _evaluate(self) -> dict[str, float]:
        found: dict[str, float] = {}
        answers: list[ShownAnswer] = []
        began, self.evaluated = self.clock.now(), self.done
        for name, update in self.evals.items():
            self.progress.phase(f"eval {name}")
            self.failed = True
            self.crew.order("evaluate", name=name)
            bag = await run_computing(self.model.fitter.evaluate, update.trained, update.measured)
            self.failed = False
            answers += await self._shown(name)
            values = bag.result()
            values["fit/examples"] = float(update.trained.global_sequences)
            if self.config.eval.rollouts is None:
                # What is kept as best is what has the highest score.
                values["score"] = -values[f"{self.config.objective.kind}/loss"]
            found |= {f"eval/{name}/{key}": value for key, value in values.items()}
        if found:
            self.scores = found
            self.progress.evaluated(self.done, found)
        try:
            await run_computing(self.shown.write, self.done, answers)
        except DataError as error:  # they are for the inspector; a fit goes on without them
            self.progress.note(str(error))
        self.scoring_s[self.done] = self.clock.now() - began
        return found

    async def _shown(self, name: str) -> list[ShownAnswer]:
        """The tokens of the first examples of a dataset, for the inspector."""
        from agentrl.fit.losses.row_numbers import row_numbers

        if not self.config.eval.shown:
            return []
        self.failed = True
        self.crew.order("show", name=name)
        numbers = await run_computing(
            row_numbers,
            self.model.fitter.backend,
            self.updates.shown(name),
            scores=self.config.objective.kind == "rm",
        )
        self.failed = False
        return self.shown.answers(name, numbers)

    async def _roll_out(self, stop: StopSwitch, *, again: bool = False) -> dict[str, float]:
        """Scores of rollouts with the weights of this step, which are on the disk.

        Args:
            stop: ends it.
            again: of a step that an earlier process has scored: nothing is logged twice.
        """
        section = self.config.eval.rollouts
        if section is None or self.scorer is None or (self.done and self.saved != self.done):
            return {}  # the message on a checkpoint that failed has said enough
        began = self.clock.now()
        checkpoint = self.directory.checkpoints / f"step-{self.done}"
        source = model_source(self.config.model) if not self.done else str(checkpoint)
        found = await self.scorer.score(
            rollout_plan(section, base=self.base),
            model_path=source,
            run_dir=self.directory.path,
            step=self.done,
            stop=stop,
        )
        if not again:
            self.metrics.log(self.done, found)
        self.scores = {**self.scores, **found}
        if self.done:
            kept = self.config.checkpoint
            root = self.directory.checkpoints
            await run_computing(score_checkpoint, root, self._state(), kept)
        self.scoring_s[self.done] += self.clock.now() - began
        return dict(found)

    async def _save(self, *, last: bool) -> None:
        """Write a checkpoint; a fit goes on without one, but it does not end well without its last.

        Raises:
            RunError: the last one could not be written.
        """
        self.progress.phase("checkpoint")
        began = self.clock.now()
        state, self.tried = self._state(), self.done
        root, section = self.directory.checkpoints, self.config.checkpoint
        if not self.failed:
            self.crew.order("hold")
        held = await run_computing(self.model.hold, alone=self.failed)

        def write(folder: Path) -> None:
            if not self.failed:
                self.crew.order("write", folder=str(folder.absolute()))
                self.model.write(held, folder)
            else:  # the others are gone, and have nothing that this rank has not
                held.write(folder)

        try:
            await run_computing(save_checkpoint, root, state, write, section)
        except AgentrlError:
            raise
        except Exception as error:  # recording boundary: writers raise OSError, RuntimeError, ...
            logger.error("checkpoint of step %d failed: %s", self.done, in_words(error))
            text = disk_full(self.directory.path, error)
            if last:
                raise RunError(text) from error
            self.progress.note(text)
            return
        self.saved = self.done
        seconds = self.clock.now() - began
        self.clock.note_checkpoint(seconds)
        self.metrics.log(self.done, {"timing_s/checkpoint": seconds})

    def _state(self) -> CheckpointState:
        return CheckpointState(
            step=self.done,
            version=self.model.fitter.version,
            cursor=dict(self.cursor),
            elapsed_s=self.clock.elapsed_s,
            scores=self.scores,
        )

    @property
    def _owed_s(self) -> float:
        """Seconds that the evaluation after the last step is expected to take."""
        return expected_s([self.scoring_s[step] for step in sorted(self.scoring_s)])

    def _wants_evaluation(self, steps: int) -> bool:
        every = self.config.eval.every_steps
        wanted = bool(self.evals) or self.config.eval.rollouts is not None
        return wanted and (self.done == steps or bool(every and self.done % every == 0))

    def _wants_checkpoint(self, steps: int) -> bool:
        section = self.config.checkpoint
        if self.done == steps or self.done % section.every_steps == 0:
            return True
        if self.config.eval.rollouts is not None and self._wants_evaluation(steps):
            return True  # rollouts read the weights from there
        return would_be_kept(self.directory.checkpoints, self._state(), section)
