"""Checks of the machine: disk, length of the context, memory.

Imports inside functions keep torch away until a check needs it.
"""

from __future__ import annotations

import asyncio
import shutil
from functools import partial

from agentrl.config.fleet import ServingSection
from agentrl.config.plan import EnginePlan, RewardPlan, SchedulePlan, TrainerPlan
from agentrl.config.schema import ModelSection, recomputed_layers
from agentrl.disk.model_source import policy_config
from agentrl.disk.run_name import run_path
from agentrl.errors import AgentrlError, RunError
from agentrl.fit.reward_models.open import reward_model_bytes
from agentrl.machine.free_memory import available_bytes
from agentrl.models.device import pick_device
from agentrl.models.rotary import context_limit
from agentrl.preflight.memory.estimate import (
    GIB,
    Room,
    estimate,
    on_same_gpus,
    saved_bytes,
    takes_turns,
)
from agentrl.preflight.memory.shape import demand_of, model_shape
from agentrl.preflight.memory.target import Device
from agentrl.runtime.assembly.teacher import teacher_bytes
from agentrl.runtime.checks.colocation import find_colocation
from agentrl.types.finding import Finding, fail, warn

_TOKEN_BYTES = 8
"""Of a response token on disk, trajectories and what the trainer made of them together."""
_TIGHT = 0.85
"""Share of the memory beyond which an estimate of this kind is no promise."""


async def disk(plan: SchedulePlan, trainer: TrainerPlan) -> Finding | str:
    """Checkpoints and trajectories against what is free.

    Raises:
        RunError: it is not enough.
    """
    path = run_path(plan.run)
    folder = next(f for f in (path, *path.absolute().parents) if f.exists())
    free = shutil.disk_usage(folder).free
    try:
        shape = await asyncio.to_thread(model_shape, trainer.model)
    except (AgentrlError, OSError, ValueError, AttributeError) as error:
        return warn(
            "disk",
            f"{free / GIB:.1f} GiB free; the model's size is not known here ({error})",
            "fetch the model first, or set model.path to its folder",
        )
    rollout, train = plan.rollout, plan.train
    rollouts = train.steps * rollout.prompts_per_step * rollout.n_samples_per_prompt
    stored = rollouts * rollout.max_response_tokens * _TOKEN_BYTES
    needed = saved_bytes(trainer, shape).on_disk(plan.checkpoint)
    text = (
        f"{needed / GIB:.1f} GiB for checkpoints, at most {stored / GIB:.1f} GiB for trajectories, "
        f"{free / GIB:.1f} GiB free"
    )
    if needed + stored > free:
        ways = "lower checkpoint.keep_last or keep_best"
        if plan.checkpoint.save == "all":
            ways += ", set checkpoint.save: model"
        raise RunError(f"not enough disk at {folder}: {text}; {ways}, or move run.dir")
    return text


async def context(model: ModelSection, wanted: int) -> Finding | str:
    """Compare the longest sequence of the run with what the model was made for."""
    try:
        found = await asyncio.to_thread(policy_config, model)
    except (AgentrlError, OSError, ValueError) as error:
        return warn("context", f"not checked: {error}", "mend model")
    positions = context_limit(found)
    if positions is None:
        return f"{wanted} tokens; the model names no limit"
    if wanted > positions:
        return fail(
            "context",
            f"rollout.max_context_tokens is {wanted}, but the model was made for {positions}",
            f"set rollout.max_context_tokens: {positions}, or stretch its positions by "
            "model.overrides, as {rope_parameters: {rope_type: yarn, factor: "
            f"{-(-wanted // positions)}.0}}}}",
        )
    return f"{wanted} of the {positions} tokens that the model was made for"


async def memory(plan: TrainerPlan, engines: EnginePlan, rewards: RewardPlan) -> Finding | str:
    """Every process of the run against the memory of this machine and its GPUs.

    Raises:
        ConfigError: more layers recompute their activations than there are, or turns on one GPU
            that cannot be.
    """
    runtime, serving = plan.runtime, engines.serving
    gpu = pick_device(plan.model.device).type == "cuda" or (
        runtime.kind == "ray" and runtime.gpus_per_trainer > 0
    )
    try:
        config = await asyncio.to_thread(policy_config, plan.model)
        demand = await asyncio.to_thread(
            partial(
                demand_of,
                plan,
                config,
                on_gpu=gpu,
                reward_models=reward_model_bytes(rewards),
                teacher=teacher_bytes(plan),
            )
        )
    except (AgentrlError, OSError, ValueError, AttributeError) as error:
        return warn(
            "memory",
            f"not estimated: the model's shape is not known here ({error})",
            "fetch the model first, or set model.path to its folder",
        )
    recomputed_layers(plan.model.gradient_checkpointing, demand.shape.layers)
    elsewhere = runtime.address if runtime.kind == "ray" else None
    free, cards = available_bytes(), _gpu_bytes()
    shared = on_same_gpus(runtime, serving, len(cards))
    turns = takes_turns(runtime, serving, len(cards))
    colocation = find_colocation(engines, plan.train) if turns else None
    room = Room(
        device=max(cards, default=0),
        host=free or 0,
        shared=shared,
        turns=turns,
        keeps_weights=colocation is not None and colocation.level == 1,
    )
    processes = estimate(plan, serving, demand, on_gpu=gpu, room=room)
    text = "; ".join(process.text() for process in processes)
    if elsewhere is not None:
        return f"{text}; not compared: the machines of {elsewhere} are elsewhere"
    host = sum(process.total for process in processes if not process.on_gpu)
    if free is None:
        return f"{text}; not compared: this system does not say what is free"
    pools = [("main memory", host, free)]
    if cards:
        device = sum(process.total * process.devices for process in processes if process.on_gpu)
        largest = max((p.size for p in processes if p.on_gpu), default=0)
        if turns:  # the first server and the trainer, of which one at a time has all of its own
            both = Device(held=[process for process in processes if process.on_gpu])
            largest = both.peak(sleeps=True)
            device -= both.peak(sleeps=False) - largest
            text = f"in turns on one GPU, {text}"
        pools += [("GPU memory", device, sum(cards)), ("the largest GPU", largest, max(cards))]
    elif any(process.on_gpu for process in processes):
        text += "; GPUs are not compared: this machine has none"
    for what, needed, there in pools:
        said = f"{needed / GIB:.1f} of {there / GIB:.1f} GiB of {what}"
        if needed > there:
            return fail("memory", f"{said}: {text}", _lower(plan, serving))
        if needed > _TIGHT * there:
            return warn("memory", f"{said}: {text}", _lower(plan, serving))
    return f"{host / GIB:.1f} of {free / GIB:.1f} GiB: {text}"


def _gpu_bytes() -> list[int]:
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]


def _lower(plan: TrainerPlan, serving: ServingSection) -> str:
    """What takes less memory, most effective first."""
    ways = []
    if plan.train.micro_batch_tokens > plan.rollout.max_context_tokens:
        ways.append(f"set train.micro_batch_tokens: {plan.rollout.max_context_tokens}")
    if plan.model.gradient_checkpointing is not True:
        ways.append("set model.gradient_checkpointing: true")
    if serving.engine != "external" and serving.kv_cache_gb != "auto":
        ways.append(f"lower serving.kv_cache_gb (it is {serving.kv_cache_gb:g})")
    if plan.train.lora is None:
        ways.append("set train.lora.rank: 16")
    return "; ".join(ways)
