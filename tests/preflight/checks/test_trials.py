"""What preflight tries out: calls of awkward tools, sandboxes that are none, memory, disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat import build_chat
from agentrl.config import RunConfig, load_config
from agentrl.config.plan import plan_run
from agentrl.models.source import load_tokenizer
from agentrl.preflight.checks import machine, trials
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.tool import Tool
from agentrl.types.finding import Finding, Status
from tests.runtime.tiny_project import write_project


class Awkward(Tool):
    name = "edit"
    description = "Change a file."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "line": {"type": "integer"},
            "mode": {"enum": ["fast", "slow"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "deep": {"type": "object", "properties": {"flag": {"type": "boolean"}}},
            "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
    }

    async def call(self, arguments: Any, sandbox: Any) -> Any:
        raise NotImplementedError


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("trials"))


def with_tool(config: RunConfig, tool: Tool) -> PreflightFacts:
    tokenizer = load_tokenizer(config.model)
    chat = build_chat(tokenizer, config.chat)
    return PreflightFacts(tokenizer=tokenizer, chat=chat, tools={tool.name: tool})


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "llama3_json", "mistral"])
async def test_calls_of_any_schema_come_back(project: Path, parser: str) -> None:
    config = load_config(project, [f"chat.tool_parser={parser}"])
    found = await trials.tool_calls(config.chat, with_tool(config, Awkward()))
    assert found == f"{parser} reads back calls of edit"


class Unspeakable(Awkward):
    parameters: Mapping[str, Any] = {"properties": {"a>b": {"type": "string"}}}


async def test_a_tool_that_the_format_cannot_call_is_named(project: Path) -> None:
    """Tags cannot hold such a name. Fails if only the number of calls is compared."""
    config = load_config(project, ["chat.tool_parser=qwen3_coder"])
    found = await trials.tool_calls(config.chat, with_tool(config, Unspeakable()))
    assert isinstance(found, Finding)
    assert found.status is Status.FAIL
    assert "a call of edit written as" in found.detail
    assert "take another chat.tool_parser than qwen3_coder" in found.fix


async def test_a_sandbox_is_made_and_runs_a_program(project: Path) -> None:
    made = ["sandbox.backend=process", "rollout.env_timeout_s=120"]
    run = plan_run(load_config(project, made), project.parent)
    found = await trials.sandbox_run(run.rollouts, PreflightFacts())
    assert "process: one was made in" in str(found)


@pytest.mark.parametrize(("used", "status"), [(True, "fail"), (None, "fail"), (False, "warn")])
async def test_a_sandbox_that_cannot_be_made(project: Path, used: bool | None, status: str) -> None:
    """It is a warning only where the episodes that were played asked for none."""
    found = PreflightFacts(sandbox_used=used)
    run = plan_run(load_config(project, ["rollout.env_timeout_s=120"]), project.parent)
    check = await trials.sandbox_run(run.rollouts, found)
    assert isinstance(check, Finding)
    assert check.status == status
    assert "this backend makes no sandboxes" in check.detail


async def test_a_context_that_the_model_was_not_made_for(project: Path) -> None:
    """The tiny Llama has 512 positions; an engine would refuse only once it is loaded."""
    assert "128 of the 512" in str(await machine.context(load_config(project).model, 128))
    check = await machine.context(load_config(project).model, 513)
    assert isinstance(check, Finding)
    assert check.status is Status.FAIL
    assert "set rollout.max_context_tokens: 512" in check.fix


def test_a_container_has_no_more_than_its_limit() -> None:
    free = machine.available_bytes()
    assert free is not None
    assert 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
