"""Any OpenEnv server as an environment.

    env:
      target: agentrl_envs.openenv:OpenEnvTask
      args:
        url: http://127.0.0.1:8000
        action: {message: "{action}"}
        observation: "{echoed_message}"
    dataset:
      source: agentrl_envs.openenv:make_tasks
      args: {n: 200}

What the model says becomes the server's action, the observation is shown to it as text, and reward
and end are the server's. Their package is not needed: the protocol is JSON over one WebSocket, the
same in openenv-core 0.3 and openenv 0.10.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from typing import Any, Literal

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import ConfigError, EnvError
from agentrl.types import Message, Task
from agentrl_envs.games import GameCounts, seeded_tasks
from agentrl_envs.openenv.actions import Actions, check_observation_form, shown
from agentrl_envs.openenv.session import ActionRefused, ServerAnswer, ServerError, ServerSession

_SCHEMES = ("http://", "https://", "ws://", "wss://")


class OpenEnvTask(AgentInstance):
    """One episode on an OpenEnv server.

    Args:
        url: of the server.
        action: fields of the action with `{text}` (the turn) or `{action}` (what it has between
            <action> and </action>) in them, or `json`: the turn holds the action itself.
        observation: text with `{field}`s of the observation; empty shows all of it as JSON.
        prompt: said before the first observation; None says what the task says and how to answer.
        max_steps: actions until the episode ends whatever the server says.
        returns: the sums of rewards that stand for scores 0 and 1; None leaves the sum as it is.
            An episode that the rollout's own limits truncate has score 0, as stopping early is
            cheap where every step costs something.
        invalid_reward: for a turn that is no action. Where every step costs something it has to
            cost more than that, or saying nothing pays.
        on_error: what an environment that raises during an action means: `crash` drops the
            rollout, `feedback` says it to the model, for servers that refuse actions that way.
        timeout_s: for one answer of the server, in seconds; stay below `rollout.env_timeout_s`.
        wait_s: for a server that starts or is at capacity, in seconds; likewise.
        api_key_env: environment variable with a bearer token; empty sends none.
    """

    def __init__(
        self,
        url: str,
        action: Mapping[str, Any] | str = "json",
        observation: str = "",
        prompt: str | None = None,
        max_steps: int = 100,
        returns: tuple[float, float] | None = None,
        invalid_reward: float = 0.0,
        on_error: Literal["crash", "feedback"] = "crash",
        timeout_s: float = 50.0,
        wait_s: float = 30.0,
        api_key_env: str = "",
    ) -> None:
        if not url.startswith(_SCHEMES):
            raise ConfigError(
                f"OpenEnvTask: env.args.url is {url!r}, expected the address of a server, as in "
                "http://127.0.0.1:8000"
            )
        if max_steps < 1 or not timeout_s > 0 or not wait_s >= 0:
            raise ConfigError(
                f"OpenEnvTask: max_steps must be at least 1, timeout_s above 0 and wait_s not "
                f"negative, got {max_steps}, {timeout_s:g} and {wait_s:g}"
            )
        self._counts = GameCounts("OpenEnvTask", returns)
        if on_error not in ("crash", "feedback"):
            raise ConfigError(
                f"OpenEnvTask: on_error is {on_error!r}, expected 'crash' or 'feedback'"
            )
        check_observation_form(observation)
        self._actions = Actions(action)
        self._session = ServerSession(
            url, timeout_s=timeout_s, wait_s=wait_s, token=_token(api_key_env)
        )
        self._observation = observation
        self._prompt = prompt
        self._max_steps = max_steps
        self._invalid_reward = invalid_reward
        self._on_error = on_error

    async def reset(self, task: Task) -> Observation:
        """Begin an episode with `metadata.seed` (else one made of the id) and `metadata.reset`."""
        extra = task.metadata.get("reset") or {}
        if not isinstance(extra, Mapping):
            raise EnvError(
                f"OpenEnvTask: metadata.reset of task {task.id!r} is {extra!r}, expected the "
                "arguments of the server's reset"
            )
        # Rollouts of one task begin alike, or the mean of their group means nothing.
        seed = int(task.metadata.get("seed", zlib.crc32(task.id.encode()))) % 2**31
        first = await self._session.begin({"seed": seed, **extra})
        if first.done:
            raise EnvError(f"OpenEnvTask: the episode of task {task.id!r} is over at its start")
        self._actions.fit(await self._session.action_schema())
        words, seen = self._actions.words(), self._shown(first)
        if self._prompt is not None:
            return Observation(content=_joined(self._prompt, seen))
        if isinstance(task.prompt, str):
            return Observation(content=_joined(task.prompt, words, seen))
        said = Message(role="user", content=_joined(words, seen))
        return Observation(content=(*task.prompt, said))

    async def step(self, action: Action) -> StepResult:
        """Send the model's text as an action, or explain why it is none."""
        try:
            answer = await self._session.step(self._actions.read(action.text))
        except ActionRefused as refusal:
            return self._refuse(str(refusal), last=action.last)
        except ServerError as error:
            if error.code != "EXECUTION_ERROR" or self._on_error == "crash":
                raise
            return self._refuse(error.text, last=action.last)
        self._counts.steps += 1
        self._counts.total += answer.reward
        played = answer.done or self._counts.steps >= self._max_steps
        if played or action.last:
            return self._counts.end(answer.reward, played=played)
        return StepResult(rewards=answer.reward, environment_feedback=self._shown(answer))

    async def close(self) -> None:
        """Release the session on the server."""
        await self._session.close()

    def _refuse(self, why: str, *, last: bool) -> StepResult:
        self._counts.invalid += 1
        self._counts.total += self._invalid_reward
        if last or self._counts.invalid >= self._max_steps:
            return self._counts.end(self._invalid_reward, played=False)
        said = f"That is no action: {why.strip().rstrip('.')}."
        return StepResult(
            rewards=self._invalid_reward,
            environment_feedback=f"{said} {self._actions.words()}".strip(),
        )

    def _shown(self, answer: ServerAnswer) -> str:
        try:
            return shown(answer.observation, self._observation)
        except KeyError as error:
            raise EnvError(
                f"OpenEnvTask: env.args.observation names the field {error.args[0]!r}, but the "
                f"server's observation has {', '.join(sorted(answer.observation)) or 'none'}"
            ) from error


def make_tasks(
    split: str = "train",
    n: int = 200,
    seed: int = 0,
    prompt: str = "You act in an environment.",
    reset: Mapping[str, Any] | None = None,
) -> list[Task]:
    """Episodes by their seeds; `reset` has further arguments of the server's reset."""
    return seeded_tasks("openenv", split, n, seed, prompt, {"reset": dict(reset or {})})


def _token(name: str) -> str:
    if name and not os.environ.get(name):
        raise ConfigError(
            f"OpenEnvTask: env.args.api_key_env names {name!r}, which is not set; export it, or "
            "leave the setting empty for a server without keys"
        )
    return os.environ[name] if name else ""


def _joined(*parts: str) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip())
