"""The grid world that is shown as pictures: its expert, its cheaters, and what words give away."""

from __future__ import annotations

import itertools

import pytest
from agentrl_envs.screens import ACTIONS, LEVELS, ScreenTask, make_tasks

from agentrl.env import Action
from agentrl.errors import ConfigError
from agentrl.images import decode_image
from agentrl.types import Task


async def play(task: Task, turns, **args) -> tuple[float, int]:
    """The reward of a player, and the turns it took."""
    env = ScreenTask(**args)
    await env.reset(task)
    for number, text in enumerate(turns, start=1):
        step = await env.step(Action(text=text))
        if step.done:
            assert step.scores == step.rewards
            return step.rewards, number
    raise AssertionError("the player stopped before the end")


@pytest.mark.parametrize("level", LEVELS)
async def test_the_expert_solves_every_level(level: int) -> None:
    for task in make_tasks(n=6, levels=[level]):
        assert (await play(task, ScreenTask().solution(task)))[0] == 1.0


CHEATERS = {
    "picks at once": lambda task: itertools.repeat("pick"),
    "says nothing": lambda task: itertools.repeat(""),
    "names every action": lambda task: itertools.repeat(" ".join(ACTIONS)),
    "names picks first": lambda task: itertools.repeat("pick pick up down"),
    "looks for ever": lambda task: itertools.repeat("look"),
    "hides the action behind its turn": lambda task: itertools.repeat("x" * 3000 + " pick"),
    "repeats the task": lambda task: itertools.repeat(f"{task.prompt}"),
}


@pytest.mark.parametrize("name", CHEATERS)
async def test_nothing_is_paid_without_a_walk(name: str) -> None:
    # The player never stands on a thing at the beginning.
    for task in make_tasks(n=6, levels=[1, 3]):
        assert (await play(task, CHEATERS[name](task)))[0] == 0.0


async def test_a_blind_player_earns_no_more_than_a_guess() -> None:
    # The words do not say where to end a walk, so each fixed walk is right for few tasks.
    tasks = make_tasks(n=20, levels=[1])
    walks = [[*walk, "pick"] for walk in itertools.product(("up", "down", "left"), repeat=2)]
    best = max([sum([(await play(task, walk))[0] for task in tasks]) for walk in walks])
    assert best < len(tasks) / 2


async def test_only_the_picture_says_where_things_are() -> None:
    first, second = make_tasks(n=2, levels=[1])
    env, seen = ScreenTask(), []
    for task in (first, second):
        (shown,) = (await env.reset(task)).content
        seen.append(shown.images[0])
        step = await env.step(Action(text="look"))
        assert step.environment_feedback[0].content.endswith("What next?")
    assert seen[0] != seen[1]
    (blank,) = (await ScreenTask(blank=True).reset(first)).content
    (other,) = (await ScreenTask(blank=True).reset(second)).content
    assert blank.images == other.images
    assert blank.images[0].width == seen[0].width == 84


async def test_fog_lifts_with_look() -> None:
    (task,) = make_tasks(n=1, levels=[4])
    env = ScreenTask()
    (shown,) = (await env.reset(task)).content
    step = await env.step(Action(text="look"))
    foggy, clear = (
        sum(pixel == (0, 0, 0) for pixel in decode_image(image.data).get_flattened_data())
        for image in (shown.images[0], step.environment_feedback[0].images[0])
    )
    assert foggy > 0
    assert clear == 0


def test_an_unknown_level_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"levels among \[1, 2, 3, 4, 5\]"):
        make_tasks(levels=[9])
