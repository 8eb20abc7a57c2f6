"""A recorded step once more: rewards, masks and advantages from its trajectories, and with the
weights it was trained from also log-probabilities and loss. Did a change alter the numbers?

    trajectories -> shape, filter, batch                        compared with metrics.jsonl, the
                                                                advantages beside the trajectories,
                                                                and the masks of tokens/
    the weights before the step -> Trainer.step on that batch   compared with metrics.jsonl, tokens/

The weights are those of the model for step 1, and of the checkpoint of step N-1 for step N. Where
that is gone, the steps since an older one can be trained again first, as a resume does.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli.replay.batch import no_tokens, same_batch, without_model
from agentrl.cli.replay.compare import Agreement, compare_metrics, compare_tokens
from agentrl.cli.replay.recorded_run import RecordedRun, pick_step
from agentrl.config.plan import TrainerPlan
from agentrl.config.training import TorchTraining
from agentrl.data import TokenStore
from agentrl.disk.checkpoint import Checkpoint
from agentrl.errors import AgentrlError, RunError, TrainError
from agentrl.runtime.assembly.hints import open_hints
from agentrl.runtime.assembly.step_batch import PreparedStep, StepMaker

if TYPE_CHECKING:
    from agentrl.train import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The result of replaying a step."""

    step: int
    """Which."""
    weights: str
    """Weights it was trained from here, or the reason for none."""
    agreements: tuple[Agreement, ...]
    """Agreements in the order in which a step computes them."""
    trained: bool
    """Whether the trainer ran; else `weights` explains why not."""
    failure: str = ""
    """Error of the trainer, if the step failed."""

    @property
    def same(self) -> bool:
        """True if nothing differs of what was compared; see `not_compared`."""
        return not self.failure and not any(item.differing for item in self.agreements)

    @property
    def not_compared(self) -> tuple[str, ...]:
        """Kinds of numbers that were not compared."""
        return tuple(item.what for item in self.agreements if item.skipped)


def replay_step(
    run: RecordedRun,
    step: int | None = None,
    *,
    checkpoint: Path | None = None,
    retrain: bool = False,
    tolerance: float = 1e-6,
) -> ReplayReport:
    """Recompute a step and compare.

    Args:
        run: which run.
        step: from 1; None is the newest stored one that can be trained again.
        checkpoint: whose weights to train from; None looks for one that fits.
        retrain: whether to train the steps since an older checkpoint again, if none fits.
        tolerance: relative difference of what a model computed that still counts as equal.

    Raises:
        AgentrlError: the step is not stored, or the run's config cannot be used here.
    """
    number = pick_step(run, step, any_weights=retrain or checkpoint is not None)
    start, why = weights_before(run, number, checkpoint, retrain=retrain)
    prepared = None
    weights, failure = why, ""
    trained: list[Agreement] = []
    with tempfile.TemporaryDirectory(prefix="agentrl-replay-") as scratch:
        try:
            if not why:
                weights = _describe(start, number)
                trainer, prepared = before_step(run, number, start, Path(scratch))
                trained = _train(run, number, trainer, prepared, Path(scratch), tolerance)
        except TrainError as error:
            failure = str(error)
        except (AgentrlError, ImportError, OSError) as error:
            if checkpoint is not None:
                raise
            why = weights = str(error)
    if prepared is None:
        prepared = _prepare_alone(run, number)
    agreements = without_model(run, number, prepared, masks=not trained)
    if not trained:
        trained = [Agreement(what="log-probabilities and loss", skipped=failure or weights)]
    return ReplayReport(
        step=number,
        weights=weights,
        trained=not why,
        agreements=(*agreements, *trained),
        failure=failure,
    )


def replay_failed(
    run: RecordedRun, step: int | None = None, *, checkpoint: Path | None = None
) -> ReplayReport:
    """Train on the kept batch of a step that failed, and report whether it fails again.

    Args:
        run: which run.
        step: whose batch; None is the newest.
        checkpoint: whose weights; None takes the newest before the step. Where that is not the
            step's own, the steps between are trained again first, as the run did.

    Raises:
        AgentrlError: there is no such batch, or no weights to train.
    """
    # Here and below: keeps torch away from replays of rewards and masks alone.
    from agentrl.train import load_failed_step, replay_failed_step

    files = run.failed()
    number = step if step is not None else max(files, default=0)
    if number not in files:
        there = f"there are those of {', '.join(map(str, files))}" if files else "there is none"
        which = "a failed step" if step is None else f"a failed step {step}"
        raise RunError(f"{run.path} keeps no batch of {which}; {there}")
    kept = load_failed_step(files[number])
    start, why = weights_before(run, number, checkpoint, retrain=True)
    if why:
        raise RunError(why)
    with tempfile.TemporaryDirectory(prefix="agentrl-replay-") as scratch:
        trainer, maker = _trained_until(run, number, start, Path(scratch))
        failure = ""
        try:
            replay_failed_step(files[number], trainer)
        except TrainError as error:
            failure = str(error)
    return ReplayReport(
        step=number,
        weights=_describe(start, number),
        trained=True,
        agreements=tuple(same_batch(run, maker, number, kept.batch.advantages)),
        failure=failure,
    )


def before_step(
    run: RecordedRun, step: int, start: Checkpoint | None, scratch: Path
) -> tuple[Trainer, PreparedStep]:
    """The trainer as it stood before a step, and what it was given then.

    Args:
        run: which run.
        step: which step.
        start: from `weights_before`; steps since are trained again.
        scratch: takes what the trainer records.

    Raises:
        AgentrlError: the model cannot be loaded here, or a step does not train.
    """
    trainer, maker = _trained_until(run, step, start, scratch)
    return trainer, maker.prepare(step, run.groups(step))


def _trained_until(
    run: RecordedRun, step: int, start: Checkpoint | None, scratch: Path
) -> tuple[Trainer, StepMaker]:
    trainer, maker = _trainer(run, start, scratch), _maker(run, start)
    for earlier in range(_step_of(start) + 1, step):
        trainer.step(maker.prepare(earlier, run.groups(earlier)).batch)
    return trainer, maker


def weights_before(
    run: RecordedRun, step: int, checkpoint: Path | None, *, retrain: bool
) -> tuple[Checkpoint | None, str]:
    """The checkpoint to begin from, None for the model itself; or why nothing can be trained."""
    if checkpoint is not None:
        known = [point for point in run.checkpoints if point.path.samefile(checkpoint)]
        if not known:
            raise RunError(
                f"--checkpoint {checkpoint} is no complete checkpoint of {run.path}; it has those "
                f"of steps {_steps(run)}"
            )
        start: Checkpoint | None = known[0]
    else:
        start = run.before(step)
    have = _step_of(start)
    if have == step - 1 or (retrain and have < step - 1):
        return start, ""
    return None, (
        f"step {step} was trained from the weights of step {step - 1}, and the run keeps those of "
        f"steps {_steps(run)}; --retrain trains {_again(run.before(step), step)} again first"
    )


def _steps(run: RecordedRun) -> str:
    return ", ".join(["0 (the model)", *(str(point.state.step) for point in run.checkpoints)])


def _step_of(start: Checkpoint | None) -> int:
    return 0 if start is None else start.state.step


def _describe(start: Checkpoint | None, step: int) -> str:
    began = "the model the run began with" if start is None else start.path.name
    if _step_of(start) == step - 1:
        return began
    return f"{began}, {_again(start, step)} trained again"


def _again(start: Checkpoint | None, step: int) -> str:
    first, last = _step_of(start) + 1, step - 1
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _maker(run: RecordedRun, start: Checkpoint | None) -> StepMaker:
    plan = run.plan
    hints = open_hints(plan.trainer, plan.tasks, plan.rollouts.chat)
    return StepMaker(plan.schedule, hints=hints, checkpoint=start.path if start else None)


def _prepare_alone(run: RecordedRun, step: int) -> PreparedStep:
    """The batch of a step; the running statistics need the steps before it."""
    start = run.before(step)
    maker = _maker(run, start)
    if run.plan.rewards.reward.normalize:
        for earlier in range(_step_of(start) + 1, step):
            maker.prepare(earlier, run.groups(earlier))
    return maker.prepare(step, run.groups(step))


def _trainer(run: RecordedRun, start: Checkpoint | None, scratch: Path) -> Trainer:
    """The trainer of the run in this process, as `start` left it; it records into `scratch`."""
    from agentrl.models.vision.checks import open_images
    from agentrl.runtime.assembly.trainer import make_trainer
    from agentrl.train.model.load import load_trained

    plan = run.plan
    trainer = _alone(plan.trainer)
    checkpoint = None if start is None else start.path
    pretrained = load_trained(
        trainer.model,
        trainer.train,
        checkpoint=None if checkpoint is None else str(checkpoint),
    )
    open_images(trainer, plan.engines.serving, pretrained.images, run.path / "images")
    return make_trainer(trainer, pretrained.model, run_dir=scratch, checkpoint=checkpoint)


def _alone(plan: TrainerPlan) -> TrainerPlan:
    """The same training on one process: the number of ranks never changes the result."""
    own = plan.train.backend
    backend = own if own.kind == "torch" else TorchTraining()
    train = plan.train.model_copy(update={"backend": backend})
    log = plan.log.model_copy(update={"tokens": True})
    return replace(plan, train=train, log=log)


def _train(
    run: RecordedRun,
    step: int,
    trainer: Trainer,
    prepared: PreparedStep,
    scratch: Path,
    tolerance: float,
) -> list[Agreement]:
    """One step of the trainer against what was recorded of it."""
    if trainer.version != step - 1:
        raise RunError(
            f"the checkpoint holds version {trainer.version} of the weights, and step {step} was "
            f"trained from version {step - 1}"
        )
    values = trainer.step(prepared.batch).result()
    numbers = {name: value for name, value in values.items() if name != "record/failures"}
    found = [
        compare_metrics(
            "metrics of training", run.metrics(step), numbers, tolerance=max(tolerance, 1e-12)
        )
    ]
    recorded = run.trained(step)
    if not recorded:
        return [Agreement(what="tokens", skipped=no_tokens(run)), *found]
    again = TokenStore(scratch / "tokens").read(step)
    return [*compare_tokens(recorded, again, tolerance=tolerance), *found]
