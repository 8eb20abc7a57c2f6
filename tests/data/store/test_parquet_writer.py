"""What recording costs on disk in small steps, and that every reader takes what makes it little."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.data import TokenStore, TrajectoryStore
from agentrl.data.store import parquet_writer
from agentrl.data.store.columns import SCHEMA
from agentrl.data.store.parquet_footer import slim_footer
from agentrl.data.store.parquet_writer import write_compact
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


def test_small_steps_take_less_than_8_bytes_a_response_token(tmp_path: Path) -> None:
    """Fails with zstd, with a whole footer, or with bounds in it: each costs a third of a byte."""
    size, groups = write(tmp_path, range(12, 16))
    tokens = response_tokens(groups)
    assert 3000 < tokens / 4 < 4000
    assert size / tokens < 8.0


def test_large_steps_take_less_than_6(tmp_path: Path) -> None:
    steps = [small_step(step, seed) for seed in range(4) for step in range(12, 16)]
    groups = [group for groups, _, _ in steps for group in groups]
    advantages = {name: value for _, known, _ in steps for name, value in known.items()}
    trained = [row for _, _, rows in steps for row in rows]
    whole = TrajectoryStore(tmp_path).write(1, "train", groups, advantages)
    tokens = TokenStore(tmp_path / "tokens").write(1, 0, trained)
    assert pq.ParquetFile(whole).metadata.row_group(0).column(0).compression == "BROTLI"
    size = whole.stat().st_size + tokens.stat().st_size
    assert size / response_tokens(groups) < 6.0


def test_a_small_file_holds_what_a_large_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the footer loses a field that a reader needs."""
    write(tmp_path / "small", range(1))
    monkeypatch.setattr(parquet_writer, "_SMALL_BYTES", 0)
    write(tmp_path / "large", range(1))
    for path in (tmp_path / "small").rglob("*.parquet"):
        other = tmp_path / "large" / path.relative_to(tmp_path / "small")
        assert path.stat().st_size < 0.95 * other.stat().st_size
        mine, theirs = pq.ParquetFile(path), pq.ParquetFile(other)
        assert mine.read().equals(theirs.read())
        assert mine.schema_arrow.equals(theirs.schema_arrow)
        assert mine.metadata.metadata == theirs.metadata.metadata
        asked = "select * from read_parquet(?)"
        rows = [duckdb.execute(asked, [str(file)]).fetchall() for file in (path, other)]
        assert rows[0] == rows[1]
        names = "select name, type, converted_type from parquet_schema(?)"
        told = [duckdb.execute(names, [str(file)]).fetchall() for file in (path, other)]
        assert told[0] == told[1]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_any_number_of_row_groups(count: int) -> None:
    tables = [pa.table({"a": [[float(i)]], "b": ["x" * i]}) for i in range(count)]
    schema = pa.schema([("a", pa.list_(pa.float64())), ("b", pa.string())])
    file = io.BytesIO()
    write_compact(file, schema, iter(tables), split=["a.list.element"], metadata={"k": "v"})
    with pq.ParquetFile(io.BytesIO(file.getvalue())) as found:
        assert found.num_row_groups == count
        assert found.read().equals(pa.concat_tables([schema.empty_table(), *tables]))
        assert (found.metadata.metadata or {})[b"k"] == b"v"


def test_a_footer_with_many_columns_and_long_names() -> None:
    """Fails if lengths of more than 127 bytes or lists of more than 14 are misread."""
    table = pa.table(
        {f"column {i} {'x' * 200}": pa.array([i % 100], pa.int8()) for i in range(300)}
    )
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=1, store_schema=False)
    whole = file.getvalue()
    slim = slim_footer(whole)
    assert len(slim) < len(whole)
    assert pq.read_table(io.BytesIO(slim)).equals(table)
    assert slim_footer(slim) == slim


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "store_schema": False}])
def test_files_of_former_versions_are_read(options: dict[str, Any], tmp_path: Path) -> None:
    """Those were written with zstd, statistics, and byte-stream-split log-probabilities."""
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
    assert SCHEMA.names == pq.read_schema(rows.path(3, "train")).names
    assert TOKENS_SCHEMA.names == pq.read_schema(tokens.path(3, 0)).names
