"""Estimate of a run's memory, worked out before a model is loaded. Arithmetic, but for the cores.

What is kept all the time is counted exactly: weights, float32 masters, gradient sums, moments, keys
and values. Activations of a Llama-like layer are counted tensor by tensor, what autograd keeps in
the order of the computation; other architectures are taken for one. `benchmarks/memory.py`
compares the sum with the measured peak of a real run.

Legend: `P` parameters, `T` tokens of one micro-batch, `h` width, `i` width of the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.fleet import EmbeddedServing, RuntimeSection, ServingSection, VllmServing
from agentrl.config.plan import TrainerPlan
from agentrl.config.schema import ModelSection
from agentrl.config.training import AdapterSection, TrainSection
from agentrl.machine.compute_threads import usable_cores

GIB = 2**30
_PROCESS = int(0.75 * GIB)
"""Python, torch, transformers and pyarrow of a process that trains, before any weight."""
_WORKER = int(0.35 * GIB)
"""A process that runs agent loops: no torch in use, environments not counted."""
_SERVER = int(2.5 * GIB)
"""A vLLM server beside weights and cache."""
_CUDA = int(0.6 * GIB)
"""Context and kernels of a process on a GPU."""
_HEAD_CHUNK = 1 << 26
"""Probabilities that the head holds at once: `FORMED_BYTES` of `train.model.head_logprobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Numbers that the memory of a model depends on."""

    parameters: int
    """Number of parameters, tied ones once."""
    adapters: int
    """Parameters of LoRA adapters of rank 1 on every linear layer."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that takes memory."""

    what: str
    """Description of the part."""
    size: int
    """Bytes."""


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


def estimate(
    plan: TrainerPlan,
    serving: ServingSection,
    shape: ModelShape,
    *,
    on_gpu: bool,
    reward_models: int = 0,
    teacher: int | None = 0,
) -> list[ProcessMemory]:
    """Every process of the run with what it holds at its peak.

    Args:
        plan: of the trainer.
        serving: the engines.
        shape: of the policy; a critic with a path of its own is taken to be as large.
        on_gpu: whether the trainer computes on a GPU.
        reward_models: bytes of their weights, in each process that runs rollouts.
        teacher: bytes of its weights beside the policy; None is as many as the policy has.
    """
    runtime, ranks = plan.runtime, _ranks(plan.runtime)
    trainer = _trained(plan, shape)
    size = shape.parameters * _width(plan.model) if teacher is None else teacher
    if size:
        held, *_ = _shards(plan.train, ranks)
        trainer.append(Part(what="teacher", size=size // held))
    activations = activation_bytes(plan.train, plan.model, shape)
    trainer.append(Part(what="activations", size=activations))
    beside = 0 if on_gpu else _lanes(plan.train, ranks, shape) - 1
    if beside:
        sums = 4 * _moving(plan.train.lora, shape)
        if plan.algorithm.needs_values:
            sums += 4 * _moving(plan.critic.adapters, shape)  # the critic's lanes
        trainer.append(Part(what=f"other lanes ({beside})", size=beside * (sums + activations)))
    if serving.engine == "embedded":
        context = plan.rollout.max_context_tokens
        cache = kv_cache_bytes(serving, plan.model, shape, context=context)
        trainer.append(Part(what="keys and values", size=cache))
    count = runtime.rollout_workers if runtime.kind == "ray" else runtime.worker_processes
    scorers = [Part(what="reward models", size=reward_models)] if reward_models else []
    trainer += [] if count else scorers
    trainer.insert(0, Part(what="process", size=_CUDA if on_gpu else _PROCESS))
    name = "trainer with engine" if serving.engine == "embedded" else "trainer"
    found = [ProcessMemory(name=name, count=ranks, on_gpu=on_gpu, parts=tuple(trainer))]
    if on_gpu:
        host = (Part(what="process", size=_PROCESS),)
        found.append(
            ProcessMemory(name="trainer on the host", count=ranks, on_gpu=False, parts=host)
        )
    if count:
        worker = (Part(what="process", size=_PROCESS if scorers else _WORKER), *scorers)
        found.append(ProcessMemory(name="rollout worker", count=count, on_gpu=False, parts=worker))
    if serving.engine == "vllm":
        server = (
            Part(what="process", size=_SERVER),
            Part(
                what="weights",
                size=shape.parameters * _width(plan.model) // _parallel(serving),
            ),
            Part(what="keys and values", size=int(serving.kv_cache_gb * GIB)),
        )
        count = serving.replicas * _parallel(serving)
        gpu = runtime.gpus_per_engine > 0 if runtime.kind == "ray" else on_gpu
        found.append(ProcessMemory(name="vLLM server", count=count, on_gpu=gpu, parts=server))
    return found


def trained_bytes(
    train: TrainSection, model: ModelSection, parameters: int, *, kept: int
) -> tuple[int, int]:
    """Bytes of the optimizer's state and of gradients, on one rank.

    Args:
        train: chooses the optimizer.
        model: chooses the dtype.
        parameters: that are trained.
        kept: ranks that each hold a part of it.
    """
    moments = 4 if train.optimizer == "muon" else 8
    # A float32 parameter is its own master; a bfloat16 one has a master and a float32 sum.
    masters = 4 if model.dtype == "bfloat16" else 0
    return parameters * (masters + moments) // kept, parameters * 4 // kept


def kv_cache_bytes(
    serving: EmbeddedServing, model: ModelSection, shape: ModelShape, *, context: int
) -> int:
    """Of an embedded engine: whole sequences, as many as fit and are ever decoded at once."""
    row = 2 * _width(model) * shape.layers * shape.kv_width * context
    rows = min(serving.max_batch_size, int(serving.kv_cache_gb * GIB / row))
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
    if model.gradient_checkpointing:
        layers = layer + shape.layers * tokens * width * shape.hidden
    else:
        layers = layer * shape.layers
    # In float32 of a narrow model: the product, and what its rounding took away.
    parts = 2 if model.head_dtype == "float32" and width < 4 else 1
    logits = tokens * shape.vocabulary * width * parts
    # Chunks add up a float32 gradient of the head.
    head = logits if logits <= _HEAD_CHUNK else min(logits, 2 * _HEAD_CHUNK)
    if logits > _HEAD_CHUNK:
        head += 4 * shape.vocabulary * shape.hidden
    return layers + head


def _trained(plan: TrainerPlan, shape: ModelShape) -> list[Part]:
    """Weights, optimizer and gradients, of policy and critic, and the reference."""
    width, model, train = _width(plan.model), plan.model, plan.train
    weights, optimizer, gradients = _shards(train, _ranks(plan.runtime))
    count, adapted = _moving(train.lora, shape), train.lora is not None
    state, _ = trained_bytes(train, model, count, kept=optimizer)
    _, sums = trained_bytes(train, model, count, kept=gradients)
    # FSDP2 keeps the frozen weights in the dtype of what is trained beside them.
    stored = 4 if adapted and train.backend.kind == "fsdp2" else width
    own = shape.parameters * stored // weights + (count * 4 if adapted else 0)
    parts = [
        Part(what="weights", size=own),
        Part(what="optimizer", size=state),
        Part(what="gradients", size=sums),
    ]
    if plan.algorithm.needs_reference:
        update = plan.algorithm.reference_update
        # A mean that moves little at a time is kept in float32 beside a reference in bfloat16.
        wide = 4 if update is not None and update.polyak < 1 and width < 4 else 0
        parts.append(Part(what="reference", size=shape.parameters * (width + wide) // weights))
    if plan.algorithm.needs_values:
        moving = _moving(plan.critic.adapters, shape)
        state, _ = trained_bytes(train, model, moving, kept=optimizer)
        _, sums = trained_bytes(train, model, moving, kept=gradients)
        size = shape.parameters * width // weights + state + sums
        parts.append(Part(what="critic", size=size))
    return parts


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


def _parallel(serving: VllmServing) -> int:
    """Devices of one vLLM server."""
    args = {key.replace("-", "_"): value for key, value in serving.args.items()}
    sizes = (args.get("tensor_parallel_size", 1), args.get("pipeline_parallel_size", 1))
    return max(1, int(sizes[0]) * int(sizes[1]))


def _width(model: ModelSection) -> int:
    return 2 if model.dtype == "bfloat16" else 4
