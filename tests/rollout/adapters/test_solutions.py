"""A solution that never comes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agentrl.errors import EnvError
from agentrl.plugins.user_code import UserCodeHung
from agentrl.rollout.adapters import solutions
from agentrl.types import Task


class Asked:
    def __init__(self, give: Any) -> None:
        self.solution = give


def spin(task: Task) -> str:
    while True:
        pass


def sleep(task: Task) -> str:
    time.sleep(30)
    return ""


async def wait(task: Task) -> str:
    await asyncio.sleep(30)
    return ""


def raise_its_own(task: Task) -> str:
    raise TimeoutError("no answer from the database")


@pytest.mark.parametrize(
    ("give", "error", "said"),
    [
        (spin, UserCodeHung, "spin at .*held the event loop for more than 0.2 s"),
        (sleep, UserCodeHung, "sleep at .*held the event loop for more than 0.2 s"),
        (wait, EnvError, "gave nothing within 0.2 s; it waited in wait at"),
        (raise_its_own, TimeoutError, "no answer from the database"),
    ],
)
async def test_a_solution_that_does_not_come_is_given_up(
    give: Any, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails, by hanging, if a check of an environment waits for it for ever."""
    monkeypatch.setattr(solutions, "SOLUTION_S", 0.2)
    began = time.monotonic()
    with pytest.raises(error, match=said):
        await solutions.solution_of(Asked(give), Task(id="a", prompt="?"))  # type: ignore[arg-type]
    assert time.monotonic() - began < 20
