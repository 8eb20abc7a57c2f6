from __future__ import annotations

import dataclasses
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.data import StoredTrajectory, TrajectoryStore
from agentrl.data.store.columns import SCHEMA, escape, unescape
from agentrl.errors import DataError
from agentrl.types import ToolResult, Trajectory, Turn
from tests.data.records import group, texts, trajectories, trajectory
from tests.warm_processes import warm_context

reuse_folder = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@reuse_folder
@given(rows=st.lists(trajectories(), min_size=1, max_size=3))
def test_what_is_read_is_what_was_written(rows: list[Trajectory], tmp_path: Path) -> None:
    # Fails if one field is left out of the columns, if a tuple comes back as a list, or if lone
    # surrogates are replaced.
    store = TrajectoryStore(tmp_path)
    store.write(3, "train", [group(*rows)], {rows[0].rollout_id: 0.5})
    back = list(store.read("train"))
    assert [stored.trajectory for stored in back] == rows
    for stored in back:
        assert (stored.step, stored.kind) == (3, "train")
        same = stored.trajectory.rollout_id == rows[0].rollout_id
        assert stored.advantage == (0.5 if same else None)
        assert type(stored.trajectory.response_ids) is tuple
        assert type(stored.trajectory.turns) is tuple


def test_every_field_of_a_trajectory_has_a_column() -> None:
    fields = {field.name for field in dataclasses.fields(Trajectory)}
    # `usage` shares the column of `extra_logs`.
    assert fields - {"usage"} <= set(SCHEMA.names)
    turn = SCHEMA.field("turns").type.value_type
    assert {field.name for field in dataclasses.fields(Turn)} == {f.name for f in turn}


@given(texts)
def test_escaping_is_reversible_and_leaves_valid_utf8(text: str) -> None:
    escaped = escape(text)
    escaped.encode("utf-8")
    assert unescape(escaped) == text


def test_log_probabilities_are_kept_as_float32(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    row = trajectory(rollout_log_probs=(-0.1, -1e-9, 0.0, -50.123456789))
    store.write(0, "train", [group(row)])
    (stored,) = store.read()
    expected = tuple(float(np.float32(value)) for value in row.rollout_log_probs)
    assert stored.trajectory.rollout_log_probs == expected


def test_usage_comes_back_apart_from_the_numbers_of_the_environment(tmp_path: Path) -> None:
    """Fails if a file has another column for it, which files of earlier versions have not."""
    store = TrajectoryStore(tmp_path)
    used = {"retried/tokens": 12.0, "sandbox/opened": 1.0}
    store.write(0, "train", [group(trajectory(usage=used))])
    (stored,) = store.read()
    assert (stored.trajectory.usage, stored.trajectory.extra_logs) == (used, {"depth": 2.0})
    column = store.table(["extra_logs"], "train").to_pylist()[0]["extra_logs"]
    assert {item["name"]: item["value"] for item in column} == {"depth": 2.0, **used}


def test_numbers_that_are_not_finite_survive(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    row = trajectory(reward=math.nan, score=None, rollout_log_probs=(-math.inf, 0.0, 0.0, 0.0))
    store.write(0, "train", [group(row)])
    (stored,) = store.read()
    assert math.isnan(stored.trajectory.reward or 0.0)
    assert stored.trajectory.score is None
    assert stored.trajectory.rollout_log_probs[0] == -math.inf


def test_hostile_text_survives(tmp_path: Path) -> None:
    hostile = "\ud800\x00\x1b[2J\U0010ffffd800" + "x" * 10_000_000
    turn = Turn(
        role="tool",
        start=0,
        end=4,
        text=hostile,
        tool_results=(ToolResult(text=hostile, data={"\ud800": [hostile[:100], float("inf")]}),),
    )
    row = trajectory(task_id="\ud800\x00", turns=(turn,))
    store = TrajectoryStore(tmp_path)
    store.write(0, "train", [group(row)])
    (stored,) = store.read("train", task_id="\ud800\x00", rollout_ids=["1-t0-0"])
    assert stored.trajectory == row


def test_more_text_than_one_row_group_holds(tmp_path: Path) -> None:
    # Fails if chunks are lost or repeated at their borders.
    big = "y" * 4_000_000
    turn = Turn(role="user", start=0, end=4, text=big)
    rows = [trajectory(rollout_id=str(n), turns=(turn,)) for n in range(5)]
    path = TrajectoryStore(tmp_path).write(0, "train", [group(*rows)])
    assert pq.ParquetFile(path).num_row_groups == 3
    back = [stored.trajectory.rollout_id for stored in TrajectoryStore(tmp_path).read()]
    assert back == list("01234")


def test_data_of_a_tool_that_is_not_json_is_kept_as_far_as_it_can_be_shown(tmp_path: Path) -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    circle: list[object] = []
    circle.append(circle)
    values = [Path("/x"), circle, Broken(), {1: "a"}, (1, 2)]
    turn = Turn(
        role="tool",
        start=0,
        end=4,
        text="",
        tool_results=tuple(ToolResult(text="", data=value) for value in values),
    )
    store = TrajectoryStore(tmp_path)
    store.write(0, "train", [group(trajectory(turns=(turn,)))])
    (stored,) = store.read()
    data = [result.data for result in stored.trajectory.turns[0].tool_results]
    assert data[0] in ("PosixPath('/x')", "WindowsPath('/x')")
    assert data[1:] == ["<list>", "<Broken>", {"1": "a"}, [1, 2]]


def test_filters(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    for step in (2, 10, 1):
        rows = [trajectory(rollout_id=f"{step}-{n}", task_id=f"t{n}") for n in range(3)]
        groups = [group(row) for row in rows]
        store.write(step, "train", groups)
    store.write(0, "eval/held out", [group(trajectory(rollout_id="e"))])
    ids = [stored.trajectory.rollout_id for stored in store.read(task_id="t1")]
    assert ids == ["1-1", "2-1", "10-1"]
    assert store.steps("train") == [1, 2, 10]
    assert store.kinds() == ["train", "eval/held out"]
    assert [s.trajectory.rollout_id for s in store.read("eval/held out")] == ["e"]
    assert [s.step for s in store.read("train", step=10, rollout_ids={"10-0", "1-0"})] == [10]
    assert list(store.read("train", step=99)) == []
    assert list(store.read(rollout_ids=[])) == []
    assert store.table(["step", "reward"], "train").num_rows == 9
    with pytest.raises(DataError, match="valid: step, kind"):
        store.table(["setp"])


def test_an_empty_store_reads_as_nothing(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "not yet")
    assert (list(store.read()), store.kinds(), store.steps()) == ([], [], [])
    assert store.table(["step"]).num_rows == 0
    store.write(0, "train", [])
    assert store.steps() == [0]
    assert list(store.read()) == []


@pytest.mark.parametrize("name", ["../x", "..", ".", "a/b", "a=b", "\ud800", "%2E", " ", "\x00"])
def test_any_name_of_an_evaluation_stays_inside_the_store(name: str, tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store")
    path = store.write(0, f"eval/{name}", [group(trajectory())])
    assert path.resolve().is_relative_to(tmp_path / "store" / "eval")
    assert "=" not in str(path.relative_to(tmp_path))
    assert store.kinds() == [f"eval/{name}"]
    assert next(store.read(f"eval/{name}")).kind == f"eval/{name}"


@pytest.mark.parametrize("kind", ["", "eval", "eval/", "test", "train/x", "../train"])
def test_other_kinds_are_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected 'train' or 'eval/NAME'"):
        TrajectoryStore(tmp_path).write(0, kind, [])
    with pytest.raises(DataError, match="not negative"):
        TrajectoryStore(tmp_path).write(-1, "train", [])


def test_a_value_that_fits_no_column_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    row = trajectory(response_ids=(2**31, 0, 0, 0))
    with pytest.raises(DataError, match="1-t0-0"):
        TrajectoryStore(tmp_path).write(0, "train", [group(row)])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_writing_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    store.write(1, "train", [group(trajectory(reward=0.0))])
    store.write(1, "train", [group(trajectory(reward=1.0))])
    assert [stored.trajectory.reward for stored in store.read()] == [1.0]


def damage(kind: str, path: Path) -> None:
    data = path.read_bytes()
    if kind == "half":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "flipped":
        # The first page of data; the footer, where the file is described, stays whole.
        place = pq.ParquetFile(path).metadata.row_group(0).column(22).data_page_offset + 40
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
    elif kind == "foreign":
        pq.write_table(pa.table({"step": [1]}), path)
    elif kind == "newer":
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({"agentrl.schema_version": "999"}), path)
    elif kind == "fewer":
        table = pq.read_table(path)
        pq.write_table(table.drop_columns(["reward"]), path)


@pytest.mark.parametrize("kind", ["half", "empty", "flipped", "foreign", "newer", "fewer"])
def test_a_damaged_file_is_skipped_with_one_warning(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = TrajectoryStore(tmp_path)
    for step in range(3):
        store.write(step, "train", [group(*[trajectory(rollout_id=str(n)) for n in range(40)])])
    damage(kind, store.path(1, "train"))
    for _ in range(2):
        assert {stored.step for stored in store.read("train")} == {0, 2}
        if kind != "flipped":  # the columns asked for here are whole in that file
            assert set(store.table(["step", "reward"]).column("step").to_pylist()) == {0, 2}
    warnings = [record for record in caplog.records if "step_000001" in record.getMessage()]
    assert len(warnings) == 1
    if kind == "newer":
        assert "upgrade agentrl" in caplog.text
    # Written again, it is whole again.
    store.write(1, "train", [group(trajectory())])
    assert {stored.step for stored in store.read("train")} == {0, 1, 2}


def test_one_changed_bit_in_the_numbers_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Random numbers do not compress, so they are kept as they are and nobody would notice. Fails
    # without page checksums: the trainer of a resumed run would get other log-probabilities.
    size = 20_000
    log_probs = tuple((-np.random.default_rng(0).random(size, np.float32)).tolist())
    row = trajectory(
        response_ids=(7,) * size,
        response_mask=(1,) * size,
        rollout_log_probs=log_probs,
        policy_versions=(1,) * size,
        turns=(),
    )
    store = TrajectoryStore(tmp_path)
    path = store.write(0, "train", [group(row)])
    group_data = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group_data.column(n) for n in range(group_data.num_columns)]
    column = next(c for c in columns if c.path_in_schema.startswith("rollout_log_probs"))
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    assert list(store.read()) == []
    assert "torn or damaged" in caplog.text


def write_many(directory: Path, writer: int) -> None:
    store = TrajectoryStore(directory)
    for _ in range(15):
        rows = [trajectory(rollout_id=f"{writer}-{n}") for n in range(20)]
        store.write(1, "train", [group(*rows)])


def test_writers_of_one_step_and_a_reader_do_not_disturb_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Fails if the temporary file has a fixed name, or if the file is written in place.
    context = warm_context()
    writers = [context.Process(target=write_many, args=(tmp_path, n)) for n in range(3)]
    for writer in writers:
        writer.start()
    store = TrajectoryStore(tmp_path)
    seen = 0
    while any(writer.is_alive() for writer in writers):
        ids = [stored.trajectory.rollout_id for stored in store.read("train")]
        assert ids == [] or ids == [f"{ids[0][0]}-{n}" for n in range(20)]
        seen += bool(ids)
        time.sleep(0.005)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen > 0
    assert not caplog.records
    assert [path.name for path in (tmp_path / "train").iterdir()] == ["step_000001.parquet"]


def limited_write(directory: str) -> None:
    """Runs in a process of its own whose files may not grow beyond 100 kB, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    text = os.urandom(400_000).hex()
    turn = Turn(role="user", start=0, end=4, text=text)
    try:
        TrajectoryStore(Path(directory)).write(1, "train", [group(trajectory(turns=(turn,)))])
    except DataError as error:
        os.write(1, str(error).encode())
        raise SystemExit(7) from None


def test_a_full_disk_leaves_the_old_file_and_no_half_one(tmp_path: Path) -> None:
    # Fails if the temporary file is not removed, or if the step is written in place.
    store = TrajectoryStore(tmp_path)
    store.write(1, "train", [group(trajectory(reward=0.5))])
    code = f"from {__name__} import limited_write; limited_write({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert "cannot write" in done.stdout
    assert "step_000001.parquet" in done.stdout
    assert [path.name for path in (tmp_path / "train").iterdir()] == ["step_000001.parquet"]
    assert [stored.trajectory.reward for stored in store.read()] == [0.5]


def test_what_a_killed_writer_left_is_swept_away_later_and_never_read(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    store.write(1, "train", [])
    old, young = (tmp_path / "train" / f".step_000002.parquet.{name}.tmp" for name in "ab")
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    assert store.steps() == [1]
    store.write(2, "train", [])
    assert not old.exists()
    assert young.exists()


def test_a_process_killed_while_it_writes_leaves_whole_files_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = textwrap.dedent(
        f"""
        from pathlib import Path
        from agentrl.data import TrajectoryStore
        from tests.data.records import group, trajectory
        store = TrajectoryStore(Path({str(tmp_path)!r}))
        rows = group(*[trajectory(rollout_id=str(n)) for n in range(200)])
        for step in range(10_000):
            store.write(step, "train", [rows])
            print(step, flush=True)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) >= 5:
            break
    child.kill()
    child.wait()
    child.stdout.close()
    store = TrajectoryStore(tmp_path)
    for step in store.steps():
        assert len(list(store.read("train", step=step))) == 200
    assert not caplog.records


def test_it_takes_less_than_eight_bytes_a_response_token(tmp_path: Path) -> None:
    # Log-probabilities are the most of it, and hardly compress: 4 bytes is their raw size. Ids
    # here follow a Zipf law over 49152 tokens, and the text has 4 characters a token.
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("etaoinshr "), 4)) for _ in range(49152)]
    rows = []
    for n in range(32):
        ids = np.minimum(rng.zipf(1.3, 400), 49151)
        mask = (np.arange(400) % 160 < 120).astype(int)
        log_probs = np.where(mask, -rng.exponential(0.6, 400), 0.0).astype(np.float32)
        spans = [(start, min(start + 80, 400)) for start in range(0, 400, 80)]
        rows.append(
            trajectory(
                rollout_id=str(n),
                prompt_ids=tuple(range(100)),
                response_ids=tuple(ids.tolist()),
                response_mask=tuple(mask.tolist()),
                rollout_log_probs=tuple(log_probs.tolist()),
                policy_versions=tuple(np.where(mask, 3, -1).tolist()),
                turns=tuple(
                    Turn(role="assistant", start=a, end=b, text="".join(words[i] for i in ids[a:b]))
                    for a, b in spans
                ),
            )
        )
    path = TrajectoryStore(tmp_path).write(1, "train", [group(*rows)])
    assert path.stat().st_size / (32 * 400) < 8


def two_steps(directory: Path) -> list[StoredTrajectory]:
    store = TrajectoryStore(directory)
    store.write(1, "train", [group(trajectory(), trajectory(rollout_id="b", reward=None))])
    store.write(1, "eval/x", [group(trajectory(rollout_id="c", task_id="a\x00b"))])
    return list(store.read())


def test_pandas_reads_it(tmp_path: Path) -> None:
    import pandas as pd

    two_steps(tmp_path)
    frame = pd.concat([pd.read_parquet(path) for path in sorted(tmp_path.rglob("*.parquet"))])
    assert sorted(frame["rollout_id"]) == ["1-t0-0", "b", "c"]
    assert frame["reward"].isna().sum() == 1
    first = frame[frame["rollout_id"] == "1-t0-0"].iloc[0]
    assert first["response_ids"].tolist() == [10, 11, 12, 13]
    assert first["turns"][1]["tool_results"][0]["text"] == "1"
    # Pandas given the folder reads both kinds at once.
    assert len(pd.read_parquet(tmp_path)) == 3


def test_duckdb_reads_it(tmp_path: Path) -> None:
    import duckdb

    two_steps(tmp_path)
    rows = duckdb.sql(
        f"""
        select kind, count(*), avg(reward), max(len(response_ids)),
               max(list_sum(list_transform(response_mask, lambda x: x::int)))
        from '{tmp_path}/**/*.parquet' group by kind order by kind desc
        """
    ).fetchall()
    assert rows == [("train", 2, 1.0, 4, 3), ("eval/x", 1, 1.0, 4, 3)]
    calls = duckdb.sql(
        f"select turns[1].tool_calls[1].name from '{tmp_path}/train/*.parquet'"
    ).fetchall()
    assert calls == [("add",), ("add",)]


def test_datasets_reads_it(tmp_path: Path) -> None:
    # In a process of its own, since the library keeps a cache in the home folder.
    two_steps(tmp_path / "store")
    code = textwrap.dedent(
        f"""
        import datasets
        files = {str(tmp_path)!r} + "/store/**/*.parquet"
        rows = datasets.load_dataset("parquet", data_files=files, split="train")
        row = next(r for r in rows if r["rollout_id"] == "1-t0-0")
        assert len(rows) == 3
        assert row["response_ids"] == [10, 11, 12, 13]
        assert row["turns"][0]["tool_calls"][0]["arguments"] == '{{"a": 1}}'
        assert row["reward_parts"] == [{{"name": "tests", "value": 1.0}}]
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_pipe_or_folder_under_the_name_of_a_file_is_passed_over(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    store.write(1, "train", [group(trajectory())])
    os.mkfifo(store.path(2, "train"))
    store.path(3, "train").mkdir()
    assert [stored.step for stored in store.read("train")] == [1]
