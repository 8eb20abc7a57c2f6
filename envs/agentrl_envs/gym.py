"""Gymnasium environments that can be played in words.

    env:
      target: agentrl_envs.gym:GymTask
      args: {id: FrozenLake-v1, kwargs: {is_slippery: false}, actions: [left, down, right, up]}
    dataset:
      source: agentrl_envs.gym:make_tasks
      args: {n: 200}

What the model sees is the observation if it is text, else what the environment renders as text
(`render_mode="ansi"`), else the observation written out. What it says is the action: as it is where
the action space is text, else a number or a name out of `actions`, between <action> and </action>.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.env import Action, AgentInstance, Observation, Solution, StepResult
from agentrl.errors import ConfigError, EnvError
from agentrl.plugins.distribution import install_command
from agentrl.plugins.own_threads import OwnThread
from agentrl.types import Task
from agentrl_envs.games import GameCounts, seeded_tasks
from agentrl_envs.gym_plan import best_moves
from agentrl_envs.gym_price import IdlePrice, price_of_idling
from agentrl_envs.marked_text import last_between

_NUMBER = re.compile(r"-?\d+")
_TEXT_CHARS = 8000
_SEARCHED_CHARS = 8000
"""Characters at the end of a turn in which an action is looked for."""


class GymTask(AgentInstance):
    """One episode of a Gymnasium environment.

    Args:
        id: as registered (`FrozenLake-v1`, `package.module:Name-v0`).
        kwargs: for `gymnasium.make`.
        actions: names of the actions 0, 1, ... of a discrete space, for the model to use.
        prompt: said before the first observation; None says what the actions are.
        max_steps: steps of the environment; the episode ends then whatever it says.
        returns: the sums of rewards that stand for scores 0 and 1; None leaves the sum as it is.
            A game that the rollout's own limits truncate has score 0, as stopping early is cheap
            where every step costs something.
        invalid_reward: for a turn that names no action. None takes the mean reward of a step of
            random play where that is negative, else 0; a game that ends before it is played out
            then costs as much for each step that is missing of a mean random episode, so that
            saying nothing never pays, and a rollout cut short costs no more than random play.
            With a number there is no such cost: where every step costs something, it has to cost
            more than that.
    """

    def __init__(
        self,
        id: str,
        kwargs: Mapping[str, Any] | None = None,
        actions: Sequence[str] = (),
        prompt: str | None = None,
        max_steps: int = 100,
        returns: tuple[float, float] | None = None,
        invalid_reward: float | None = None,
    ) -> None:
        if max_steps < 1:
            raise ConfigError(f"GymTask: max_steps must be at least 1, got {max_steps}")
        self._counts = GameCounts("GymTask", returns)
        self._make = lambda: make_game(id, dict(kwargs or {}))
        self._game_name = f"{id} {sorted(dict(kwargs or {}).items())!r}"
        self._facts = facts_of(self._game_name, self._make)
        self._game: Any = None
        """Made by `reset`, in the thread of this environment."""
        self._names = tuple(name.strip().lower() for name in actions)
        self._prompt = prompt
        self._max_steps = max_steps
        self._invalid_reward = invalid_reward
        self._over = True
        self._thread = OwnThread()
        self._words = action_words(id, self._facts.action_space, self._names)

    async def reset(self, task: Task) -> Observation:
        """Begin the episode that the seed of the task makes."""
        self._counts.begin()
        self._over = False
        if self._game is None:
            self._game = await self._thread.call(self._make)
        shown, _ = await self._thread.call(self._game.reset, seed=self._seed(task))
        prompt = self._prompt if self._prompt is not None else f"{task.prompt}\n\n{self._words}"
        return Observation(content=f"{prompt.strip()}\n\n{await self._shown(shown)}".strip())

    async def step(self, action: Action) -> StepResult:
        """Do the model's action, or explain why it is none."""
        if self._over:
            raise RuntimeError("GymTask.step was called before reset or after done")
        move = self._read(action.text)
        if move is None:
            self._counts.invalid += 1
            reward = await self._price()
            self._counts.total += reward
            if action.last:
                return await self._cut_off(reward)
            return StepResult(
                rewards=reward,
                environment_feedback=f"That is no action. {self._words}",
            )
        found = await self._thread.call(self._game.step, move)
        shown, reward, terminated, truncated, _ = found
        reward = float(reward)
        if not math.isfinite(reward):
            raise EnvError(f"GymTask: the environment gave the reward {reward}")
        self._counts.steps += 1
        self._counts.total += reward
        played = terminated or truncated or self._counts.steps >= self._max_steps
        if played:
            return self._end(reward, played=True)
        if action.last:
            return await self._cut_off(reward)
        return StepResult(rewards=reward, environment_feedback=await self._shown(shown))

    def solution(self, task: Task) -> Solution | None:
        """The best walk, where the game has a table of its moves and leaves none to chance."""
        limit = self._facts.max_steps or self._max_steps
        game = self._make()
        try:
            moves = best_moves(game, self._seed(task), min(limit, self._max_steps))
        finally:
            game.close()
        if not moves:
            return None
        start = int(self._facts.action_space.start)
        names = self._names or [str(move) for move in range(start, max(moves) + 1)]
        return [f"<action>{names[move - start]}</action>" for move in moves]

    def _seed(self, task: Task) -> int:
        return int(task.metadata.get("seed", self.context.seed)) % 2**31

    async def close(self) -> None:
        """Close the environment of Gymnasium."""
        if self._game is not None:
            await self._thread.call(self._game.close)
        self._thread.close()

    async def _price(self) -> float:
        """What a turn without an action costs."""
        if self._invalid_reward is not None:
            return self._invalid_reward
        return (await self._idle_price()).step

    async def _idle_price(self) -> IdlePrice:
        return await self._thread.call(price_of_idling, self._game_name, self._make)

    async def _cut_off(self, reward: float) -> StepResult:
        """The end by limits of the rollout, before that of the game."""
        if self._invalid_reward is None:
            limit = self._facts.max_steps or self._max_steps
            made = self._counts.steps + self._counts.invalid
            rest = (await self._idle_price()).rest(made, min(limit, self._max_steps))
            reward += rest
            self._counts.total += rest
        return self._end(reward, played=False)

    def _end(self, reward: float, *, played: bool) -> StepResult:
        self._over = True
        return self._counts.end(reward, played=played)

    async def _shown(self, observation: Any) -> str:
        if isinstance(observation, str):
            return observation.strip()[:_TEXT_CHARS]
        if self._facts.is_text:
            # Colours are for terminals; to a model they are noise.
            text = str(await self._thread.call(self._game.render))
            return re.sub(r"\x1b\[[0-9;]*m", _bracket, text).strip("\n")[:_TEXT_CHARS]
        return f"Observation: {observation}"[:_TEXT_CHARS]

    def _read(self, text: str) -> Any:
        """The action a turn names; None if it names none."""
        found = last_between(text, "<action>", "</action>")
        said = (text if found is None else found).strip()
        space = self._facts.action_space
        if type(space).__name__ == "Text":
            return said if space.contains(said) else None
        said = said[-_SEARCHED_CHARS:]
        word = said.lower().strip(" .!\"'`")
        if word in self._names:
            return self._names.index(word) + int(space.start)
        if found is None:
            named = [name for name in re.findall(r"[\w-]+", said.lower()) if name in self._names]
            if named:
                return self._names.index(named[-1]) + int(space.start)
        numbers = _NUMBER.findall(said)
        if numbers and len(numbers[-1]) < 10 and space.contains(int(numbers[-1])):
            return int(numbers[-1])
        return None


def _bracket(match: re.Match[str]) -> str:
    """The highlighted cell of a map is where the player stands."""
    return "]" if match[0] == "\x1b[0m" else "["


@dataclass(frozen=True, slots=True, kw_only=True)
class GameFacts:
    """Properties of a game that are the same in each of its episodes."""

    action_space: Any
    """Space of its actions."""
    max_steps: int | None
    """Steps after which Gymnasium ends an episode."""
    is_text: bool
    """Whether it renders as text."""


_known: dict[str, GameFacts] = {}


def facts_of(name: str, make: Callable[[], Any]) -> GameFacts:
    """The properties of a game, which is made and closed for them once in a process.

    Raises:
        ConfigError: as `make_game`.
    """
    if name not in _known:
        game = make()
        _known[name] = GameFacts(
            action_space=game.action_space,
            max_steps=game.spec.max_episode_steps,
            is_text=game.render_mode == "ansi",
        )
        game.close()
    return _known[name]


def action_words(name: str, space: Any, names: Sequence[str]) -> str:
    """The description of the actions for the model.

    Raises:
        ConfigError: a space that cannot be played in words, or names that do not fit it.
    """
    kind = type(space).__name__
    if kind == "Text":
        return "Answer with <action>...</action>; what stands between is done."
    if kind != "Discrete":
        raise ConfigError(
            f"GymTask: {name!r} has an action space of kind {kind}, expected Text or Discrete"
        )
    if names and len(set(names)) != int(space.n):
        raise ConfigError(
            f"GymTask: {name!r} has {int(space.n)} actions, but args.actions has {len(set(names))} "
            f"different names: {', '.join(names)}"
        )
    first, last = int(space.start), int(space.start) + int(space.n) - 1
    known = ", ".join(names) if names else f"a number from {first} to {last}"
    return f"Answer with <action>...</action>; between stands one of: {known}."


def make_game(name: str, kwargs: dict[str, Any]) -> Any:
    """The environment, rendering as text where it can.

    Raises:
        ConfigError: Gymnasium is not installed, or cannot make it.
    """
    try:
        gymnasium = importlib.import_module("gymnasium")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"agentrl_envs.gym needs the package 'gymnasium' ({error}); install it with "
            f"{install_command('envs')}"
        ) from error
    try:
        module, _, registered = name.rpartition(":")
        if module:
            importlib.import_module(module)  # it registers the game; `spec` reads no such name
        spec = gymnasium.spec(registered)
        if "render_mode" not in kwargs and "ansi" in _render_modes(gymnasium, spec):
            kwargs = {**kwargs, "render_mode": "ansi"}
        return gymnasium.make(registered, **kwargs)
    except Exception as error:  # makers of third parties raise anything; this is their boundary
        raise ConfigError(
            f"GymTask: gymnasium cannot make {name!r} with {kwargs}: {type(error).__name__}: "
            f"{error}"
        ) from error


def _render_modes(gymnasium: Any, spec: Any) -> Sequence[str]:
    entry = spec.entry_point
    maker = entry if callable(entry) else gymnasium.envs.registration.load_env_creator(entry)
    return getattr(maker, "metadata", {}).get("render_modes") or ()


def make_tasks(
    split: str = "train", n: int = 200, seed: int = 0, prompt: str = "Play this game."
) -> list[Task]:
    """Episodes by their seeds; see `seeded_tasks`."""
    return seeded_tasks("gym", split, n, seed, prompt)
