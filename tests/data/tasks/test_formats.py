"""Files of other trainers, written as those write them, load without a mapping."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config.schema import DatasetSection
from agentrl.data import load_tasks
from agentrl.data.example_rows import tools_in
from agentrl.data.tasks.files import SourceRow
from agentrl.data.tasks.rows import task_of
from agentrl.errors import DataError
from agentrl.types import Message, Task


def load(path: Path, **values: Any) -> list[Task]:
    return load_tasks(DatasetSection(source=path.name, **values), base=path.parent)


def verl_row(n: int) -> dict[str, Any]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"{n}+{n}?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
        "extra_info": {"split": "train", "index": n},
    }


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_verl_parquet_gives_prompt_and_ground_truth(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist([verl_row(1), verl_row(2)]), path)
    tasks = load(path)
    assert [task.label for task in tasks] == ["2", "4"]
    assert tasks[0].prompt == (Message(role="user", content="1+1?"),)
    assert tasks[0].metadata["extra_info"] == {"split": "train", "index": 1}
    assert tasks[0].metadata["data_source"] == "openai/gsm8k"


def test_skyrl_rows_give_the_ground_truth_of_their_reward_spec(tmp_path: Path) -> None:
    row = verl_row(3)
    row["reward_spec"] = row.pop("reward_model")
    [task] = load(lines(tmp_path / "a.jsonl", row))
    assert task.label == "6"
    assert task.metadata["reward_spec"] == {"style": "rule", "ground_truth": "6"}
    broken = lines(tmp_path / "b.jsonl", row | {"reward_spec": {"style": "rule"}})
    with pytest.raises(DataError, match=r"reward_spec holds keys .* expected the SkyRL"):
        load(broken)


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_columns_of_json_text_are_what_they_say(kind: str, tmp_path: Path) -> None:
    """Fails if the model is shown JSON, or an environment finds text where it looks for a key."""
    prompt = [{"role": "system", "content": "S"}, {"role": "user", "content": "[1] of {2}"}]
    info, judge = {"index": 7, "split": "train"}, {"style": "rule", "ground_truth": "42"}
    row = {
        "prompt": json.dumps(prompt),
        "reward_model": json.dumps(judge),
        "extra_info": json.dumps(info),
        "data_source": "[not, messages]",
    }
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    elif kind == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([row.keys(), row.values()])
    else:
        path.write_text(json.dumps(row) + "\n")
    (task,) = load(path, columns={"id": "extra_info.index"})
    assert [(said.role, said.content) for said in task.prompt] == [
        ("system", "S"), ("user", "[1] of {2}"),
    ]  # fmt: skip
    assert (task.id, task.label, task.metadata["extra_info"]) == ("7", "42", info)
    assert task.metadata["data_source"] == "[not, messages]"


@pytest.mark.parametrize(
    "prompt", ["[1, 2]", "[]", '[{"a": 1}]', "[broken", '{"role": "user", "content": "x"}', " [x"]
)
def test_a_prompt_that_only_looks_like_messages_stays_text(prompt: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": prompt}) + "\n")
    (task,) = load(path)
    assert task.prompt == prompt


def test_text_that_is_nested_too_deep_is_text_and_deep_values_are_refused() -> None:
    """Fails if a row of the data ends a run with a traceback that names no row."""
    for text in ('{"a":' * 20_000, "[" * 20_000):
        for name in ("prompt", "label", "extra_info"):
            row = SourceRow(where="row 1", values={"prompt": "p", name: text}, flat=True)
            task = task_of(row, {}, "train")
            assert text in (task.prompt, task.label, task.metadata.get("extra_info"))
    deep = SourceRow(where="row 1", values={"prompt": "p", "x": json.loads("[" * 900 + "]" * 900)})
    with pytest.raises(DataError, match="row 1: a column holds values that are nested too deep"):
        task_of(deep, {}, "train")
    call = {"function": {"name": "f", "arguments": '{"a":' * 20_000}}
    said = [{"role": "user", "content": "p"}, {"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(DataError, match=r"row 1.*arguments of tool call 0"):
        task_of(SourceRow(where="row 1", values={"prompt": said}), {}, "train")
    tools = SourceRow(where="row 1", values={"tools": "[" * 20_000})
    with pytest.raises(DataError, match="row 1: tools is broken JSON"):
        tools_in(tools)


def test_a_mapping_and_an_own_column_come_before_the_verl_layout(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {**verl_row(1), "label": "mine", "other": "theirs"})
    assert load(path)[0].label == "mine"
    assert load(path, columns={"label": "other"})[0].label == "theirs"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reward_model": {"style": "rule"}}, "a.jsonl, line 1: reward_model holds keys"),
        ({"reward_model": "rule"}, "reward_model holds str"),
        ({"videos": [{"bytes": "x"}]}, "a verl row with videos"),
    ],
)
def test_a_broken_verl_row_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", verl_row(1) | change)
    with pytest.raises(DataError, match=words):
        load(path)


def test_nemo_gym_rows_become_chats(tmp_path: Path) -> None:
    request = {
        "instructions": "Be short.",
        "input": [
            {"role": "developer", "content": "Use tools."},
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "function_call", "call_id": "c1", "name": "ask", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ],
        "tools": [{"type": "function", "name": "ask"}],
    }
    path = lines(
        tmp_path / "a.jsonl",
        {"uuid": "u1", "responses_create_params": request, "expected_answer": "rain"},
        {"responses_create_params": {"input": "2+2?"}, "verifier_metadata": {"answer": 4}},
    )
    first, second = load(path)
    assert (first.id, first.label) == ("u1", "rain")
    assert [(m.role, m.content) for m in first.prompt if isinstance(m, Message)] == [
        ("system", "Be short."),
        ("system", "Use tools."),
        ("user", "Weather?"),
        ("assistant", ""),
        ("tool", "rain"),
    ]
    called = first.prompt[3]
    assert isinstance(called, Message)
    assert called.tool_calls[0].arguments == {"a": 1}
    assert first.metadata["responses_create_params"]["tools"][0]["name"] == "ask"
    assert (second.prompt, second.label) == ("2+2?", {"answer": 4})


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({}, "responses_create_params holds keys"),
        ("text", "responses_create_params holds str"),
        ({"input": [{"type": "reasoning"}]}, r"input\[0\]: type 'reasoning' has no place"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "'input_file'"),
        ({"input": [{"role": "robot", "content": "x"}]}, "message 0 of the prompt: role"),
    ],
)
def test_a_broken_nemo_gym_row_is_named(request_: Any, words: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"responses_create_params": request_})
    with pytest.raises(DataError, match=words):
        load(path)


READER = """
def tasks(path, base_dir, split="train"):
    return [{"id": "a", "prompt": (base_dir / path).read_text()}]
"""


def test_a_function_that_asks_for_base_dir_reads_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "p.txt").write_text("Hello")
    section = DatasetSection(source="reader.py:tasks", args={"path": "p.txt"})
    assert load_tasks(section, base=tmp_path)[0].prompt == "Hello"


HI = (Message(role="user", content="hi"),)
SAID = {"role": "assistant", "content": "yo"}
ASKED = {"role": "user", "content": "hi"}
BE = Message(role="system", content="be")


@pytest.mark.parametrize(
    ("row", "prompt", "label", "column"),
    [
        ({"question": "1+1?", "answer": "2"}, "1+1?", "2", "answer"),
        ({"problem": "1+1?", "solution": "so 2", "answer": "2"}, "1+1?", "2", "answer"),
        ({"problem": "1+1?", "solution": "2", "messages": [ASKED, SAID]}, "1+1?", "2", "solution"),
        ({"instruction": "Add.", "input": "1 1", "output": "2"}, "Add.\n1 1", "2", "output"),
        ({"instruction": "Add.", "input": "", "target": 2}, "Add.", 2, "target"),
        ({"input": "hi", "label": 3}, "hi", 3, ""),
        ({"input": [ASKED], "label": 3}, HI, 3, ""),
        ({"messages": [ASKED, SAID]}, HI, "yo", ""),
        ({"messages": [ASKED, SAID, ASKED]}, (*HI, Message(**SAID), *HI), None, ""),
        ({"messages": json.dumps([ASKED, SAID])}, HI, "yo", ""),
        ({"messages": [ASKED, SAID], "answer": "no"}, HI, "no", "answer"),
        (
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]},
            HI,
            "yo",
            "",
        ),
        ({"prompt": [ASKED], "ground_truth": "yo"}, HI, "yo", "ground_truth"),
        ({"query": "hi", "response": "yo"}, "hi", "yo", "response"),
        ({"prompt": "hi", "completion": "yo"}, "hi", "yo", "completion"),
        ({"system": "be", "question": "hi", "answer": "yo"}, (BE, *HI), "yo", "answer"),
        ({"system": "be", "messages": [ASKED, SAID]}, (BE, *HI), "yo", ""),
        (
            {"system": "be", "prompt": [{"role": "system", "content": "be"}, ASKED]},
            (BE, *HI),
            None,
            "",
        ),
        ({"system": {"os": "linux"}, "question": "hi"}, "hi", None, ""),
        ({"prompt": "hi", "label": None, "answer": "yo"}, "hi", None, ""),
        ({"question": "hi", "reward_model": {"ground_truth": "7"}, "answer": "8"}, "hi", "7", ""),
    ],
)
def test_usual_names_of_a_prompt_and_a_label_need_no_mapping(
    tmp_path: Path, row: dict[str, Any], prompt: Any, label: Any, column: str
) -> None:
    [task] = load(lines(tmp_path / "a.jsonl", row))
    assert (task.prompt, task.label, task.label_column) == (prompt, label, column)
    # What another column than ours holds stays there, for functions that ask for it by its name.
    assert task.metadata == {k: v for k, v in row.items() if k not in ("prompt", "label")}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    [task] = load(tmp_path / "a.parquet")
    assert (task.prompt, task.label) == (prompt, label)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a", "problem": "b"}, r"\['question', 'problem'\] may hold the prompt; name"),
        ({"text": "a"}, r"no column for the prompt: got 'prompt'; valid: text; name the right"),
        ({"messages": [SAID]}, r"line 1: the prompt is an empty list of messages"),
        ({"messages": []}, r"line 1: the prompt is an empty list"),
        (
            {"question": None, "answer": "a"},
            r"the prompt, column 'question', is None; expected text",
        ),
        (
            {"question": "", "input": None},
            r"column 'question', is ''; .* leave the row out, or name",
        ),
        ({"problem": 0}, r"column 'problem', is 0; expected text"),
        ({"instruction": 3, "input": "a"}, r"the prompt is int 3; expected text"),
        (
            {"prompt": [{"role": "system", "content": "a"}, ASKED], "system": "b"},
            "two system texts",
        ),
        ({"messages": 3}, r"the prompt is int 3; expected text or a list"),
        ({"conversations": [{"from": "fox", "value": "hi"}]}, r"from got 'fox'; valid: assistant"),
    ],
)
def test_a_prompt_that_is_not_sure_is_refused(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(lines(tmp_path / "a.jsonl", row))


def test_which_of_several_columns_is_the_label_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"problem": f"{n}?", "answer": n, "solution": f"so {n}"} for n in range(3)]
    path = lines(tmp_path / "a.jsonl", *rows)
    load(path)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "the label is the column 'answer', and not 'solution'" in said
    caplog.clear()
    assert load(path, columns={"label": "solution"})[1].label == "so 1"
    assert not caplog.records
