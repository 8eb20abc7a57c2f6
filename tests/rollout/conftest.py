"""A real chat format, and a worker over a scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentrl.chat import ChatFormat, build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.rollout import RolloutWorker
from agentrl.sandbox import SandboxBackend
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.tool import FunctionTool, Tool
from tests.rollout.rollout_fakes import Bench, add, explode, refuse


@pytest.fixture(scope="session")
def chat() -> ChatFormat:
    return build_chat(ByteTokenizer(), ChatSection(tool_parser="hermes"))


@pytest.fixture
def bench(chat: ChatFormat) -> Callable[..., Bench]:
    return bench_of(chat)


def bench_of(chat: ChatFormat) -> Callable[..., Bench]:
    """Makes benches of a chat format."""

    def make(
        replies: Any,
        make_env: Callable[[], Any],
        *,
        tools: Sequence[Tool] | None = None,
        parser: str = "hermes",
        engine: Any = None,
        sandboxes: SandboxBackend | None = None,
        delay_s: float = 0.0,
        fail: Any = None,
        chat_format: Any = None,
        grade: Any = None,
        **limits: Any,
    ) -> Bench:
        engine = engine or ScriptedEngine(replies, ByteTokenizer(), delay_s=delay_s, fail=fail)
        envs: list[Any] = []

        def remember() -> Any:
            envs.append(make_env())
            return envs[-1]

        defaults = {"max_response_tokens": 4000, "max_context_tokens": 8000, "retries": 0}
        client = TokenClient([engine])
        worker = RolloutWorker(
            generator=client,
            chat=chat_format or chat,
            parser=build_parser(parser),
            make_env=remember,
            tools=[FunctionTool(f) for f in (add, refuse, explode)] if tools is None else tools,
            sandboxes=sandboxes,
            section=RolloutSection(**(defaults | limits)),
            grade=grade,
            grade_group=getattr(grade, "group", None),
        )
        return Bench(chat, engine, client, worker, envs)

    return make
