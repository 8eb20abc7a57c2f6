"""Decides whether trainer and servers of a run use one GPU in turn, and how."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from agentrl.config.fleet import OffloadPart, ScheduleSection, SyncSection
from agentrl.config.plan import EnginePlan, Plan
from agentrl.config.training import TrainSection
from agentrl.disk.model_source import plain_source
from agentrl.errors import ConfigError
from agentrl.machine.free_memory import available_bytes
from agentrl.models.device import pick_device
from agentrl.models.source import weights_bytes
from agentrl.runtime.assembly.weight_route import gpus_needed
from agentrl.runtime.colocated.turns import TurnTaking
from agentrl.runtime.drivers.choose import runs_ahead
from agentrl.serving.vllm.command import vllm_device
from agentrl.serving.vllm.sleep import SharedDevice, SleepLevel

USUAL: tuple[OffloadPart, ...] = ("optimizer", "gradients")
"""Parts that move where `runtime.offload` is None."""
_STATE = 6
"""Masters and moments, in bytes for each byte of weights in 16 bits."""


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
    no_room: str = ""
    """Why servers that get patches do not sleep at level 1; empty where they do, or get none."""

    def of(self, sync: SyncSection) -> SyncSection:
        """The section as these turns need it: level 2 leaves nothing that a patch goes on."""
        dense = {"dense_every": 1} if self.no_room else {}
        return sync.model_copy(update={"backend": self.backend, **dense})

    @property
    def text(self) -> str:
        """In words, for the log and preflight."""
        moved = ", ".join(self.moves) or "nothing"
        text = (
            f"colocated: servers sleep (level {self.level}) while the trainer works on GPU "
            f"{self.index}; of the trainer {moved} is in main memory while they sample"
        )
        return f"{text}; {self.no_room}" if self.no_room else text


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
    patched = sends_patches(engines.sync)
    no_room = _no_room(engines, train, moves) if patched else ""
    return Colocation(
        index=pick_device(engines.model.device).index or 0,
        level=1 if patched and not no_room else 2,
        moves=moves,
        backend=_backend(engines, train, moves),
        no_room=no_room,
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


def sends_patches(sync: SyncSection) -> bool:
    """True if a sync brings only what changed, on top of weights that the server must keep."""
    return sync.dense_every > 1 and sync.backend in ("disk", "collective")


def kept_bytes(
    weights: int, servers: int, train: TrainSection, moves: Collection[OffloadPart]
) -> int:
    """Bytes of main memory that turns take at level 1, a checkpoint being written meanwhile.

    Weights of the servers, what moves, and the copy that the checkpoint is written from.

    Args:
        weights: bytes of the model, in 16 bits.
        servers: that sleep.
        train: says what is trained.
        moves: state of the trainer that is in main memory while the servers sample.
    """
    state = _STATE * weights if train.lora is None else 0
    moved = state if "optimizer" in moves else 0
    return servers * weights + moved + weights + state


def _no_room(engines: EnginePlan, train: TrainSection, moves: tuple[OffloadPart, ...]) -> str:
    """Why main memory does not hold the weights of servers that sleep at level 1; empty if it does.

    Of a hub name the size is not known here.
    """
    serving, free = engines.serving, available_bytes()
    assert serving.engine == "vllm", serving.engine
    weights = weights_bytes(plain_source(engines.model))
    asked = kept_bytes(weights, serving.replicas, train, moves)
    if free is None or asked <= free:
        return ""
    return (
        f"level 1, which sync.dense_every: {engines.sync.dense_every} needs, would take "
        f"{asked / 2**30:.2f} GiB of main memory for weights, what moves and a checkpoint, and "
        f"{free / 2**30:.2f} are free: every sync sends all weights, as with sync.dense_every: 1"
    )


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
    return replace(plan, engines=replace(plan.engines, sync=found.of(plan.engines.sync))), found


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
