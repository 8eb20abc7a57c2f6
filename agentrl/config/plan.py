"""A config and its base folder, resolved once into a small record for each part of a run.

`plan_run` is called where a run begins. What comes after it takes the record of its part, or a
section of one, so that its signature says what it depends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.config.algorithm import AlgorithmSection, CriticSection
from agentrl.config.fleet import (
    RayRuntime,
    RuntimeSection,
    ScheduleSection,
    ServingSection,
    SyncSection,
)
from agentrl.config.health import HealthSection
from agentrl.config.keys import dotted
from agentrl.config.load import RUN_FILE
from agentrl.config.reward import RewardSection
from agentrl.config.sandboxes import SandboxSection
from agentrl.config.schema import (
    ChatSection,
    CheckpointSection,
    DatasetSection,
    EnvSection,
    EvalSection,
    LogSection,
    ModelSection,
    RolloutSection,
    RunConfig,
    RunSection,
    TrainDatasetSection,
)
from agentrl.config.training import TrainSection


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """Tasks to load: those that are trained on, and those of every evaluation."""

    base: Path
    """Absolute folder that modules of import strings are looked for in."""
    dataset: TrainDatasetSection
    evals: Mapping[str, DatasetSection]
    """Datasets of `eval.datasets` by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPlan:
    """Reward functions, judges and reward models."""

    base: Path
    """As in `TaskPlan`."""
    model: ModelSection
    rollout: RolloutSection
    reward: RewardSection


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan(RewardPlan):
    """One rollout: chat format, environment, tools and sandbox, beside its rewards and limits."""

    chat: ChatSection
    env: EnvSection
    sandbox: SandboxSection


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """The engines, the processes of the run, and the way of new weights to the engines."""

    base: Path
    """As in `TaskPlan`: `sync.backend` may be an import string."""
    model: ModelSection
    rollout: RolloutSection
    serving: ServingSection
    sync: SyncSection
    runtime: RuntimeSection

    @property
    def ray(self) -> RayRuntime:
        """The runtime of a run on Ray. Ask only where `runtime.kind` is ray."""
        assert self.runtime.kind == "ray", self.runtime.kind
        return self.runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPlan:
    """The trainer, its critic, its references and its teacher."""

    base: Path
    """As in `TaskPlan`."""
    model: ModelSection
    rollout: RolloutSection
    algorithm: AlgorithmSection
    """Every None filled in from the preset and the limits of a rollout."""
    asked_horizon: int | None
    """`algorithm.horizon` as it was written, of which the resolved one does not tell a default."""
    critic: CriticSection
    train: TrainSection
    runtime: RuntimeSection
    log: LogSection


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePlan:
    """The order of rollouts, steps, evaluations and checkpoints: what a driver follows."""

    base: Path
    """As in `TaskPlan`: the estimator, the loss and a labeller may be import strings."""
    run: RunSection
    rollout: RolloutSection
    reward: RewardSection
    algorithm: AlgorithmSection
    """As in `TrainerPlan`."""
    schedule: ScheduleSection
    train: TrainSection
    eval: EvalSection
    checkpoint: CheckpointSection
    health: HealthSection
    settings: Mapping[str, Any]
    """Every setting of the run by dotted key, as rules and detectors read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run, by part."""

    base: Path
    """As in `TaskPlan`."""
    tasks: TaskPlan
    rollouts: RolloutPlan
    engines: EnginePlan
    trainer: TrainerPlan
    schedule: SchedulePlan

    @property
    def rewards(self) -> RewardPlan:
        """The part of a rollout that judges it."""
        return self.rollouts

    def with_model(self, path: str) -> Plan:
        """The same run, whose policy is loaded from another folder or hub name."""
        model = self.rollouts.model.model_copy(update={"path": path})
        return replace(
            self,
            rollouts=replace(self.rollouts, model=model),
            engines=replace(self.engines, model=model),
            trainer=replace(self.trainer, model=model),
        )


def plan_run(config: RunConfig, base: Path) -> Plan:
    """Resolve a run: every path absolute, every default of the algorithm filled in.

    Args:
        config: as read from a file, or made in Python.
        base: where relative paths of the config start, but for `model.path` and `run.dir`, which
            start at the current folder.

    Raises:
        ConfigError: a combination that no run can have.
    """
    base = base.absolute()
    config = RUN_FILE.whole(config, base)
    algorithm = config.resolved_algorithm()
    return Plan(
        base=base,
        tasks=TaskPlan(base=base, dataset=config.dataset, evals=config.eval.datasets),
        rollouts=RolloutPlan(
            base=base,
            model=config.model,
            chat=config.chat,
            env=config.env,
            sandbox=config.sandbox,
            rollout=config.rollout,
            reward=config.reward,
        ),
        engines=EnginePlan(
            base=base,
            model=config.model,
            rollout=config.rollout,
            serving=config.serving,
            sync=config.sync,
            runtime=config.runtime,
        ),
        trainer=TrainerPlan(
            base=base,
            model=config.model,
            rollout=config.rollout,
            algorithm=algorithm,
            asked_horizon=config.algorithm.horizon,
            critic=config.critic,
            train=config.train,
            runtime=config.runtime,
            log=config.log,
        ),
        schedule=SchedulePlan(
            base=base,
            run=config.run,
            rollout=config.rollout,
            reward=config.reward,
            algorithm=algorithm,
            schedule=config.schedule,
            train=config.train,
            eval=config.eval,
            checkpoint=config.checkpoint,
            health=config.health,
            settings=flat_config(config),
        ),
    )


def flat_config(config: RunConfig) -> dict[str, Any]:
    """A config as dotted keys, with every None of the algorithm filled in from its preset."""
    whole = config.model_copy(update={"algorithm": config.resolved_algorithm()})
    return dotted(whole.model_dump(mode="json"))
