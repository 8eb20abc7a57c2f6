"""What every driver does beside its loop: evaluate, save, log, decide when to end.

A driver is one of `SynchronousRun` and its asynchronous kin. They share the disk and its promises:

Resume: the stored trajectories of a step are its commit record. They are on disk, complete, before
the step trains, so a run that is killed anywhere loads its last checkpoint and trains the steps
after it again from their stored trajectories, with the same order, seeds and batches. No rollout of
a stored step is sampled twice and no task is skipped; only rollouts that were not stored yet are
lost. What is paid again is the training time (not the rollout time) since the last checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl.config import RunConfig
from agentrl.errors import RunError
from agentrl.metrics import MetricBag
from agentrl.runtime.disk.checkpoint import CheckpointState
from agentrl.runtime.disk.stored_groups import stored_names
from agentrl.runtime.drivers.engine_counts import ServingCounts
from agentrl.runtime.drivers.groups import note_rollouts, run_groups, sampling_of, stable_seed
from agentrl.runtime.drivers.infrastructure_watch import FailureWatch
from agentrl.runtime.drivers.pending_groups import Unsettled
from agentrl.runtime.drivers.run_clock import RunClock
from agentrl.runtime.drivers.run_health import Oversight
from agentrl.runtime.drivers.step_saver import StepSaver, disk_full
from agentrl.runtime.drivers.weight_sync import bring_weights
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import History, Parts, RunResult
from agentrl.runtime.scoring.score_book import ScoreBook, last_value
from agentrl.runtime.stages import GroupHandle
from agentrl.runtime.stop import Interrupted, StopSwitch
from agentrl.types import SamplingParams, Task

if TYPE_CHECKING:
    from agentrl.runtime.disk.run_directory import RunDir

logger = logging.getLogger(__name__)


class Driver(ABC):
    """One run. `run` may be called once; subclasses say what a step is."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: RunDir,
        parts: Parts,
        *,
        history: History,
        progress: Progress,
        stop: StopSwitch,
    ) -> None:
        self._config = config
        self._run_dir = run_dir
        self._parts = parts
        self._stages = parts.stages
        self._progress = progress
        self._stop = stop
        self._stages.engines.guard = stop.guard
        self._done = history.done
        self._logged = {step for step, line in history.logged.items() if "timing_s/step" in line}
        self._last_logged = dict(history.logged.get(max(self._logged, default=0), {}))
        self._unsettled = Unsettled(parts.stages.rollouts)
        self._cursor_state = parts.cursor.state()
        self._clock = RunClock(
            config.train.max_minutes,
            elapsed_s=history.elapsed_s,
            step_s=last_value(history.logged, "timing_s/step"),
        )
        self._saver = StepSaver(
            run_dir,
            config.checkpoint,
            saved=history.done,
            write=parts.stages.learner.save,
            clock=self._clock,
            progress=progress,
        )
        self._book = ScoreBook(
            parts.eval_tasks, parts.store, n_samples=config.eval.n_samples, logged=history.logged
        )
        self._watch = FailureWatch(worked=history.done > 0, note=progress.note)
        self._serving = ServingCounts()
        self._oversight = Oversight(config, run_dir, history, progress, stop)
        # The same rollouts from the same weights would end where the last ones did.
        self._seed = config.run.seed
        if history.rollbacks.count:
            self._seed = stable_seed(config.run.seed, "rollback", history.rollbacks.count)

    async def run(self) -> RunResult:
        """Train to the end and score the result.

        Raises:
            Interrupted: a signal; the state of the last finished step is saved.
            RollBack: a rule asks for it; nothing is rolled back yet.
            RunError: nothing can be rolled out, or the disk is full.
        """
        watcher = asyncio.create_task(self._watch_engines())
        try:
            # Servers that were just started hold the model they were started with.
            await self._sync(MetricBag())
            if self._evaluation_due(self._done):
                self._log(self._done, await self._evaluate(self._done))
                await self._checkpoint(self._done)
            await self._obey(self._done)
            with self._unsettled.at_the_end(self._log_unsettled):
                reason = await self._train_to_end()
            self._oversight.carry_out(
                self._done, cursor=self._cursor_state, elapsed_s=self._clock.elapsed_s
            )
            self._log(self._done, await self._evaluate(self._done))
            await self._checkpoint(self._done)
            await self._oversight.close(self._done, look=True)
        except Interrupted:
            await self._checkpoint(self._done)
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise RunError(disk_full(self._run_dir.path, error)) from error
            raise
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            await self._oversight.close(self._done, look=False)
        return self._result(reason)

    async def _watch_engines(self) -> None:
        """Show the engines once a second; ends with `run`."""
        while True:
            self._progress.engines(self._stages.engines.stats())
            await asyncio.sleep(1.0)

    @abstractmethod
    async def _train_to_end(self) -> str:
        """Do every step; returns why it ended."""

    # -- stages -----------------------------------------------------------------------------

    async def _learn(
        self, step: int, groups: Sequence[GroupHandle], bag: MetricBag, *, stored: bool
    ) -> None:
        """Train; also without anything to train on, since versions and the schedule count steps."""
        self._stop.check()
        self._progress.phase("train")
        if self._stages.engines.shares_weights:
            await self._stages.engines.pause()
        began = time.monotonic()
        learned = await self._stages.learner.learn(
            step, groups, stored=stored, on_progress=self._progress.trained
        )
        self._unsettled.settle(groups)
        bag.merge(self._unsettled.counts())
        bag.merge(learned)
        bag.sum("timing_s/train", time.monotonic() - began)
        if learned.result().get("train/steps_without_signal"):
            self._progress.note("no group of this step teaches anything; weights stay as they are")
            logger.warning("step without a trainable group: weights stay as they are")

    async def _sync(self, bag: MetricBag) -> None:
        await bring_weights(self._stages, bag, self._progress)

    async def _sync_trained(self, bag: MetricBag) -> None:
        """Sync after a trained step, which is complete also if a signal ends the wait for engines.

        It stays so without new weights on them; the next look at the switch ends the run.
        """
        with contextlib.suppress(Interrupted):
            await self._sync(bag)

    def _count(self, groups: Sequence[GroupHandle], bag: MetricBag) -> None:
        note_rollouts(bag, groups, n=self._config.rollout.n_samples_per_prompt)

    async def _evaluate(self, step: int) -> dict[str, float]:
        """Score every dataset at this step, and give what is not in the log yet."""
        seed, section = self._config.run.seed, self._config.eval

        async def roll_out(name: str, tasks: Sequence[Task]) -> list[GroupHandle]:
            groups = await self._collect(
                f"eval {name}",
                tasks,
                name=f"eval-{name}-{step}",
                n=section.n_samples,
                temperature=section.temperature,
                # The same draws before and after training sharpen the paired difference.
                seed=lambda task: stable_seed(seed, "eval", name, task.id),
            )
            self._watch.evaluated(step, [handle.report for handle in groups])
            await self._stages.learner.keep(step, f"eval/{name}", groups)
            return groups

        self._unsettled.count()
        try:
            return await self._book.evaluate(step, roll_out, on_score=self._progress.evaluated)
        except BaseException:
            self._unsettled.forget_cut()
            raise

    async def _collect(
        self,
        phase: str,
        tasks: Sequence[Task],
        *,
        name: str,
        n: int,
        temperature: float,
        seed: Callable[[Task], int],
        on_group: Callable[[GroupHandle], None] = lambda handle: None,
    ) -> list[GroupHandle]:
        def ended(handle: GroupHandle) -> None:
            self._progress.advance(n, handle.report.tokens)
            on_group(handle)

        self._progress.phase(phase, len(tasks) * n)
        return await self._stop.guard(
            run_groups(
                self._stages.rollouts,
                tasks,
                name=name,
                n=n,
                sampling=self._sampling(temperature),
                seed=seed,
                in_flight=self._parts.in_flight,
                on_group=ended,
            )
        )

    def _sampling(self, temperature: float) -> SamplingParams:
        return sampling_of(self._config.rollout, temperature, self._stages.stop_token_ids)

    async def _checkpoint(self, step: int) -> None:
        await self._saver.save(self._state(step), lambda: self._oversight.protected(step))

    def _state(self, step: int) -> CheckpointState:
        return CheckpointState(
            step=step,
            version=self._stages.learner.version,
            cursor=self._cursor_state,
            elapsed_s=self._clock.elapsed_s,
            scores=self._book.metrics(step),
        )

    # -- decisions --------------------------------------------------------------------------

    def _reason_to_end(self) -> str | None:
        ruling = self._oversight.ruling(self._done)
        if ruling is not None:
            return ruling.text
        if self._done >= self._config.train.steps:
            return "all steps done"
        if self._done + 1 in self._parts.store.steps("train"):
            return None  # stored, so it was begun: its training is owed whatever the clock says
        # One step is done whatever the clock says: without any there is nothing to score.
        up = self._done > 0 and self._clock.is_up(evaluation_s=self._book.duration_s)
        return "time is up" if up else None

    def _checkpoint_due(self, step: int) -> bool:
        if self._oversight.rolls_back(self._done):
            return False  # it would be moved aside at once
        return self._saver.due(self._state(step))

    def _evaluation_due(self, step: int) -> bool:
        if self._oversight.rolls_back(self._done):
            return False
        every = self._config.eval.every_steps
        return step == 0 or self._reason_to_end() is not None or bool(every and step % every == 0)

    async def _obey(self, step: int) -> None:
        async def rest() -> None:
            await self._settle()
            await self._checkpoint(step)

        self._clock.leave_out(await self._oversight.obey(step, rest))

    async def _settle(self) -> None:
        """Bring the engines to rest."""
        await asyncio.sleep(0)  # after a step of a synchronous run nothing is in flight

    # -- bookkeeping ------------------------------------------------------------------------

    async def _finish_step(self, step: int, bag: MetricBag, *, began: float, fresh: bool) -> None:
        """A trained step: note it, evaluate and save where that is due, write its line."""
        # After a step to which a rollback went back, other tasks follow.
        self._parts.cursor = self._parts.leaps.pop(step, self._parts.cursor)
        self._done, self._cursor_state = step, self._parts.cursor.state()
        bag.merge(self._serving.since_last(self._stages.engines.stats()))
        self._note_duration(began, bag, fresh)
        self._oversight.see(step, bag.result())
        self._progress.step_done(step, bag.result())
        scores: dict[str, float] = {}
        try:
            if self._evaluation_due(step):
                scores = await self._evaluate(step)
        except Interrupted:
            # The evaluation is cut short, but the step itself is complete.
            self._log(step, {}, of_step=bag.result())
            raise
        self._log(step, scores, of_step=bag.result())
        if self._checkpoint_due(step):
            await self._checkpoint(step)
        await self._obey(step)

    def _note_duration(self, began: float, bag: MetricBag, fresh: bool) -> None:
        bag.merge(self._clock.note_step(time.monotonic() - began, fresh=fresh))

    def _log(
        self,
        step: int,
        scores: Mapping[str, float],
        *,
        of_step: Mapping[str, float] | None = None,
    ) -> None:
        """One line a step; a replayed step that was logged before the kill keeps its line."""
        values: dict[str, Any] = dict(scores)
        if of_step is not None and step not in self._logged:
            self._logged.add(step)
            values = self._last_logged = {**of_step, **scores}
        self._oversight.see(step, scores)
        if values:
            self._parts.metrics.log(step, values)

    def _log_unsettled(self) -> None:
        # Names only: whoever stops a run may not wait until all tokens of a step are read.
        left = self._unsettled.rest(
            self._last_logged, stored=stored_names(self._parts.store, "train", self._done + 1)
        )
        if left:
            self._parts.metrics.log(max(self._logged, default=0), left)

    def _result(self, reason: str) -> RunResult:
        result = RunResult(
            run_dir=self._run_dir.path,
            steps=self._done,
            reason=reason,
            comparisons=self._book.comparisons(self._done),
            elapsed_s=self._clock.elapsed_s,
            ruling=self._oversight.ruling(self._done),
        )
        self._run_dir.write_result(result.as_dict())
        return result
