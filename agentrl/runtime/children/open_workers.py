"""Opens the rollout workers of a local run in child processes, and closes them in any case."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.chat.pictures.slots import ImageReader
from agentrl.config.plan import EnginePlan, RolloutPlan
from agentrl.runtime.assembly.engine_addresses import EngineAddress
from agentrl.runtime.assembly.engines import OpenEngines, engine_wait_s
from agentrl.runtime.assembly.rollout_host import HostReport, copy_policy
from agentrl.runtime.children.stages import ChildRollouts, EngineNews
from agentrl.runtime.children.worker_main import WorkerSetup
from agentrl.runtime.children.workers import ChildWorkers
from agentrl.serving.vllm import VllmEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWorkers:
    """Rollout workers in child processes."""

    rollouts: ChildRollouts
    """Makes groups with them."""
    news: EngineNews
    """Reports to them which engines serve."""
    workers: ChildWorkers
    """Their processes."""
    report: HostReport
    """Report of the first of them."""


@contextlib.asynccontextmanager
async def open_workers(
    plan: RolloutPlan,
    engine: EnginePlan,
    *,
    logs: Path,
    engines: OpenEngines,
    tokenizer: Any,
    version: int,
    images: ImageReader | None = None,
) -> AsyncIterator[OpenWorkers]:
    """Start `runtime.worker_processes` children, connected to the engines that serve.

    Args:
        plan: of a rollout; its model is the folder or hub name of the tokenizer.
        engine: which engines, and how many workers.
        logs: folder for the output of the workers.
        engines: reached over HTTP.
        tokenizer: of the policy.
        version: of the weights that the servers were started with.
        images: image processor of the policy; None for one that reads text only.

    Raises:
        AgentrlError: a worker cannot be opened.
    """
    assert engine.runtime.kind == "local"
    count = engine.runtime.worker_processes
    logs.mkdir(parents=True, exist_ok=True)
    policy_copy = copy_policy(tokenizer, images)
    setups = [
        WorkerSetup(
            plan=plan,
            wait_s=engine_wait_s(engine.serving, on_ray=True),
            index=index,
            sharers=count,
            log=(logs / f"worker-{index}.log").absolute(),
            policy_copy=policy_copy,
        )
        for index in range(count)
    ]
    context = plan.rollout.max_context_tokens
    workers = ChildWorkers(
        setups,
        lambda: _addresses(engines, max_context_tokens=context, version=version),
        wait_s=engines.wait_s,
        open_limit_s=engine.serving.start_timeout_s,
    )
    try:
        report = await workers.open()
        news = EngineNews(workers, engines.client.names)
        watching = asyncio.create_task(news.watch())
        try:
            rollouts = ChildRollouts(workers)
            yield OpenWorkers(rollouts=rollouts, news=news, workers=workers, report=report)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    finally:
        await workers.close()


def _addresses(
    engines: OpenEngines, *, max_context_tokens: int, version: int
) -> list[EngineAddress]:
    """The engines that serve at this moment, as a worker connects to them."""
    found: list[EngineAddress] = []
    for name in engines.client.active():
        engine = engines.client.engine(name)
        assert isinstance(engine, VllmEngine), engine
        found.append(
            EngineAddress(
                name=name,
                address=engine.url,
                secret=engines.secret,
                max_context_tokens=max_context_tokens,
                start_version=version,
            )
        )
    return found
