"""One training step, in the order it happens.

other policies   what the old policy, reference, teacher and critic say of every row
credit           advantages, where they depend on that
metrics          of the policy at the rows that no update computes, over a sample of them
updates          gradients of policy and critic, both looked at, then the weights of both
KL weight        from the KL that was measured
reference        follows the policy, where it does
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import OutOfMemoryError, Tensor

from agentrl.batch.minibatches import why_not_early
from agentrl.batch.records import PackedBatch, StepBatch
from agentrl.config.fleet import OffloadPart
from agentrl.config.schema import AlgorithmSection, TrainSection
from agentrl.errors import RanksParted, RunError, StepAbandoned, TrainError
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.agreement import check_same_batch, check_shares
from agentrl.train.backends.choose import make_backend
from agentrl.train.backends.contract import TrainBackend
from agentrl.train.backends.offload import TrainerOffload, state_on_device
from agentrl.train.checkpoint import HeldState, hold_state, load_trainer_state, new_run_id
from agentrl.train.critic import Critic, ValuePass
from agentrl.train.distill.records import Teacher
from agentrl.train.early_updates import EarlyUpdates
from agentrl.train.failed_step import save_failed_step
from agentrl.train.kl_control import next_kl_coef
from agentrl.train.logprob_worker import LogProbSource
from agentrl.train.losses import derive_metrics
from agentrl.train.meter.phases import phase
from agentrl.train.meter.step_meter import StepMeter
from agentrl.train.optim.schedule import learning_rates
from agentrl.train.other_policies import Answers, ask_other_policies, check_parts, with_advantages
from agentrl.train.policy_gradient import MicroBatchProgress, PolicyPass
from agentrl.train.reference import Reference
from agentrl.train.saving.snapshot import StateSnapshot
from agentrl.train.token_record import TokenListener, TokenRecorder
from agentrl.train.untrained import UntrainedMeter, is_compared
from agentrl.train.updates import Updates
from agentrl.train.value_loss import value_metrics


class Trainer:
    """Owns the optimizer and the policy version; changes the weights of `model` in place.

    Not thread-safe: one `step` at a time, and nothing may sample from the model during it.
    """

    def __init__(
        self,
        model: Any,
        *,
        train: TrainSection,
        algorithm: AlgorithmSection,
        temperature: float | None = None,
        gradient_checkpointing: bool | int = False,
        backend: TrainBackend | None = None,
        reference: LogProbSource | None = None,
        critic: Critic | None = None,
        teacher: Teacher | None = None,
        failures: Path | None = None,
        record: TokenListener | None = None,
    ) -> None:
        """Prepare training.

        Args:
            model: a `transformers` causal language model, on its device, in its dtype.
            train: the optimizer.
            algorithm: resolved.
            temperature: what the rows must have been sampled at; None takes each row's word.
            gradient_checkpointing: layers that recompute activations (`recompute_layers`).
            backend: runs the model; default this process.
            reference: knows the policy that `algorithm.kl_coef` holds this one to.
            critic: gives the values for the advantages of `gae`.
            teacher: knows the distribution that `algorithm.distill` learns.
            failures: folder for the batch of a step that fails; None keeps none.
            record: called with `(step, rank, rows)` after every step: the tokens that this rank
                trained; what it raises is counted and ends nothing. None records nothing.

        Raises:
            TrainError: a KL penalty without a reference, one that should follow the policy and
                cannot, `gae` without a critic, or distillation without a teacher.
        """
        check_parts(algorithm, reference, critic, teacher)
        self._train = train
        self._algorithm = algorithm
        self._temperature = temperature
        self.backend = backend or make_backend(
            model, train=train, gradient_checkpointing=gradient_checkpointing, ranks=None
        )
        """Model, optimizer and ranks; its calls are collective."""
        self._reference = reference if algorithm.needs_reference else None
        self._critic = critic if algorithm.needs_values else None
        self._teacher = teacher if algorithm.distill is not None else None
        self._failures = failures
        self._recorder = TokenRecorder(record)
        self._meter = UntrainedMeter(self.backend, algorithm)
        trained = (model,) if self._critic is None else (model, self._critic.model)
        self._speed = StepMeter(trained)
        self._kl_coef = algorithm.kl_coef
        self._version = 0
        self._run_id = new_run_id(self.backend.gather)
        self._early = EarlyUpdates()
        self._moved = False
        self._held = StateSnapshot()
        self._weights_only: Path | None = None

    @property
    def version(self) -> int:
        """Steps done, which is also the version of the weights."""
        return self._version

    @property
    def mid_step(self) -> bool:
        """Weights have moved in a step that was begun and not finished."""
        return self._moved

    @property
    def kl_coef(self) -> float:
        """Weight of the KL penalty in the next step."""
        return self._kl_coef

    def step(
        self, batch: StepBatch, on_progress: Callable[[int, int], None] | None = None
    ) -> MetricBag:
        """Train on one step's rollouts. Blocks; afterwards the model holds the new weights.

        On several ranks every one of them is given the same batch, or its share of one plan, and
        returns the same metrics.

        Args:
            batch: from `build_step`, or from `build_part`.
            on_progress: called with `(micro-batches done, micro-batches of the step)` of this rank,
                from any thread, one call at a time; those that a critic computes as well count
                twice. It may raise `StepAbandoned` on any rank.

        Raises:
            StepAbandoned: raised by `on_progress` of this rank; weights have moved if `mid_step`
                says so. Other ranks raise a `TrainError` then.
            TrainError: a log-probability, value or gradient that is not finite; names the rows. The
                update at hand is given up, all weights are as they were before it, and the batch is
                kept in `failures`.
        """
        with self._kept_if_it_fails(batch):
            return self._step(batch, on_progress)

    def update_early(self, update: PackedBatch) -> None:
        """Make the next update of a step of which not all rollouts have ended. Blocks.

        `step` is given the whole step afterwards and makes the others. Its numbers and weights are
        those of a step that makes all of them itself; `version` counts whole steps.

        Args:
            update: from `build_minibatch`.

        Raises:
            TrainError: as `step`; or the algorithm needs the whole step before its first update.
        """
        why = why_not_early(self._algorithm)
        if why:
            raise TrainError(f"a minibatch cannot be trained before its step is complete: {why}")
        alone = StepBatch(updates=(update,), advantages={}, metrics=MetricBag())
        with self._kept_if_it_fails(alone):
            self._update_early(alone)

    @contextmanager
    def _kept_if_it_fails(self, batch: StepBatch) -> Iterator[None]:
        if self._weights_only is not None:
            raise RunError(
                f"{self._weights_only} holds weights and no optimizer state, so no step can be "
                "trained from it (checkpoint.save: model)"
            )
        check_same_batch(self.backend, batch, version=self._version)
        try:
            yield
        except StepAbandoned:
            self._clear_gradients()
            raise
        except RanksParted:
            raise  # the batch is not the reason, and these ranks are of no more use
        except (TrainError, OutOfMemoryError) as error:
            self._clear_gradients()
            in_parts = any(update.whole is not None for update in batch.updates)
            if self._failures is None or (self.backend.rank != 0 and not in_parts):
                raise
            path = save_failed_step(
                self._failures,
                batch,
                version=self._version,
                error=str(error),
                part=(self.backend.rank, self.backend.world_size) if in_parts else None,
            )
            what = "This rank's part of the batch" if in_parts else "The batch"
            raise TrainError(
                f"{error}. {what} is kept in {path}; agentrl.train.replay_failed_step trains "
                "on it again"
            ) from error

    def _step(self, batch: StepBatch, on_progress: Callable[[int, int], None] | None) -> MetricBag:
        began = time.perf_counter()
        metrics, early, speed = MetricBag(), self._early, MetricBag()
        early.check_first_of(batch)
        self._speed.begin(speed)
        shares = self._shares(batch)
        with phase("other policies"):
            answers = ask_other_policies(
                self.backend,
                batch,
                shares[len(early.made) :],
                algorithm=self._algorithm,
                reference=self._reference,
                critic=self._critic,
                teacher=self._teacher,
            ).with_ref(early.ref)
        if answers.teacher_s is not None:
            metrics.sum("timing_s/teacher", answers.teacher_s)
        if batch.credit is not None:
            with phase("advantages"):
                batch = with_advantages(
                    batch, answers, kl_coef=self._kl_coef, algorithm=self._algorithm
                )
            metrics.merge(batch.metrics)
            shares = self._shares(batch)
        updates = self._updates(answers, batch, shares, on_progress)
        updates.tokens.merge(early.tokens)
        updates.metrics.merge(early.metrics)
        self._recorder.begin(batch, early=len(early.made))
        old_known = answers.log_probs.old is not None
        with ExitStack() as stack:
            stack.enter_context(self.backend.running())
            if self._critic is not None:
                stack.enter_context(self._critic.running())
            if not updates.only_critic:
                with phase("metrics of rows that are not trained"):
                    found = self._meter.measure(batch, old_known=old_known, moved=bool(early.made))
                metrics.merge(found)
            for index, (update, part) in enumerate(zip(batch.updates, shares, strict=True)):
                if index < len(early.made):
                    continue
                self._recorder.enter(index)
                compare = is_compared(index, update, old_known=old_known)
                with phase(f"update {index + 1}"):
                    updates.run(index, update, part, compare_sampler=compare)
                self._moved = True
        self._recorder.finish(self._version + 1, self.backend.rank, updates.tokens)
        self._speed.end(shares[len(early.made) :], speed)
        updates.tokens.merge(speed)
        for bag in self.backend.gather(updates.tokens):
            metrics.merge(bag)
        metrics.merge(updates.metrics)
        derive_metrics(metrics)
        self._version, self._early, self._moved = self._version + 1, EarlyUpdates(), False
        if self._reference is not None:
            metrics.mean("train/kl_coef", self._kl_coef)
            if not updates.only_critic:
                self._steer_penalty(batch, metrics)
        elapsed = time.perf_counter() - began
        trained_now = self._tokens(batch.updates[len(early.made) :])
        self._speed.note_speed(
            metrics, tokens=trained_now, seconds=elapsed, ranks=self.backend.world_size
        )
        return metrics

    def _update_early(self, alone: StepBatch) -> None:
        early, (update,) = self._early, alone.updates
        shares = self._shares(alone)
        answers = ask_other_policies(
            self.backend,
            alone,
            shares,
            algorithm=self._algorithm,
            reference=self._reference,
            critic=None,
        )
        updates = replace(
            self._updates(answers, alone, shares, None),
            tokens=early.tokens,
            metrics=early.metrics,
        )
        index = len(early.made)
        self._recorder.begin_early(update, index, final=self._train.epochs_per_batch == 1)
        with self.backend.running():
            self._recorder.enter(index)
            updates.run(index, update, shares[0], compare_sampler=index == 0)
        self._moved = True
        early.made.append(update)
        early.ref.update(answers.log_probs.ref or {})

    def _shares(self, batch: StepBatch) -> list[PackedBatch]:
        shares = [self.backend.share(update) for update in batch.updates]
        check_shares(self.backend, batch.updates, shares)
        return shares

    def _tokens(self, updates: Sequence[PackedBatch]) -> int:
        """Tokens that the ranks together have read in some updates."""
        here = sum(update.num_tokens for update in updates)
        if any(update.whole is not None for update in updates):
            return sum(self.backend.gather(here))
        return here

    def _updates(
        self,
        answers: Answers,
        batch: StepBatch,
        shares: Sequence[PackedBatch],
        on_progress: Callable[[int, int], None] | None,
    ) -> Updates:
        """What each update of this step computes."""
        metrics, critic, value = MetricBag(), self._critic, None
        made = max(1, len(batch.updates))
        # An early update does not know how many of the others will have nothing to train.
        number = max(made, self._train.updates_per_step)
        policy_rates = learning_rates(self._version, self._train, updates=number)
        critic_rates: tuple[float, ...] = ()
        only_critic = critic is not None and critic.warming_up(self._version)
        if critic is not None:
            assert answers.values is not None
            assert batch.returns is not None
            value = ValuePass(critic=critic, old=answers.values, returns=batch.returns)
            critic_rates = critic.learning_rates(self._version, updates=number)
            metrics.mean("critic/lr", statistics.fmean(critic_rates[:made]))
            metrics.merge(value_metrics(batch.updates, answers.values, batch.returns))
        if not only_critic:
            metrics.mean("train/learning_rate", statistics.fmean(policy_rates[:made]))
        passes = (not only_critic) + (critic is not None)
        return Updates(
            policy=PolicyPass(
                backend=self.backend,
                algorithm=self._algorithm,
                known=answers.log_probs,
                kl_coef=self._kl_coef,
                temperature=self._temperature,
                recorder=self._recorder,
            ),
            value=value,
            only_critic=only_critic,
            policy_rates=policy_rates,
            critic_rates=critic_rates,
            tokens=MetricBag(),
            metrics=metrics,
            before_moving=self.settle,
            progress=MicroBatchProgress(
                on_progress,
                passes * sum(len(part.micro_batches) for part in shares[len(self._early.made) :]),
            ),
        )

    def _steer_penalty(self, batch: StepBatch, metrics: MetricBag) -> None:
        """The weight of the penalty in the next step, and the reference it is a penalty from."""
        section, update = self._algorithm, self._algorithm.reference_update
        self._kl_coef = next_kl_coef(
            self._kl_coef,
            measured=metrics.result().get("kl"),
            rollouts=sum(update.global_sequences for update in batch.updates if not update.epoch),
            algorithm=section,
        )
        if update is not None and self._version % update.every_steps == 0:
            assert isinstance(self._reference, Reference)
            self.settle()
            self._reference.follow(self.backend.weights(), share=update.polyak)
            metrics.sum("train/reference_updates", 1)

    def _clear_gradients(self) -> None:
        self.backend.clear_gradients()
        if self._critic is not None:
            self._critic.backend.clear_gradients()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The full weights, to be sent to the engines; the same names and order on every call.

        A head that is tied to the embeddings is one parameter and comes once, under the name of the
        embeddings. Every rank asks and iterates to the end: those of a sharded backend put each
        weight together. The tensors are those that the next `step` changes: copy or send them.
        """
        return self.backend.weights()

    def state_on_device(self) -> Mapping[OffloadPart, list[Tensor]]:
        """Tensors by the switch that moves them between two steps.

        Raises:
            ConfigError: the backend has an offload of its own.
        """
        self.settle()  # what is being saved lies there
        return state_on_device(
            self.backend,
            critic=None if self._critic is None else self._critic.backend,
            beside=(self._reference, self._teacher),
        )

    def offload(self, parts: Collection[OffloadPart]) -> TrainerOffload:
        """A way to move parts of this trainer to main memory and back, between two steps."""
        _, weight = next(self.backend.parameters())
        return TrainerOffload(self, parts, device=weight.device)

    def hold(self, snapshot: StateSnapshot) -> HeldState:
        """Hold this rank's part of all that `load` reads; it is written while training goes on.

        Every rank holds its part and talks to no other. Nothing is copied before the next update
        is about to move weights, and then what is not written yet, which ends here with it.

        Args:
            snapshot: holds it, and may hold weights of this model besides.
        """
        self._held.drop()
        self._held = snapshot
        rank, world_size = self.backend.rank, self.backend.world_size
        moved = None
        if self._algorithm.reference_update and isinstance(self._reference, Reference):
            moved = self._reference.own_state(rank=rank, world_size=world_size)
        return hold_state(
            snapshot,
            version=self._version,
            run_id=self._run_id,
            rank=rank,
            world_size=world_size,
            optimizer=self.backend.own_state(),
            critic=None if self._critic is None else self._critic.own_state(),
            kl_coef=self._kl_coef,
            reference=moved,
        )

    def settle(self) -> None:
        """Copy what is held and not yet written; weights and state may change or move then."""
        self._held.settle()

    def save(self, directory: Path) -> None:
        """Hold and write this rank's part; all ranks call, and go on when all have written."""
        self.hold(StateSnapshot()).write(directory)
        self.backend.gather(None)

    def load(self, directory: Path) -> None:
        """Continue where `save` left off; the model takes the weights of the masters.

        Of a checkpoint that has weights alone the version is taken: a run that has no step left
        samples from it, and the next `step` is refused.

        Raises:
            RunError: there is no trainer state, or it is of another model or algorithm.
        """
        state = load_trainer_state(directory, whole=self.backend.rank == 0)
        if not state.optimizer:
            self._version, self._weights_only = state.version, directory
            return
        if self._critic is not None:
            if state.critic is None:
                raise RunError(f"{directory} was saved without a critic, the algorithm needs one")
            self._critic.load_state_dict(state.critic)
        if self._algorithm.reference_update and isinstance(self._reference, Reference):
            if state.reference is None:
                raise RunError(
                    f"{directory} holds no reference policy, but algorithm.reference_update is "
                    f"set; go on with the algorithm it was saved "
                    "under"
                )
            self._reference.load_state_dict(state.reference)
        if self._algorithm.kl_target is not None:
            self._kl_coef = state.kl_coef
        self.backend.load_state_dict(state.optimizer)
        self._version = state.version
        state.restore_random_state()
