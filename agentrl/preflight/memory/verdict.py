"""The verdict on a run and machines that are not here: fits or not, with the numbers, and what
would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import Any

from agentrl.config.fleet import RayRuntime, ServingSection, VllmServing
from agentrl.config.plan import Plan, TrainerPlan
from agentrl.config.schema import recomputed_layers
from agentrl.config.training import Fsdp2Training, LoraSection
from agentrl.disk.model_source import policy_config
from agentrl.errors import ConfigError
from agentrl.fit.reward_models.open import reward_model_bytes
from agentrl.preflight.memory.estimate import (
    GIB,
    Demand,
    ModelShape,
    ProcessMemory,
    Room,
    estimate,
    on_same_gpus,
    takes_turns,
)
from agentrl.preflight.memory.shape import demand_of
from agentrl.preflight.memory.target import Node, Target, place
from agentrl.runtime.assembly.layout import engine_width
from agentrl.runtime.assembly.teacher import teacher_bytes
from agentrl.runtime.checks.colocation import USUAL, kept_bytes, sends_patches
from agentrl.serving.cache_room import layout, option, require_one_sequence, sequence_bytes
from agentrl.types.finding import Finding, Status, fail, warn

TIGHT = 0.85
"""Share of the memory beyond which an estimate of this kind is no promise."""

DemandOf = Callable[[TrainerPlan], Demand]
"""Sizes of the models of a plan; another micro-batch has other activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRun:
    """A run on machines that are not here."""

    plan: TrainerPlan
    """The trainer."""
    serving: ServingSection
    """The engines."""
    target: Target
    """The machines."""
    patched: bool = False
    """Whether a sync brings only what changed, on top of weights that servers must keep."""

    @property
    def on_gpu(self) -> bool:
        """True if the trainer computes on a GPU there."""
        runtime = self.plan.runtime
        asked = runtime.kind == "local" or runtime.gpus_per_trainer > 0
        return self.target.gpus > 0 and asked and self.plan.model.device != "cpu"

    def processes(self, demand: Demand) -> list[ProcessMemory]:
        """Every process with what it holds there."""
        where = (self.plan.runtime, self.serving, self.target.gpus)
        turns, host = takes_turns(*where), self.target.host
        weights = demand.shape.parameters * (2 if self.plan.model.dtype == "bfloat16" else 4)
        kept = self._kept_bytes(weights) if turns and self.patched else 0
        room = Room(
            device=self.target.card,
            host=self.target.host or 0,
            shared=on_same_gpus(*where),
            turns=turns,
            keeps_weights=0 < kept <= (kept if host is None else host),
        )
        return estimate(self.plan, self.serving, demand, on_gpu=self.on_gpu, room=room)

    def _kept_bytes(self, weights: int) -> int:
        runtime, serving = self.plan.runtime, self.serving
        assert runtime.kind == "local", runtime.kind
        assert serving.engine == "vllm", serving.engine
        moves = USUAL if runtime.offload is None else runtime.offload
        return kept_bytes(weights, serving.replicas, self.plan.train, moves)


def target_findings(run: Plan, target: Target, *, dtype_asked: bool = True) -> list[Finding]:
    """The verdict on a run, from the config of its model alone.

    Args:
        run: the run.
        target: the machines.
        dtype_asked: False where `model.dtype` is what this machine is fastest with.

    Raises:
        ConfigError: the model's config cannot be read.
    """
    trainer = run.trainer
    if target.gpus and not dtype_asked:
        model = trainer.model.model_copy(update={"dtype": "bfloat16"})
        trainer = replace(trainer, model=model)
    config = policy_config(trainer.model)
    patched = sends_patches(run.engines.sync)
    here = TargetRun(plan=trainer, serving=run.engines.serving, target=target, patched=patched)
    given = {"reward_models": reward_model_bytes(run.rewards), "teacher": teacher_bytes(trainer)}
    known: dict[Any, Demand] = {}

    def demand(plan: TrainerPlan) -> Demand:
        train, model = plan.train, plan.model
        key = (train.micro_batch_tokens, train.lora, model.gradient_checkpointing)
        if key not in known:
            known[key] = demand_of(plan, config, on_gpu=here.on_gpu, **given)
        return known[key]

    sleeps = takes_turns(trainer.runtime, here.serving, target.gpus)
    return verdict(here, demand, sleeps=sleeps)


def verdict(run: TargetRun, demand_for: DemandOf, *, sleeps: bool = False) -> list[Finding]:
    """One line for the machines, trainer, servers, one sequence and hosts.

    Args:
        run: the run and its machines.
        demand_for: sizes of the models of a plan.
        sleeps: whether engines and trainers of one device take turns.

    Raises:
        ConfigError: more layers recompute their activations than there are.
    """
    demand = demand_for(run.plan)
    shape, processes = demand.shape, run.processes(demand)
    recomputed_layers(run.plan.model.gradient_checkpointing, shape.layers)
    lines = [_target_line(run, shape)]
    try:
        nodes = place(run.target, run.plan.runtime, processes)
    except ConfigError as error:
        ways = "lower runtime.trainer_ranks or serving.replicas, or give more nodes"
        return [*lines, fail("placement", f"does not fit: {error}", ways)]
    for process in processes:
        lines += [_device_line(run, process, nodes, sleeps=sleeps)] if process.on_gpu else []
    lines += _sequence_line(run, processes, shape)
    lines.append(_host_line(run, nodes))
    if any(line.status is Status.FAIL for line in lines):
        ways = "; or ".join(_ways(run, demand_for, sleeps=sleeps))
        found = ways or "none of the known changes, nor three of them together: take larger cards"
        lines.append(Finding(name="would fit", status=Status.WARN, detail=found, fix=""))
    return lines


def _target_line(run: TargetRun, shape: ModelShape) -> Finding:
    model, train = run.plan.model, run.plan.train
    trained = "all weights" if train.lora is None else f"adapters of rank {train.lora.rank}"
    detail = (
        f"{run.target.text()}; {shape.parameters / 1e9:.2f}B parameters in {model.dtype}, "
        f"{trained} trained by {train.backend.kind}, micro-batches of "
        f"{max(train.micro_batch_tokens, run.plan.rollout.max_context_tokens)} tokens"
    )
    if run.target.gpus and not run.on_gpu:
        return warn("target", f"{detail}; the trainer is on CPUs", "set runtime.gpus: 1")
    return Finding(name="target", status=Status.OK, detail=detail, fix="")


def _device_line(
    run: TargetRun, process: ProcessMemory, nodes: Sequence[Node], *, sleeps: bool
) -> Finding:
    """One kind of process against the fullest device that it is on."""
    devices = [d for node in nodes for d in node.devices if process in d.held]
    fullest = max(devices, key=lambda device: device.peak(sleeps=sleeps))
    needed, there = fullest.peak(sleeps=sleeps), run.target.card
    others = [other.text() for other in fullest.held if other is not process]
    beside = f" beside {'; '.join(others)}" if others else ""
    turns = ", in turns" if beside and sleeps else ""
    detail = (
        f"{needed / GIB:.1f} of {there / GIB:.4g} GiB of a GPU{turns}: {process.text()}{beside}"
    )
    # A server alone takes what is there, by design.
    measured = not others and process.name == "vLLM server"
    return _judged(process.name, detail, needed, there, tight=1.0 if measured else TIGHT)


def _host_line(run: TargetRun, nodes: Sequence[Node]) -> Finding:
    fullest = max(nodes, key=lambda node: node.host_bytes)
    kinds = {process.name: process for process in fullest.host}
    counts = {name: sum(p.name == name for p in fullest.host) for name in kinds}
    parts = "; ".join(replace(kinds[name], count=count).text() for name, count in counts.items())
    needed = fullest.host_bytes
    if run.target.host is None:
        detail = f"{needed / GIB:.1f} GiB of main memory on the fullest node: {parts}; not compared"
        return Finding(name="host", status=Status.OK, detail=detail, fix="")
    detail = f"{needed / GIB:.1f} of {run.target.host / GIB:.4g} GiB of a node: {parts}"
    return _judged("host", detail, needed, run.target.host)


def _judged(name: str, detail: str, needed: int, there: int, *, tight: float = TIGHT) -> Finding:
    if needed > there:
        return fail(name, f"does not fit: {detail}", "see what would fit below")
    if needed > tight * there:
        return warn(name, f"fits, but tight: {detail}", f"keep it below {tight:.0%}")
    return Finding(name=name, status=Status.OK, detail=f"fits: {detail}", fix="")


def _sequence_line(
    run: TargetRun, processes: Sequence[ProcessMemory], shape: ModelShape
) -> list[Finding]:
    """One whole sequence against the cache of a server."""
    serving, tokens, name = run.serving, run.plan.rollout.max_context_tokens, "one sequence"
    room = next(
        (part.size for p in processes for part in p.parts if part.what == "keys and values"), 0
    )
    if serving.engine == "embedded":
        row = 2 * (2 if run.plan.model.dtype == "bfloat16" else 4) * shape.layers * shape.kv_width
        needed, token = row * tokens, row
        if serving.kv_cache_gb != "auto":
            room = int(serving.kv_cache_gb * GIB)
    elif serving.engine == "vllm":
        dtype = run.plan.model.dtype
        needed = sequence_bytes(serving, shape.cache, tokens, dtype=dtype, batched=4096)
        token = shape.cache.token_bytes(**layout(serving, dtype))
        try:
            require_one_sequence(serving, shape.cache, dtype=dtype, tokens=tokens, room=room)
        except ConfigError as error:
            return [fail(name, f"does not fit: {error}", "see what would fit below")]
    else:
        return []
    detail = (
        f"{needed / GIB:.3f} of {room / GIB:.1f} GiB of the cache for {tokens} tokens, {token:,} "
        f"bytes a token ({shape.cache.kind}); {room // max(1, needed)} fit at once"
    )
    return [_judged(name, detail, needed, room)]


Change = tuple[str, Callable[[TargetRun], TargetRun | None]]
"""Words for the user, and the run with it; None where it changes nothing."""


def _ways(run: TargetRun, demand_for: DemandOf, *, sleeps: bool) -> Iterator[str]:
    """Fewest changes that make the run fit, at most three ways."""
    changes = [(words, change) for words, change in _CHANGES if change(run) is not None]
    for number in (1, 2, 3):
        found: list[str] = []
        for several in combinations(changes, number):
            changed: TargetRun | None = run
            for _, change in several:
                changed = changed and change(changed)
            if changed is not None and _fits(changed, demand_for, sleeps=sleeps):
                found.append(", ".join(_words(words, changed) for words, _ in several))
        if found:
            yield from found[:3]
            return


def _words(words: str, changed: TargetRun) -> str:
    runtime, serving = changed.plan.runtime, changed.serving
    ranks = runtime.trainer_ranks if runtime.kind == "ray" else 1
    width = engine_width(serving) if serving.engine == "vllm" else 1
    return words.format(ranks=ranks, context=changed.plan.rollout.max_context_tokens, width=width)


def _fits(run: TargetRun, demand_for: DemandOf, *, sleeps: bool) -> bool:
    demand = demand_for(run.plan)
    processes = run.processes(demand)
    try:
        nodes = place(run.target, run.plan.runtime, processes)
    except ConfigError:
        return False
    lines = [
        *(_device_line(run, p, nodes, sleeps=sleeps) for p in processes if p.on_gpu),
        *_sequence_line(run, processes, demand.shape),
        _host_line(run, nodes),
    ]
    return all(line.status is not Status.FAIL for line in lines)


def _trained(run: TargetRun, **changes: Any) -> TargetRun | None:
    old = run.plan.train
    if all(getattr(old, name) == value for name, value in changes.items()):
        return None
    return replace(run, plan=replace(run.plan, train=old.model_copy(update=changes)))


def _smaller(run: TargetRun) -> TargetRun | None:
    least = run.plan.rollout.max_context_tokens
    if run.plan.train.micro_batch_tokens <= least:
        return None
    return _trained(run, micro_batch_tokens=least)


def _recomputed(run: TargetRun) -> TargetRun | None:
    if run.plan.model.gradient_checkpointing is True:
        return None
    model = run.plan.model.model_copy(update={"gradient_checkpointing": True})
    return replace(run, plan=replace(run.plan, model=model))


def _sharded(run: TargetRun) -> TargetRun | None:
    """The model in parts, with as many ranks as there are."""
    backend = run.plan.train.backend
    if run.plan.runtime.kind != "ray" or run.serving.engine == "embedded":
        return None
    if backend.kind == "fsdp2" or (backend.kind == "deepspeed" and backend.zero_stage == 3):
        return None
    return _trained(run, backend=Fsdp2Training())


def _more_ranks(run: TargetRun) -> TargetRun | None:
    """Ranks on every GPU that the servers leave."""
    runtime, serving = run.plan.runtime, run.serving
    if runtime.kind != "ray" or runtime.gpus_per_trainer <= 0:
        return None
    taken = 0
    if serving.engine == "vllm" and runtime.placement == "disaggregated":
        sizes = layout(serving, run.plan.model.dtype)
        taken = serving.replicas * sizes["tensor"] * sizes["pipeline"]
    ranks = run.target.nodes * run.target.gpus - taken
    if ranks <= runtime.trainer_ranks:
        return None
    changed: RayRuntime = runtime.model_copy(update={"trainer_ranks": ranks})
    return replace(run, plan=replace(run.plan, runtime=changed))


def _on_ray(run: TargetRun) -> TargetRun | None:
    """The model in parts on all GPUs that the servers leave."""
    if run.plan.runtime.kind == "ray" or run.serving.engine == "embedded":
        return None
    sizes = [1, 1]
    if run.serving.engine == "vllm":
        sizes = [run.serving.replicas, engine_width(run.serving)]
    ranks = run.target.nodes * run.target.gpus - prod(sizes)
    if ranks < 2:
        return None
    runtime = RayRuntime(trainer_ranks=ranks, gpus={"trainer": 1, "engine": sizes[1]})
    changed = _trained(run, backend=Fsdp2Training())
    return changed and replace(changed, plan=replace(changed.plan, runtime=runtime))


def _offloaded(run: TargetRun) -> TargetRun | None:
    backend = run.plan.train.backend
    if backend.kind == "torch" or backend.offload:
        return None
    return _trained(run, backend=backend.model_copy(update={"offload": True}))


def _adapted(run: TargetRun) -> TargetRun | None:
    return _trained(run, lora=LoraSection(rank=16)) if run.plan.train.lora is None else None


def _wider(run: TargetRun) -> TargetRun | None:
    """Servers on twice as many GPUs each."""
    if not isinstance(run.serving, VllmServing) or not run.target.gpus:
        return None
    width = 2 * int(option(run.serving.args, "tensor_parallel_size") or 1)
    args = {k: v for k, v in run.serving.args.items() if not k.strip("-").startswith("tensor")}
    serving = run.serving.model_copy(update={"args": {**args, "tensor_parallel_size": width}})
    return replace(run, serving=serving) if width <= run.target.gpus else None


_CHANGES: tuple[Change, ...] = (
    ("train.micro_batch_tokens={context}", _smaller),
    ("model.gradient_checkpointing=true", _recomputed),
    ("train.backend=fsdp2", _sharded),
    ("runtime.trainer_ranks={ranks}", _more_ranks),
    (
        "runtime=ray, runtime.gpus={{trainer: 1, engine: {width}}}, "
        "runtime.trainer_ranks={ranks}, train.backend=fsdp2",
        _on_ray,
    ),
    ("serving.args.tensor_parallel_size={width}", _wider),
    ("train.backend.offload=true", _offloaded),
    ("train.lora.rank=16", _adapted),
)
"""From what costs nothing to what trains something else."""
