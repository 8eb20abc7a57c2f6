"""From a config to the parts of a run. Import strings are resolved here and nowhere else."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.chat import build_chat, build_parser
from agentrl.config import resolve_callable
from agentrl.config.plan import RolloutPlan, TaskPlan
from agentrl.config.sandboxes import (
    ContainerLimits,
    ContainerPool,
    ContainerSandbox,
    LimitsSection,
    SandboxSection,
)
from agentrl.config.schema import (
    EnvSection,
    RolloutSection,
    SelectionSection,
)
from agentrl.data import load_tasks
from agentrl.data.tasks.difficulty import sampling_weights
from agentrl.data.tasks.selection import tasks_by_key
from agentrl.errors import AgentrlError, ConfigError
from agentrl.gateway import load_env
from agentrl.gateway.side_model import SideCalls
from agentrl.plugins.user_code import described, user_code
from agentrl.reward import load_reward_functions
from agentrl.reward.target import RewardTarget
from agentrl.rollout import RolloutWorker
from agentrl.rollout.adapters.adapt import DictEnv
from agentrl.rollout.adapters.text_envs import VerlInteraction
from agentrl.runtime.assembly.tools import signature_of
from agentrl.sandbox import SandboxBackend, SandboxLimits
from agentrl.served import ServedModel, read_settings
from agentrl.tool import Tool
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat
    from agentrl.chat.pictures.slots import ImageReader
    from agentrl.engine import Generator

logger = logging.getLogger(__name__)

SANDBOX_FACTORY = "agentrl_sandboxes:make_backend"
"""Import string of the factory of the shipped backends."""
SANDBOX_POOL = "agentrl_sandboxes:PooledBackend"
"""Import string of the pool around any backend."""
CONTAINERS_AT_ONCE = 4
"""Containers started at the same time; a daemon saturates early."""
PODS_AT_ONCE = 16
"""Pods started at the same time; a cluster starts many at once."""
FIRST_CONSTRUCTOR_S = 3600.0
"""Limit of the constructor that a launch tries; those of rollouts have `env_timeout_s`."""
TRAIN = "dataset"
"""Name of the training tasks in a config."""


def side_calls_of(section: RolloutSection) -> SideCalls:
    """The policy for side calls of agents, or the served model that answers them.

    Raises:
        ConfigError: the settings of that model are wrong, or its key is not set.
    """
    if isinstance(section.side_calls, str):
        return section.side_calls
    where = "rollout.side_calls"
    return ServedModel(read_settings(section.side_calls, where), where=where)


def make_env_factory(
    section: EnvSection, *, base: Path, rollout: RolloutSection | None = None
) -> Callable[[], Any]:
    """A function that makes a fresh environment; the class is resolved and tried now.

    Args:
        section: names it.
        base: where its relative paths start.
        rollout: says who answers side calls of agents.

    Raises:
        ConfigError: the import string is wrong, or the class cannot be made with `env.args`.
    """

    side_calls = "train" if rollout is None else side_calls_of(rollout)
    target = load_env(section.target, base=base, side_calls=side_calls)

    def make() -> Any:
        return target(**section.args)

    try:
        # The first one may download or index, and there are no rollouts yet that wait for it.
        with user_code(limit_s=FIRST_CONSTRUCTOR_S, who=f"the constructor of {section.target}"):
            made = make()
            if isinstance(made, DictEnv | VerlInteraction):
                made.try_constructor()
    except AgentrlError:
        raise
    except Exception as error:  # the constructor of a user's class may raise anything
        raise ConfigError(
            f"env.target {section.target!r} cannot be made with env.args "
            f"{section.args}: {described(error)}; its signature is "
            f"{signature_of(target)}"
        ) from error
    return make


async def open_sandboxes(
    section: SandboxSection, *, base: Path, sharers: int = 1
) -> SandboxBackend:
    """The sandbox backend of the config, behind its pool.

    Args:
        section: names it.
        base: where its relative paths start.
        sharers: processes of the run that open one each; the numbers of the pool are divided
            among them.

    Raises:
        SandboxUnavailable: it does not work on this machine.
        ConfigError: an unknown name, a wrong import string, or an option it does not have.
    """
    given = {name: value for name, value in section if name not in ("backend", "limits", "pool")}
    if "read_only" in given:
        places = map(Path, given["read_only"])
        given["read_only"] = [str((base / path.expanduser()).absolute()) for path in places]
    if ":" not in section.backend:
        made = resolve_callable(SANDBOX_FACTORY)(section.backend, **given)
    else:
        made = _own_backend(section, base, given)
    backend = await made if inspect.isawaitable(made) else made
    if not isinstance(backend, SandboxBackend):
        raise ConfigError(
            f"sandbox.backend {section.backend!r} gives a {type(backend).__name__}, expected a "
            "SandboxBackend"
        )
    pool = section.pool
    containers = pool if isinstance(pool, ContainerPool) else None
    return resolve_callable(SANDBOX_POOL)(
        backend,
        warm=ceil(containers.warm / sharers) if containers else 0,
        max_open=ceil(pool.max_open / sharers),
        starts_at_once=pool.max_open
        if containers is None or backend.starts_fast
        else ceil(_starts_at_once(section) / sharers),
        max_uses=pool.max_uses,
    )


def _starts_at_once(section: SandboxSection) -> int:
    return PODS_AT_ONCE if section.backend == "kubernetes" else CONTAINERS_AT_ONCE


def _own_backend(section: SandboxSection, base: Path, given: Mapping[str, Any]) -> Any:
    """What an import string gives, called with those options that are not left at their default."""
    target = resolve_callable(section.backend, base=base)
    usual = ContainerSandbox()
    options = {
        name: value
        for name, value in given.items()
        if getattr(section, name) != getattr(usual, name)
    }
    try:
        inspect.signature(target).bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"sandbox.backend {section.backend!r} is called with {', '.join(options) or 'nothing'} "
            f"of the sandbox section, but its signature is {signature_of(target)}: {error}"
        ) from error
    except ValueError:
        pass  # it has no signature to look at
    return target(**options)


def sandbox_limits(section: LimitsSection) -> SandboxLimits:
    """The limits in the units of the contract."""
    return SandboxLimits(
        wall_s=section.wall_s,
        memory_bytes=section.memory_mb * 2**20,
        processes=section.processes,
        disk_bytes=section.disk_mb * 2**20,
        cpus=section.cpus if isinstance(section, ContainerLimits) else SandboxLimits().cpus,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSets:
    """Every task a run may meet."""

    train: Sequence[Task]
    """Tasks of `dataset`."""
    evals: Mapping[str, Sequence[Task]]
    """Tasks of each `eval.datasets` entry."""
    weights: Mapping[str, float] | None = None
    """How often each training task is drawn, up to a common factor; None for once an epoch."""
    selection: SelectionSection | None = None
    """How outcomes choose training tasks; None for not at all."""
    notes: tuple[str, ...] = ()
    """Lines for the log: tasks that were left out or shortened, with their number."""

    def by_kind(self) -> dict[str, Sequence[Task]]:
        """Tasks by the kind under which their rollouts are stored, `train` or `eval/NAME`."""
        return {"train": self.train, **{f"eval/{name}": of for name, of in self.evals.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Tasks that pass rates left of a dataset when a run began."""

    ids: tuple[str, ...]
    """Ids of the tasks that were kept."""
    weights: Mapping[str, float] | None = None
    """Weights, as in `TaskSets.weights`."""


def load_task_sets(plan: TaskPlan, *, chosen: Mapping[str, Chosen] | None = None) -> TaskSets:
    """Load every dataset of the config.

    Args:
        plan: the datasets of training and evaluation.
        chosen: see `read_chosen`; the datasets that it does not name are measured now.

    Raises:
        DataError, ConfigError: one cannot be read, or is empty; names it.
    """

    dataset, base = plan.dataset, plan.base
    kept = {name: item.ids for name, item in (chosen or {}).items()}
    train = load_tasks(dataset, base=base, chosen=kept.get(TRAIN))
    if chosen and TRAIN in chosen:
        weights = chosen[TRAIN].weights
    else:
        weights = sampling_weights(train, dataset, base=base)
    scored = {
        name: load_tasks(section, base=base, chosen=kept.get(eval_name(name)))
        for name, section in plan.evals.items()
    }
    for name, tasks in ((TRAIN, train), *((eval_name(k), v) for k, v in scored.items())):
        if not tasks:
            raise ConfigError(f"{name} holds no tasks; check its source, split and limit")
    if dataset.chosen is not None:
        tasks_by_key(train, dataset.chosen.by)  # refused here, before anything is loaded
    return TaskSets(train=train, evals=scored, weights=weights, selection=dataset.chosen)


def eval_name(name: str) -> str:
    """The dotted name of an entry of `eval.datasets` in a config."""
    return f"eval.datasets.{name}"


def make_worker(
    plan: RolloutPlan,
    *,
    generator: Generator,
    tokenizer: Any,
    sandboxes: SandboxBackend | None,
    tools: Sequence[Tool],
    reward_models: Sequence[RewardTarget] = (),
    images: ImageReader | None = None,
) -> tuple[RolloutWorker, ChatFormat]:
    """The rollout worker, and the chat format whose stop tokens end its turns.

    Args:
        plan: of one rollout.
        generator: samples turns.
        tokenizer: of the policy.
        sandboxes: makes sandboxes; None if there are none.
        tools: of the config, opened.
        reward_models: those of `reward.models`, opened; without them rewards lack their part.
        images: image processor of the policy; None for one that reads text only.
    """

    parser = build_parser(plan.chat.tool_parser, base=plan.base)
    chat = build_chat(tokenizer, plan.chat, images=images)
    grade = load_reward_functions(
        plan.reward,
        base=plan.base,
        timeout_s=plan.rollout.env_timeout_s,
        models=reward_models,
    )
    worker = RolloutWorker(
        generator=generator,
        chat=chat,
        parser=parser.for_chat(chat) if parser else None,
        make_env=make_env_factory(plan.env, base=plan.base, rollout=plan.rollout),
        tools=tools,
        sandboxes=sandboxes,
        sandbox_limits=sandbox_limits(plan.sandbox.limits),
        section=plan.rollout,
        grade=grade,
        grade_group=grade.group if grade is not None else None,
    )
    return worker, chat
