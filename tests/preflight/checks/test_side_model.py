"""The served model of `rollout.side_calls`, as `agentrl preflight` asks it."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config.schema import RolloutSection
from agentrl.preflight.checks.side_model import side_model
from agentrl.types.finding import Finding, Status
from tests.served.scripted_server import Reply, scripted_server


def without_tools(body: dict[str, Any]) -> Reply:
    return 400 if "tools" in body else "ready"


async def asked(always: Reply, **more: Any) -> Finding | str:
    async with scripted_server(always=always) as server:
        model = {"url": server.url, "model": "m", "tries": 1, "timeout_s": 120.0, **more}
        return await side_model(RolloutSection(side_calls=model))


async def test_its_answer_and_its_price_are_stated() -> None:
    found = await asked("ready", price_in=3.0, price_out=15.0)
    assert isinstance(found, str)
    assert found.startswith("m answers (")
    assert found.endswith("written), 3 and 15 a million")


@pytest.mark.parametrize(
    ("always", "more", "status", "words"),
    [
        (500, {}, Status.FAIL, "rollout.side_calls"),
        (without_tools, {}, Status.WARN, "it refuses tools, so a sub-agent ends its rollout"),
        ("ready", {"api_key_env": "SIDE_KEY"}, Status.WARN, "served/cost stays 0"),
    ],
)
async def test_what_would_end_rollouts_or_hide_costs_is_found(
    monkeypatch: pytest.MonkeyPatch, always: Reply, more: dict[str, Any], status: Status, words: str
) -> None:
    monkeypatch.setenv("SIDE_KEY", "k")
    found = await asked(always, **more)
    assert isinstance(found, Finding)
    assert found.status is status
    assert words in found.detail
    assert found.fix
