"""A judge on a real vLLM server: the wire format is the server's, and nonsense is no score."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, get_args

import pytest

from agentrl.errors import ServedModelError
from agentrl.judges.rubric import rubric_of
from agentrl.served import ServedModel, ServedSettings
from agentrl.served.settings import Api
from agentrl.types.usage import counting_served
from tests.judges.scripted_judges import CRITERIA, TASK

if TYPE_CHECKING:
    from agentrl.serving.vllm.launcher import VllmServer

SCHEMA = {
    "type": "object",
    "properties": {"reason": {"enum": ["long", "short"]}, "grade": {"enum": [0, 1, 2]}},
    "required": ["reason", "grade"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("api", get_args(Api))
async def test_a_schema_is_held_by_the_server(vllm_server: VllmServer, api: Api) -> None:
    url = f"{vllm_server.url}/v1"
    settings = ServedSettings(url=url, model="policy", max_tokens=80, api=api)
    with counting_served() as spent:
        found = await ServedModel(settings).ask(
            [{"role": "user", "content": "Grade this."}], json.loads, schema=SCHEMA
        )
    # A random model writes this only if the server holds it to the schema.
    assert found["reason"] in ("long", "short")
    assert found["grade"] in (0, 1, 2)
    # The server has no parser of tool calls, and refuses the first way to hold an answer.
    assert spent["served/requests"] == (2 if api == "anthropic" else 1)
    assert spent["served/prompt_tokens"] > len("Grade this.")
    assert 0 < spent["served/completion_tokens"] <= 80


@pytest.mark.parametrize("api", get_args(Api))
async def test_a_random_judge_gives_no_score(vllm_server: VllmServer, api: Api) -> None:
    """Fails if an answer of the right form, but without the mark of the case, is a verdict."""
    url = f"{vllm_server.url}/v1"
    model = {"url": url, "model": "policy", "max_tokens": 60, "tries": 1, "api": api}
    judge = rubric_of(model=model, criteria=CRITERIA)
    with pytest.raises(ServedModelError, match="nor was the next one"):
        await judge.verdict(TASK, '4 {"case": "x", "criteria": {}}')


@pytest.mark.parametrize("api", get_args(Api))
async def test_a_wrong_name_is_said(vllm_server: VllmServer, api: Api) -> None:
    settings = ServedSettings(url=f"{vllm_server.url}/v1", model="gpt", max_tokens=8, api=api)
    with pytest.raises(ServedModelError, match="status 404"):
        await ServedModel(settings).complete([{"role": "user", "content": "Hello?"}])
