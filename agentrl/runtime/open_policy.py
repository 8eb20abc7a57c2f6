"""A policy ready to roll out: model, engines, sandboxes, tools and worker, opened and closed
together."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.chat import build_chat
from agentrl.config.plan import Plan, RolloutPlan
from agentrl.disk.model_source import model_source, served_source
from agentrl.errors import ConfigError
from agentrl.fit.reward_models.open import OpenRewardModels, open_reward_models
from agentrl.fit.reward_models.versions import RewardModelUsers
from agentrl.machine.compute_threads import reserve_cores, run_computing
from agentrl.models.source import check_language_model, load_tokenizer
from agentrl.models.vision.checks import open_images
from agentrl.runtime.assembly.engines import (
    UNKNOWN_VERSION,
    OpenEngines,
    engine_wait_s,
    open_engines,
)
from agentrl.runtime.assembly.local_stages import LocalRollouts
from agentrl.runtime.assembly.parts import make_worker, open_sandboxes
from agentrl.runtime.assembly.policy_check import check_policy
from agentrl.runtime.assembly.tools import open_tools
from agentrl.runtime.children.open_workers import open_workers
from agentrl.runtime.children.stages import ChildRollouts, EngineNews

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat
    from agentrl.chat.pictures.slots import ImageReader
    from agentrl.models.proof import ModelProof
    from agentrl.models.vision.reader import VisionReader
    from agentrl.runtime.colocated.turns import TurnTaking
    from agentrl.sandbox import SandboxBackend
    from agentrl.tool import Tool
    from agentrl.train.model.pretrained import Pretrained


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A model behind engines, ready to roll out."""

    pretrained: Pretrained | None
    """Model and tokenizer; None where only servers hold the model."""
    model: str
    """Describes the model."""
    engines: OpenEngines
    """Engines that sample from it."""
    rollouts: LocalRollouts | ChildRollouts
    """Makes groups with it."""
    chat: ChatFormat
    """Format that turns messages into ids."""
    sandbox_text: str
    """Backend and how strong it is."""
    reward_models: RewardModelUsers
    """Processes that score its rollouts."""
    reward_proofs: Mapping[str, ModelProof | None]
    """Comparison of each reward model with its own forward pass."""
    news: EngineNews | None = None
    """The way to workers in child processes; None where there are none."""


@contextlib.asynccontextmanager
async def open_policy(
    plan: Plan,
    *,
    logs: Path,
    note: Callable[[str], None],
    model_path: str | None = None,
    version: int = 0,
    train: bool = False,
    images: Path | None = None,
    turns: TurnTaking | None = None,
) -> AsyncIterator[Policy]:
    """Load the model, start the engines and the sandboxes; close them in any case.

    Args:
        plan: of the run.
        logs: folder for the output of servers.
        note: called with each line for the user.
        model_path: overrides `model.path`.
        version: of the weights there.
        train: whether the model is needed in this process, wherever it samples.
        images: folder for the images that a vision-language model is shown; by default in `logs`.
        turns: of servers that share the device of the trainer; it is the trainer's turn afterwards.

    Raises:
        AgentrlError: whatever does not fit, named.
    """
    rollouts, engine = plan.rollouts, plan.engines
    embedded = engine.serving.engine == "embedded"
    if embedded or train:
        # Before torch is imported: it reads only then how its threads wait.
        reserve_cores()
    children = engine.runtime.kind == "local" and engine.runtime.worker_processes > 0
    # A sync before the first rollout brings servers to the trainer's version.
    loaded = UNKNOWN_VERSION if train and not embedded else version
    async with contextlib.AsyncExitStack() as stack:
        here = None if children else await open_environment(rollouts, stack=stack)
        source = (
            served_source(engine.model, plan.trainer.train.lora, checkpoint=model_path)
            if train
            else model_source(engine.model, path=model_path)
        )
        if embedded or train:
            check_language_model(source)
        context = engine.rollout.max_context_tokens
        await run_computing(check_policy, source, engine.model, rollouts.chat, context=context)
        pretrained, tokenizer = await _load(
            plan, source, model_path=model_path, train=train, turns=turns
        )
        reader = _reader(pretrained, source, tokenizer)
        open_images(plan.trainer, engine.serving, reader, images or logs / "images")
        engines = await stack.enter_async_context(
            open_engines(
                engine.serving,
                engine.sync,
                engine.model,
                max_context_tokens=context,
                wait_s=engine_wait_s(engine.serving, on_ray=engine.runtime.kind == "ray"),
                model=pretrained.model if pretrained else None,
                source=source,
                logs=logs,
                version=loaded,
                note=note,
                pictures=reader,
                turns=turns,
            )
        )
        if turns is not None:
            await turns.to_trainer()
        if here is not None:
            models = await stack.enter_async_context(
                open_reward_models(rollouts, tokenizer=tokenizer)
            )
            opened = here.rollouts(rollouts, engines, tokenizer, models, images=reader)
        else:
            opened = await stack.enter_async_context(
                _open_children(
                    plan,
                    engines,
                    source,
                    tokenizer,
                    logs=logs,
                    images=reader,
                    version=loaded,
                )
            )
        yield Policy(
            pretrained=pretrained,
            model=pretrained.description if pretrained else f"{source} on {engines.text}",
            engines=engines,
            rollouts=opened.rollouts,
            chat=build_chat(tokenizer, rollouts.chat, images=reader),
            sandbox_text=opened.sandbox_text,
            reward_models=opened.reward_models,
            reward_proofs=opened.reward_proofs,
            news=opened.news,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenRollouts:
    """A rollout stage that is ready."""

    rollouts: LocalRollouts | ChildRollouts
    sandbox_text: str
    reward_models: RewardModelUsers
    reward_proofs: Mapping[str, ModelProof | None]
    news: EngineNews | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvironment:
    """Sandboxes and tools in this process."""

    sandboxes: SandboxBackend
    """Makes sandboxes."""
    tools: Sequence[Tool]
    """Tools of the config, opened."""
    text: str
    """Backend and how strong it is."""

    def rollouts(
        self,
        plan: RolloutPlan,
        engines: OpenEngines,
        tokenizer: Any,
        reward_models: OpenRewardModels,
        *,
        images: ImageReader | None,
    ) -> _OpenRollouts:
        """A worker on the event loop of this process."""
        worker, _ = make_worker(
            plan,
            generator=engines.client,
            tokenizer=tokenizer,
            sandboxes=self.sandboxes,
            tools=self.tools,
            reward_models=reward_models.targets,
            images=images,
        )
        client = engines.client
        rollouts = LocalRollouts(
            worker,
            cancelled=lambda: worker.cancelled,
            look=lambda most: worker.in_flight.report(most, client.engine_of),
        )
        return _OpenRollouts(
            rollouts=rollouts,
            sandbox_text=self.text,
            reward_models=reward_models,
            reward_proofs=reward_models.proofs,
        )


async def open_environment(
    plan: RolloutPlan, *, stack: contextlib.AsyncExitStack
) -> OpenEnvironment:
    """Open the sandboxes and tools of rollouts; `stack` closes them."""
    sandboxes = await open_sandboxes(plan.sandbox, base=plan.base)
    stack.push_async_callback(sandboxes.close)
    probe = await sandboxes.probe()
    tools = await stack.enter_async_context(open_tools(plan.env, base=plan.base))
    text = f"{sandboxes.name} ({probe.isolation.name.lower()} isolation)"
    return OpenEnvironment(sandboxes=sandboxes, tools=tools, text=text)


@contextlib.asynccontextmanager
async def _open_children(
    plan: Plan,
    engines: OpenEngines,
    source: str,
    tokenizer: Any,
    *,
    logs: Path,
    images: ImageReader | None,
    version: int,
) -> AsyncIterator[_OpenRollouts]:
    """Workers in processes of their own, with sandboxes and tools there."""
    async with open_workers(
        plan.with_model(source).rollouts,
        plan.engines,
        logs=logs,
        engines=engines,
        tokenizer=tokenizer,
        images=images,
        version=version,
    ) as opened:
        yield _OpenRollouts(
            rollouts=opened.rollouts,
            sandbox_text=opened.report.sandbox_text,
            reward_models=opened.workers,
            reward_proofs=opened.report.reward_proofs,
            news=opened.news,
        )


def _reader(pretrained: Pretrained | None, source: str, tokenizer: Any) -> VisionReader | None:
    """The image processor of the model, also where the model itself is with servers only."""
    from agentrl.models.vision.reader import load_reader

    if pretrained is not None:
        return pretrained.images
    try:
        return load_reader(source, tokenizer)
    except ConfigError as error:
        logger.warning("its servers are given text only: %s", error)
        return None


async def _load(
    plan: Plan, source: str, *, model_path: str | None, train: bool, turns: TurnTaking | None
) -> tuple[Pretrained | None, Any]:
    """The model, where it is needed in this process, and its tokenizer."""
    from agentrl.train.model.load import load_model, load_trained, parked

    if train:
        pretrained = await run_computing(
            load_trained, plan.trainer.model, plan.trainer.train, checkpoint=model_path
        )
        if turns is not None:
            # Servers want a free device when they start.
            turns.attach(await run_computing(parked, pretrained.model))
    elif plan.engines.serving.engine == "embedded":
        pretrained = await run_computing(load_model, plan.engines.model, path=model_path)
    else:
        return None, load_tokenizer(plan.engines.model.model_copy(update={"path": source}))
    return pretrained, pretrained.tokenizer
