"""A session over a scripted engine, and agents that speak each wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.chat import ChatFormat, build_parser
from agentrl.config.schema import RolloutSection
from agentrl.gateway import FunctionAgent, Gateway, GatewaySession
from agentrl.gateway.side_model import SideCalls
from agentrl.rollout import RolloutLimits, RolloutWorker
from agentrl.rollout.long_texts import LongTexts
from agentrl.rollout.recorder import Recorder
from agentrl.rollout.records import LoopParts
from agentrl.rollout.under_way.in_flight import Activity
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.tool import FunctionTool
from agentrl.types import SamplingParams
from tests.rollout.rollout_fakes import add, call

ADD = FunctionTool(add)
CHAT_TOOLS = [ADD.schema()]
MESSAGES_TOOLS = [
    {"name": "add", "description": ADD.description, "input_schema": dict(ADD.parameters)}
]
CALL = call("add", '{"a": 1, "b": 2}')


@dataclass
class Served:
    """One session of one gateway."""

    gateway: Gateway
    session: GatewaySession
    engine: ScriptedEngine

    async def post(
        self, path: str, body: Any, *, headers: Mapping[str, str] | None = None, root: str = ""
    ) -> tuple[int, Any]:
        """Status and body of a request below the session's path."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        where = root or f"/s/{self.session.secret}/v1/"
        status, data = await send(self.gateway, "POST", where + path, raw, headers or {})
        return status, json.loads(data) if data[:1] == b"{" else data

    async def chat(self, messages: Sequence[Any], **more: Any) -> dict[str, Any]:
        """The message of a chat completion."""
        body = {"model": "policy", "messages": messages, **more}
        status, answer = await self.post("chat/completions", body)
        assert status == 200, answer
        return answer["choices"][0]["message"]

    def rows(self, reward: float = 1.0) -> Recorder:
        recorder = self.session.rows(reward)
        assert recorder is not None
        recorder.finish()
        return recorder


async def send(
    gateway: Gateway, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    """A request as a server would give it to the application."""
    status, parts = 0, []
    told = False

    async def receive() -> dict[str, Any]:
        nonlocal told
        if told:
            await asyncio.Event().wait()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def reply(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    pairs = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs}
    await gateway(scope, receive, reply)
    return status, b"".join(parts)


def serve(
    chat: ChatFormat,
    replies: Any,
    *,
    parser: str = "hermes",
    side_calls: SideCalls = "train",
    gateway: Gateway | None = None,
    engine: Any = None,
    delay_s: float = 0.0,
    fail: Any = None,
    takes_reward: bool = True,
    **limits: Any,
) -> Served:
    engine = engine or ScriptedEngine(replies, ByteTokenizer(), delay_s=delay_s, fail=fail)
    usual = {
        "max_response_tokens": 40_000, "max_context_tokens": 80_000, "max_turn_tokens": 2000,
        "max_assistant_turns": 100,
    }  # fmt: skip
    parts = LoopParts(
        generator=TokenClient([engine]),
        chat=chat,
        parser=build_parser(parser),
        tools={},
        limits=RolloutLimits.of(RolloutSection(**(usual | limits))),
        long_texts=LongTexts(),
    )
    session = GatewaySession(
        parts,
        sampling=SamplingParams(max_tokens=10_000, stop_token_ids=chat.stop_token_ids),
        seed=7,
        session_id="session",
        activity=Activity("session", "task"),
        side_calls=side_calls,
        takes_reward=takes_reward,
    )
    gateway = gateway or Gateway()
    gateway.open(session)
    return Served(gateway, session, engine)


def agent_worker(
    chat: ChatFormat,
    replies: Any,
    agent: Callable[..., Awaitable[Any]],
    *,
    fail: Any = None,
    side_calls: SideCalls = "train",
    args: Mapping[str, Any] | None = None,
    delay_s: float = 0.0,
    **limits: Any,
) -> tuple[RolloutWorker, ScriptedEngine]:
    """A worker whose environment is an agent."""
    engine = ScriptedEngine(replies, ByteTokenizer(), fail=fail, delay_s=delay_s)
    usual = {"max_response_tokens": 4000, "max_context_tokens": 8000, "retries": 0}
    worker = RolloutWorker(
        generator=TokenClient([engine]),
        chat=chat,
        parser=build_parser("hermes"),
        make_env=lambda: FunctionAgent(agent, args or {}, side_calls=side_calls),
        section=RolloutSection(**(usual | limits)),
    )
    return worker, engine
