"""Any conversation gives the same rows in the loop and at the gateway, each token trained once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout.recorder import RecordedRow
from agentrl.types import Trajectory
from tests.rollout.history.history_scripts import arrays, by_gateway, by_loop
from tests.rollout.rollout_fakes import call

KINDS = ["on", "on", "fork", "same", "compact", "carry", "invent", "sub", "ask"]
MOVES = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9)), max_size=7)
REPLIES = st.lists(
    st.sampled_from(
        [
            "one",
            " two <b>",
            "",
            call("add", '{"b":5,  "a": 3}'),
            "See." + call("add", '{"a":1,"b":2}'),
        ]
    ),
    min_size=8,
    max_size=8,
)


def turns(row: Trajectory | RecordedRow) -> list[tuple[Any, ...]]:
    """What the model was shown of its turns; the loop keeps results that a history leaves out."""
    shown = [turn for turn in row.turns if turn.end > turn.start]
    return [(turn.role, turn.start, turn.end, turn.tool_calls) for turn in shown]


@settings(max_examples=100, deadline=None)
@given(MOVES, REPLIES)
def test_random_trees(moves, replies):
    """Fails if a sampled token is trained in two rows or in none, if a history is encoded anew
    where its ids are known, if loop and gateway match a history differently, or if a record of a
    turn names another kind, reason or place than it has."""

    asks = next((number for number, (kind, _) in enumerate(moves) if kind == "ask"), len(moves))
    # Where nothing is offered, the loop answers a call that the gateway leaves as text.
    replies = [text if at <= asks else "one" for at, text in enumerate(replies)]

    async def both() -> None:
        ours, engine = await by_loop(replies, moves)
        assert ours[0].termination_detail == ""
        theirs, other, requests = await by_gateway(replies, moves)
        assert [r.prompt_ids for r in engine.requests] == [r.prompt_ids for r in other.requests]
        assert [arrays(row) for row in ours] == [arrays(row) for row in theirs]
        assert [turns(row) for row in ours] == [turns(row) for row in theirs]
        shown = ours[0].requests
        if any(kind != "on" for kind, _ in moves):
            assert [replace(one, turn=0) for one in shown] == [
                replace(one, turn=0) for one in requests
            ]
        for one, asked in zip(shown, engine.requests, strict=bool(shown)):
            assert one.row is not None
            assert one.turn is not None
            assert asked.generation is not None
            row = ours[one.row]
            turn = row.turns[one.turn]
            assert row.response_ids[turn.start : turn.end] == asked.generation.ids
        # What the engine was asked and what it said stands in the rows, trained exactly once.
        trained = [
            (ids[: at + turn.start], ids[at + turn.start : at + turn.end])
            for row in ours
            for ids, at in [(row.prompt_ids + row.response_ids, len(row.prompt_ids))]
            for turn in row.turns
            if turn.role == "assistant"
        ]
        asked = [(r.prompt_ids, r.generation.ids) for r in engine.requests if r.generation]
        assert sorted(trained) == sorted(asked)

    asyncio.run(both())
