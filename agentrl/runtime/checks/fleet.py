"""Checks of preflight that concern engines, schedule and cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentrl.config.fleet import RayRuntime, ServingSection, SyncSection, VllmServing
from agentrl.config.plan import EnginePlan, SchedulePlan
from agentrl.config.schema import ModelSection
from agentrl.config.training import TrainSection
from agentrl.disk.model_source import model_source
from agentrl.errors import ConfigError
from agentrl.machine.compute_threads import run_computing
from agentrl.models.cache_bytes import cache_shape
from agentrl.models.rotary import rotary_limit
from agentrl.models.source import load_tokenizer, read_config, stored_config
from agentrl.runtime.assembly.engines import server_commands
from agentrl.runtime.assembly.weight_check import load_score, require_first_weights
from agentrl.runtime.assembly.weight_route import rank_to_engine, section_backend, transfer_name
from agentrl.runtime.checks.colocation import find_colocation, refuse_running_ahead
from agentrl.runtime.drivers.choose import check_schedule, early_plan, runs_ahead
from agentrl.runtime.records import find_cluster
from agentrl.serving.cache_room import require_one_sequence
from agentrl.serving.vllm.check import Expected, Score, check_server, require
from agentrl.serving.vllm.command import (
    cache_size,
    require_one_config,
    server_command,
    vllm_device,
)
from agentrl.serving.vllm.options import check_options
from agentrl.sync import WeightTransfer, find_transfer, resolve_backend
from agentrl.types.finding import Finding, Status

_TEXTS = ("def f(x):\n    return x + 1\n", "Gr\u00fc\u00dfe, \u4e16\u754c! 3.14", "  a  b")
"""Texts that distinguish tokenizers."""


async def schedule(plan: SchedulePlan, engines: EnginePlan) -> str:
    """Describe in words how a schedule runs."""
    schedule, shared = plan.schedule, engines.serving.engine == "embedded"
    check_schedule(schedule, shares_weights=shared)
    if find_colocation(engines, plan.train) is not None:
        refuse_running_ahead(schedule)
        shared = True
    early = early_plan(plan, shares_weights=shared)
    if schedule.oversample > 1:
        return f"on-policy, {schedule.oversample:g} groups begun for each that is trained"
    if not runs_ahead(schedule):
        text = "on-policy: every step is sampled by the weights it trains"
        return text if early is None else f"{text}; minibatches train as soon as they are complete"
    ways = "go on with new weights" if schedule.partial_rollout else "end before a sync"
    return (
        f"a sync every {schedule.trigger_parameter_sync_step} steps, rollouts run ahead by "
        f"{schedule.staleness_threshold:g} of what it takes and "
        f"{ways}"
    )


async def engines(
    plan: EnginePlan,
    *,
    tokenizer: Any = None,
    train: TrainSection | None = None,
    starting: bool = False,
) -> Finding | str:
    """Check that the engines of a run are available and fit the policy's tokenizer.

    Args:
        plan: of the engines.
        tokenizer: of the policy.
        train: of the trainer that may share a device with them; None where that is settled.
        starting: servers are about to start, and will read their options themselves.
    """
    colocation = None if train is None else find_colocation(plan, train)
    if colocation is not None:
        plan = replace(plan, sync=colocation.of(plan.sync))
    section, model, limit = plan.serving, plan.model, plan.rollout.max_context_tokens
    find_transfer(plan.sync.backend, base=plan.base)
    backend = _backend(plan)
    _refuse_idle_sync(plan.sync, backend)
    if section.engine == "embedded":
        return "embedded: samples from the trainer's own weights"
    if section.engine == "external":
        return await _strangers(
            section.urls, tokenizer, backend, model=model, max_context_tokens=limit
        )
    require_one_config(section.args)
    _require_one_sequence(section, model, limit, on_ray=plan.runtime.kind == "ray")
    if plan.runtime.kind == "local":
        server_commands(
            section,
            plan.sync,
            model,
            max_context_tokens=limit,
            source=model.path,
            secret="",
            sleeps=colocation is not None,
        )
    else:  # the devices are those of other machines
        server_command(
            section,
            model_path="",
            max_context_tokens=limit,
            device="cpu",
            head_dtype=model.head_dtype,
        )
    text = f"{section.replicas} vLLM servers on {vllm_device()}, weights by {backend}"
    if not starting:
        text += await asyncio.to_thread(check_options, section.args)
    text += "" if colocation is None else f"; {colocation.text}"
    cores = os.cpu_count() or 1
    if vllm_device() == "cpu" and section.replicas > cores:
        detail = f"{text}; they share {cores} cores, so lower serving.replicas"
        fix = f"set serving.replicas: {cores}"
        return Finding(name="engines", status=Status.WARN, detail=detail, fix=fix)
    return text


def _require_one_sequence(
    section: VllmServing, model: ModelSection, tokens: int, *, on_ray: bool
) -> None:
    """Refuse a cache without room for one whole sequence, where its size is known beforehand."""
    # Devices of other machines are not known here.
    device = "cuda" if on_ray else vllm_device()
    room = cache_size(section, device)
    config = read_config(model_source(model))
    if room is not None and config is not None:
        cache = cache_shape(config)
        require_one_sequence(section, cache, dtype=model.dtype, tokens=tokens, room=room)


async def require_fleet(plan: EnginePlan) -> None:
    """Before anything is started: refuse what `--dry-run` would report of engines and cluster.

    Raises:
        ConfigError: the run cannot have the engines or the machines it asks for.
    """

    tokenizer = None
    if plan.serving.urls:
        section = plan.model.model_copy(update={"path": model_source(plan.model)})
        tokenizer = await asyncio.to_thread(load_tokenizer, section)
    await engines(plan, tokenizer=tokenizer, starting=True)
    await cluster(plan)


def _backend(plan: EnginePlan) -> str:
    """The weight backend, as far as it is known before the machines of a cluster are."""
    runtime, section, sync = plan.runtime, plan.serving, plan.sync
    if runtime.kind == "local":
        return section_backend(section, sync, device=plan.model.device)
    return resolve_backend(
        sync,
        engine_kind="embedded" if section.engine == "embedded" else "vllm",
        same_host=not section.urls and (runtime.address is None or sync.backend != "auto"),
        shared_weights=section.engine == "embedded",
        cuda=rank_to_engine(runtime, section, sync),
    )


def _refuse_idle_sync(section: SyncSection, backend: str) -> None:
    default, kind = SyncSection(), find_transfer(backend)
    assert kind is not None, backend
    idle = [
        f"sync.{key}"
        for key in WeightTransfer.reads
        if key not in kind.reads and getattr(section, key) != getattr(default, key)
    ]
    if idle:
        raise ConfigError(
            f"{', '.join(idle)} would have no effect: weights go by {backend!r} here; remove it, "
            f"or set sync.backend to one that heeds it"
        )


def _refuse_idle_ray(section: RayRuntime, serving: ServingSection) -> None:
    default = RayRuntime()
    if serving.engine == "vllm":
        return
    named = isinstance(section.gpus, dict) and section.gpus_per_engine > 0
    idle = ["runtime.gpus.engine"] if named else []
    idle += ["runtime.placement"] if section.placement != default.placement else []
    if idle:
        what = "serving.urls names servers that run already"
        if serving.engine == "embedded":
            what = "embedded engines are on the devices of the trainer ranks"
        raise ConfigError(f"{', '.join(idle)} would have no effect: {what}; remove it")


async def require_engines(plan: EnginePlan, *, model_path: str | None) -> None:
    """Before a policy is sampled from without training: servers that run already must have it.

    Args:
        plan: of the engines.
        model_path: overrides `model.path`.

    Raises:
        ConfigError: engines that cannot be had, or that would sample from something else.
        EngineError: a server does not answer.
    """

    urls = plan.serving.urls
    if not urls:
        return
    path = model_source(plan.model, path=model_path)
    model = plan.model.model_copy(update={"path": path})
    limit = plan.rollout.max_context_tokens
    await require_first_weights(urls, path=path)
    tokenizer = await asyncio.to_thread(load_tokenizer, model)
    # What is cheap to find is found before the model is loaded.
    await _strangers(urls, tokenizer, "disk", model=model, max_context_tokens=limit)
    score = await run_computing(load_score, model)
    await _strangers(urls, tokenizer, "disk", model=model, max_context_tokens=limit, score=score)


async def require_server(plan: EnginePlan, url: str, *, backend: str) -> None:
    """Do nothing if a server that joins a run while it goes on is one that the run can use.

    Args:
        plan: of the engines.
        url: of the server.
        backend: by which weights will reach it.

    Raises:
        ConfigError: it does not fit.
    """

    model = plan.model.model_copy(update={"path": model_source(plan.model)})
    await _strangers(
        [url],
        await asyncio.to_thread(load_tokenizer, model),
        backend,
        model=model,
        max_context_tokens=plan.rollout.max_context_tokens,
    )


async def _strangers(
    urls: Sequence[str],
    tokenizer: Any,
    backend: str,
    *,
    model: ModelSection,
    max_context_tokens: int,
    score: Score | None = None,
) -> str:
    """Check that every external server is one that this run needs."""

    kind = find_transfer(backend)
    assert kind is not None, backend
    texts = None
    if tokenizer is not None:
        texts = {text: tokenizer.encode(text, add_special_tokens=False) for text in _TEXTS}
    config = stored_config(model_source(model))
    expected = Expected(
        vocab_size=int(config.get_text_config().vocab_size),
        rotary_limit=rotary_limit(config),
        max_context_tokens=max_context_tokens,
        tokenizer_size=0 if tokenizer is None else len(tokenizer),
        texts=texts,
        head_dtype=model.head_dtype,
        score=score,
        weight_transfer=None if kind.plain_server else transfer_name(backend),
    )
    answers = await asyncio.gather(*(check_server(url, expected) for url in urls))
    require(dict(zip(urls, answers, strict=True)))
    return f"{len(urls)} vLLM servers answer and fit, weights by {backend}"


async def cluster(plan: EnginePlan) -> str:
    """Check that the cluster of a run has room, and describe it."""
    found = find_cluster(plan.runtime.kind)
    if found is None:
        return "none: everything runs on this machine"
    _refuse_idle_ray(plan.ray, plan.serving)
    return await found.check(plan.ray, plan.serving)
