"""Design proofs 3 and 4: same tokens from engine to trainer, same server for one session."""

from __future__ import annotations

import random

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.env import Observation, StepResult
from agentrl.rollout import RolloutWorker
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.tool import FunctionTool
from agentrl.types import Message, SamplingParams, Task, Trajectory
from tests.rollout.rollout_fakes import Talk, add, call


def check_tokens(row: Trajectory, requests: list) -> None:
    """The row holds what the engine saw and produced, position by position."""
    ids = [*row.prompt_ids, *row.response_ids]
    mask = [0] * len(row.prompt_ids) + list(row.response_mask)
    expected_mask = [0] * len(ids)
    log_probs = [0.0] * len(ids)
    versions = [-1] * len(ids)
    for request in requests:
        start = len(request.prompt_ids)
        assert tuple(ids[:start]) == request.prompt_ids
        for offset, token in enumerate(request.generation.ids):
            assert ids[start + offset] == token
            expected_mask[start + offset] = 1
            log_probs[start + offset] = ScriptedEngine.log_prob(token, start + offset)
            versions[start + offset] = request.generation.policy_versions[offset]
    assert mask == expected_mask
    first = len(row.prompt_ids)
    assert list(row.rollout_log_probs) == log_probs[first:]
    assert list(row.policy_versions) == versions[first:]
    # Nothing stands behind the last sampled token: no engine would have seen it.
    assert row.response_mask[-1] == 1


async def test_ids_are_those_the_engine_saw_and_produced(bench):
    """Fails if a turn is decoded and encoded again, if a closing token that was appended counts as
    an action, or if log-probabilities are shifted (all three seen with broken recorders)."""
    rng = random.Random(0)
    words = ["é", "世", "x", '{"', "<tool_call>", "\n", " ", "\U0001f600", "end"]

    def reply(prompt_ids, session_id):
        kind = rng.randrange(4)
        noise = "".join(rng.choice(words) for _ in range(rng.randrange(12)))
        if kind == 0:
            return noise + call("add", '{"a": 1, "b": 2}')
        if kind == 1:
            return noise + call("nothing") + call("add", '{"a": "x"}')
        return noise * (20 if kind == 2 else 1)

    steps = [StepResult(environment_feedback=f"again \u00fc {i}", rewards=0.5) for i in range(6)]
    made = bench(reply, lambda: Talk(*steps), max_assistant_turns=6, max_turn_tokens=90)
    group = await made.group(n=12)
    finished = set()
    for row in group.trajectories:
        requests = [r for r in made.engine.requests if r.session_id == row.rollout_id]
        assert len(requests) == 6
        check_tokens(row, requests)
        finished |= {r.generation.finish_reason.value for r in requests}
    assert finished == {"stop", "length"}


async def test_closing_token_of_a_cut_turn_is_no_action(bench):
    """Fails if the loop calls `turn_delta(ended=True)` after a turn that was cut off."""
    made = bench(
        ["x" * 50, "done"],
        lambda: Talk(StepResult(environment_feedback="go on"), StepResult(done=True)),
        max_turn_tokens=20,
    )
    row = await made.one()
    stop = made.chat.stop_token_ids[0]
    assert row.response_ids[:20] == (ord("x"),) * 20
    assert (row.response_ids[20], row.response_mask[20]) == (stop, 0)
    assert (row.response_ids[-1], row.response_mask[-1]) == (stop, 1)
    assert made.envs[0].actions[0].truncated
    assert not made.envs[0].actions[1].truncated


async def test_turns_cover_the_response(bench):
    made = bench(
        [call("add", '{"a": 2, "b": 3}'), "it is 5"],
        lambda: Talk(
            StepResult(rewards=0.25),
            StepResult(done=True, rewards=1.0, environment_feedback="right"),
        ),
    )
    row = await made.one()
    assert [(t.role, t.reward) for t in row.turns] == [
        ("assistant", 0.25),
        ("tool", None),
        ("assistant", 1.0),
        ("user", None),
    ]
    ends = [0, *(turn.end for turn in row.turns)]
    assert [turn.start for turn in row.turns] == ends[:-1]
    assert ends[-1] == len(row.response_ids)
    # Feedback that came with `done` was never shown: no tokens, but readable.
    assert (row.turns[-1].text, row.turns[-1].start) == ("right", row.turns[-1].end)
    assert row.turns[1].tool_results[0].text == "5"
    assert row.reward == row.score == 1.25


async def test_a_changed_temperature_starts_a_row(bench):
    """The trainer divides a row by one temperature. Fails if the override stays in the row."""
    made = bench(
        ["one", "two", "three"],
        lambda: Talk(
            StepResult(environment_feedback="hotter", sampling_params={"temperature": 0.5}),
            StepResult(environment_feedback="as before"),
            StepResult(done=True, rewards=2.0),
        ),
    )
    group = await made.group()
    rows = group.trajectories
    assert [row.temperature for row in rows] == [1.0, 0.5, 1.0]
    assert [row.row_index for row in rows] == [0, 1, 2]
    assert {row.rollout_id for row in rows} == {"group/0"}
    assert {row.reward for row in rows} == {2.0}
    for row, request in zip(rows, made.engine.requests, strict=True):
        assert row.temperature == request.sampling.temperature
        assert request.prompt_ids == row.prompt_ids
        assert row.response_ids[: len(request.generation.ids)] == request.generation.ids


async def test_one_session_stays_on_one_server_until_it_drains(chat):
    """Fails if the client asks for the least loaded engine at every turn."""
    drained = {"done": False}
    engines: list[ScriptedEngine] = []

    def reply(prompt_ids, session_id):
        if not drained["done"] and len(engines[0].requests) + len(engines[1].requests) >= 20:
            client.balancer.drain("b")
            drained["done"] = True
        return "hello"

    for name in ("a", "b", "c"):
        engines.append(ScriptedEngine(reply, ByteTokenizer(), delay_s=0.001, name=name))
    client = TokenClient(engines)
    worker = RolloutWorker(
        generator=client,
        chat=chat,
        parser=build_parser("none"),
        make_env=lambda: Talk(StepResult(environment_feedback="more")),
        tools=[FunctionTool(add)],
        section=RolloutSection(
            max_assistant_turns=6, max_response_tokens=4000, max_context_tokens=5000
        ),
    )
    await worker.run_group(
        Task(id="t", prompt="x"), group_id="g", n=12, sampling=SamplingParams(), seed=0
    )
    assert drained["done"]
    served: dict[str, list[str]] = {}
    for engine in engines:
        for request in engine.requests:
            served.setdefault(request.session_id, [])
    moved = 0
    for session in served:
        names = {e.name for e in engines if any(r.session_id == session for r in e.requests)}
        turns = sum(r.session_id == session for e in engines for r in e.requests)
        assert turns == 6
        assert len(names) == 1 or (len(names) == 2 and "b" in names)
        moved += len(names) == 2
    assert 0 < moved <= 4  # those that were on `b`, a third of twelve
    assert all(client.balancer.in_flight(e.name) == 0 for e in engines)
    # The engine that was left, and the one that was taken last, were told of the end.
    assert {s for e in engines for s in e.ended} == set(served)


async def test_a_reply_prefix_is_read_but_never_trained_on(bench):
    """Fails if the prefix counts as an action, is missing from later turns, is kept from the
    environment, or if a `chat.stop` token passes for the end of the turn."""
    section = ChatSection(tool_parser="fenced_code", reply_prefix="```python\n", stop=("~",))
    chat = build_chat(ByteTokenizer(), section)
    env = Talk(StepResult(environment_feedback="again"), StepResult(done=True, rewards=1.0))
    made = bench(
        ["x = 1\n```\n~", "x = 2\n```"],
        lambda: env,
        chat_format=chat,
        parser="fenced_code",
        tools=(),
    )
    row = await made.one()
    check_tokens(row, made.engine.requests)
    first, second = env.actions
    assert first.text == "```python\nx = 1\n```\n~"
    assert not first.truncated
    assert [c.arguments["code"] for c in second.tool_calls] == ["x = 2"]
    start, end = second.tool_calls[0].span
    turn = row.turns[2]
    assert start == 0
    assert turn.text == "x = 2\n```"
    assert end <= turn.end - turn.start
    prompt, response = chat.decode_raw(row.prompt_ids), chat.decode_raw(row.response_ids)
    assert prompt.endswith("assistant\n```python\n")
    # The turn that stopped at "~" is closed by a token that is nobody's action.
    assert "~<|im_end|>\n<|im_start|>user\nagain<|im_end|>" in response
    assert response.count("```python\n") == 1


async def test_raw_texts_know_neither_reply_prefix_nor_action_stops(bench):
    """Fails if either reaches an environment that writes its own markers."""
    section = ChatSection(reply_prefix="```python\n", stop=("~",))
    chat = build_chat(ByteTokenizer(), section)
    env = Talk(prompt=Observation(content="Go: ", raw=True))
    made = bench(["a~b"], lambda: env, chat_format=chat, parser="none", tools=())
    row = await made.one()
    check_tokens(row, made.engine.requests)
    assert chat.decode_raw(row.prompt_ids) == "Go: "
    assert env.actions[0].text == "a~b"
    (request,) = made.engine.requests
    assert not set(chat.action_stop_ids) & set(request.sampling.stop_token_ids)
    assert "```python" not in chat.render_text([Message(role="user", content="x")])
