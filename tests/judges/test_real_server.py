"""A judge on a real vLLM server: the wire format is the server's, and nonsense is no score."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agentrl.errors import ServedModelError
from agentrl.judges.rubric import rubric_of
from agentrl.served import ServedModel, ServedSettings
from agentrl.usage import counting_served
from tests.judges.scripted_judges import CRITERIA, TASK

if TYPE_CHECKING:
    from agentrl.serving.vllm.launcher import VllmServer

SCHEMA = {
    "type": "object",
    "properties": {"reason": {"enum": ["long", "short"]}, "grade": {"enum": [0, 1, 2]}},
    "required": ["reason", "grade"],
    "additionalProperties": False,
}


async def test_a_schema_is_held_by_the_server(vllm_server: VllmServer) -> None:
    settings = ServedSettings(url=f"{vllm_server.url}/v1", model="policy", max_tokens=80)
    with counting_served() as spent:
        found = await ServedModel(settings).ask(
            [{"role": "user", "content": "Grade this."}], json.loads, schema=SCHEMA
        )
    # A random model writes this only if the server holds it to the schema.
    assert found["reason"] in ("long", "short")
    assert found["grade"] in (0, 1, 2)
    assert spent["served/requests"] == 1
    assert spent["served/prompt_tokens"] > len("Grade this.")
    assert 0 < spent["served/completion_tokens"] <= 80


async def test_a_random_judge_gives_no_score(vllm_server: VllmServer) -> None:
    """Fails if an answer of the right form, but without the mark of the case, is a verdict."""
    model = {"url": f"{vllm_server.url}/v1", "model": "policy", "max_tokens": 60, "tries": 1}
    judge = rubric_of(model=model, criteria=CRITERIA)
    with pytest.raises(ServedModelError, match="nor was the next one"):
        await judge.verdict(TASK, '4 {"case": "x", "criteria": {}}')


async def test_a_wrong_name_is_said(vllm_server: VllmServer) -> None:
    settings = ServedSettings(url=f"{vllm_server.url}/v1", model="gpt", max_tokens=8)
    with pytest.raises(ServedModelError, match="status 404"):
        await ServedModel(settings).complete([{"role": "user", "content": "Hello?"}])
