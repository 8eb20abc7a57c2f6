"""Evaluations of a model behind an API: real HTTP, both wires, and servers that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrl.chat import build_chat
from agentrl.config import load_config
from agentrl.config.schema import ChatSection
from agentrl.data import TrajectoryStore
from agentrl.errors import ConfigError, RunError
from agentrl.gateway import listening
from agentrl.inspect.pages.overview import run_entry, run_overview
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from agentrl.runtime.progress import Progress
from agentrl.runtime.sampling.api import ApiUse
from agentrl.runtime.sampling.sample import evaluate_api
from agentrl.runtime.scores import EvalSummary
from agentrl.runtime.scoring.stored_scores import read_scores
from agentrl.served import ServedSettings
from agentrl.testing import ByteTokenizer
from agentrl.types import Termination, Trajectory
from tests.gateway.gateway_fakes import CALL, serve
from tests.runtime.tiny_project import agentrl, write_project
from tests.served.scripted_server import Reply, raw_server, scripted_server

SUMS = '''
"""Wants the sum of two numbers, which a tool computes."""

from agentrl import AgentInstance, FunctionTool, Observation, StepResult


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


class Sums(AgentInstance):
    async def reset(self, task):
        return Observation(content=str(task.prompt), tools=(FunctionTool(add),))

    async def step(self, action):
        if action.tool_calls and not action.last:
            return StepResult()
        right = float("3" in action.text)
        return StepResult(rewards=right, done=True, scores=right)
'''

LIMITS = {
    "rollout__max_assistant_turns": 3,
    "rollout__max_turn_tokens": 400,
    "rollout__max_response_tokens": 2000,
    "rollout__max_context_tokens": 4000,
    "rollout__max_tool_tokens": 200,
    "rollout__retries": 0,
    "train__micro_batch_tokens": 4096,
    "eval__n_samples": 1,
}


def _sums(folder: Path, **changes: Any) -> Path:
    path = write_project(folder, env={"target": "sums.py:Sums"}, **(LIMITS | changes))
    (folder / "sums.py").write_text(SUMS)
    return path


async def _evaluate(
    path: Path, url: str, *, native_tools: bool = True, **settings: Any
) -> tuple[list[EvalSummary], ApiUse, list[Trajectory]]:
    usual: dict[str, Any] = {
        "model": "big",
        "timeout_s": 120.0,
        "attempt_s": 60.0,
        "max_in_flight": 4,
    }
    out = path.parent / "out"
    scores, use = await evaluate_api(
        load_config(path),
        ServedSettings(url=url, **(usual | settings)),
        base=path.parent,
        out=out,
        progress=Progress(),
        native_tools=native_tools,
    )
    rows = [item.trajectory for item in TrajectoryStore(out / "trajectories").read("eval/held")]
    return scores, use, rows


def _openai_call(arguments: str) -> dict[str, Any]:
    call = {"id": "x1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    used = {"prompt_tokens": 100, "completion_tokens": 5}
    return {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": used}


def _anthropic_call() -> dict[str, Any]:
    block = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}}
    said = {"type": "text", "text": "Let me see."}
    used = {"input_tokens": 100, "output_tokens": 5}
    return {"content": [said, block], "stop_reason": "tool_use", "usage": used}


def _by_turn(first: Reply, second: Reply) -> Reply:
    """The first turn of each rollout, and what is said to the result of its call."""

    def reply(body: dict[str, Any]) -> Any:
        answered = any(message["role"] == "assistant" for message in body["messages"])
        return second if answered else first

    return reply


async def test_calls_of_chat_completions_run_our_tools(tmp_path: Path) -> None:
    first = _openai_call('{"a":1,  "b":2}')
    async with scripted_server(always=_by_turn(first, "It is 3.")) as server:
        scores, use, rows = await _evaluate(
            _sums(tmp_path), server.url, price_in=10.0, price_out=100.0
        )
    (held,) = scores
    assert (held.score.mean, held.passed[1].mean, held.untrusted) == (1.0, 1.0, 0)
    assert (use.requests, use.failed, use.prompt_tokens) == (6, 0, 600)
    assert use.completion_tokens == 3 * (5 + 3)
    assert use.cost == pytest.approx((600 * 10 + 24 * 100) / 1e6)
    # The page of it names the model and its scores, and misses nothing that only training writes.
    reader = RunReader(FoundRun(id="out", path=tmp_path / "out"))
    entry = run_entry(reader)
    assert (entry["model"], entry["state"], entry["notes"]) == ("big", "finished", [])
    assert (entry["score"], entry["score_before"], entry["score_after"]) == ("held", 1.0, None)
    assert run_overview(reader)["notes"] == []
    last = server.asked[-1]
    assert last["tools"][0]["function"]["name"] == "add"
    said, result = last["messages"][-2:]
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"a": 1, "b": 2}
    assert (result["role"], result["content"]) == ("tool", "3")
    assert result["tool_call_id"] == said["tool_calls"][0]["id"]
    for row in rows:
        assert not any(row.response_mask)
        assert set(row.policy_versions) == {-1}
        assert [turn.role for turn in row.turns] == ["assistant", "tool", "assistant"]
        assert row.turns[-1].text == "It is 3."
        assert row.turns[0].tool_calls[0].arguments == {"a": 1, "b": 2}


async def test_calls_of_messages_run_our_tools(tmp_path: Path) -> None:
    path = _sums(tmp_path, chat__system_prompt="Be brief.")
    async with scripted_server(always=_by_turn(_anthropic_call(), "It is 3.")) as server:
        scores, _, rows = await _evaluate(path, server.url, api="anthropic")
    assert scores[0].score.mean == 1.0
    last = server.asked[-1]
    assert last["system"] == "Be brief."
    assert last["tools"][0]["input_schema"]["required"] == ["a", "b"]
    said, result = last["messages"][-2:]
    assert [block["type"] for block in said["content"]] == ["text", "tool_use"]
    assert said["content"][0]["text"] == "Let me see."
    assert result["content"][0]["tool_use_id"] == said["content"][1]["id"]
    assert result["content"][0]["content"] == "3"
    assert rows[0].turns[0].text.startswith("Let me see.\n<tool_call>")


async def test_without_native_tools_calls_are_read_from_text(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    async with scripted_server(always=_by_turn(call, "3")) as server:
        scores, _, _ = await _evaluate(_sums(tmp_path), server.url, native_tools=False)
    assert scores[0].score.mean == 1.0
    assert "tools" not in server.asked[0]
    assert "<tool_call>" in server.asked[0]["messages"][0]["content"]


async def test_a_mark_that_an_argument_quotes_ends_no_thought(tmp_path: Path) -> None:
    """Fails if the call is half of it words, or is not sent back with its result."""
    first = _openai_call('{"a": 1, "b": 2, "why": "</think>"}')
    first["choices"][0]["message"]["content"] = "<think>\n3?\n</think>\n\nLet me see."
    async with scripted_server(always=_by_turn(first, "I thought 3\n</think>\n\nNo.")) as server:
        scores, _, rows = await _evaluate(_sums(tmp_path), server.url)
    said = server.asked[-1]["messages"][-2]
    assert said["content"] == "Let me see."
    assert json.loads(said["tool_calls"][0]["function"]["arguments"])["why"] == "</think>"
    assert rows[0].turns[0].tool_calls[0].status == "ok"
    assert scores[0].score.mean == 0.0


async def test_a_call_that_is_no_json_is_shown_to_the_model(tmp_path: Path) -> None:
    first = _openai_call('{"a": 1, "b": ')
    async with scripted_server(always=_by_turn(first, "3 then")) as server:
        scores, _, rows = await _evaluate(_sums(tmp_path), server.url)
    assert scores[0].untrusted == 0
    said, result = server.asked[-1]["messages"][-2:]
    assert "tool_calls" not in said
    assert '{"a": 1, "b":}' in said["content"]
    assert result["role"] == "user"
    assert rows[0].turns[0].tool_calls[0].status != "ok"


async def test_a_server_in_trouble_is_asked_again(tmp_path: Path) -> None:
    garbage = web.Response(text="{oh no", content_type="application/json")
    other: dict[str, Any] = {"choices": []}
    async with scripted_server(429, 500, garbage, other, always="3") as server:
        scores, use, _ = await _evaluate(
            _sums(tmp_path, eval__datasets={"held": {"source": "held.jsonl", "limit": 1}}),
            server.url,
            tries=6,
        )
    assert scores[0].score.mean == 1.0
    assert (use.requests, use.failed) == (5, 4)


@pytest.mark.parametrize("reply", [401, 500, "garbage", "full", "cut"])
async def test_failures_are_never_a_reward(tmp_path: Path, reply: str | int) -> None:
    path = _sums(tmp_path)
    async with _failing(reply) as url:
        with pytest.raises(RunError, match="no rollout of 'held' could be scored") as raised:
            await _evaluate(path, url, tries=2)
    wanted = {
        401: "check the key",
        500: "status 500",
        "garbage": "not JSON",
        "full": "rollout.max_context_tokens",
        "cut": "could not be asked",
    }
    assert wanted[reply] in str(raised.value)


async def test_a_failed_rollout_is_left_out_of_the_mean(tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> Any:
        return 400 if "say 1" in json.dumps(body["messages"]) else "3"

    async with scripted_server(always=reply) as server:
        scores, _, rows = await _evaluate(_sums(tmp_path), server.url)
    assert (scores[0].score.mean, scores[0].untrusted, scores[0].score.n) == (1.0, 1, 2)
    ended = {row.task_id: (row.termination, row.reward) for row in rows}
    assert ended["held-1"] == (Termination.ENGINE_FAILED, None)


async def test_a_long_answer_ends_at_the_limit_of_the_run(tmp_path: Path) -> None:
    path = _sums(tmp_path, rollout__max_turn_tokens=10)
    async with scripted_server(always="0123456789 and 3 more") as server:
        scores, _, rows = await _evaluate(path, server.url)
    assert server.asked[0]["max_tokens"] == 10
    assert rows[0].turns[0].text == "0123456789"
    assert scores[0].rollouts == 3


async def test_the_key_is_sent_and_never_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-very-secret")
    async with scripted_server(always="3") as server:
        await _evaluate(_sums(tmp_path), server.url, api_key_env="SOME_KEY")
    assert server.headers[0]["Authorization"] == "Bearer sk-very-secret"
    stored = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert stored
    assert not any(b"sk-very-secret" in path.read_bytes() for path in stored)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"chat__reply_prefix": "So"}, "reply_prefix"), ({"chat__template": "raw"}, "raw")],
)
async def test_what_an_api_cannot_do_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        await _evaluate(_sums(tmp_path, **changes), "http://127.0.0.1:9/v1")


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_our_own_gateway_is_such_an_api(tmp_path: Path, wire: str) -> None:
    chat = build_chat(ByteTokenizer(), ChatSection(tool_parser="hermes"))
    served = serve(chat, _first_calls)
    async with listening(served.gateway) as address:
        url = f"{address}/s/{served.session.secret}/v1"
        scores, use, rows = await _evaluate(
            _sums(tmp_path), url, api=wire, model="policy", max_in_flight=1
        )
    assert scores[0].score.mean == 1.0
    assert use.failed == 0
    assert use.completion_tokens > 0
    assert [turn.role for turn in rows[0].turns] == ["assistant", "tool", "assistant"]
    # Three tasks in one session are three conversations; in each, what came back as a history was
    # known as what had been sampled.
    assert len(served.session.tree.roots) == 3
    assert served.session.report()["gateway_branch_edited"] == 2


def _first_calls(ids: Any, session: str) -> str:
    answered = ByteTokenizer().decode(ids).rpartition("<|im_start|>user")[2].count("3")
    return "It is 3." if answered else CALL


def test_the_command_puts_the_baseline_into_the_table(tmp_path: Path) -> None:
    path = _sums(
        tmp_path,
        rollout__max_turn_tokens=16,
        rollout__max_response_tokens=200,
        rollout__max_context_tokens=512,
    )
    status, text = agentrl(tmp_path / "log", "eval", path, "--out", tmp_path / "mine", "--n", "2")
    assert status == 0, text

    async def beside() -> tuple[int, str]:
        async with scripted_server(always="3") as server:
            return await asyncio.to_thread(
                agentrl, tmp_path / "log2", "eval", path, "--api", server.url, "--model", "big",
                "--price-in", "1", "--out", tmp_path / "big", "--beside", tmp_path / "mine",
            )  # fmt: skip

    status, text = asyncio.run(beside())
    assert status == 0, text
    assert "300 tokens read, 9 written" in text
    assert text.count("held (3)") == 3
    told = json.loads((tmp_path / "big" / "evaluation.json").read_text())
    assert (told["policy"], told["api"], told["use"]["requests"]) == ("big", True, 3)
    again = read_scores(tmp_path / "big")
    assert (again.policy, again.by_dataset["held"].score.mean) == ("big", 1.0)
    assert not json.loads((tmp_path / "mine" / "evaluation.json").read_text())["api"]
    status, text = agentrl(tmp_path / "log3", "traj", "show", tmp_path / "big")
    assert status == 0, text
    assert "3" in text


def _failing(reply: str | int) -> AbstractAsyncContextManager[str]:
    if reply == "cut":

        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{")
            await writer.drain()

        return raw_server(cut)
    error = {"error": {"code": "context_length_exceeded", "message": "too long"}}
    always: Reply = {
        "garbage": lambda body: web.Response(text="<html>"),
        "full": lambda body: web.json_response(error, status=400),
    }.get(str(reply), reply)
    return _url_of(always)


@asynccontextmanager
async def _url_of(always: Reply) -> AsyncIterator[str]:
    async with scripted_server(always=always) as server:
        yield server.url
