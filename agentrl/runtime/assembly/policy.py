"""A policy ready to roll out: model, engines, sandboxes, tools and worker, opened and closed
together."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.compute_threads import reserve_cores, run_computing
from agentrl.config import RunConfig
from agentrl.runtime.assembly.engines import (
    UNKNOWN_VERSION,
    OpenEngines,
    engine_wait_s,
    open_engines,
)
from agentrl.runtime.assembly.local_stages import LocalRollouts
from agentrl.runtime.assembly.parts import (
    describe_model,
    load_model,
    load_trained,
    make_worker,
    model_source,
    open_sandboxes,
    served_source,
)
from agentrl.runtime.assembly.tools import open_tools

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat
    from agentrl.train.model.pretrained import Pretrained


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A model behind engines, ready to roll out."""

    pretrained: Pretrained | None
    """Model and tokenizer; None where only servers hold the model."""
    model: str
    """Describes the model."""
    engines: OpenEngines
    """Engines that sample from it."""
    rollouts: LocalRollouts
    """Makes groups with it."""
    chat: ChatFormat
    """Format that turns messages into ids."""
    sandbox_text: str
    """Backend and how strong it is."""


@contextlib.asynccontextmanager
async def open_policy(
    config: RunConfig,
    *,
    base: Path,
    logs: Path,
    note: Callable[[str], None],
    model_path: str | None = None,
    version: int = 0,
    train: bool = False,
) -> AsyncIterator[Policy]:
    """Load the model, start the engines and the sandboxes; close them in any case.

    Args:
        config: of the run.
        base: where its relative paths start.
        logs: folder for the output of servers.
        note: called with each line for the user.
        model_path: overrides `model.path`.
        version: of the weights there.
        train: whether the model is needed in this process, wherever it samples.

    Raises:
        AgentrlError: whatever does not fit, named.
    """
    embedded = config.serving.engine == "embedded"
    if embedded or train:
        # Before torch is imported: it reads only then how its threads wait.
        reserve_cores()
    from agentrl.train.model.pretrained import load_tokenizer

    sandboxes = await open_sandboxes(config.sandbox, base=base)
    try:
        probe = await sandboxes.probe()
        source = (
            served_source(config.model, config.train.lora, checkpoint=model_path)
            if train
            else model_source(config.model, path=model_path)
        )
        pretrained: Pretrained | None = None
        if embedded or train:
            pretrained = await (
                run_computing(load_trained, config.model, config.train.lora, checkpoint=model_path)
                if train
                else run_computing(load_model, config.model, path=model_path)
            )
            tokenizer = pretrained.tokenizer
        else:
            tokenizer = load_tokenizer(config.model.model_copy(update={"path": source}))
        async with (
            open_tools(config.env, base=base) as tools,
            open_engines(
                config.serving,
                config.sync,
                config.model,
                max_context_tokens=config.rollout.max_context_tokens,
                wait_s=engine_wait_s(config.serving, on_ray=config.runtime.kind == "ray"),
                model=pretrained.model if pretrained else None,
                source=source,
                logs=logs,
                # A sync before the first rollout brings servers to the trainer's version.
                version=UNKNOWN_VERSION if train and not embedded else version,
                note=note,
            ) as engines,
        ):
            worker, chat = make_worker(
                config,
                generator=engines.client,
                tokenizer=tokenizer,
                sandboxes=sandboxes,
                tools=tools,
                base=base,
            )
            yield Policy(
                pretrained=pretrained,
                model=describe_model(pretrained) if pretrained else f"{source} on {engines.text}",
                engines=engines,
                rollouts=LocalRollouts(worker, cancelled=lambda: worker.cancelled),
                chat=chat,
                sandbox_text=f"{sandboxes.name} ({probe.isolation.name.lower()} isolation)",
            )
    finally:
        await sandboxes.close()
