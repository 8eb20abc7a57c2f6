"""Decides whether trainer and servers of a run use one GPU in turn, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agentrl.config.fleet import OffloadPart, ScheduleSection
from agentrl.config.plan import EnginePlan, Plan
from agentrl.config.training import TrainSection
from agentrl.errors import ConfigError
from agentrl.models.device import pick_device
from agentrl.runtime.assembly.weight_route import gpus_needed
from agentrl.runtime.colocated.turns import TurnTaking
from agentrl.runtime.drivers.choose import runs_ahead
from agentrl.serving.vllm.command import vllm_device
from agentrl.serving.vllm.sleep import SharedDevice, SleepLevel

USUAL: tuple[OffloadPart, ...] = ("optimizer", "gradients")
"""Parts that move where `runtime.offload` is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Colocation:
    """Plan of the turns that trainer and servers take."""

    index: int
    """CUDA device of the trainer, which a server shares."""
    level: SleepLevel
    """At which servers sleep."""
    moves: tuple[OffloadPart, ...]
    """State of the trainer that is in main memory while the servers sample."""
    backend: str
    """By which weights go, as in `sync.backend`."""

    @property
    def text(self) -> str:
        """In words, for the log and preflight."""
        moved = ", ".join(self.moves) or "nothing"
        return (
            f"colocated: servers sleep (level {self.level}) while the trainer works on GPU "
            f"{self.index}; of the trainer {moved} is in main memory while they sample"
        )


def find_colocation(engines: EnginePlan, train: TrainSection) -> Colocation | None:
    """Plan of the turns of trainer and servers; None where both stay on their devices.

    Args:
        engines: of the run.
        train: says what moves.

    Raises:
        ConfigError: it is asked for and cannot be, or a key would have no effect.
    """
    runtime = engines.runtime
    if runtime.kind != "local":
        return None  # servers and ranks stay on their devices
    asked, offload = runtime.colocated, runtime.offload
    why = "runtime.colocated is false" if asked is False else hindrance(engines)
    if asked is True and why:
        raise ConfigError(f"runtime.colocated is true, but {why}; set it to auto or false")
    if why or (asked == "auto" and (why := _apart(engines))):
        if offload is not None:
            raise ConfigError(
                f"runtime.offload would have no effect: {why}; remove it, or see runtime.colocated"
            )
        return None
    moves = USUAL if offload is None else offload
    return Colocation(
        index=pick_device(engines.model.device).index or 0,
        level=_level(engines),
        moves=moves,
        backend=_backend(engines, train, moves),
    )


def hindrance(engines: EnginePlan) -> str:
    """Reason for which a server cannot share the trainer's GPU; empty if it can."""
    serving = engines.serving
    if serving.engine == "embedded":
        return "the embedded engine samples from the trainer's own weights (serving.engine: vllm)"
    if serving.engine == "external":
        return "servers that run already are not put to sleep (serving.engine: vllm starts some)"
    device = pick_device(engines.model.device)
    if device.type != "cuda":
        return f"the trainer is on {device} (model.device)"
    if vllm_device() != "cuda":
        return "the installed vLLM is one for CPUs, whose servers cannot sleep"
    return ""


def _apart(engines: EnginePlan) -> str:
    """Reason for which `auto` leaves servers and trainer apart; empty where they have to share."""
    import torch

    serving, have = engines.serving, torch.cuda.device_count()
    assert serving.engine == "vllm", serving.engine
    needed = gpus_needed(serving)
    if have > needed:
        return f"the servers need {needed} of {have} GPUs, and the trainer has one of its own"
    return ""


def _level(engines: EnginePlan) -> SleepLevel:
    """1 where a sync brings only what changed, on top of weights that the server must keep."""
    sync = engines.sync
    return 1 if sync.dense_every > 1 and sync.backend in ("disk", "collective") else 2


def _backend(engines: EnginePlan, train: TrainSection, moves: tuple[OffloadPart, ...]) -> str:
    asked, serving = engines.sync.backend, engines.serving
    assert serving.engine == "vllm", serving.engine
    why = ""
    if "weights" in moves:
        why = "runtime.offload moves weights, which have no CUDA handle in main memory"
    elif gpus_needed(serving) > 1:
        why = "torch counts one reader of a CUDA handle, and there are several workers"
    elif train.lora is not None and train.lora.sync == "merged":
        why = "merged adapters would keep a second copy of all weights on the GPU"
    if asked == "ipc" and why:
        raise ConfigError(f"sync.backend is 'ipc', but {why}; set it to auto")
    if asked != "auto":
        return asked
    return "shm" if why else "ipc"


def with_turns(plan: Plan) -> tuple[Plan, Colocation | None]:
    """The same run with the weight backend of a shared GPU, where there is one.

    Raises:
        ConfigError: as `find_colocation`, or the schedule runs ahead.
    """
    found = find_colocation(plan.engines, plan.trainer.train)
    if found is None:
        return plan, None
    refuse_running_ahead(plan.schedule.schedule)
    sync = plan.engines.sync.model_copy(update={"backend": found.backend})
    return replace(plan, engines=replace(plan.engines, sync=sync)), found


def refuse_running_ahead(schedule: ScheduleSection) -> None:
    """Refuse a schedule in which servers sample while the trainer works.

    Raises:
        ConfigError: it is one.
    """
    if runs_ahead(schedule):
        raise ConfigError(
            "schedule.staleness_threshold and trigger_parameter_sync_step let rollouts run ahead "
            f"(got {schedule.staleness_threshold:g} and {schedule.trigger_parameter_sync_step}), "
            "but trainer and servers use one GPU in turn (runtime.colocated), so nothing is "
            "sampled while the trainer works; set them to 0 and 1, or runtime.colocated: false, "
            "where the GPU has memory for both at once, or give the servers GPUs of their own"
        )


def make_turns(found: Colocation, note: Callable[[str], None]) -> TurnTaking:
    """Turn-taking on the GPU of a colocation.

    Args:
        found: how.
        note: called with what the user should read.
    """
    import torch

    def memory() -> tuple[int, int]:
        return torch.cuda.mem_get_info(found.index)

    note(found.text)
    device = SharedDevice(name=f"cuda:{found.index}", memory=memory)
    return TurnTaking(device=device, level=found.level, note=note)
