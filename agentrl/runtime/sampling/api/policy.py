"""The policy of an evaluation whose model is behind an API, opened and closed as any other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.chat import ChatFormat, build_chat, build_parser
from agentrl.config.plan import RolloutPlan
from agentrl.data.run.paths import RunPaths
from agentrl.disk.model_source import model_source
from agentrl.errors import ConfigError
from agentrl.machine.files import write_whole
from agentrl.models.source import load_tokenizer
from agentrl.runtime.assembly.parts import make_worker
from agentrl.runtime.open_policy import open_environment
from agentrl.runtime.sampling.api.sampler import ApiSampler, not_sampled, used
from agentrl.runtime.sampling.api.transcript import transcript_tokenizer
from agentrl.runtime.scores import EvalSummary
from agentrl.runtime.stages import HeldGroup, report_of
from agentrl.served import ServedSettings
from agentrl.types import SamplingParams, Task, usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiUse:
    """Use of an API by an evaluation, as its server reports it."""

    requests: int
    """Requests that were sent."""
    failed: int
    """Requests of them that brought no usable answer."""
    prompt_tokens: int
    """Tokens read."""
    completion_tokens: int
    """Tokens written."""
    cost: float
    """Their price, in the currency of the prices; 0 without prices."""


class ApiRollouts:
    """Makes groups with a model behind an API; none of their tokens is one of the policy."""

    def __init__(self, worker: Any) -> None:
        """Make groups with a worker."""
        self._worker = worker

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> HeldGroup:
        """Run a group; see `RolloutStage.run_group`. The report counts tokens of the texts."""
        group = await self._worker.run_group(
            task, group_id=group_id, n=n, sampling=sampling, seed=seed
        )
        return HeldGroup(group=not_sampled(group), report=report_of(group))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPolicy:
    """A model behind an API, ready to roll out."""

    model: str
    """Describes the model."""
    rollouts: ApiRollouts
    """Makes groups with it."""
    chat: ChatFormat
    """Format whose ids stand for the messages."""
    sandbox_text: str
    """Backend of the sandboxes and how strong it is."""
    sampler: ApiSampler
    """Asks the API."""

    @property
    def use(self) -> ApiUse:
        """Use of the API so far."""
        spent = used(self.sampler.spent)
        return ApiUse(
            requests=round(spent[usage.SERVED_REQUESTS]),
            failed=round(spent[usage.SERVED_FAILED]),
            prompt_tokens=round(spent[usage.SERVED_PROMPT_TOKENS]),
            completion_tokens=round(spent[usage.SERVED_COMPLETION_TOKENS]),
            cost=spent[usage.SERVED_COST],
        )


@contextlib.asynccontextmanager
async def open_api_policy(
    plan: RolloutPlan, settings: ServedSettings, *, native_tools: bool
) -> AsyncIterator[ApiPolicy]:
    """Open sandboxes and tools, and load the tokenizer; no model is loaded.

    Args:
        plan: environment, limits and `model.path`, whose tokenizer counts.
        settings: the API.
        native_tools: whether tools are part of the requests, or described in the first message.

    Raises:
        AgentrlError: what does not fit, named.
    """

    plan = _spoken(plan)
    source = model_source(plan.model)
    tokenizer = load_tokenizer(plan.model.model_copy(update={"path": source}))
    own = transcript_tokenizer(tokenizer, native_tools=native_tools)
    async with contextlib.AsyncExitStack() as stack:
        here = await open_environment(plan, stack=stack)
        chat = build_chat(own, plan.chat)
        sampler = ApiSampler(settings, chat)
        worker, _ = make_worker(
            plan,
            generator=sampler,
            tokenizer=own,
            sandboxes=here.sandboxes,
            tools=here.tools,
        )
        yield ApiPolicy(
            model=f"{settings.model} at {settings.url} ({settings.api})",
            rollouts=ApiRollouts(worker),
            chat=chat,
            sandbox_text=here.text,
            sampler=sampler,
        )


def _spoken(plan: RolloutPlan) -> RolloutPlan:
    """The plan with the chat section of an API, and without what only a checkpoint can do.

    Raises:
        ConfigError: something that needs token ids of the policy.
    """
    if plan.chat.reply_prefix:
        raise ConfigError(
            "chat.reply_prefix begins the turns of the model, which an API cannot be asked for; "
            "set chat.reply_prefix='' for this evaluation"
        )
    if plan.chat.template == "raw":
        raise ConfigError(
            "chat.template is 'raw', but an API is asked with messages; set chat.template=auto if "
            "the environment needs no markers of its own"
        )
    if plan.reward.models:
        raise ConfigError(
            f"reward.models ({', '.join(plan.reward.models)}) score token ids of the policy, "
            "which an API does not give; set reward.models={} for this evaluation, for the "
            "checkpoint that it is compared with, too"
        )
    parser = build_parser(plan.chat.tool_parser, base=plan.base)
    chat = {"template": "generic"}
    if parser is None or parser.names_tools:
        chat["tool_parser"] = "hermes"  # as which calls of the API are written
    return replace(plan, chat=plan.chat.model_copy(update=chat))


def write_evaluation(
    out: Path, *, policy: str, scores: Sequence[EvalSummary], use: ApiUse | None = None
) -> None:
    """Write which policy was scored, and with what outcome, beside its trajectories.

    Args:
        out: folder of the evaluation.
        policy: describes it.
        scores: of each dataset.
        use: of the API; None for a policy that sampled here.
    """
    spent: Mapping[str, Any] | None = None
    if use is not None:
        spent = {name: getattr(use, name) for name in ApiUse.__slots__}
    value = {
        "policy": policy,
        "api": use is not None,
        "use": spent,
        "scores": [item.metrics() for item in scores],
    }
    write_whole(RunPaths(out).evaluation_file, json.dumps(value, indent=1).encode())
