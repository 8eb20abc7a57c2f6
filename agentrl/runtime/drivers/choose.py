"""Which driver a `schedule` asks for, and which schedules make no sense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.runtime.drivers.driver import Driver
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import History, Parts
from agentrl.runtime.stop import StopSwitch

if TYPE_CHECKING:
    from agentrl.runtime.disk.run_directory import RunDir


def make_run(
    config: RunConfig,
    run_dir: RunDir,
    parts: Parts,
    *,
    history: History,
    progress: Progress,
    stop: StopSwitch,
) -> Driver:
    """The driver of a config.

    Raises:
        ConfigError: see `check_schedule`.
    """
    check_schedule(config, shares_weights=parts.stages.engines.shares_weights)
    kind = _driver_of(config)
    return kind(config, run_dir, parts, history=history, progress=progress, stop=stop)


def _driver_of(config: RunConfig) -> type[Driver]:
    if config.schedule.oversample > 1:
        from agentrl.runtime.drivers.tail_batching import TailBatchingRun

        return TailBatchingRun
    if runs_ahead(config):
        from agentrl.runtime.drivers.asynchronous import AsynchronousRun

        return AsynchronousRun
    from agentrl.runtime.drivers.synchronous import SynchronousRun

    return SynchronousRun


def runs_ahead(config: RunConfig) -> bool:
    """Whether rollouts may be older than the weights they train."""
    schedule = config.schedule
    return schedule.trigger_parameter_sync_step > 1 or schedule.staleness_threshold > 0


def check_schedule(config: RunConfig, *, shares_weights: bool | None = None) -> None:
    """Refuse what contradicts itself or has no effect.

    Args:
        config: of the run.
        shares_weights: whether engines sample from the learner's own tensors; None concludes it
            from the config.

    Raises:
        ConfigError: the first thing found, with what to write instead.
    """
    if shares_weights is None:
        shares_weights = config.serving.engine == "embedded"
    _check_partial(config)
    _check_lag(config)
    _check_oversample(config)
    if shares_weights:
        _check_shared(config)


def _check_partial(config: RunConfig) -> None:
    schedule = config.schedule
    if schedule.partial_rollout and not schedule.staleness_threshold > 0:
        raise ConfigError(
            "schedule.partial_rollout is set, but with staleness_threshold 0 no rollout is in "
            "flight when weights are synced; set staleness_threshold above 0"
        )


def _check_lag(config: RunConfig) -> None:
    schedule = config.schedule
    if schedule.max_version_lag is None:
        if schedule.stale == "mask":
            raise ConfigError(
                "schedule.stale is 'mask', but without max_version_lag no token is too old; set "
                "max_version_lag"
            )
        return
    if not runs_ahead(config):
        raise ConfigError(
            f"schedule.max_version_lag is {schedule.max_version_lag}, but this schedule is "
            "on-policy and no token is ever older than the weights it trains; remove it, or set "
            "staleness_threshold"
        )
    least = schedule.trigger_parameter_sync_step - 1
    if schedule.max_version_lag < least:
        raise ConfigError(
            f"schedule.max_version_lag is {schedule.max_version_lag}, but between two syncs tokens "
            f"are up to {least} versions old even when no rollout runs ahead: all of them would "
            f"be too old; set it to at least {least}"
        )


def _check_oversample(config: RunConfig) -> None:
    if config.schedule.oversample > 1 and (runs_ahead(config) or config.schedule.partial_rollout):
        raise ConfigError(
            f"schedule.oversample is {config.schedule.oversample}, which is for on-policy runs: "
            "remove it, or trigger_parameter_sync_step, staleness_threshold and partial_rollout"
        )


def _check_shared(config: RunConfig) -> None:
    schedule = config.schedule
    if schedule.trigger_parameter_sync_step > 1:
        raise ConfigError(
            "schedule.trigger_parameter_sync_step is "
            f"{schedule.trigger_parameter_sync_step}, but the embedded engine samples from the "
            "trainer's own weights, which are new after every step; set it to 1, or use "
            "serving.engine: vllm"
        )
    if runs_ahead(config) and not schedule.partial_rollout:
        raise ConfigError(
            "with the embedded engine, training changes the weights under the rollouts in flight; "
            "set schedule.partial_rollout: true, which allows that, or use serving.engine: vllm"
        )
