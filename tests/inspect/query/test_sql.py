from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agentrl.data import TokenStore, TrajectoryStore
from agentrl.errors import RunError
from agentrl.inspect.query.sql import Queries
from agentrl.types import TrainedTokens
from tests.data.records import group, trajectory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two steps of one rollout each with tokens, one evaluation, and metrics."""
    run = tmp_path / "it's [a] run"
    store = TrajectoryStore(run / "trajectories")
    tokens = TokenStore(run / "tokens")
    for step in (1, 2):
        row = trajectory(rollout_id=f"r{step}", reward=step / 2)
        store.write(step, "train", [group(row)], {row.rollout_id: 0.25})
        tokens.write(step, 0, [trained(row.rollout_id)])
    store.write(2, "eval/held out", [group(trajectory(rollout_id="e", reward=None))])
    lines = ['{"step": 1, "time": 5.0, "reward": 9}', '{"step": 1, "time": 6.0, "reward": 0.5}']
    (run / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 2, "kl": NaN}', '{"st']))
    return run


def trained(rollout: str) -> TrainedTokens:
    # The last position of the response was not trained, so the record ends before it.
    return TrainedTokens(
        group_id="1-t0",
        rollout_id=rollout,
        row_index=0,
        updates=1,
        trained=(True, False, False),
        old_log_probs=(-0.75, 0.0, 0.0),
        log_probs=(-0.5, 0.0, 0.0),
        entropy=(1.0, 0.0, 0.0),
        advantages=(0.25, 0.0, 0.0),
        correction=(1.0, 0.0, 0.0),
        clip=(-1, 0, 0),
        loss=(0.5, 0.0, 0.0),
    )


@pytest.fixture(scope="module")
def queries() -> Iterator[Queries]:
    with Queries() as queries:
        yield queries


@pytest.fixture
def ask(queries: Queries, run: Path) -> Callable[[str], list[list[object]]]:
    return lambda text: queries.ask(run, text).rows()


def test_rollouts_are_one_row_each_with_their_sums(ask) -> None:
    columns = "step, kind, reward, advantage, reward_parts, prompt_tokens, response_tokens"
    more = "action_tokens, turns, oldest_version, newest_version, truncated"
    assert ask(f"select {columns}, {more} from trajectories order by step, kind") == [
        [1, "train", 0.5, 0.25, {"tests": 1.0}, 3, 4, 3, 2, 3, 4, False],
        [2, "eval/held out", None, None, {"tests": 1.0}, 3, 4, 3, 2, 3, 4, False],
        [2, "train", 1.0, 0.25, {"tests": 1.0}, 3, 4, 3, 2, 3, 4, False],
    ]


def test_a_call_stands_beside_what_came_back(ask) -> None:
    found = ask("select turn, name, arguments, parsed, status, result, duration_s from calls")
    assert found == [[0, "add", '{"a": 1}', "ok", "ok", "1", 0.5]] * 3
    roles = ask("select turn, role, first_token, end_token, calls from turns where step = 1")
    assert roles == [[0, "assistant", 0, 2, 1], [1, "tool", 2, 3, 0], [2, "assistant", 3, 4, 0]]


def test_tokens_join_sampler_and_trainer(ask) -> None:
    columns = (
        "position, mask, version, rollout_log_prob, old_log_prob, log_prob, gap, trained, clip"
    )
    rows = ask(f"select {columns} from tokens where step = 1 order by position")
    assert rows == [
        [0, 1, 3, -0.5, -0.75, -0.5, -0.25, True, -1],
        [1, 1, 3, -0.25, 0.0, 0.0, 0.25, False, 0],
        [2, 0, -1, 0.0, None, None, None, False, None],
        [3, 1, 4, -0.125, None, None, None, False, None],
    ]
    assert ask("select distinct trained from tokens where kind != 'train'") == [[None]]


def test_the_last_line_of_a_step_counts_in_metrics(ask) -> None:
    rows = ask("select step, time, name, value from metrics order by name desc")
    assert rows[0] == [1, 6.0, "reward", 0.5]
    assert rows[1][:3] == [2, None, "kl"]
    assert math.isnan(rows[1][3])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "copy (select 1) to 'x.csv'",
        "create table x as select 1",
        "drop view trajectories",
        "attach 'x.db'",
        "install httpfs",
        "set memory_limit = '90GB'",
        "select 1; select 2",
        "pragma database_list",
        "",
        "select * from read_text('/etc/passwd')",
        "select * from read_text('../../config.yaml')",
        "select * from glob('/*')",
        "select * from '/etc/passwd'",
        "select * from read_parquet('https://example.com/x.parquet')",
        "select * from run",
    ],
)
def test_a_query_only_reads_and_only_this_run(text: str, ask, run: Path, tmp_path: Path) -> None:
    before = sorted(run.rglob("*"))
    with pytest.raises(RunError):
        ask(text)
    assert sorted(run.rglob("*")) == before
    assert not (tmp_path / "x.csv").exists()


def test_mistakes_are_explained(ask) -> None:
    with pytest.raises(RunError, match="there are the views trajectories, turns"):
        ask("select * from rollouts")
    with pytest.raises(RunError, match="expected one SELECT, got DROP"):
        ask("drop table metrics")


def test_rows_are_cut_at_the_limit_and_the_answer_says_so(queries: Queries, run: Path) -> None:
    answer = queries.ask(run, "select * from range(100000)", limit=10)
    assert answer.table.num_rows == 10
    assert answer.truncated
    assert not queries.ask(run, "select * from range(10)", limit=10).truncated
    every = queries.ask(run, "select * from range(100000)", limit=None)
    assert every.table.column(0).to_pylist() == list(range(100000))
    assert not every.truncated


def test_every_type_comes_through_the_pipe(ask) -> None:
    kinds = (
        "'a'::enum('a', 'b')", "{'x': [1, null], 'y': map {'k': 2.5}}", "1.25::decimal(9, 2)",
        "date '2026-01-02'", "'x'::blob", "null", "uuid '00000000-0000-0000-0000-000000000001'",
        "170141183460469231731687303715884105727::hugeint", "[[]]", "true", "interval 3 days",
    )  # fmt: skip
    for kind in kinds:
        rows = ask(f"select {kind} as a, i from range(3) t(i)")
        assert [row[1] for row in rows] == [0, 1, 2]
    assert ask(f"select {', '.join(kinds[:3])}") == [["a", {"x": [1, None], "y": {"k": 2.5}}, 1.25]]
    assert ask("select 1 as a, 2 as a where false") == []


def test_dates_that_python_has_not_are_text(ask) -> None:
    """Fails if such a date is an error: it is a right answer to a right question."""
    far = ask(
        "select timestamp '0001-01-01' + to_years(20000) as t union select 'infinity' order by t"
    )
    assert all(isinstance(row[0], str) for row in far)
    assert far[0][0].startswith("20001-01-01")


def test_what_the_run_writes_later_is_seen(ask, run: Path) -> None:
    assert ask("select max(step) from trajectories") == [[2]]
    row = trajectory(rollout_id="late")
    TrajectoryStore(run / "trajectories").write(3, "train", [group(row)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('\n{"step": 3, "reward": 1}\n')
    assert ask("select max(step) from metrics") == [[3]]
    assert ask("select max(step) from trajectories") == [[3]]


def test_a_torn_file_hides_nothing_else(queries: Queries, run: Path) -> None:
    store = TrajectoryStore(run / "trajectories")
    path = store.path(1, "train")
    path.write_bytes(path.read_bytes()[:400])
    os.mkfifo(store.path(7, "train"))
    answer = queries.ask(run, "select count(*) from trajectories")
    assert answer.rows() == [[2]]
    assert [note.partition(":")[0] for note in answer.notes] == [
        "trajectories/train/step_000001.parquet",
        "trajectories/train/step_000007.parquet",
    ]


def test_a_page_damaged_behind_a_good_footer_is_left_out(queries: Queries, run: Path) -> None:
    path = TrajectoryStore(run / "trajectories").path(1, "train")
    found = pq.ParquetFile(path).metadata.row_group(0)
    columns = (found.column(index) for index in range(found.num_columns))
    texts = next(c for c in columns if c.path_in_schema == "turns.list.element.text")
    start = texts.dictionary_page_offset or texts.data_page_offset
    raw = bytearray(path.read_bytes())
    for index in range(start, start + texts.total_compressed_size):
        raw[index] ^= 0x55
    path.write_bytes(raw)
    answer = queries.ask(run, "select count(*) from turns where text != ''")
    assert answer.rows() == [[6]]
    assert len(answer.notes) == 1


def test_a_file_that_vanishes_is_left_out(ask, run: Path) -> None:
    assert ask("select count(*) from turns where text != ''") == [[9]]
    TrajectoryStore(run / "trajectories").path(1, "train").unlink()
    assert ask("select count(*) from turns where text != ''") == [[6]]


def test_a_run_without_files_answers(queries: Queries, tmp_path: Path) -> None:
    for view in ("trajectories", "turns", "calls", "tokens", "metrics"):
        assert queries.ask(tmp_path, f"select count(*) from {view}").rows() == [[0]]


def test_text_that_utf8_cannot_hold_comes_back_whole(ask, run: Path) -> None:
    store = TrajectoryStore(run / "trajectories")
    store.write(5, "train", [group(trajectory(task_id="\ud800x"))])
    assert ask("select task_id from trajectories where step = 5") == [["\ud800x"]]


def test_a_directory_without_permission_to_write_can_be_asked(ask, run: Path) -> None:
    folders = [run, *(path for path in run.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert ask("select count(*) from trajectories") == [[3]]
    finally:
        for folder in folders:
            folder.chmod(0o755)
