"""Environments of SkyRL-gym and interactions of verl, behind the contract of `AgentInstance`.

Both take the text of a turn, thought included, and give messages and a number back, so chat
template, tools and limits are ours. Their methods may block, so they run in a thread of the
environment unless all of them are coroutines (`one_place`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import EnvError
from agentrl.images import words
from agentrl.rollout.adapters.one_place import OnePlace
from agentrl.types import Message, Task

logger = logging.getLogger(__name__)


def text_env_of(cls: type) -> Callable[..., AgentInstance] | None:
    """A factory of `AgentInstance` for a class with SkyRL's or verl's methods; else None."""
    for wrapper, methods in (
        (SkyRLEnv, ("init", "step")),
        (VerlInteraction, ("start_interaction", "generate_response")),
    ):
        if all(callable(getattr(cls, name, None)) for name in methods):
            return lambda **args: wrapper(cls, args)
    return None


class SkyRLEnv(AgentInstance):
    """Runs a SkyRL-gym environment: `init(prompt)`, `step(text)`, `close()`.

    `env.args` is its `env_config`; the row of the data set is its `extras`, with the label as
    `ground_truth` of `reward_spec` and `reward_model` where the row has none, and `max_turns` if
    `env.args` has it.
    """

    def __init__(self, cls: type, args: Mapping[str, Any]) -> None:
        self.kind = cls
        self._config = _Config(args)
        self._inner: Any = None
        self._place = OnePlace(cls, ("init", "step"))
        self._called = self._place.call

    async def reset(self, task: Task) -> Observation:
        """Make the environment of this task, which may change the prompt."""
        truth = {"method": "rule", "ground_truth": task.label}
        # Their older environments look for it under verl's name.
        extras = {"extra_info": {}, "reward_spec": truth, "reward_model": truth, **task.metadata}
        if "max_turns" in self._config:
            extras.setdefault("max_turns", self._config["max_turns"])
        self._inner = await self._called(self.kind, env_config=self._config, extras=extras)
        found = await self._called(self._inner.init, _chat(task))
        if not isinstance(found, tuple) or not found:
            raise EnvError(f"init returned {type(found).__name__}, expected (messages, metadata)")
        return Observation(content=_messages(found[0], "init"))

    async def step(self, action: Action) -> StepResult:
        """Hand over the text, take the dictionary."""
        found = await self._called(self._inner.step, action.whole_text)
        if not isinstance(found, Mapping) or not {"reward", "done"} <= set(found):
            got = sorted(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
            raise EnvError(f"step returned {got}, expected observations, reward, done, metadata")
        changed = found.get("postprocessed_action")
        if changed is not None and changed != action.whole_text:
            logger.warning(
                "%s: postprocessed_action is not used; the model keeps the tokens it sampled",
                self.kind.__name__,
            )
        done = bool(found["done"])
        metrics = getattr(self._inner, "get_metrics", None)
        return StepResult(
            rewards=found["reward"],
            environment_feedback=() if done else _messages(found.get("observations"), "step"),
            done=done,
            extra_logs=_numbers(await self._called(metrics)) if done and callable(metrics) else {},
        )

    async def close(self) -> None:
        """Close the environment, at most once."""
        inner, self._inner = self._inner, None
        if inner is not None:
            await self._called(inner.close)
        self._place.close()


class VerlInteraction(AgentInstance):
    """Runs an interaction of verl: it answers every turn of the model that calls no tool.

    `env.args` is its config. What it is started with is `extra_info.interaction_kwargs` of the
    row, or else the label as `ground_truth`.
    """

    def __init__(self, cls: type, args: Mapping[str, Any]) -> None:
        self.kind = cls
        self._make: Callable[[], Any] = partial(cls, dict(args))
        self._place = OnePlace(cls, ("start_interaction", "generate_response"))
        self._called = self._place.call
        self._inner: Any = self._make() if self._place.in_loop else None
        self._id: Any = None
        self._kwargs: dict[str, Any] = {}
        self._said: list[dict[str, Any]] = []

    def try_constructor(self) -> None:
        """Construct it now, in the present thread, for its errors alone."""
        if self._inner is None:
            self._make()

    async def reset(self, task: Task) -> Observation:
        """Start the interaction and show the prompt."""
        if self._inner is None:
            self._inner = await self._called(self._make)
        info = task.metadata.get("extra_info")
        given = info.get("interaction_kwargs") if isinstance(info, Mapping) else None
        self._kwargs = dict(given) if given else {"ground_truth": task.label}
        self._said = _chat(task)
        self._id = await self._called(
            self._inner.start_interaction, self.context.rollout_id or None, **self._kwargs
        )
        return Observation(content=task.prompt)

    async def step(self, action: Action) -> StepResult:
        """Wait while the model calls tools; else pass the conversation."""
        self._said.append({"role": "assistant", "content": action.whole_text})
        if action.tool_calls and not action.last:
            self._said += [{"role": "tool", "content": r.text} for r in action.tool_results]
            return StepResult()
        found = await self._called(
            self._inner.generate_response, self._id, list(self._said), **self._kwargs
        )
        if not isinstance(found, tuple) or len(found) != 4:
            raise EnvError(
                "generate_response must return (should_terminate, response, score, metadata), got "
                f"{type(found).__name__}"
            )
        done, response, reward, metrics = found
        if not done:
            self._said.append({"role": "user", "content": response})
        return StepResult(
            rewards=reward,
            environment_feedback="" if done else response,
            done=bool(done),
            extra_logs=_numbers(metrics),
        )

    async def close(self) -> None:
        """End the interaction, once."""
        finish = getattr(self._inner, "finalize_interaction", None)
        ended, self._id = self._id, None
        if ended is not None and callable(finish):
            # That of verl's base class takes nothing.
            takes_any = bool(inspect.signature(finish).parameters)
            given = ((ended,), self._kwargs) if takes_any else ((), {})
            await self._called(finish, *given[0], **given[1])
        self._place.close()


class _Config(dict[str, Any]):
    """`env.args` with attributes, as SkyRL's configs have."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"env.args has no {name!r}; it has {sorted(self) or 'nothing'}"
            ) from None


def _chat(task: Task) -> list[dict[str, Any]]:
    if isinstance(task.prompt, str):
        return [{"role": "user", "content": task.prompt}]
    return [
        {"role": said.role, "content": words(said.content, said.images)} for said in task.prompt
    ]


def _messages(value: Any, what: str) -> tuple[Message, ...]:
    """Messages as they give them; `coerce` checks roles and contents."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise EnvError(f"{what} gave {type(value).__name__}, expected a list of messages")
    return tuple(value)


def _numbers(metrics: Any) -> dict[str, float]:
    """The numbers among what they report; the rest is for reading."""
    if not isinstance(metrics, Mapping):
        return {}
    return {str(k): float(v) for k, v in metrics.items() if isinstance(v, (int, float))}
