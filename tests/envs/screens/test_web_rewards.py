"""Rewards of a page of MiniWoB++ in a real Chromium."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from agentrl_envs.screens.web import WebTask, chromium, make_tasks

from agentrl.config import load_config
from agentrl.data import load_tasks
from tests.envs.screens.episodes import call, play

pytest.importorskip("miniwob")
pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, chromium.NAMES)), reason="Chromium is not installed"
)


@pytest.fixture(scope="module", autouse=True)
def _one_browser():
    yield
    chromium.end()


async def test_a_wrong_answer_has_the_reward_of_the_page() -> None:
    (task,) = make_tasks(n=1, pages=["enter-text"])
    turns = WebTask().solution(task)
    assert [turn.name for turn in turns] == ["click", "type", "click"]
    played = await play(WebTask(), task, [turns[0], call("type", text="no"), turns[2]])
    assert (played.done, played.turns, played.reward, played.score) == (True, 3, -1.0, 0.0)


def test_the_config_that_is_shipped_loads() -> None:
    folder = Path(__file__).parents[3] / "configs"
    config = load_config(folder / "screens_web.yaml")
    assert load_tasks(config.dataset, base=folder)
    assert WebTask(**config.env.args)
