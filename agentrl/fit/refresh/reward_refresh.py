"""Keeps a reward model up to date with the policy (`reward.refresh`).

    stored rollouts -> pairs -> labeller -> old : new = 1 : 1 -> fit in a child process
                    -> accuracy of both models on held-out tasks -> guard -> all scorers load it
                    -> record

The policy moves to answers that the reward model has never seen, where it is wrong in ways that
pay. So every n steps it learns from the newest rollouts, before those of the next step begin.

The record is written last. Rollouts of the next step are stored after it, so a run that is killed
makes a refresh again until it has a record, and takes it from then on: no step is ever paid by a
model that its record does not name. Whatever fails inside a refresh leaves the present model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config.plan import SchedulePlan
from agentrl.disk.checkpoint import latest_checkpoint, resolve_model_path
from agentrl.disk.other_models import other_model_source
from agentrl.errors import RunError, in_words
from agentrl.fit.data.preferences.files import PairWriter
from agentrl.fit.data.preferences.from_runs import PairParts
from agentrl.fit.progress import PhaseNotes
from agentrl.fit.refresh.candidates import NewestPairs
from agentrl.fit.refresh.decision import accepts, divided, measured_of, why_no_pairs
from agentrl.fit.refresh.failures import ModelsParted, RefreshFailed
from agentrl.fit.refresh.fit_process import TARGET, train_apart
from agentrl.fit.refresh.human_queue import HumanQueue
from agentrl.fit.refresh.jobs import RefreshJob
from agentrl.fit.refresh.labels import HUMAN, PairLabeller, PairLabels, load_function
from agentrl.fit.refresh.origin import old_pairs
from agentrl.fit.refresh.places import RefreshPlaces
from agentrl.fit.refresh.pruning import prune_versions
from agentrl.fit.refresh.records import HELD_OUT_PAIRS, NEW_PAIRS, RefreshBook, RefreshRecord
from agentrl.fit.reward_models.versions import RewardModelUsers, UsedRewardModel
from agentrl.machine.processes.stop import StopSwitch
from agentrl.metrics import MetricBag
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.data import TrajectoryStore

logger = logging.getLogger(__name__)


class ModelRefresh:
    """The `RewardRefresher` of a run."""

    def __init__(
        self,
        plan: SchedulePlan,
        places: RefreshPlaces,
        *,
        progress: PhaseNotes,
        stop: StopSwitch,
        target: str = TARGET,
    ) -> None:
        """Stand at the model that the run file names.

        Args:
            plan: of the schedule, with `reward.refresh` on.
            places: inputs and users.
            progress: notified of what happens.
            stop: ends a refresh that is under way.
            target: function of the process that trains.
        """
        section, name = plan.reward.refresh, plan.reward.refreshed
        assert section is not None
        assert name is not None
        self._plan, self._section, self._name, self._places = plan, section, name, places
        self._progress, self._stop, self._target = progress, stop, target
        self._item = plan.reward.models[name]
        self._book = RefreshBook(places.run.absolute(), name)
        self._version = self._paying = 0

    @property
    def version(self) -> int:
        """`version` as in `RewardRefresher.version`."""
        return self._version

    async def restore(self, version: int) -> None:
        """Use the version that a checkpoint was saved with.

        Raises:
            RunError: its model is not there, or not whole.
            AgentrlError: a process cannot load it.
        """
        if version:
            await self._use(version)

    async def before_step(self, step: int, bag: MetricBag) -> None:
        """`before_step` as in `RewardRefresher.before_step`."""
        done = step - 1
        record = self._book.read(done)
        due = done > 0 and done % self._section.every_steps == 0
        stored = step in self._places.store.steps("train")
        if record is None and due and not stored:
            record = await self._stop.guard(self._refresh(done))
        if record is not None:
            self._paying = record.version
            for name, value in record.metrics.items():
                bag.mean(name, value)
        # A stored step was paid already, and its version may have been deleted since.
        passed = stored and not self._book.model(self._paying).exists()
        if self._paying != self._version and not passed:
            await self._use(self._paying)

    async def _refresh(self, step: int) -> RefreshRecord:
        """Make the refresh after a step, and record it."""
        began, labels, measured = time.monotonic(), PairLabels(), dict[str, float]()
        self._progress.phase("refresh")
        try:
            labels = await self._labels(step)
            if not labels.pairs:
                raise RefreshFailed(why_no_pairs(labels, self._book.queue))
            record = await self._trained(step, labels, measured)
        except ModelsParted:
            raise
        except Exception as error:  # recording boundary: labellers and devices raise anything
            why = in_words(error)
            logger.info("the refresh after step %d is skipped: %s", step, why)
            record = self._record(step, "skipped", why)
        record.metrics.update(
            {
                **measured,
                "refresh/accepted": float(record.outcome == "accepted"),
                "refresh/skipped": float(record.outcome == "skipped"),
                "refresh/pairs": float(len(labels.pairs)),
                "refresh/ties": float(labels.ties),
                "refresh/label_failures": float(labels.failures),
                "refresh/waiting": float(labels.waiting),
                "refresh/rm_version": float(record.version),
                "refresh/seconds": time.monotonic() - began,
            }
        )
        self._book.write(record)
        self._say(step, f"{record.outcome}: {record.why}")
        prune_versions(self._book, self._places.run)
        return record

    async def _labels(self, step: int) -> PairLabels:
        places = self._places
        last = self._book.last_made(step)
        steps = [n for n in reversed(places.store.steps("train")) if last < n <= step]
        newest = NewestPairs(
            places.store, steps, {task.id: task for task in places.tasks}, seed=self._plan.run.seed
        )
        labels = await self._labeller().label(newest, self._section.pairs)
        if labels.failures:
            logger.warning("refresh: %d pairs without a label: %s", labels.failures, labels.error)
        return labels

    def _labeller(self) -> PairLabeller:
        if self._section.labelled_by == HUMAN:
            return HumanQueue(self._book.queue, self._book.answers_used())
        return load_function(
            self._section, base=self._plan.base, timeout_s=self._plan.rollout.env_timeout_s
        )

    async def _trained(
        self, step: int, labels: PairLabels, measured: dict[str, float]
    ) -> RefreshRecord:
        """Train on labelled pairs and decide; fills `measured`."""
        version = self._book.next_version()
        folder = self._book.begin(step, version)
        parts = PairParts(self._section.held_out, self._plan.run.seed)
        new, held = divided(labels.pairs, parts)
        self._say(
            step,
            f"{len(new)} new pairs to train on and {len(held)} held out"
            + (f"; {labels.failures} had no label: {labels.error}" if labels.failures else ""),
        )
        if not new or not held:
            raise RefreshFailed(
                f"{len(new)} pairs are left to train on and {len(held)} to measure with, expected "
                "at least 1 of each: pairs are divided by task; set reward.refresh.every_steps or "
                "held_out so that both parts have tasks"
            )
        for name, pairs in ((NEW_PAIRS, new), (HELD_OUT_PAIRS, held)):
            with PairWriter(folder / name) as writer:
                for pair in pairs:
                    writer.write(pair)
        outcome = await train_apart(
            self._job(step, version, folder),
            log=folder / "refresh.log",
            say=lambda text: self._say(step, text),
            target=self._target,
        )
        measured |= measured_of(outcome, held=len(held))
        change = (
            f"accuracy on {len(held)} held-out pairs {outcome.before:.3f} -> {outcome.after:.3f}, "
            f"trained on {len(new)} new and {outcome.old_pairs} old pairs"
        )
        if not accepts(outcome.before, outcome.after, self._section.guard):
            self._book.drop_model(version)
            why = f"{change}; a fall of more than {self._section.guard:g} is not accepted"
            return self._record(step, "rejected", why, answers=labels.answers)
        await self._use_or_go_back(version)
        why = f"version {version} pays from step {step + 1} on; {change}; scale: {outcome.scale}"
        return self._record(step, "accepted", why, answers=labels.answers)

    def _job(self, step: int, version: int, folder: Path) -> RefreshJob:
        section, base, path = self._section, self._plan.base, self._item.path[0]
        return RefreshJob(
            folder=str(folder),
            step=step,
            current=resolve_model_path(self._path(self._version)),
            origin=path,
            base=str(base.resolve()),
            models=str(self._book.models),
            version=version,
            old=old_pairs(section, path, base=base),
            earlier=tuple(str(file) for file in self._book.earlier_pairs(step)),
            held_out=section.held_out,
            seed=self._plan.run.seed,
            steps=section.steps,
            learning_rate=section.learning_rate,
            device=self._item.device,
            longest=self._plan.rollout.max_context_tokens,
            needs_scale=self._item.scale != "none",
        )

    def _record(
        self, step: int, outcome: str, why: str, *, answers: Sequence[str] = ()
    ) -> RefreshRecord:
        return RefreshRecord(
            step=step,
            outcome=outcome,  # type: ignore[arg-type]
            version=self._version,
            why=why,
            answers=tuple(answers),
        )

    async def _use_or_go_back(self, version: int) -> None:
        """Load a version in all processes; where one cannot, all go back to the present one.

        Raises:
            RefreshFailed: all use the present one.
            ModelsParted: that failed, too.
        """
        present = self._version
        try:
            await self._use(version)
        except Exception as error:  # boundary to the processes: one may be out of memory
            try:
                await self._places.users.use_reward_model(self._used(present))
            except Exception as second:  # the same
                raise ModelsParted(
                    f"version {version} of reward.models.{self._name} could not be loaded "
                    f"({in_words(error)}), and then version {present} could not either "
                    f"({in_words(second)}), so that two versions would pay one step; make room "
                    "where rollouts are scored, and go on with --resume: the refresh is made again"
                ) from error
            self._book.drop_model(version)
            raise RefreshFailed(f"the new model cannot be used: {in_words(error)}") from error

    async def _use(self, version: int) -> None:
        if version and latest_checkpoint(self._book.model(version) / "checkpoints") is None:
            raise RunError(
                f"version {version} of reward.models.{self._name} is not in "
                f"{self._book.model(version)}, or not whole, and the run stands where it pays; put "
                "it back"
            )
        await self._places.users.use_reward_model(self._used(version))
        self._version = self._paying = version

    def _used(self, version: int) -> UsedRewardModel:
        return UsedRewardModel(name=self._name, version=version, path=self._path(version))

    def _path(self, version: int) -> str:
        if version:
            return str(self._book.model(version))
        return other_model_source(self._item.path[0], self._plan.base)

    def _say(self, step: int, text: str) -> None:
        self._progress.note(f"refresh of {self._name} after step {step}: {text}")


def make_refresh(
    plan: SchedulePlan,
    run: Path,
    tasks: Sequence[Task],
    store: TrajectoryStore,
    users: RewardModelUsers | None,
    progress: PhaseNotes,
    stop: StopSwitch,
) -> ModelRefresh | None:
    """The refresher of a run; None where no reward model is refreshed.

    Args:
        plan: of the schedule.
        run: directory of the run.
        tasks: training tasks.
        store: rollouts of the run.
        users: processes that score and load new models; None where none can be told.
        progress: notified of what happens.
        stop: ends a refresh that is under way.
    """
    if plan.reward.refreshed is None or users is None:
        return None
    places = RefreshPlaces(run=run, store=store, tasks=tasks, users=users)
    return ModelRefresh(plan, places, progress=progress, stop=stop)
