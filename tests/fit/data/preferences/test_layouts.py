"""Rows in the layouts of others: what is compared, and what is refused with which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.fit.data.preferences.layouts import PairLayout
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.types import PreferencePair

USER = {"role": "user", "content": "What is 2 + 2?"}
CALL = {"id": "1", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def load(tmp_path: Path, *rows: dict[str, Any], **options: Any):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_pairs(str(path), **options)


def texts(pair: PreferencePair) -> tuple[str, str, str]:
    return (
        "|".join(message.content for message in pair.prompt),
        "|".join(message.content for message in pair.chosen.messages),
        "|".join(message.content for message in pair.rejected.messages),
    )


SAME = ("What is 2 + 2?", "4", "5")
ROWS: dict[str, tuple[dict[str, Any], PairLayout, float | None]] = {
    "texts": ({"prompt": USER["content"], "chosen": "4", "rejected": "5"}, PairLayout.PAIRS, None),
    "TRL": (
        {"prompt": [USER], "chosen": [said("4")], "rejected": [said("5")]},
        PairLayout.PAIRS,
        None,
    ),
    "UltraFeedback binarized": (
        {
            "prompt": USER["content"], "chosen": [USER, said("4")], "rejected": [USER, said("5")],
            "score_chosen": 8.5, "score_rejected": 6.0,
        },
        PairLayout.SHARED,
        2.5,
    ),
    "TRL implicit": (
        {"chosen": [USER, said("4")], "rejected": [USER, said("5")]},
        PairLayout.SHARED,
        None,
    ),
    "hh-rlhf": (
        {
            "chosen": "\n\nHuman: What is 2 + 2?\n\nAssistant: 4",
            "rejected": "\n\nHuman: What is 2 + 2?\n\nAssistant: 5",
        },
        PairLayout.SHARED,
        None,
    ),
    "HelpSteer3": (
        {
            "context": [USER], "response1": "5", "response2": "4", "overall_preference": 2,
            "language": "english",
        },
        PairLayout.COMPARED,
        2.0,
    ),
    "UltraFeedback": (
        {
            "instruction": USER["content"],
            "completions": [
                {"response": "5", "overall_score": 3.0, "model": "a"},
                {"response": "4", "overall_score": 7.5, "model": "b"},
            ],
        },
        PairLayout.SCORED,
        4.5,
    ),
    "scores beside": (
        {"prompt": USER["content"], "responses": ["4", "5"], "scores": [1, 0]},
        PairLayout.SCORED,
        1.0,
    ),
    "Skywork": (
        {
            "chosen": [USER, said("4")], "rejected": [USER, said("5")],
            "chosen_score": 1, "rejected_score": 4,
        },
        PairLayout.SHARED,
        -3.0,
    ),
    "messages with scores": (
        {"prompt": USER["content"], "completions": [said("5"), said("4")], "scores": [0, 1]},
        PairLayout.SCORED,
        1.0,
    ),
    "Nectar": (
        {
            "prompt": USER["content"],
            "answers": [{"answer": "5", "rank": 2.0}, {"answer": "4", "rank": 1.0}],
        },
        PairLayout.SCORED,
        1.0,
    ),
    "joined tables": (
        {
            "prompt": USER["content"], "chosen": "4", "rejected": "5", "chosen_ids": None,
            "rejected_ids": None, "completions": None, "messages": None,
        },
        PairLayout.PAIRS,
        None,
    ),
    "own margin": (
        {"prompt": USER["content"], "chosen": "4", "rejected": "5", "margin": 3},
        PairLayout.PAIRS,
        3.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_each_layout_is_known_by_its_columns(tmp_path: Path, name: str) -> None:
    """Fails if chosen and rejected are exchanged, or the prompt stays in a completion."""
    row, layout, margin = ROWS[name]
    pairs = load(tmp_path, row)
    assert pairs.layouts == {layout}
    (pair,) = pairs
    assert texts(pair) == SAME
    assert pair.margin == margin


def test_rated_responses_are_compared_within_their_prompt(tmp_path: Path) -> None:
    """Fails if HelpSteer2's rows of other prompts meet, or a tie becomes a pair."""
    rows = [
        {"prompt": "a", "response": "good", "helpfulness": 4, "verbosity": 1},
        {"prompt": "b", "response": "other", "helpfulness": 0, "verbosity": 2},
        {"prompt": "a", "response": "bad", "helpfulness": 1, "verbosity": 2},
        {"prompt": "a", "response": "also bad", "helpfulness": 1, "verbosity": 2},
    ]
    pairs = load(tmp_path, *rows)
    assert [texts(pair)[1:] for pair in pairs] == [("good", "bad"), ("good", "also bad")]
    assert [pair.margin for pair in pairs] == [3.0, 3.0]
    assert (pairs.ties, pairs.rows) == (1, 4)
    assert len({pair.id for pair in pairs}) == 2


def test_parts_of_a_prompt_are_kept(tmp_path: Path) -> None:
    """Fails if an instruction loses its input, or a system text is dropped: prompts become one."""
    alpaca = {"instruction": "Add.", "input": "2 + 2", "chosen": "4", "rejected": "5"}
    orca = {"system": "Be brief.", "question": "2 + 2?", "chosen": "4", "rejected": "5"}
    pairs = load(tmp_path, alpaca, orca)
    assert [texts(pair)[0] for pair in pairs] == ["Add.\n2 + 2", "Be brief.|2 + 2?"]
    assert [message.role for message in pairs[1].prompt] == ["system", "user"]


def test_a_prompt_with_tool_calls_may_be_rated(tmp_path: Path) -> None:
    tool = {"role": "tool", "content": "4", "tool_call_id": "1"}
    prompt = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, tool]
    rows = [{"prompt": prompt, "response": text, "score": n} for n, text in enumerate("ab")]
    (pair,) = load(tmp_path, *rows, {"prompt": prompt, "response": "c", "score": None})
    assert pair.margin == 1.0
    assert pair.source.endswith("line 2 and " + pair.source.split(" and ")[1])


def test_either_side_may_be_the_longer_one(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    tool = {"role": "tool", "content": "4", "tool_call_id": "1"}
    sides = ([USER, call, said("4")], [USER, call, tool, said("4")])
    for chosen, rejected in (sides, sides[::-1]):
        (pair,) = load(tmp_path, {"chosen": chosen, "rejected": rejected})
        assert [message.role for message in pair.prompt] == ["user"]


def test_broken_rows_can_be_collected(tmp_path: Path) -> None:
    pairs = load(tmp_path, GOOD, {**GOOD, "margin": "much"}, GOOD, collect_broken=True)
    assert (len(pairs), pairs.rows) == (2, 3)
    assert "line 2: margin is 'much'" in pairs.broken[0]


def arrays(split: str) -> list[Any]:
    import numpy as np

    return [
        {"prompt": "p", "completions": np.array(["a", "b"]), "scores": np.array([1.0, 0.5])},
        {"prompt": np.array([USER, {"role": "assistant", "content": "", "tool_calls":
                                    np.array([CALL, CALL])}, USER], dtype=object),
         "chosen": "a", "rejected": "b"},
    ]  # fmt: skip


def test_arrays_are_lists() -> None:
    pairs = load_pairs(f"{__name__}:arrays")
    assert [pair.margin for pair in pairs] == [0.5, None]
    assert len(pairs[1].prompt[1].tool_calls) == 2


def test_labels_are_not_turned_round_by_scores(tmp_path: Path) -> None:
    row = {"prompt": "p", "chosen": "a", "rejected": "b", "score_chosen": 1, "score_rejected": 4}
    (pair,) = load(tmp_path, row)
    assert (texts(pair)[1], pair.margin) == ("a", -3.0)


def test_turns_with_tool_calls_are_one_completion(tmp_path: Path) -> None:
    """Fails if a completion ends with its first message, or a shared turn is compared."""
    tool = {"role": "tool", "content": "4", "tool_call_id": "1"}
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    row = {
        "chosen": [USER, calling, tool, said("4")],
        "rejected": [USER, calling, tool, said("5"), USER, said("4")],
    }
    (pair,) = load(tmp_path, row)
    # The call and its result are the same in both.
    assert [message.role for message in pair.prompt] == ["user", "assistant", "tool"]
    assert pair.prompt[1].tool_calls[0].arguments == {"a": 2, "b": 2}
    assert [message.content for message in pair.rejected.messages] == ["5", USER["content"], "4"]
    assert (pair.chosen.length, pair.rejected.length) == (1, 2)


def test_tools_belong_to_a_pair(tmp_path: Path) -> None:
    """Fails if a pair loses what was offered, or answers with different tools are compared."""
    schema = {"type": "function", "function": {"name": "add"}}
    pair = {"prompt": "p", "chosen": "a", "rejected": "b"}
    with_tools, without = load(tmp_path, {**pair, "tools": json.dumps([schema])}, pair)
    assert (with_tools.tools, without.tools) == ((schema,), ())
    rated = [
        {"prompt": "p", "response": str(n), "score": n, "tools": [schema] * (n % 2)}
        for n in range(3)
    ]
    (compared,) = load(tmp_path, *rated)
    assert compared.tools == ()
    assert (texts(compared)[1:], compared.margin) == (("2", "0"), 2.0)
    with pytest.raises(DataError, match="line 1: tool 0 is 'add'"):
        load(tmp_path, {**pair, "tools": ["add"]})


def test_calls_count_in_the_length(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    (pair,) = load(tmp_path, {"prompt": "p", "chosen": [call], "rejected": "b"})
    assert pair.chosen.messages[0].tool_calls[0].raw == ""
    assert pair.chosen.length == len("add" + '{"a": 2, "b": 2}')


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    row = {"q": "p", "answers": {"best": "a", "worst": "b"}, "gap": 2}
    columns = {
        "prompt": "q",
        "chosen": "answers.best",
        "rejected": "answers.worst",
        "margin": "gap",
    }
    (pair,) = load(tmp_path, row, columns=columns)
    assert (*texts(pair), pair.margin) == ("p", "a", "b", 2.0)
    with pytest.raises(DataError, match=r"line 1: no column for the chosen.*best_one"):
        load(tmp_path, row, columns={"chosen": "best_one"})
    with pytest.raises(ConfigError, match="chose"):
        load(tmp_path, row, columns={"chose": "q"})


GOOD = {"prompt": "p", "chosen": "a", "rejected": "b"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"text2": "a"}, "of no known layout; expected chosen and rejected"),
    "two prompts": (
        {"context": "c", "question": "q", "chosen": "a", "rejected": "b"},
        "may be the prompt",
    ),
    "steps": (
        {"prompt": "p", "completions": ["s1", "s2"], "labels": [True, False]},
        "steps of one answer",
    ),
    "no scores": ({"prompt": "p", "completions": [said("a"), said("b")]}, "no list of as many"),
    "unsigned": (
        {"prompt": "p", "response_a": "a", "response_b": "b", "preference": 1},
        "of no known layout",
    ),
    "kto": ({"prompt": "p", "completion": "a", "label": True}, "one answer with a verdict"),
    "sft": ({"messages": [USER, said("4")]}, "hold a conversation"),
    "empty prompt": ({**GOOD, "prompt": " "}, "the prompt is empty"),
    "user speaks": ({**GOOD, "chosen": [USER]}, "chosen begins with role 'user'"),
    "no prompt": ({"chosen": "a", "rejected": "b"}, "text without a prompt beside it"),
    "nothing shared": (
        {"chosen": [USER, said("4")], "rejected": [{**USER, "content": "other"}, said("5")]},
        "share no prompt",
    ),
    "NaN": ({**GOOD, "margin": float("nan")}, "margin is nan; expected a finite number"),
    "words": ({**GOOD, "margin": "much"}, "margin is 'much'; expected a finite number"),
    "probability": ({**GOOD, "label_probability": 1.5}, r"is 1.5; expected one in \[0, 1\]"),
    "weight": ({**GOOD, "weight": -1}, r"weight is -1; expected one in \[0, inf\]"),
    "scores": ({"prompt": "p", "responses": ["a", "b"], "scores": [1]}, "no list of as many"),
    "picture": (
        {**GOOD, "chosen": [{"role": "assistant", "content": [{"type": "image"}]}]},
        r"type \['image'\]; expected text",
    ),
    "sampled": ({"chosen_ids": [1], "rejected_ids": [2]}, "expected a row of agentrl prefs make"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_row_is_named(tmp_path: Path, name: str) -> None:
    row, message = REFUSED[name]
    with pytest.raises(DataError, match=rf"line 2: .*{message}"):
        load(tmp_path, GOOD, row)


def test_a_source_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows"):
        load(tmp_path)


def pairs_of_mine(split: str) -> list[Any]:
    return [{"prompt": split, "chosen": "a", "rejected": "b"}] * 2


def test_a_function_is_a_source() -> None:
    pairs = load_pairs(f"{__name__}:pairs_of_mine", split="test")
    assert [texts(pair)[0] for pair in pairs] == ["test", "test"]
    assert len({pair.id for pair in pairs}) == 2
