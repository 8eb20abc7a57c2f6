"""Gymnasium's own environments, played in words."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from agentrl_envs.gym import GymTask, make_game, make_tasks
from agentrl_envs.gym_price import IdlePrice, price_of_idling

from agentrl.env import Action, StepResult
from agentrl.errors import ConfigError
from agentrl.testing.env_check.suite import check_env

LAKE = {
    "id": "FrozenLake-v1",
    "kwargs": {"is_slippery": False},
    "actions": ["left", "down", "right", "up"],
}
PATH = ["down", "down", "right", "right", "down", "right"]


async def play(args: dict, texts: list[str]) -> tuple[str, list[StepResult]]:
    env = GymTask(**args)
    try:
        first = await env.reset(make_tasks(n=1)[0])
        steps = []
        for text in texts:
            steps.append(await env.step(Action(text=text)))
        return str(first.content), steps
    finally:
        await env.close()


async def test_a_walk_over_the_frozen_lake() -> None:
    first, steps = await play(LAKE, [f"I go <action>{way}</action>." for way in PATH])
    assert "left, down, right, up" in first
    assert "[S]FFF" in first
    assert [step.done for step in steps] == [False] * 5 + [True]
    assert "[F]HFH" in str(steps[0].environment_feedback)
    assert sum(step.rewards for step in steps) == 1.0
    assert steps[-1].extra_logs["return"] == 1.0


async def test_names_numbers_and_plain_words_are_actions_and_nothing_else_is() -> None:
    for text in ("down", "I go down.", "1", "<action> DOWN </action>", "<action>1</action>"):
        _, (step,) = await play(LAKE, [text])
        assert "[F]HFH" in str(step.environment_feedback), text
    for text in ("", "<action>9</action>", "<action>jump</action>", "9" * 5000, "-1"):
        _, (step,) = await play(LAKE, [text])
        assert "no action" in str(step.environment_feedback), text[:20]
        assert (step.rewards, step.done) == (0.0, False)


async def test_an_episode_is_made_by_its_seed() -> None:
    game = {"id": "Taxi-v4"}
    first = [await play(game, []) for _ in range(2)]
    assert first[0] == first[1]
    tasks = make_tasks(n=50)
    held = make_tasks(split="held_out", n=50)
    seeds = {task.metadata["seed"] for task in tasks}
    assert len(seeds) == 50
    assert not seeds & {task.metadata["seed"] for task in held}


async def test_returns_become_scores_and_limits_end_an_episode() -> None:
    game = {"id": "CliffWalking-v1", "max_steps": 2, "returns": [-4, 0]}
    _, steps = await play(game, ["0", "0"])
    assert steps[-1].done
    assert (sum(step.rewards for step in steps), steps[-1].scores) == (-2.0, 0.5)


async def test_not_playing_is_no_score_where_steps_cost_something() -> None:
    # The sum of the rewards of nothing is 0, which is better than that of any walk to the goal.
    game = {"id": "CliffWalking-v1", "returns": [-100, -13]}
    for args in (game, {**game, "invalid_reward": -1}, {**game, "invalid_reward": 0}):
        env = GymTask(**args)
        await env.reset(make_tasks(n=1)[0])
        said = [await env.step(Action(text="no")), await env.step(Action(text="no", last=True))]
        assert (said[-1].done, said[-1].scores) == (True, 0.0)
        earned = sum(step.rewards for step in said)
        if "invalid_reward" in args:
            assert earned == 2 * args["invalid_reward"]
        else:
            assert earned < -100  # the best walk returns -13
        await env.close()


@pytest.mark.parametrize(
    ("game", "best"),
    [
        ("CliffWalking-v1", -13.0),
        ("MountainCar-v0", -100.0),
        ("Taxi-v4", -1.0),
        ("Blackjack-v1", -0.1),
    ],
)
async def test_idling_and_stopping_never_pay_by_default(game: str, best: float) -> None:
    # `best`: no more than what the best play returns within `max_steps`. Fails where idling is
    # free, or where a game that is cut off leaves out what the rest would have cost.
    for turns, honest in ((1, 0), (3, 0), (120, 0), (3, 2 * (best < -1))):
        env = GymTask(game)
        await env.reset(make_tasks(n=1)[0])
        total, number = 0.0, 0
        for number in range(turns):
            text = "<action>0</action>" if number < honest else "I would rather not"
            step = await env.step(Action(text=text, last=number == turns - 1))
            total += step.rewards
            if step.done:
                break
        assert total <= best, (turns, honest)
        await env.close()


async def test_a_game_that_ends_early_costs_no_more_than_random_play() -> None:
    """Fails if the price counts the steps a rollout could have, not those of an episode."""
    for turns in (["no"], ["<action>1</action>"]):
        env = GymTask("Blackjack-v1")
        await env.reset(make_tasks(n=1)[0])
        step = await env.step(Action(text=turns[0], last=True))
        assert -1.0 <= step.rewards < 0.0, turns
        await env.close()
    assert IdlePrice(step=-1.0, length=5.0).rest(2, 100) == -3.0
    assert IdlePrice(step=-1.0, length=5.0).rest(9, 100) == 0.0
    assert IdlePrice(step=-1.0, length=math.inf).rest(40, 100) == -60.0


def test_the_price_is_measured_once_for_a_game() -> None:
    made: list[object] = []

    def make() -> object:
        made.append(make_game("Blackjack-v1", {}))
        return made[-1]

    prices = [price_of_idling("blackjack, counted", make) for _ in range(3)]
    assert len(made) == 1
    assert prices[0] == prices[2]
    price_of_idling("blackjack, other arguments", make)
    assert len(made) == 2


async def test_where_steps_cost_nothing_neither_does_idling() -> None:
    env = GymTask(**LAKE)
    await env.reset(make_tasks(n=1)[0])
    steps = [await env.step(Action(text="no", last=last)) for last in (False, True)]
    assert [step.rewards for step in steps] == [0.0, 0.0]
    await env.close()


GAMES = """
import gymnasium as gym
from gymnasium import spaces

class Coin(gym.Env):
    metadata = {"render_modes": ["ansi"], "render_fps": 4}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = self.action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return 1, {}

    def step(self, action):
        return 1, float(action == 1), True, False, {}

    def render(self):
        return "The coin shows 1."

gym.register(id="coins/Coin-v0", entry_point="coin_games:Coin")
gym.register(id="Coin-v0", entry_point="coin_games:Coin")
"""


@pytest.mark.parametrize("name", ["coin_games:coins/Coin-v0", "coin_games:Coin-v0"])
async def test_a_module_is_imported_before_its_game_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails for a name with a namespace, of which Gymnasium imports no module."""
    (tmp_path / "coin_games.py").write_text(GAMES)
    monkeypatch.syspath_prepend(tmp_path)
    first, (step,) = await play({"id": name}, ["<action>1</action>"])
    assert "The coin shows 1." in first
    assert step.rewards == 1.0


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ({"id": "Nope-v0"}, "Nope"),
        ({"id": "Pendulum-v1"}, "kind Box, expected Text or Discrete"),
        ({**LAKE, "actions": ["left"]}, "has 4 actions"),
        ({**LAKE, "max_steps": 0}, "at least 1"),
        ({**LAKE, "returns": [1, 1]}, "low < high"),
    ],
)
def test_what_cannot_be_played_is_said(args: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        GymTask(**args)


async def test_the_check_of_environments_finds_nothing() -> None:
    # Fails if what an episode counts outlives a reset, or if a game goes on after its end.
    assert await check_env(lambda: GymTask(**LAKE), make_tasks(n=2)) == []


class OneThread(gymnasium.Env):
    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 - as Gymnasium has it
    action_space = observation_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.made_in = render_mode, threading.get_ident()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert threading.get_ident() == self.made_in
        return 0, {}

    def step(self, action: int) -> Any:
        assert threading.get_ident() == self.made_in
        return 0, float(action), action == 1, False, {}

    def render(self) -> str:
        assert threading.get_ident() == self.made_in
        return "a room"

    def close(self) -> None:
        assert threading.get_ident() == self.made_in


async def test_a_game_lives_in_one_thread() -> None:
    """Fails if a game that holds a connection is made in another thread than it is played in."""

    gymnasium.register("OneThread-v0", f"{__name__}:OneThread")
    first, steps = await play({"id": "OneThread-v0", "invalid_reward": 0.0}, ["0", "jump", "1"])
    assert "a room" in first
    assert [step.rewards for step in steps] == [0.0, 0.0, 1.0]
    assert GymTask(id="OneThread-v0").solution(make_tasks(n=1)[0]) is None
