"""Branches, side calls and retries of one rollout, as rows and as numbers of the log."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentrl.rollout.history.kinds import ConversationKind, kinds_of
from agentrl.rollout.history.tree import NodeKind
from tests.gateway.gateway_fakes import CALL, CHAT_TOOLS, Served, serve

SYSTEM = {"role": "system", "content": "You add."}
BEGIN = {"role": "user", "content": "Begin."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def trained_ids(served: Served) -> list[tuple[int, ...]]:
    """Sampled ids of all rows, one tuple a row."""
    rows = served.rows().rows
    return [
        tuple(token for token, on in zip(row.ids[row.prompt_length :], row.mask, strict=True) if on)
        for row in rows
    ]


def text_of(served: Served, ids: Any) -> str:
    return bytes(token for token in ids if token < 256).decode()


async def test_an_edited_result_begins_a_branch_that_shares_what_was_before(chat):
    """Fails if a token is trained in two rows, or a shared prefix is rendered again."""
    served = serve(chat, [CALL, "three", "seven"])
    first = await served.chat([BEGIN], tools=CHAT_TOOLS)
    (made,) = first["tool_calls"]
    result = {"role": "tool", "tool_call_id": made["id"], "content": "3"}
    await served.chat([BEGIN, first, result], tools=CHAT_TOOLS)
    await served.chat([BEGIN, first, {**result, "content": "7"}], tools=CHAT_TOOLS)
    rows = served.rows().rows
    assert [text_of(served, ids) for ids in trained_ids(served)] == [CALL + "seven", "three"]
    kept, branch = rows
    shared = kept.prompt_length
    assert branch.ids[: branch.prompt_length][:shared] == kept.ids[:shared]
    sampled = served.engine.requests[0].generation
    assert sampled is not None
    assert branch.ids[shared : shared + len(sampled.ids)] == list(sampled.ids)
    assert served.session.report() == {"gateway_branch_edited": 1.0}
    # The conversation that went on is the rollout, so its last turn has the reward.
    assert [turn.reward for turn in kept.turns if turn.role == "assistant"] == [None, 1.0]
    assert [turn.reward for turn in branch.turns] == [None]


async def test_a_turn_that_was_not_sampled_is_context(chat):
    served = serve(chat, ["one", "two"])
    await served.chat([BEGIN])
    await served.chat([BEGIN, said("invented"), user("And?")])
    rows = served.rows().rows
    assert [text_of(served, ids) for ids in trained_ids(served)] == ["two", "one"]
    shown = text_of(served, rows[0].ids[: rows[0].prompt_length])
    assert "invented" in shown
    assert served.session.report() == {"gateway_branch_edited": 1.0}


async def test_words_put_into_the_mouth_of_the_model_at_first_are_part_of_the_prompt(chat):
    """As in the loop: the first prompt is the model's own template, whatever stands in it."""
    served = serve(chat, ["two"])
    await served.chat([BEGIN, said("invented"), user("And?")])
    (root,) = served.session.tree.roots
    assert [child.kind for child in root.children] == [NodeKind.SAMPLED]
    assert served.session.report() == {}


async def test_sampled_turns_are_put_back_behind_another_system_prompt(chat):
    """Fails if a history whose beginning has changed is encoded again from its text."""
    # JSON that no writer spells so: encoding the echo again gives other ids.
    odd = CALL.replace('"a": 1', '"a":   1')
    served = serve(chat, [odd, "done"])
    first = await served.chat([SYSTEM, BEGIN], tools=CHAT_TOOLS)
    (made,) = first["tool_calls"]
    result = {"role": "tool", "tool_call_id": made["id"], "content": "3"}
    changed = {**SYSTEM, "content": "You add. It is noon."}
    await served.chat([changed, BEGIN, first, result], tools=CHAT_TOOLS)
    sampled = served.engine.requests[0].generation
    assert sampled is not None
    prompt = served.engine.requests[1].prompt_ids
    places = range(len(prompt) - len(sampled.ids))
    assert any(prompt[at : at + len(sampled.ids)] == sampled.ids for at in places)
    assert [text_of(served, ids) for ids in trained_ids(served)] == ["done", odd]


async def test_the_same_body_again_gets_the_same_answer_and_is_trained_once(chat):
    served = serve(chat, ["one", "two"])
    body = {"model": "policy", "messages": [BEGIN]}
    first = await served.post("chat/completions", body)
    again = await served.post("chat/completions", body)
    assert again == first
    assert [text_of(served, ids) for ids in trained_ids(served)] == ["one"]
    assert served.session.report() == {"gateway_retries": 1.0}


async def test_the_same_body_twice_at_once_is_sampled_once(chat):
    served = serve(chat, ["one", "two"], delay_s=0.05)
    body = {"model": "policy", "messages": [BEGIN]}
    answers = await asyncio.gather(*(served.post("chat/completions", body) for _ in range(3)))
    assert len(served.engine.requests) == 1
    assert {json.dumps(answer) for answer in answers} == {json.dumps(answers[0])}


async def test_an_engine_that_fails_is_not_an_answer_to_keep(chat):
    served = serve(
        chat, ["one"], fail=lambda number, session: RuntimeError("gone") if number == 0 else None
    )
    status, answer = await served.post("chat/completions", {"model": "policy", "messages": [BEGIN]})
    assert status == 500
    assert answer["error"]["code"] == "engine_failed"
    assert served.session.failure is not None
    assert served.session.rows(0.0) is None


async def side_calls(served: Served) -> None:
    """A title first, as OpenCode; a sub-agent with tools; a summary at the end, as pi."""
    await served.chat([{**SYSTEM, "content": "Write a title."}, BEGIN])
    one = await served.chat([SYSTEM, BEGIN], tools=CHAT_TOOLS)
    other = {**SYSTEM, "content": "You look things up."}
    await served.chat([other, user("Look.")], tools=CHAT_TOOLS)
    history = [SYSTEM, BEGIN, one, user("More.")]
    await served.chat(history, tools=CHAT_TOOLS)
    await served.chat([{**SYSTEM, "content": "Summarise."}, user("They said one, then four.")])


@pytest.mark.parametrize("policy", ["train", "context"])
async def test_side_calls_are_typed_and_follow_the_policy(chat, policy):
    served = serve(chat, ["title", "one", "found", "four", "summary"], side_calls=policy)
    await side_calls(served)
    kinds = [str(kind) for kind in kinds_of(served.session.tree).values()]
    assert kinds == ["title", "main", "subagent", "summary"]
    trained = [text_of(served, ids) for ids in trained_ids(served)]
    side = ["title", "found", "summary"] if policy == "train" else []
    assert trained == ["onefour", *side]
    # All turns come before the reward, so it stands at the latest that is trained.
    paid = [turn.text for row in served.rows().rows for turn in row.turns if turn.reward]
    assert paid == ["summary" if side else "four"]
    assert served.session.report() == {
        "gateway_side_subagent": 1.0, "gateway_side_summary": 1.0, "gateway_side_title": 1.0,
    }  # fmt: skip


CLAUDE_CODE = """x-anthropic-billing-header: cc_version=2.1.31.c3a; cc_entrypoint=cli; cch={hash};
You are Claude Code, Anthropic's official CLI for Claude.
<env>
Working directory: /work
Is directory a git repo: No
Platform: linux
Today's date: {date}
</env>"""
OPENCODE = "You are opencode.\n<env>\n  Today's date: {day} {month} {date}\n</env>"
PI = "You help.\n\nCurrent date and time: {day}day, {month}ember {date} at {time} {half} UTC"
CLOCKS = [
    (CLAUDE_CODE, {"hash": "0a1b2", "date": "2026-11-27"}, {"hash": "9c", "date": "2026-11-28"}),
    (OPENCODE, {"day": "Fri", "month": "Nov", "date": "27 2026"},
     {"day": "Tue", "month": "Dec", "date": "1 2026"}),
    (PI, {"day": "Fri", "month": "Nov", "date": "27, 2026", "time": "11:59:59", "half": "AM"},
     {"day": "Sun", "month": "Dec", "date": "6, 2026", "time": "12:00:00", "half": "PM"}),
]  # fmt: skip


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


@pytest.mark.parametrize(("prompt", "before", "after"), CLOCKS)
@pytest.mark.parametrize("tools", [CHAT_TOOLS, []], ids=["tools", "bare"])
async def test_a_clock_in_the_system_prompt_is_the_same_agent(chat, prompt, before, after, tools):
    """Fails if an agent is a sub-agent of itself after midnight, which `context` would not train;
    also where it compacts in the same request, and where its own sub-agent has that clock."""
    served = serve(chat, ["one", "two", "three", "found"], side_calls="context")
    offer = {"tools": tools} if tools else {}
    first, later = system(prompt.format(**before)), system(prompt.format(**after))
    one = await served.chat([first, BEGIN], **offer)
    await served.chat([later, BEGIN, one, user("More.")], **offer)
    await served.chat([first, user("So far: one, two.")], **offer)
    other = system("You look things up. " + later["content"])
    await served.chat([other, user("Look.")], **offer)
    side = "subagent" if tools else "summary"
    kinds = [str(kind) for kind in kinds_of(served.session.tree).values()]
    assert kinds == ["main", "main", "main", side]
    assert sorted(text_of(served, ids) for ids in trained_ids(served)) == ["one", "three", "two"]
    assert served.session.report() == {
        "gateway_branch_edited": 1.0, "gateway_branch_system": 1.0, f"gateway_side_{side}": 1.0,
    }  # fmt: skip


async def test_an_edited_system_prompt_behind_own_turns_is_the_same_agent(chat):
    """Notes that an agent keeps in its system prompt; fails if only clocks are known, or if a
    sub-agent or the request for a summary, with tools of its own, passes for the agent."""
    served = serve(chat, [CALL, "three", "four", "summary", "found"], side_calls="context")
    first = await served.chat([SYSTEM, BEGIN], tools=CHAT_TOOLS)
    (made,) = first["tool_calls"]
    history = [BEGIN, first, {"role": "tool", "tool_call_id": made["id"], "content": "3"}]
    notes = system("You add. Notes: the sum is three.")
    three = await served.chat([notes, *history], tools=CHAT_TOOLS)
    # The tail of the conversation behind a summary, with notes that have changed once more.
    more = system("You add. Notes: the sum is three, told to the user.")
    kept = [user("So far."), *history[1:], three, user("On.")]
    await served.chat([more, *kept], tools=CHAT_TOOLS)
    read = {**CHAT_TOOLS[0], "function": {**CHAT_TOOLS[0]["function"], "name": "read"}}
    await served.chat([system("You summarise."), *history, user("Summarise.")], tools=[read])
    await served.chat([system("You look things up."), BEGIN], tools=CHAT_TOOLS)
    kinds = [str(kind) for kind in kinds_of(served.session.tree).values()]
    assert kinds == ["main", "main", "main", "subagent", "subagent"]
    trained = [text_of(served, ids) for ids in trained_ids(served)]
    assert sorted(trained) == sorted([CALL, "three", "four"])
    assert served.session.report()["gateway_branch_system"] == 2.0


async def test_a_shorter_history_goes_on_in_another_row(chat):
    """Compaction: the same agent, with a summary in place of what was said."""
    served = serve(chat, ["one", "two", "three"])
    first = await served.chat([SYSTEM, BEGIN], tools=CHAT_TOOLS)
    await served.chat([SYSTEM, BEGIN, first, user("More.")], tools=CHAT_TOOLS)
    await served.chat([SYSTEM, user("So far: one, two.")], tools=CHAT_TOOLS)
    assert set(kinds_of(served.session.tree).values()) == {ConversationKind.MAIN}
    assert [text_of(served, ids) for ids in trained_ids(served)] == ["three", "onetwo"]
    assert served.session.report() == {"gateway_branch_edited": 1.0}


async def test_a_long_history_is_matched_in_a_loop_and_not_by_recursion(chat):
    served = serve(chat, ["ok"], max_assistant_turns=2000, max_user_turns=2000)
    history: list[Any] = [BEGIN]
    for turn in range(400):
        history += [await served.chat(history, metadata={"turn": turn}), user("on")]
    assert served.session.report() == {}
    (row,) = served.rows().rows
    assert len(row.turns) == 799
