"""The synchronous driver: everything in one process, one step after the other.

    take tasks -> run groups -> build batch -> store -> train -> sync -> evaluate -> log -> save
        ^                                                                                    |
        +------------------------------------------------------------------------------------+

The event loop runs the rollouts; the engine samples in a thread of its own and is paused while
the trainer, in another thread, changes the weights they share. A signal wakes the rollouts, which
are cancelled and clean up; an optimizer step and a checkpoint always run to their end.

Resume: the stored trajectories of a step are its commit record. They are on disk, complete, before
the step trains, so a run that is killed anywhere loads its last checkpoint and trains the steps
after it again from their stored trajectories, with the same order, seeds and batches. No rollout of
a stored step is sampled twice and no task is skipped; only the rollouts of the step in flight,
if they were not stored yet, are lost. What is paid again is the training time (not the rollout
time) since the last checkpoint.
"""

from __future__ import annotations

import errno
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from agentrl.config import RunConfig
from agentrl.engine import WeightTicket
from agentrl.errors import RunError
from agentrl.metrics import MetricBag
from agentrl.runtime.checkpoint import CheckpointState, save_checkpoint
from agentrl.runtime.collect import rollouts_of, run_groups, sampled_tokens, stable_seed
from agentrl.runtime.failures import FailureWatch
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import History, Parts, RunResult
from agentrl.runtime.scores import ScoreBook, last_value
from agentrl.runtime.stop import Interrupted, StopSwitch
from agentrl.runtime.stored import stored_groups
from agentrl.serving.threads import run_computing
from agentrl.types import SamplingParams, Task, TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.batch import StepBatch
    from agentrl.runtime.run_dir import RunDir

logger = logging.getLogger(__name__)


class LocalRun:
    """One run of the synchronous driver. `run` may be called once."""

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
        self._progress = progress
        self._stop = stop
        self._done = self._saved = history.done
        self._logged = {step for step, line in history.logged.items() if "timing_s/step" in line}
        self._cursor_state = parts.cursor.state()
        self._began = time.monotonic() - history.elapsed_s
        self._step_s = last_value(history.logged, "timing_s/step")
        self._checkpoint_s = 0.0
        self._book = ScoreBook(
            parts.eval_tasks, parts.store, n_samples=config.eval.n_samples, logged=history.logged
        )
        self._watch = FailureWatch(worked=history.done > 0, note=progress.note)

    async def run(self) -> RunResult:
        """Train to the end and score the result.

        Raises:
            Interrupted: a signal; the state of the last finished step is saved.
            RunError: nothing can be rolled out, or the disk is full.
        """
        try:
            if self._evaluation_due(self._done):
                self._log(self._done, await self._evaluate(self._done))
            while (reason := self._reason_to_end()) is None:
                await self._step(self._done + 1)
            self._log(self._done, await self._evaluate(self._done))
            await self._checkpoint(self._done)
        except Interrupted:
            await self._checkpoint(self._done)
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise RunError(self._disk_full(error)) from error
            raise
        return self._result(reason)

    async def _step(self, step: int) -> None:
        began = time.monotonic()
        bag = MetricBag()
        tasks = self._parts.cursor.take(self._config.rollout.prompts_per_step)
        groups, fresh = await self._rollouts(step, tasks, bag)
        batch = self._build(step, groups, bag)
        self._store(step, groups, batch, fresh)
        await self._train(batch, bag)
        await self._sync(bag)
        self._done, self._cursor_state = step, self._parts.cursor.state()
        self._note_duration(began, bag, fresh)
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
        if step % self._config.checkpoint.every_steps == 0:
            await self._checkpoint(step)

    # -- stages -----------------------------------------------------------------------------

    async def _rollouts(
        self, step: int, tasks: Sequence[Task], bag: MetricBag
    ) -> tuple[list[TrajectoryGroup], bool]:
        """The groups of a step: from the store if a killed process left them there, else new."""
        from agentrl.rollout import rollout_metrics

        self._stop.check()
        section = self._config.rollout
        stored = stored_groups(self._parts.store, "train", step)
        if stored:
            self._progress.phase("replay", len(tasks) * section.n_samples_per_prompt)
            _check_replay(step, tasks, stored)
            groups, seconds = stored, 0.0
        else:
            began = time.monotonic()
            groups = await self._collect(
                "rollout",
                tasks,
                name=f"step-{step}",
                n=section.n_samples_per_prompt,
                temperature=section.temperature,
                seed=lambda task: stable_seed(self._config.run.seed, "train", step, task.id),
            )
            seconds = time.monotonic() - began
            self._watch.trained(step, groups)
            bag.sum("timing_s/rollout", seconds)
            bag.mean("perf/tokens_per_second", sampled_tokens(groups), count=seconds)
        bag.merge(rollout_metrics(groups))
        started = len(tasks) * section.n_samples_per_prompt
        last = rollouts_of(groups)
        assert len(last) == started, f"step {step}: {started} rollouts started, {len(last)} came"
        bag.sum("rollout/started", started)
        bag.sum("rollout/dropped", sum(not row.rule.in_loss for row in last))
        return groups, not stored

    def _build(self, step: int, groups: Sequence[TrajectoryGroup], bag: MetricBag) -> StepBatch:
        from agentrl.batch import build_step

        train = self._config.train
        batch = build_step(
            groups,
            algorithm=self._config.resolved_algorithm(),
            micro_batch_tokens=train.micro_batch_tokens,
            minibatches=train.minibatches,
            epochs=train.epochs_per_batch,
            seed=stable_seed(self._config.run.seed, "batch", step),
        )
        bag.merge(batch.metrics)
        return batch

    def _store(
        self, step: int, groups: Sequence[TrajectoryGroup], batch: StepBatch, fresh: bool
    ) -> None:
        if fresh:
            self._parts.store.write(step, "train", groups, batch.advantages)

    async def _train(self, batch: StepBatch, bag: MetricBag) -> None:
        """Also without anything to train on: the policy version and the schedule count steps."""
        self._stop.check()
        if not any(update.micro_batches for update in batch.updates):
            self._progress.note("no group of this step teaches anything; weights stay as they are")
            logger.warning("step without a trainable group: weights stay as they are")
            bag.sum("train/steps_without_signal", 1)
        self._progress.phase("train")
        await self._parts.client.pause_all()
        began = time.monotonic()
        bag.merge(await run_computing(self._parts.trainer.step, batch, self._progress.trained))
        bag.sum("timing_s/train", time.monotonic() - began)

    async def _sync(self, bag: MetricBag) -> None:
        client, version = self._parts.client, self._parts.trainer.version
        if version <= client.version:
            return
        self._progress.phase("sync")
        began = time.monotonic()
        # The embedded engine samples from the trainer's own parameters: only the version moves.
        await client.load_weights(WeightTicket(backend="inprocess", version=version))
        await client.resume_all()
        bag.sum("timing_s/sync", time.monotonic() - began)

    async def _evaluate(self, step: int) -> dict[str, float]:
        """Score every dataset at this step, and give what is not in the log yet."""
        seed, section = self._config.run.seed, self._config.eval

        async def roll_out(name: str, tasks: Sequence[Task]) -> list[TrajectoryGroup]:
            groups = await self._collect(
                f"eval {name}",
                tasks,
                name=f"eval-{name}-{step}",
                n=section.n_samples,
                temperature=section.temperature,
                # The same draws before and after training sharpen the paired difference.
                seed=lambda task: stable_seed(seed, "eval", name, task.id),
            )
            self._watch.evaluated(step, groups)
            return groups

        return await self._book.evaluate(step, roll_out, on_score=self._progress.evaluated)

    async def _collect(
        self,
        phase: str,
        tasks: Sequence[Task],
        *,
        name: str,
        n: int,
        temperature: float,
        seed: Callable[[Task], int],
    ) -> list[TrajectoryGroup]:
        self._progress.phase(phase, len(tasks) * n)
        section = self._config.rollout
        sampling = SamplingParams(
            temperature=temperature,
            top_p=section.top_p,
            max_tokens=section.max_turn_tokens,
            stop_token_ids=self._parts.stop_token_ids,
        )
        return await self._stop.guard(
            run_groups(
                self._parts.worker,
                tasks,
                name=name,
                n=n,
                sampling=sampling,
                seed=seed,
                in_flight=2 * self._config.serving.max_batch_size,
                on_group=lambda group: self._progress.advance(n, sampled_tokens([group])),
            )
        )

    async def _checkpoint(self, step: int) -> None:
        """Save; a failure is reported and the run goes on, earlier checkpoints stay as they are."""
        if step <= self._saved:
            return
        self._progress.phase("checkpoint")
        began = time.monotonic()
        state = CheckpointState(
            step=step,
            version=self._parts.trainer.version,
            cursor=self._cursor_state,
            elapsed_s=self._elapsed(),
        )
        keep = self._config.checkpoint.keep_last
        root = self._run_dir.checkpoints
        try:
            await run_computing(save_checkpoint, root, state, self._parts.save, keep_last=keep)
        except Exception as error:  # recording boundary: writers raise OSError, RuntimeError, ...
            logger.exception("checkpoint of step %d failed", step)
            self._progress.note(self._disk_full(error))
            return
        self._saved = step
        self._checkpoint_s = time.monotonic() - began

    # -- decisions --------------------------------------------------------------------------

    def _reason_to_end(self) -> str | None:
        if self._done >= self._config.train.steps:
            return "all steps done"
        if self._done + 1 in self._parts.store.steps("train"):
            return None  # stored, so it was begun: its training is owed whatever the clock says
        return "time is up" if self._out_of_time() else None

    def _out_of_time(self) -> bool:
        """Whether another step would leave no time for the final evaluation."""
        minutes = self._config.train.max_minutes
        if minutes is None or self._done == 0:
            return False
        owed = self._step_s + self._book.duration_s + self._checkpoint_s
        return self._elapsed() + owed > minutes * 60

    def _evaluation_due(self, step: int) -> bool:
        every = self._config.eval.every_steps
        return step == 0 or self._reason_to_end() is not None or bool(every and step % every == 0)

    # -- bookkeeping ------------------------------------------------------------------------

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _note_duration(self, began: float, bag: MetricBag, fresh: bool) -> None:
        seconds = time.monotonic() - began
        bag.sum("timing_s/step", seconds)
        bag.sum("timing_s/elapsed", self._elapsed())
        if self._checkpoint_s:
            bag.sum("timing_s/checkpoint", self._checkpoint_s)
        if fresh:
            self._step_s = seconds

    def _log(
        self,
        step: int,
        scores: Mapping[str, float],
        *,
        of_step: Mapping[str, float] | None = None,
    ) -> None:
        """One line a step; a replayed step that was logged before the kill keeps its line."""
        values = dict(scores)
        if of_step is not None and step not in self._logged:
            self._logged.add(step)
            values = {**of_step, **scores}
        if values:
            self._parts.metrics.log(step, values)

    def _result(self, reason: str) -> RunResult:
        result = RunResult(
            run_dir=self._run_dir.path,
            steps=self._done,
            reason=reason,
            comparisons=self._book.comparisons(self._done),
            elapsed_s=self._elapsed(),
        )
        self._run_dir.write_result(result.as_dict())
        return result

    def _disk_full(self, error: BaseException) -> str:
        free = shutil.disk_usage(self._run_dir.path).free / 2**30
        return (
            f"{self._run_dir.path} could not be written ({error}); {free:.1f} GiB are free there; "
            "earlier checkpoints and trajectories are intact"
        )


def _check_replay(step: int, tasks: Sequence[Task], groups: Sequence[TrajectoryGroup]) -> None:
    """Stored groups must be those of the tasks the cursor yields; else the data set changed."""
    expected, got = [task.id for task in tasks], [group.task_id for group in groups]
    if expected != got:
        raise RunError(
            f"--resume: step {step} was rolled out on tasks {got[:4]}..., but the dataset now "
            f"yields {expected[:4]}...; the dataset has changed since the run began"
        )
