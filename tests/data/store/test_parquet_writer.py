"""Recording costs few bytes on disk, also in small steps, and common readers take the files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.data import TokenStore, TrajectoryStore
from agentrl.data.store.columns import schema_of
from agentrl.data.store.parquet_writer import write_parquet
from agentrl.data.store.token_columns import TOKENS_SCHEMA
from agentrl.types import TrajectoryGroup
from tests.data.small_steps import response_tokens, small_step


def write(folder: Path, steps: range) -> tuple[int, list[TrajectoryGroup]]:
    """Bytes of some small steps and all their groups."""
    size, found = 0, []
    for step in steps:
        groups, advantages, trained = small_step(step)
        whole = TrajectoryStore(folder / "trajectories").write(step, "train", groups, advantages)
        tokens = TokenStore(folder / "tokens").write(step, 0, trained, ranks=1)
        size += whole.stat().st_size + tokens.stat().st_size
        found += groups
    return size, found


def test_small_steps_take_less_than_10_bytes_a_response_token(tmp_path: Path) -> None:
    """Fails with dictionaries or with statistics: each costs a byte and a half."""
    size, groups = write(tmp_path, range(12, 16))
    tokens = response_tokens(groups)
    assert 3000 < tokens / 4 < 4000
    assert size / tokens < 10.0


def test_large_steps_take_less_than_6(tmp_path: Path) -> None:
    steps = [small_step(step, seed) for seed in range(4) for step in range(12, 16)]
    groups = [group for groups, _, _ in steps for group in groups]
    advantages = {name: value for _, known, _ in steps for name, value in known.items()}
    trained = [row for _, _, rows in steps for row in rows]
    whole = TrajectoryStore(tmp_path).write(1, "train", groups, advantages)
    tokens = TokenStore(tmp_path / "tokens").write(1, 0, trained)
    size = whole.stat().st_size + tokens.stat().st_size
    assert size / response_tokens(groups) < 6.0


def test_common_readers_need_no_codec_but_zstd(tmp_path: Path) -> None:
    """Fails if a column gets a codec that a common reader lacks, such as brotli."""
    write(tmp_path, range(1))
    paths = sorted(tmp_path.rglob("*.parquet"))
    assert len(paths) == 2
    for path in paths:
        footer = pq.ParquetFile(path).metadata
        columns = [footer.row_group(0).column(n) for n in range(footer.num_columns)]
        assert {column.compression for column in columns} == {"ZSTD"}
        expected = pq.read_table(path).to_pylist()
        found = duckdb.execute("select * from read_parquet(?)", [str(path)]).fetchall()
        assert found == [tuple(row.values()) for row in expected]
        frame = pd.read_parquet(path)
        assert list(frame["rollout_id"]) == [row["rollout_id"] for row in expected]
        dataset = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
        assert isinstance(dataset, datasets.Dataset)
        assert dataset.to_list() == expected


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_any_number_of_row_groups(count: int) -> None:
    tables = [pa.table({"a": [[float(i)]], "b": ["x" * i]}) for i in range(count)]
    schema = pa.schema([("a", pa.list_(pa.float64())), ("b", pa.string())])
    file = io.BytesIO()
    write_parquet(file, schema, iter(tables), split=["a.list.element"], metadata={"k": "v"})
    with pq.ParquetFile(io.BytesIO(file.getvalue())) as found:
        assert found.num_row_groups == count
        assert found.read().equals(pa.concat_tables([schema.empty_table(), *tables]))
        assert (found.metadata.metadata or {})[b"k"] == b"v"


def test_a_run_recorded_with_brotli_and_a_shortened_footer_is_read() -> None:
    """Former versions rewrote the footers of small files; such a run still opens and resumes."""
    run = Path(__file__).parent / "brotli_run"
    groups, advantages, trained = small_step(3)
    expected = [row for group in groups[1:3] for row in group.trajectories[:2]]
    stored = list(TrajectoryStore(run / "trajectories").read("train"))
    assert [row.trajectory for row in stored] == expected
    assert [row.advantage for row in stored] == [advantages[row.rollout_id] for row in expected]
    tokens = TokenStore(run / "tokens").read(3)
    known = {row.rollout_id: row for row in trained}
    assert len(tokens) == 2
    for row in tokens:
        assert row.trained == tuple(known[row.rollout_id].trained)
        assert row.log_probs == pytest.approx(known[row.rollout_id].log_probs, abs=2**-13)


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "store_schema": False}])
def test_files_of_former_versions_are_read(options: dict[str, Any], tmp_path: Path) -> None:
    """Those were written with statistics and dictionaries, or with a copy of the schema."""
    groups, advantages, trained = small_step(3)
    rows = TrajectoryStore(tmp_path / "now")
    tokens = TokenStore(tmp_path / "now")
    for path, key in (
        (rows.write(3, "train", groups, advantages), "agentrl.schema_version"),
        (tokens.write(3, 0, trained), "agentrl.tokens_version"),
    ):
        older = tmp_path / "older" / path.relative_to(tmp_path / "now")
        older.parent.mkdir(parents=True, exist_ok=True)
        table = pq.read_table(path).replace_schema_metadata({key: "1"})
        pq.write_table(table, older, compression="zstd", write_page_checksum=True, **options)
        if options:
            with pq.ParquetWriter(older, table.schema, compression="zstd", **options) as writer:
                writer.write_table(table)
                writer.add_key_value_metadata({key: "1"})
    older_rows, older_tokens = TrajectoryStore(tmp_path / "older"), TokenStore(tmp_path / "older")
    assert list(older_rows.read()) == list(rows.read())
    assert older_tokens.read(3) == tokens.read(3)
    assert len(older_tokens.read(3)) > 20
    stored = list(rows.read())
    assert schema_of(stored).names == pq.read_schema(rows.path(3, "train")).names
    assert TOKENS_SCHEMA.names == pq.read_schema(tokens.path(3, 0)).names
