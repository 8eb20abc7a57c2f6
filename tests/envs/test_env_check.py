"""Environments that are shipped, or shown in the README and as examples, pass `env check`."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from agentrl.cli.env.target import target_of
from agentrl.data import load_tasks
from agentrl.testing.env_check.episode import CheckLimits
from agentrl.testing.env_check.opened import opened_env
from agentrl.testing.env_check.suite import check_env

ROOT = Path(__file__).parents[2]
SHIPPED = (
    "examples/my_env.py",
    "examples/my_tools.py",
    "agentrl_envs.arithmetic:ArithmeticTask",
    "agentrl_envs.screens:ScreenTask",
)


@pytest.mark.parametrize("target", SHIPPED)
def test_what_is_shipped_passes_the_check(target, monkeypatch):
    """Fails if one has a fault, or the check accuses a sound one."""
    monkeypatch.chdir(ROOT)
    found = target_of(target, (), None, (), "none")
    assert found.dataset is not None
    tasks = load_tasks(found.dataset, base=ROOT)

    async def check():
        async with opened_env(found.env, None, base=ROOT) as env:
            limits = CheckLimits(repeat_s=0.1, block_s=3.0, tasks=2)
            return await check_env(env.make_env, tasks, limits=limits)

    assert asyncio.run(check()) == []


def test_the_environment_of_the_readme_is_the_example():
    """Fails if the README shows another environment than the one that is checked."""
    (block,) = re.findall(r"```python\n(class .*?)```", (ROOT / "README.md").read_text(), re.S)
    assert block.strip() in (ROOT / "examples/my_tools.py").read_text()
