"""The reward models of a config (`reward.models`): checked before a run, loaded for its rollouts.

Every process that runs rollouts has a copy of its own: this one, each of
`runtime.worker_processes`, or each of `ray.rollout_workers`, which have no GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.plan import RewardPlan
from agentrl.config.reward import NOT_WHITENED, RewardModelSection
from agentrl.config.schema import ModelSection
from agentrl.disk.logs import quiet_transformers
from agentrl.disk.model_source import model_source
from agentrl.disk.other_models import (
    check_read_ids,
    check_same_vocabulary,
    reward_model_sources,
)
from agentrl.errors import ConfigError, DataError
from agentrl.fit.data.vocabulary import vocabulary_of
from agentrl.fit.reward_models.versions import UsedRewardModel
from agentrl.machine.compute_threads import run_computing
from agentrl.models.device import pick_device
from agentrl.models.source import load_tokenizer, weights_bytes
from agentrl.reward.posterior import POSTERIOR_FILE, HeadPosterior
from agentrl.reward.scale import RewardScale, load_scales
from agentrl.reward.target import ENV_PART, RewardTarget

if TYPE_CHECKING:
    from agentrl.fit.reward_models.rollout_rewards import RewardMember, RolloutRewards
    from agentrl.train.score_model import RewardHead


class OpenRewardModels:
    """The reward models of a config, loaded in this process."""

    def __init__(self, plan: RewardPlan, loaded: Mapping[str, RolloutRewards]) -> None:
        """Keep the models that were loaded.

        Args:
            plan: of the rewards.
            loaded: by their names in `reward.models`.
        """
        self._plan, self._loaded = plan, loaded
        self.proofs = {
            f"reward.models.{name} {path}": proof
            for name, rewards in loaded.items()
            for path, proof in rewards.proofs.items()
        }
        """Comparison of each model with its own forward pass, as it was loaded first."""
        self.targets = tuple(
            RewardTarget(
                name=name,
                target=", ".join(item.path),
                weight=item.weight,
                call=loaded[name].value,
                args={},
                wants_rows=False,
                of_group=False,
            )
            for name, item in plan.reward.models.items()
        )
        """Functions of finished rollouts, one for each model."""

    async def use_reward_model(self, used: UsedRewardModel) -> None:
        """`use_reward_model` as in `RewardModelUsers.use_reward_model`.

        The version that scores already stays as it is: after another one that had no room beside
        it, it is not loaded a second time.
        """
        if self._loaded[used.name].version == used.version:
            return
        item = self._plan.reward.models[used.name].model_copy(update={"path": (used.path,)})
        key = f"version {used.version} of reward.models.{used.name}"
        members = await run_computing(
            _members, key, item, base=self._plan.base, longest=_longest(self._plan)
        )
        await self._loaded[used.name].replace(members, used.version)


def check_reward_models(plan: RewardPlan, *, tokenizer: Any = None) -> list[str]:
    """Refuse reward models that cannot be used, before any weight is loaded.

    Args:
        plan: of the rewards.
        tokenizer: of the policy; None does not compare vocabularies.

    Returns:
        A line about each model.

    Raises:
        ConfigError: a path that holds no reward model, a scale that is missing, rollouts that are
            longer than the model reads, or another vocabulary than the policy's.
    """
    return [
        _check(f"reward.models.{name}", item, plan, tokenizer=tokenizer)
        for name, item in plan.reward.models.items()
    ]


def reward_model_bytes(plan: RewardPlan) -> int:
    """Bytes of the weights of all reward models in one process, from their files; hub names 0."""
    return sum(
        weights_bytes(source)
        for item in plan.reward.models.values()
        for source in reward_model_sources(item, plan.base).values()
    )


@contextlib.asynccontextmanager
async def open_reward_models(
    plan: RewardPlan, *, tokenizer: Any
) -> AsyncIterator[OpenRewardModels]:
    """Load the reward models of a run as functions of finished rollouts.

    Args:
        plan: of the rewards.
        tokenizer: of the policy.

    Raises:
        ConfigError: as `check_reward_models`, or a model that cannot be loaded.
    """
    loaded: dict[str, RolloutRewards] = {}
    async with contextlib.AsyncExitStack() as stack:
        if plan.reward.models:
            check_reward_models(plan, tokenizer=tokenizer)
        for name, item in plan.reward.models.items():
            version = 0 if name == plan.reward.refreshed else None
            key = f"reward.models.{name}"
            rewards = await run_computing(
                _load, key, item, base=plan.base, version=version, longest=_longest(plan)
            )
            stack.push_async_callback(rewards.queue.close)
            loaded[name] = rewards
        yield OpenRewardModels(plan, loaded)


def _longest(plan: RewardPlan) -> int:
    """Tokens that a pass of a reward model has to hold: those of a rollout, and one more."""
    return plan.rollout.max_context_tokens + 1


def _load(
    key: str, item: RewardModelSection, *, base: Path, version: int | None, longest: int
) -> RolloutRewards:
    from agentrl.fit.reward_models.rollout_rewards import RolloutRewards

    members = _members(key, item, base=base, longest=longest)
    with _named(key):
        return RolloutRewards(
            members,
            disagreement=item.disagreement,
            uncertainty=item.uncertainty,
            version=version,
        )


def _members(key: str, item: RewardModelSection, *, base: Path, longest: int) -> list[RewardMember]:
    from agentrl.fit.reward_models.rollout_rewards import RewardMember
    from agentrl.train.score_model import BATCH_TOKENS, load_score_model, reward_head

    quiet_transformers()
    with _named(key):
        members: list[RewardMember] = []
        for path, source in reward_model_sources(item, base).items():
            heads = reward_head(source).heads
            model = load_score_model(
                source,
                device=item.device,
                batch_tokens=max(BATCH_TOKENS, longest),
                posterior=_posterior(source, heads),
            )
            scales = _scales(item, source, heads)
            members.append(RewardMember(path=path, model=model, scales=scales))
        return members


def _check(key: str, item: RewardModelSection, plan: RewardPlan, *, tokenizer: Any) -> str:
    from agentrl.fit.reward_models.rollout_rewards import check_disagreement
    from agentrl.train.score_model import reward_head

    if key.endswith(f".{ENV_PART}"):
        raise ConfigError(f"{key}: {ENV_PART!r} is the environment's own part; rename it")
    context = plan.rollout.max_context_tokens
    with _named(key):
        pick_device(item.device)
        sources = reward_model_sources(item, plan.base)
        refreshed = f"reward.models.{plan.reward.refreshed}"
        heads = {path: reward_head(source) for path, source in sources.items()}
        members = sum(head.heads for head in heads.values())
        check_disagreement(item.disagreement, members)
        if members > 1 and item.scale != "stored":
            raise ConfigError(NOT_WHITENED.format(item.scale))
        for path, source in sources.items():
            head = heads[path]
            _scales(item, source, head.heads)
            known = _posterior(source, head.heads)
            if item.uncertainty and known is not None and key == refreshed:
                raise ConfigError(
                    f"uncertainty is {item.uncertainty:g} by the posterior beside {path!r}, but a "
                    "refreshed model has another head and no posterior of it; set uncertainty to "
                    "0, or reward.refresh.every_steps to 0"
                )
            if item.uncertainty and head.outputs == 1 and known is None:
                raise ConfigError(
                    f"uncertainty is {item.uncertainty:g}, but the reward model {path!r} gives no "
                    f"deviation; write a posterior beside it with `agentrl rm posterior {path} "
                    "--data PAIRS`, fit it with objective.loss: purm, or set uncertainty to 0"
                )
            if head.context is not None and head.context < context:
                raise ConfigError(
                    f"the reward model {path!r} reads {head.context} tokens, but a rollout may "
                    f"have {context} (rollout.max_context_tokens); lower that"
                )
            if tokenizer is not None:
                theirs = load_tokenizer(ModelSection(path=source))
                who = f"the reward model {path!r}"
                check_same_vocabulary(tokenizer.get_vocab(), theirs.get_vocab(), who)
                check_read_ids(tokenizer.get_vocab(), head.vocabulary, who)
        unread = "" if tokenizer is None else _unread(heads.values(), plan.model)
    several = f", an ensemble of {members}" if members > len(item.path) else ""
    return f"{key}: {', '.join(item.path)}{several}, scale {item.scale}{unread}"


def _unread(heads: Iterable[RewardHead], model: ModelSection) -> str:
    """Names which ids the policy may sample and a reward model cannot read; empty for none."""

    ours, theirs = vocabulary_of(model_source(model)), min(head.vocabulary for head in heads)
    if ours <= theirs:
        return ""
    return (
        f"; it reads {theirs} token ids and the policy has {ours}: a rollout with one of the "
        "others, which stand for no text, ends as grader_crashed"
    )


def _posterior(source: str, heads: int) -> HeadPosterior | None:
    """The stored posterior of the head of a checkpoint; None where there is none."""
    folder = Path(source).expanduser()
    if heads > 1 or not (folder / POSTERIOR_FILE).is_file():
        return None
    try:
        return HeadPosterior.load(folder)
    except DataError as error:
        raise ConfigError(str(error)) from None


def _scales(item: RewardModelSection, source: str, heads: int) -> tuple[RewardScale, ...]:
    """[K] The scale of each head."""
    if item.scale == "none":
        return (RewardScale(),) * heads
    try:
        stored = load_scales(Path(source).expanduser(), heads)
    except DataError as error:
        raise ConfigError(
            f"{error}; write it with `agentrl rm report {source} --data PAIRS --store`"
            + (", or set scale: none" if heads == len(item.path) == 1 else "")
        ) from None
    if item.scale == "stored":
        return stored
    return tuple(RewardScale(temperature=scale.temperature) for scale in stored)


@contextlib.contextmanager
def _named(key: str) -> Iterator[None]:
    """Begin messages with the key of the config."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
