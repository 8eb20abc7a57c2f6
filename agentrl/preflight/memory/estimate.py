"""Estimate of a run's memory, worked out before a model is loaded. Arithmetic, but for the cores.

What is kept all the time is counted exactly: weights, float32 masters, gradient sums, moments, keys
and values. What a pass takes comes from `activations`; `benchmarks/memory.py` compares the sum with
the measured peaks of real runs.

Legend: `P` parameters, `T` tokens of one micro-batch, `h` width, `i` width of the MLP.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from agentrl.config.fleet import (
    EmbeddedServing,
    OffloadPart,
    RuntimeSection,
    ServingSection,
    VllmServing,
)
from agentrl.config.plan import TrainerPlan
from agentrl.config.schema import CheckpointSection, ModelSection
from agentrl.config.training import AdapterSection, TrainSection
from agentrl.machine.compute_threads import usable_cores
from agentrl.models.cache_bytes import CacheShape
from agentrl.runtime.assembly.layout import engine_width
from agentrl.runtime.checks.colocation import USUAL
from agentrl.serving.cache_room import SHARED_GIB, cache_bytes, option, tiled

GIB = 2**30
PROCESS = int(0.75 * GIB)
"""Python, torch, transformers and pyarrow of a process that trains, before any weight."""
_WORKER = int(0.35 * GIB)
"""A process that runs agent loops: no torch in use, environments not counted."""
_SERVER = int(2.5 * GIB)
"""A vLLM server beside weights and cache."""
_CUDA = int(0.6 * GIB)
"""Context and kernels of a process on a GPU."""
_GRAPHS = int(0.8 * GIB)
"""CUDA graphs of a vLLM server, and what it compiles."""
_BATCHED = 4096
"""Prompt tokens of a pass of a vLLM server: `PREFILL_TOKENS` of its command."""
UTILISATION = 0.92
"""Share of a card that vLLM takes where `gpu_memory_utilization` is not given."""
_BUCKET = 500_000_000
"""Gradients that DeepSpeed collects before it adds them up, in numbers."""
_HEAD_CHUNK = 1 << 26
"""Probabilities that the head holds at once: `FORMED_BYTES` of `train.model.head_logprobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Numbers that the memory of a model depends on."""

    parameters: int
    """Number of parameters, tied ones once."""
    adapters: int
    """Parameters of LoRA adapters of rank 1 on every linear layer."""
    linear: int
    """Parameters of the weights below the adapters of `train.lora.targets`."""
    layers: int
    """Decoder layers."""
    hidden: int
    """Width of the residual stream."""
    intermediate: int
    """Width inside the MLP; of all experts that see a token."""
    kv_width: int
    """Keys of a token in one layer: key heads times head dimension."""
    vocabulary: int
    """Rows of the head."""
    cache: CacheShape
    """Keys and values as a server keeps them."""
    layer: int = 0
    """Parameters of the largest layer."""
    outside: int = 0
    """Parameters outside of the layers: embedding, head, last norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that takes memory."""

    what: str
    """Description of the part."""
    size: int
    """Bytes."""
    on_host: bool = False
    """Whether they are in main memory, of a process that computes on a GPU."""
    rests: bool = False
    """Whether they can leave the device while the other half of a shared device works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """One kind of process of a run."""

    name: str
    """Description of the processes."""
    count: int
    """Number of processes."""
    on_gpu: bool
    """Whether `parts` are in the memory of a GPU."""
    parts: tuple[Part, ...]
    """Memory parts of each of them."""
    devices: int = 1
    """GPUs of each of them, which each hold `parts`; 0 of one on the host."""

    @property
    def size(self) -> int:
        """Bytes that one process takes."""
        return sum(part.size for part in self.parts)

    @property
    def total(self) -> int:
        """Bytes that all processes of the kind take."""
        return self.size * self.count

    def text(self) -> str:
        """As in `2 x engine 3.1 GiB (weights 0.3, cache 2.8)`."""
        times = f"{self.count} x " if self.count > 1 else ""
        parts = ", ".join(f"{p.what} {p.size / GIB:.2f}" for p in self.parts if p.size > GIB / 200)
        return f"{times}{self.name} {self.size / GIB:.1f} GiB ({parts})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory of the machines that a run is to begin on."""

    device: int = 0
    """Bytes of one GPU; 0 without any."""
    host: int = 0
    """Bytes of main memory that are free for a cache which takes a share of it."""
    shared: bool = False
    """Whether servers are on the GPUs of the trainer."""
    turns: bool = False
    """Whether they take turns there; see `takes_turns`."""
    keeps_weights: bool = False
    """Whether main memory has their weights while they sleep (level 1)."""


def on_same_gpus(runtime: RuntimeSection, serving: ServingSection, gpus: int) -> bool:
    """True if servers that a run starts are on the GPUs of its trainer.

    Args:
        runtime: the processes.
        serving: the engines.
        gpus: of this machine.
    """
    if serving.engine != "vllm":
        return False
    if runtime.kind == "ray":
        return runtime.placement == "colocated"
    if runtime.colocated is True:
        return True
    return gpus - 1 < serving.replicas * engine_width(serving)


def takes_turns(runtime: RuntimeSection, serving: ServingSection, gpus: int) -> bool:
    """True if a server sleeps while the trainer works on the GPU of both; args as above."""
    here = runtime.kind == "local" and runtime.colocated is not False
    return here and on_same_gpus(runtime, serving, gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Sizes that follow from models rather than from the sections of a run."""

    shape: ModelShape
    """Shape of the policy; a critic with a path of its own is taken to be as large."""
    activations: int
    """Most bytes of a pass, see `activations.measured`."""
    reward_models: int = 0
    """Bytes of their weights, in each process that runs rollouts."""
    teacher: int | None = 0
    """Bytes of its weights beside the policy; None is as many as the policy has."""


def estimate(
    plan: TrainerPlan,
    serving: ServingSection,
    demand: Demand,
    *,
    on_gpu: bool,
    room: Room,
    saves: bool = True,
) -> list[ProcessMemory]:
    """Every process of the run with what it holds at its peak.

    Args:
        plan: of the trainer.
        serving: the engines.
        demand: of the models.
        on_gpu: whether the trainer computes on a GPU.
        room: for caches that take what is there.
        saves: whether a checkpoint may still be written when the next update comes, which copies
            what is not on the disk yet.
    """
    runtime, ranks = plan.runtime, _ranks(plan.runtime)
    trainer = _trainer(plan, serving, demand, on_gpu=on_gpu, room=room)
    if saves:
        copied = saved_bytes(plan, demand.shape).total // ranks
        if not on_gpu:  # activations are free by then
            copied -= sum(p.size for p in trainer if p.what == "activations")
        trainer += _part("copy for a checkpoint", max(0, copied), on_host=on_gpu)
    if on_gpu and room.turns and runtime.kind == "local":
        trainer = _put_aside(trainer, USUAL if runtime.offload is None else runtime.offload)
    count = runtime.rollout_workers if runtime.kind == "ray" else runtime.worker_processes
    scorers = _part("reward models", demand.reward_models)
    beside = [] if count else scorers
    name = "trainer with engine" if serving.engine == "embedded" else "trainer"
    if on_gpu:
        host = [Part(what="process", size=PROCESS), *(part for part in trainer if part.on_host)]
        trainer = [
            Part(what="process", size=_CUDA),
            *(part for part in trainer if not part.on_host),
            *beside,
        ]
    else:
        host, trainer = [], [Part(what="process", size=PROCESS), *trainer, *beside]
    found = [ProcessMemory(name=name, count=ranks, on_gpu=on_gpu, parts=tuple(trainer))]
    if host:
        found.append(_on_host("trainer on the host", ranks, host))
    if count:
        worker = [Part(what="process", size=PROCESS if scorers else _WORKER), *scorers]
        found.append(_on_host("rollout worker", count, worker))
    if serving.engine == "vllm":
        gpu = runtime.gpus_per_engine > 0 if runtime.kind == "ray" else on_gpu
        found += _servers(plan, serving, demand.shape, on_gpu=gpu, room=room)
    return found


def _put_aside(parts: Iterable[Part], moves: Collection[OffloadPart]) -> list[Part]:
    """The parts of a trainer that takes turns: those that move are in main memory meanwhile."""
    switches: dict[str, OffloadPart] = {"weights": "weights", "gradients": "gradients"}
    found = [
        replace(part, rests=part.rests and switches.get(part.what, "optimizer") in moves)
        for part in parts
    ]
    aside = sum(part.size for part in found if part.rests and not part.on_host)
    return [*found, *_part("put aside", aside, on_host=True)]


def _on_host(name: str, count: int, parts: Iterable[Part]) -> ProcessMemory:
    return ProcessMemory(name=name, count=count, on_gpu=False, parts=tuple(parts), devices=0)


def _part(what: str, size: int, **kind: bool) -> list[Part]:
    return [Part(what=what, size=size, **kind)] if size else []


def _trainer(
    plan: TrainerPlan, serving: ServingSection, demand: Demand, *, on_gpu: bool, room: Room
) -> list[Part]:
    """Parts of one rank."""
    shape, ranks, train = demand.shape, _ranks(plan.runtime), plan.train
    trainer = _trained(plan, shape, on_gpu=on_gpu)
    size = demand.teacher
    if size is None:
        size = shape.parameters * _width(plan.model)
    trainer += _part("teacher", size // _shards(train, ranks)[0])
    trainer.append(Part(what="activations", size=demand.activations))
    beside = 0 if on_gpu else _lanes(train, ranks, shape) - 1
    if beside:
        sums = 4 * _moving(train.lora, shape)
        if plan.algorithm.needs_values:
            sums += 4 * _moving(plan.critic.adapters, shape)  # the critic's lanes
        size = beside * (sums + demand.activations)
        trainer.append(Part(what=f"other lanes ({beside})", size=size))
    if serving.engine == "embedded":
        context = plan.rollout.max_context_tokens
        free = room.device if on_gpu else room.host
        cache = kv_cache_bytes(serving, plan.model, shape, context=context, free=free)
        trainer.append(Part(what="keys and values", size=cache))
    return trainer


def _servers(
    plan: TrainerPlan, serving: VllmServing, shape: ModelShape, *, on_gpu: bool, room: Room
) -> list[ProcessMemory]:
    """The vLLM servers, on their devices and on the host."""
    width, devices = _width(plan.model), engine_width(serving)
    weights = Part(what="weights", size=shape.parameters * width // devices, rests=True)
    if not on_gpu:
        given = cache_bytes(serving, free=room.host)
        cache = Part(what="keys and values", size=given)
        parts = (Part(what="process", size=_SERVER), weights, cache)
        return [ProcessMemory(name="vLLM server", count=serving.replicas * devices, on_gpu=False,
                              parts=parts)]  # fmt: skip
    # The longest pass, and float32 logits with the sorted and the processed ones of each sequence.
    tokens = max(_BATCHED, serving.max_batch_size)
    inner = tokens * width * (4 * shape.hidden + 2 * shape.intermediate // devices)
    logits = 3 * 4 * serving.max_batch_size * shape.vocabulary
    graphs = 0 if option(serving.args, "enforce_eager") else _GRAPHS
    parts = [
        Part(what="process", size=_CUDA + graphs),
        weights,
        Part(what="activations", size=inner),
        Part(what="logits", size=logits),
    ]
    share = float(option(serving.args, "gpu_memory_utilization") or UTILISATION)
    left = int(room.device * share) - sum(part.size for part in parts)
    if serving.kv_cache_gb != "auto":
        left = int(serving.kv_cache_gb * GIB)
    elif room.shared and option(serving.args, "gpu_memory_utilization") is None:
        left = int(SHARED_GIB * GIB)
    parts.append(Part(what="keys and values", size=max(0, left), rests=True))
    host = [Part(what="process", size=_SERVER * devices)]
    if room.turns and room.keeps_weights:
        host += _part("weights asleep", weights.size * devices)
    return [
        ProcessMemory(name="vLLM server", count=serving.replicas, on_gpu=True, parts=tuple(parts),
                      devices=devices),
        _on_host("vLLM server on the host", serving.replicas, host),
    ]  # fmt: skip


def trained_bytes(
    train: TrainSection, model: ModelSection, parameters: int, *, kept: int, outside: int = 0
) -> tuple[int, int]:
    """Bytes of the optimizer's state and of gradients, on one rank.

    Args:
        train: chooses the optimizer.
        model: chooses the dtype.
        parameters: that are trained.
        kept: ranks that each hold a part of it.
        outside: of them those outside of the layers, which Muon leaves to AdamW.
    """
    # A float32 parameter is its own master; a bfloat16 one has a master and a float32 sum.
    masters = 4 if model.dtype == "bfloat16" else 0
    state = parameters * masters + _moments(train, parameters, outside)
    return state // kept, parameters * 4 // kept


def _moments(train: TrainSection, parameters: int, outside: int) -> int:
    """Bytes of what the optimizer keeps beside its masters."""
    if train.optimizer == "muon":
        return 4 * (parameters + outside)
    if train.optimizer == "adamw_8bit":
        return int(parameters * 2 * (1 + 4 / 256))  # a float32 scale for each block
    return 8 * parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBytes:
    """Bytes of a checkpoint, of all ranks together."""

    weights: int
    """Files of the model, adapters merged."""
    state: int
    """The trainer's: what it needs to go on."""

    @property
    def total(self) -> int:
        """Sum of weights and state."""
        return self.weights + self.state

    def on_disk(self, section: CheckpointSection) -> int:
        """Most bytes that checkpoints take at once: those that are kept, and one being written.

        With `checkpoint.save: model` a state leaves with the next one, but that of adapters, which
        is small and without which they cannot go on (`agentrl.disk.checkpoint`).
        """
        folders = section.keep_last + section.best_count + 1
        stays = section.save == "all" or 4 * self.state < self.total
        return folders * self.weights + (folders if stays else min(2, folders)) * self.state


def saved_bytes(plan: TrainerPlan, shape: ModelShape) -> SavedBytes:
    """Bytes of a checkpoint of a run: a state has float32 masters, whatever the model's dtype."""

    def state(lora: AdapterSection | None) -> int:
        count = _moving(lora, shape)
        outside = shape.outside if lora is None else 0
        return 4 * count + _moments(plan.train, count, outside)

    weights, found = shape.parameters * _width(plan.model), state(plan.train.lora)
    if plan.algorithm.needs_values:
        found += state(plan.critic.adapters)
    if plan.algorithm.needs_reference and plan.algorithm.reference_update is not None:
        found += shape.parameters * (_mean_width(plan) or _width(plan.model))
    return SavedBytes(weights=weights, state=found)


def kv_cache_bytes(
    serving: EmbeddedServing, model: ModelSection, shape: ModelShape, *, context: int, free: int
) -> int:
    """Of an embedded engine: whole sequences, as many as fit and are ever decoded at once.

    Every layer has all tokens there, with a window or without.
    """
    row = 2 * _width(model) * shape.layers * shape.kv_width * tiled(context)
    rows = min(serving.max_batch_size, cache_bytes(serving, free=free) // row)
    return row * max(rows, 1)


def activation_bytes(train: TrainSection, model: ModelSection, shape: ModelShape) -> int:
    """Bytes autograd keeps of a micro-batch of `train.micro_batch_tokens` tokens, head included.

    Per token and layer in the model's dtype: input and output of both norms (4 h), queries before
    and after rotation (2 h), keys and values with rotated keys (3 kv), attention output (h), and of
    the MLP gate, up, activation and product (4 i); in float32 what the norms work on (2 * 2 h).
    """
    width, tokens = _width(model), train.micro_batch_tokens
    inner = width * (7 * shape.hidden + 3 * shape.kv_width + 4 * shape.intermediate)
    layer = tokens * (inner + 4 * 4 * shape.hidden)
    again = model.gradient_checkpointing
    recomputed = shape.layers * again if isinstance(again, bool) else min(again, shape.layers)
    # A layer that recomputes keeps its input, and comes when those behind it have freed theirs.
    kept = max(shape.layers - recomputed, 1)
    layers = layer * kept + recomputed * tokens * width * shape.hidden
    # In float32 of a narrow model: the product, and what its rounding took away.
    parts = 2 if model.head_dtype == "float32" and width < 4 else 1
    logits = tokens * shape.vocabulary * width * parts
    # Chunks add up a float32 gradient of the head.
    head = logits if logits <= _HEAD_CHUNK else min(logits, 2 * _HEAD_CHUNK)
    if logits > _HEAD_CHUNK:
        head += 4 * shape.vocabulary * shape.hidden
    return layers + head


def _trained(plan: TrainerPlan, shape: ModelShape, *, on_gpu: bool) -> list[Part]:
    """Weights, optimizer and gradients, of policy and critic, and the reference."""
    width, model, train, backend = _width(plan.model), plan.model, plan.train, plan.train.backend
    weights, optimizer, gradients = _shards(train, _ranks(plan.runtime))
    sliced = backend.kind == "fsdp2"
    adapted, ranks = train.lora is not None, _ranks(plan.runtime)
    # Slices in main memory, those of DeepSpeed below stage 3 without the weights.
    away = on_gpu and backend.kind != "torch" and backend.offload
    weights_away = away and (sliced or weights > 1)
    # FSDP2 keeps float32 slices, which are the masters.
    stored = 4 if sliced else width

    def held(count: int) -> list[Part]:
        outside = shape.outside if count == shape.parameters else 0
        state, _ = trained_bytes(train, model, count, kept=optimizer, outside=outside)
        _, sums = trained_bytes(train, model, count, kept=gradients)
        if sliced and width < 4:
            state -= 4 * count // optimizer
        return [
            Part(what="optimizer", size=state, on_host=away, rests=True),
            Part(what="gradients", size=sums, on_host=away, rests=True),
        ]

    count = _moving(train.lora, shape)
    own = shape.parameters * stored // weights + (count * 4 if adapted else 0)
    if train.lora is not None and train.lora.base is not None:
        # Half a byte, a byte for each block of 64, and 4 for each 256 of those.
        own -= int(shape.linear * (stored - 1 / 2 - 1 / 64 - 4 / (64 * 256)))
    parts = [Part(what="weights", size=own, on_host=weights_away, rests=True), *held(count)]
    if weights > 1 or sliced:
        # The rest of the model stays gathered between the passes, of the layers this one and the
        # next; gradients of one layer are whole until they are added up.
        whole = width * (shape.outside + 2 * shape.layer) + 4 * max(shape.outside, shape.layer)
        parts.append(Part(what="gathered", size=whole))
    elif ranks > 1 and backend.kind == "deepspeed" and backend.zero_stage:
        parts.append(Part(what="bucket", size=width * min(_BUCKET, count)))
    if plan.algorithm.needs_reference:
        size = shape.parameters * (width + _mean_width(plan)) // weights
        parts.append(Part(what="reference", size=size, on_host=weights_away, rests=True))
    if plan.algorithm.needs_values:
        moving = held(_moving(plan.critic.adapters, shape))
        size = shape.parameters * stored // weights + sum(part.size for part in moving)
        parts.append(Part(what="critic", size=size, on_host=weights_away, rests=True))
    return parts


def _mean_width(plan: TrainerPlan) -> int:
    """Bytes a weight of a mean that moves little at a time, beside a reference in bfloat16."""
    update = plan.algorithm.reference_update
    return 4 if update is not None and update.polyak < 1 and _width(plan.model) < 4 else 0


def _moving(lora: AdapterSection | None, shape: ModelShape) -> int:
    """Parameters that are trained: all, or those of the adapters."""
    return shape.parameters if lora is None else shape.adapters * lora.rank


def _lanes(train: TrainSection, ranks: int, shape: ModelShape) -> int:
    """Micro-batches that one process trains at once on a CPU."""
    from agentrl.train.backends.lanes import default_lanes  # imports torch

    backend = train.backend
    if backend.kind != "torch":
        return 1
    if backend.lanes is not None or ranks > 1:
        return backend.lanes or 1
    return default_lanes(usable_cores(), shape.parameters)


def _shards(train: TrainSection, ranks: int) -> tuple[int, int, int]:
    """Number of ranks that weights, optimizer state and gradients are sharded over."""
    backend = train.backend
    if backend.kind == "fsdp2":
        return ranks, ranks, ranks
    if backend.kind == "deepspeed":
        stage = backend.zero_stage
        return (
            ranks if stage >= 3 else 1,
            ranks if stage >= 1 else 1,
            ranks if stage >= 2 else 1,
        )
    return 1, 1, 1


def _ranks(runtime: RuntimeSection) -> int:
    """Processes that train."""
    return runtime.trainer_ranks if runtime.kind == "ray" else 1


def _width(model: ModelSection) -> int:
    return 2 if model.dtype == "bfloat16" else 4
