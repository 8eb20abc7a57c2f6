"""Campaigns of attacks on the environments of `leaky_envs.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.preflight.attack.attack import AttackClass
from agentrl.preflight.attack.campaign import AttackPlan

ENVS = Path(__file__).with_name("leaky_envs.py")


def plan(
    name: str, *only: AttackClass, file: Path = ENVS, args: dict | None = None, **settings
) -> AttackPlan:
    settings = {"tasks": 1, "sandbox": None, **settings}
    return AttackPlan(
        env={"target": f"{file}:{name}", "args": args or {}},
        dataset={"source": f"{file}:make_tasks"},
        only=only,
        **settings,
    )


def through(results) -> set[str]:
    return {result.attack for result in results if result.got_through}


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main([*words])
    return int(left.value.code or 0)
