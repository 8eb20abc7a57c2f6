from __future__ import annotations

import csv
import datetime
import gzip
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.config.schema import DatasetSection
from agentrl.data import load_tasks
from agentrl.data.tasks.files import read_file
from agentrl.errors import ConfigError, DataError
from agentrl.types import Message, Task


def section(source: str, **values: Any) -> DatasetSection:
    return DatasetSection(source=source, **values)


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROWS = [{"id": f"t{n}", "prompt": f"{n}+{n}?", "label": 2 * n, "level": n % 2} for n in range(4)]


def write_as(kind: str, path: Path) -> Path:
    path = path.with_name(path.name + kind)
    if kind == ".jsonl":
        write_lines(path, ROWS)
    elif kind == ".json":
        path.write_text(json.dumps(ROWS))
    elif kind == ".jsonl.gz":
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("kind", [".jsonl", ".json", ".jsonl.gz", ".parquet"])
def test_every_kind_of_file_gives_the_same_tasks(kind: str, tmp_path: Path) -> None:
    path = write_as(kind, tmp_path / "rows")
    tasks = load_tasks(section(path.name, split="dev"), base=tmp_path)
    assert tasks == [
        Task(id=f"t{n}", prompt=f"{n}+{n}?", label=2 * n, metadata={"level": n % 2}, split="dev")
        for n in range(4)
    ]


def test_csv_cells_are_text_and_may_be_longer_than_the_csv_module_likes(tmp_path: Path) -> None:
    long = 'say "hi",\n' * 50_000
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["id", "prompt", "label"], ["007", long, "1"]])
    assert load_tasks(section("rows.csv"), base=tmp_path) == [
        Task(id="007", prompt=long, label="1")
    ]


def test_json_may_hold_its_rows_in_one_list_or_be_lines_in_disguise(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, "data": ROWS}))
    write_lines(tmp_path / "b.json", ROWS)
    one = load_tasks(section("a.json"), base=tmp_path)
    assert one == load_tasks(section("b.json"), base=tmp_path)
    assert len(one) == 4


def test_human_eval_rows(tmp_path: Path) -> None:
    row = {
        "task_id": "HumanEval/0",
        "prompt": "def f(x):\n",
        "entry_point": "f",
        "canonical_solution": "    return x\n",
        "test": "def check(c):\n    assert c(1) == 1\n",
    }
    write_lines(tmp_path / "he.jsonl", [row])
    columns = {"id": "task_id", "label": "test"}
    (task,) = load_tasks(section("he.jsonl", columns=columns), base=tmp_path)
    assert (task.id, task.prompt, task.label) == ("HumanEval/0", row["prompt"], row["test"])
    assert task.metadata == {"entry_point": "f", "canonical_solution": "    return x\n"}


def test_verl_parquet_rows(tmp_path: Path) -> None:
    rows = [
        {
            "data_source": "gsm8k",
            "prompt": [{"role": "user", "content": f"q{n}", "tool_calls": None}],
            "reward_model": {"style": "rule", "ground_truth": str(n)},
            "extra_info": {"index": n, "split": "train"},
        }
        for n in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "verl.parquet")
    columns = {"id": "extra_info.index", "label": "reward_model.ground_truth"}
    tasks = load_tasks(section("verl.parquet", columns=columns), base=tmp_path)
    assert [(task.id, task.label) for task in tasks] == [("0", "0"), ("1", "1"), ("2", "2")]
    assert tasks[2].prompt == (Message(role="user", content="q2"),)
    assert tasks[2].metadata == {
        "data_source": "gsm8k",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 2, "split": "train"},
    }


def test_a_column_with_a_dot_in_its_name_wins_over_a_path(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"prompt": "q", "a.b": 1, "a": {"b": 2}}])
    (task,) = load_tasks(section("a.jsonl", columns={"label": "a.b"}), base=tmp_path)
    assert task.label == 1
    assert task.metadata == {"a": {"b": 2}}


def test_messages_with_parts_and_tool_calls(tmp_path: Path) -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    prompt = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "add"},
    ]
    write_lines(tmp_path / "a.jsonl", [{"prompt": prompt}])
    (task,) = load_tasks(section("a.jsonl"), base=tmp_path)
    user, assistant, tool = task.prompt
    assert isinstance(user, Message)
    assert user.content == "ab"
    assert assistant.content == ""  # type: ignore[union-attr]
    assert assistant.tool_calls[0].arguments == {"a": 1}  # type: ignore[union-attr]
    assert tool == Message(role="tool", content="1", tool_call_id="c1", name="add")


def test_developer_messages_are_system_messages(tmp_path: Path) -> None:
    said = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": "x"}]
    write_lines(tmp_path / "a.jsonl", [{"prompt": said}])
    (task,) = load_tasks(section("a.jsonl"), base=tmp_path)
    assert task.prompt[0] == Message(role="system", content="Be short.")


def test_ids_made_of_content_do_not_depend_on_the_other_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Fails if the id is made of the position: the second file has one row less.
    write_lines(tmp_path / "a.jsonl", [{"prompt": "x"}, {"prompt": "y"}, {"prompt": "y"}])
    write_lines(tmp_path / "b.jsonl", [{"id": None, "prompt": "z"}, {"prompt": "y"}])
    first = load_tasks(section("a.jsonl"), base=tmp_path)
    second = load_tasks(section("b.jsonl"), base=tmp_path)
    assert first[1].id == second[1].id
    assert first[2].id == f"{first[1].id}-2"
    assert len({task.id for task in first}) == 3
    assert "1 rows repeat" in caplog.text


def test_values_that_json_does_not_know_become_ones_it_does(tmp_path: Path) -> None:
    row = {"prompt": "q", "when": datetime.datetime(2026, 1, 2, 3), "raw": b"\xff"}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    (task,) = load_tasks(section("a.parquet"), base=tmp_path)
    assert task.metadata == {"when": "2026-01-02T03:00:00", "raw": "/w=="}
    json.dumps(task.metadata)


def test_a_row_written_from_a_task_comes_back_as_it_was(tmp_path: Path) -> None:
    row = {"id": "a", "prompt": "q", "label": None, "metadata": {"family": "f"}}
    write_lines(tmp_path / "a.jsonl", [row])
    (task,) = load_tasks(section("a.jsonl"), base=tmp_path)
    assert task == Task(id="a", prompt="q", metadata={"family": "f"})


def test_a_directory_gives_the_files_of_its_split(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test.jsonl"):
        write_lines(tmp_path / name, [{"id": name, "prompt": "q"}])
    (tmp_path / "readme.txt").write_text("not data")
    train = load_tasks(section(str(tmp_path)))
    assert [task.id for task in train] == [
        "train-00000-of-00002.jsonl",
        "train-00001-of-00002.jsonl",
    ]
    assert [t.id for t in load_tasks(section(str(tmp_path), split="test"))] == ["test.jsonl"]
    with pytest.raises(DataError, match=r"no files of split 'dev'; splits here: \['test', 'train'"):
        load_tasks(section(str(tmp_path), split="dev"))


def test_a_directory_without_splits_gives_all_files_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl"):
        write_lines(tmp_path / name, [{"id": name, "prompt": "q"}])
    assert [task.id for task in load_tasks(section(str(tmp_path)))] == ["a.jsonl", "b.jsonl"]


def test_limit_stops_reading(tmp_path: Path) -> None:
    # Fails if the file is read to its end before the limit is applied: line 3 is broken.
    (tmp_path / "a.jsonl").write_text('{"prompt": "1"}\n{"prompt": "2"}\n{broken\n')
    assert len(load_tasks(section("a.jsonl", limit=2), base=tmp_path)) == 2


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ('{"prompt": "q"}\n{"prompt": "x\n', {}, r"a\.jsonl, line 2: broken JSON"),
        ('{"prompt": "q"}\n[1]\n', {}, r"a\.jsonl, line 2: expected an object.*got list"),
        ('{"asked": "q"}\n', {}, r"line 1: no column for the prompt.*valid: asked; name"),
        ('{"prompt": "q", "answer": 1}\n', {"label": "answr"}, r"did you mean 'answer'"),
        ('{"id": 1, "prompt": "q"}\n{"id": "1", "prompt": "r"}\n', {},
         r"line 2: id '1' was used before, by .*line 1"),
        ('{"prompt": ""}\n', {}, r"line 1: the prompt is empty"),
        ('{"prompt": null}\n', {}, r"line 1: the prompt is null"),
        ('{"prompt": 3}\n', {}, r"line 1: the prompt is int 3; expected text"),
        ('{"prompt": []}\n', {}, r"empty list of messages"),
        ('{"prompt": ["hi"]}\n', {}, r"message 0 of the prompt is str"),
        ('{"prompt": [{"role": "usr", "content": "q"}]}\n', {}, r"did you mean 'user'"),
        ('{"prompt": [{"role": "user", "content": [{"type": "image_url"}]}]}\n', {}, r"image_url"),
        ('{"prompt": [{"role": "user"}]}\n', {}, r"content is NoneType"),
        ("\n\n", {}, r"no rows"),
        ("", {}, r"no rows"),
    ],
)  # fmt: skip
def test_a_broken_row_is_named(
    text: str, columns: dict[str, str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=message):
        load_tasks(section("a.jsonl", columns=columns), base=tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"prompt": "\xff"}\n', r"line 1: broken JSON"),
        ("a.json", b"[1, 2", r"line 1: broken JSON"),
        ("a.json", b"3", r"expected a list of rows"),
        ("a.parquet", b"PAR1 no", r"not a readable parquet file"),
        ("a.csv", b"prompt\na,b\n", r"row 1: 1 cells more"),
        ("a.csv", b"prompt,label\na\n", r"row 1: no cells for \['label'\]"),
        ("a.csv", b'prompt\n"a\n', r"broken CSV"),
        ("a.jsonl.gz", b"plain", r"cannot be read"),
    ],
)
def test_a_broken_file_is_named(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        load_tasks(section(name), base=tmp_path)
    assert name in str(caught.value)


def test_a_source_that_is_not_there_names_its_neighbours(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.jsonl", ROWS)
    with pytest.raises(DataError, match=r"did you mean 'train\.jsonl'.*hf:NAME"):
        load_tasks(section("tain.jsonl"), base=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no dataset files"):
        load_tasks(section("empty"), base=tmp_path)


def test_an_unknown_column_role_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got 'promt'; did you mean 'prompt'"):
        load_tasks(section("x", columns={"promt": "q"}), base=tmp_path)


MAKER = """
from agentrl import Task

def rows(split, count=2):
    yield Task(id="given", prompt="", split=split)
    for n in range(count):
        yield {"prompt": f"q{n}", "level": n}

def broken(split):
    yield {"prompt": "q"}
    raise KeyError("gone")

def number(split):
    return 7
"""


def test_a_function_may_give_tasks_and_rows(tmp_path: Path) -> None:
    (tmp_path / "maker.py").write_text(MAKER)
    tasks = load_tasks(section("maker.py:rows", split="dev", args={"count": 1}), base=tmp_path)
    assert [(task.prompt, task.split) for task in tasks] == [("", "dev"), ("q0", "dev")]
    assert tasks[1].metadata == {"level": 0}


@pytest.mark.parametrize(
    ("source", "args", "error", "message"),
    [
        ("maker.py:broken", {}, DataError, r"raised KeyError after 1 rows: 'gone'"),
        ("maker.py:number", {}, DataError, r"returned int, expected an iterable"),
        ("maker.py:rows", {"cuont": 3}, ConfigError, r"unexpected keyword argument 'cuont'"),
        ("maker.py:row", {}, ConfigError, r"did you mean 'rows'"),
        ("no_such_package_here:rows", {}, ConfigError, r"was not found"),
    ],
)
def test_a_function_that_fails_is_named(
    source: str, args: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    (tmp_path / "maker.py").write_text(MAKER)
    with pytest.raises(error, match=message):
        load_tasks(section(source, args=args), base=tmp_path)


def run_python(code: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_datasets_saved_to_disk_and_local_folders_load_without_a_network(tmp_path: Path) -> None:
    # In a process of its own, so that the cache and the offline switch are not ours.
    write_lines(tmp_path / "train.jsonl", ROWS)
    out = run_python(
        """
        import datasets, json
        from agentrl.config.schema import DatasetSection
        from agentrl.data import load_tasks
        from agentrl.errors import DataError
        from pathlib import Path

        rows = [json.loads(line) for line in open("train.jsonl")]
        whole = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})
        whole.save_to_disk("saved")
        Path("folder").mkdir()
        Path("train.jsonl").rename("folder/train.jsonl")
        for source in ("saved", "hf:saved", "hf:folder"):
            tasks = load_tasks(DatasetSection(source=source))
            print([task.id for task in tasks], tasks[1].label)
        for source, split in (("hf:saved", "trian"), ("hf:nobody/nothing:x", "train")):
            try:
                load_tasks(DatasetSection(source=source, split=split))
            except DataError as error:
                print(error)
        """,
        tmp_path,
        HF_HUB_OFFLINE="1",
        HF_HOME=str(tmp_path / "home"),
    ).splitlines()
    assert out[:3] == ["['t0', 't1', 't2', 't3'] 2"] * 3
    assert "did you mean 'train'" in out[3]
    assert "hf:nobody/nothing:x" in out[4]


def test_a_missing_datasets_package_is_said_plainly(tmp_path: Path) -> None:
    out = run_python(
        """
        import sys
        sys.modules["datasets"] = None
        from agentrl.config.schema import DatasetSection
        from agentrl.data import load_tasks
        try:
            load_tasks(DatasetSection(source="hf:x/y"))
        except Exception as error:
            print(type(error).__name__, error)
        """,
        tmp_path,
    )
    assert out.startswith("DataError")
    assert "pip install datasets" in out


def test_what_is_no_plain_file_and_a_line_without_end_are_refused(tmp_path: Path) -> None:
    # Fails if one of them is opened: a pipe is waited for, a device and the line never end.
    os.mkfifo(tmp_path / "rows.jsonl")
    for source in ("rows.jsonl", "/dev/zero"):
        with pytest.raises(DataError, match="no plain file"):
            load_tasks(DatasetSection(source=source), base=tmp_path)
    with pytest.raises(DataError, match="a named pipe, not a plain file"):
        list(read_file(tmp_path / "rows.jsonl"))
    with (tmp_path / "long.jsonl").open("wb") as file:
        file.write(b'{"prompt": "')
        file.truncate(2**28 + 100)
    with pytest.raises(DataError, match=r"line 1: more than .* AGENTRL_TRUST_RUNS=1"):
        load_tasks(DatasetSection(source="long.jsonl"), base=tmp_path)
    rows = [{"prompt": "look", "images": ["/dev/zero"]}]
    write_lines(tmp_path / "seen.jsonl", rows)
    with pytest.raises(DataError, match="a device, not a plain file"):
        load_tasks(DatasetSection(source="seen.jsonl", columns={"images": "images"}), base=tmp_path)
