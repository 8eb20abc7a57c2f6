"""Answers that are called good or bad: layouts, labels, pairs and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.data.store.trajectory_store import TrajectoryStore
from agentrl.errors import ConfigError, DataError
from agentrl.fit.data.preferences.verdicts import load_verdicts
from tests.data.records import group, trajectory

USER = {"role": "user", "content": "2 + 2?"}
SAID = {"role": "assistant", "content": "4"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": {"a": 2}}}],
}
RESULT = {"role": "tool", "content": "4", "tool_call_id": "1"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def load(tmp_path: Path, *rows: dict[str, Any], **options: Any):
    path = tmp_path / "verdicts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_verdicts(str(path), **options)


ROWS = {
    "texts": {"prompt": "2 + 2?", "completion": "4", "label": True},
    "TRL": {"prompt": [USER], "completion": [SAID], "label": True},
    "number": {"prompt": "2 + 2?", "response": "4", "label": 1},
    "word": {"instruction": "2 + 2?", "output": "4", "label": "True"},
}


@pytest.mark.parametrize("name", ROWS)
def test_layouts(tmp_path, name):
    (found,) = load(tmp_path, ROWS[name])
    assert found.desirable is True
    assert [m.content for m in found.conversation.prompt] == ["2 + 2?"]
    assert [m.content for m in found.conversation.completion.messages] == ["4"]


def test_calls_of_tools_labels_and_weights(tmp_path):
    row = {
        "id": "x", "prompt": [USER], "completion": [CALL, RESULT, SAID], "label": False,
        "tools": [ADD], "weight": 0.5,
    }  # fmt: skip
    (found,) = load(tmp_path, row)
    assert found.desirable is False
    assert found.conversation.id == "x"
    assert found.conversation.weight == 0.5
    assert [tool["function"]["name"] for tool in found.conversation.tools] == ["add"]
    said = found.conversation.completion.messages
    assert [message.role for message in said] == ["assistant", "tool", "assistant"]
    assert said[0].tool_calls[0].name == "add"


def test_columns_are_mapped(tmp_path):
    row = {"prompt": "p", "said": "a", "completion": "b", "good": 0}
    (found,) = load(tmp_path, row, columns={"completion": "said", "label": "good"})
    assert found.desirable is False
    assert found.conversation.completion.messages[0].content == "a"


def test_pairs_are_one_good_and_one_bad_answer(tmp_path):
    """Fails if both get one verdict, or scored answers that are equal get any."""
    rows = [
        {"id": "p", "prompt": "q", "chosen": "better", "rejected": "worse"},
        {"id": "s", "prompt": "q", "completions": ["a", "b"], "scores": [1, 1]},
    ]
    found = load(tmp_path, *rows)
    assert [(v.conversation.id, v.desirable) for v in found] == [
        ("p/chosen", True), ("p/rejected", False)
    ]  # fmt: skip
    texts = [v.conversation.completion.messages[0].content for v in found]
    assert texts == ["better", "worse"]
    assert dict(found.left_out) == {"neither answer is the better one": 1}


BAD = {
    "label": ({"prompt": "p", "completion": "a", "label": "good"}, r"line 1.*label is 'good'; exp"),
    "score": ({"prompt": "p", "completion": "a", "label": 0.5}, r"label is 0\.5"),
    "answer": ({"prompt": "p", "label": True}, "none of the columns completion, output"),
    "no label": ({"prompt": "p", "completion": "a"}, "line 1"),
    "user": ({"prompt": [USER], "completion": [USER], "label": True}, "nothing after the prompt"),
}


@pytest.mark.parametrize("name", BAD)
def test_broken_rows_are_one_message(tmp_path, name):
    row, message = BAD[name]
    with pytest.raises(DataError, match=message):
        load(tmp_path, row)


def test_an_unknown_column_name(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'label'"):
        load(tmp_path, ROWS["texts"], columns={"labels": "x"})


def stored(folder: Path) -> Path:
    run = folder / "a-run"
    run.mkdir()
    (run / "config.yaml").write_text("")
    (run / "run.json").write_text(json.dumps({"base": str(folder)}))
    scores = (0.0, 0.5, 1.0, 1.0)
    rows = [
        trajectory(
            task_id="t", group_id="g", rollout_id=f"r{n}", prompt_ids=(1, 2),
            response_ids=(20, min(n, 2), 7, 13), reward=score, score=score,
        )
        for n, score in enumerate(scores)
    ]  # fmt: skip
    TrajectoryStore(run / "trajectories").write(1, "train", [group(*rows)])
    return run


def test_rollouts_are_desirable_from_a_score_on(tmp_path):
    """Fails if the least score is taken for a bad one, or the same tokens count twice."""
    stored(tmp_path)
    found = load_verdicts("run:a-run", base=tmp_path, min_score=0.5)
    assert [v.desirable for v in found] == [False, True, True]
    assert dict(found.left_out) == {"the same tokens as another rollout": 1}
    assert all(v.conversation.prompt_ids == (1, 2) for v in found)
    assert len(load_verdicts("run:a-run", base=tmp_path, min_score=0.5, limit=2)) == 2
    with pytest.raises(ConfigError, match="set min_score"):
        load_verdicts("run:a-run", base=tmp_path)
    with pytest.raises(DataError, match="rollouts of kind"):
        load_verdicts("run:a-run", base=tmp_path, min_score=0.5, split="eval/x")


def test_a_label_probability_comes_with_answers_and_pairs(tmp_path):
    """Fails if it is passed over, or read as the probability that an answer is desirable."""
    single = {**ROWS["texts"], "label": False, "label_probability": 0.8}
    pair = {"prompt": "3 + 3?", "chosen": "6", "rejected": "7", "label_probability": 0.75}
    found = load(tmp_path, single, pair)
    assert [(each.desirable, each.label_probability) for each in found] == [
        (False, 0.8), (True, 0.75), (False, 0.75),
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"label_probability is 1\.5; expected one in \[0, 1\]"):
        load(tmp_path, {**single, "label_probability": 1.5})
