from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.data import TokenStore
from agentrl.data.store.token_columns import TOKENS_SCHEMA
from agentrl.errors import DataError
from agentrl.types import TrainedTokens
from tests.data.records import texts

reuse_folder = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def tokens(
    rollout_id: str = "t/0", length: int = 4, *, seed: int = 0, reference: bool = False
) -> TrainedTokens:
    draw = np.random.default_rng(seed)
    log_probs = -draw.exponential(size=length)
    trained = draw.integers(0, 2, length).astype(bool)
    return TrainedTokens(
        group_id=rollout_id.partition("/")[0],
        rollout_id=rollout_id,
        row_index=0,
        updates=2,
        trained=trained.tolist(),
        old_log_probs=(log_probs + draw.normal(size=length) * 1e-3).tolist(),
        log_probs=log_probs.tolist(),
        entropy=draw.exponential(size=length).tolist(),
        advantages=draw.normal(size=length).tolist(),
        correction=(draw.exponential(size=length) * trained).tolist(),
        clip=draw.integers(-1, 2, length).tolist(),
        loss=(draw.normal(size=length) * 1e-7).tolist(),
        ref_log_probs=(log_probs - 0.25).tolist() if reference else None,
    )


@reuse_folder
@given(
    names=st.lists(texts, min_size=1, max_size=3, unique=True),
    length=st.integers(1, 20),
    reference=st.booleans(),
)
def test_what_is_read_is_what_was_written_as_far_as_said(
    names: list[str], length: int, reference: bool, tmp_path: Path
) -> None:
    # Fails if a column is left out, if the difference is taken the other way round, or if lone
    # surrogates of an id are replaced.
    rows = [tokens(name, length, seed=i, reference=reference) for i, name in enumerate(names)]
    store = TokenStore(tmp_path)
    store.write(3, 0, rows)
    back = {row.rollout_id: row for row in store.read(3)}
    assert set(back) == set(names)
    for row in rows:
        found = back[row.rollout_id]
        for name in ("group_id", "row_index", "updates"):
            assert getattr(found, name) == getattr(row, name)
        assert found.trained == tuple(row.trained)
        assert found.clip == tuple(row.clip)
        for name in ("old_log_probs", "log_probs", "ref_log_probs"):
            if getattr(row, name) is None:
                assert getattr(found, name) is None
                continue
            assert getattr(found, name) == pytest.approx(getattr(row, name), abs=2**-14, rel=1e-6)
        assert found.entropy == pytest.approx(row.entropy, abs=2**-10, rel=1e-6)
        assert found.advantages == pytest.approx(row.advantages, rel=1e-6)
        assert found.correction == pytest.approx(row.correction, rel=2**-10)
        assert found.loss == pytest.approx(row.loss, rel=2**-10, abs=0.0)


def test_every_field_can_be_read_without_this_package(tmp_path: Path) -> None:
    TokenStore(tmp_path).write(3, 1, [tokens(reference=True)])
    found = duckdb.connect().execute(f"select * from read_parquet('{tmp_path}/*.parquet')")
    names = [column[0] for column in found.description or []]
    assert names == TOKENS_SCHEMA.names
    (row,) = found.fetchall()
    columns = dict(zip(names, row, strict=True))
    assert columns["step"] == 3
    expected = tokens(reference=True)
    assert columns["log_ratio"] == pytest.approx(
        np.subtract(expected.log_probs, expected.old_log_probs), abs=2**-13
    )
    assert columns["ref_log_ratio"] == pytest.approx([0.25] * 4, abs=2**-13)


def test_ranks_share_a_step_and_one_rollout_is_found_in_any(tmp_path: Path) -> None:
    # Fails if only rank 0 is read, or if the wanted rollout is taken from another place.
    store = TokenStore(tmp_path)
    store.write(1, 0, [tokens("b/1"), tokens("a/0")])
    store.write(1, 1, [tokens("c/2", 7)])
    store.write(2, 0, [])
    assert store.steps() == [1, 2]
    assert [row.rollout_id for row in store.read(1)] == ["a/0", "b/1", "c/2"]
    (row,) = store.read(1, "c/2")
    assert len(row.loss) == 7
    assert store.read(1, "nobody") == []
    assert store.read(2) == []
    assert store.read(9) == []


def test_a_step_done_again_by_fewer_ranks_leaves_nothing_of_the_others(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    for rank in range(3):
        store.write(1, rank, [tokens(f"t/{rank}")], ranks=3)
    store.write(1, 0, [tokens("t/0"), tokens("t/2")], ranks=2)
    store.write(1, 1, [tokens("t/1")], ranks=2)
    assert [row.rollout_id for row in store.read(1)] == ["t/0", "t/2", "t/1"]


def test_numbers_that_are_not_finite_survive(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    row = replace(
        tokens(length=3), old_log_probs=[-math.inf, -1.0, -1.0], loss=[math.nan, math.inf, -0.0]
    )
    store.write(0, 0, [row])
    (found,) = store.read(0)
    assert found.old_log_probs == (-math.inf, -1.0, -1.0)
    assert math.isnan(found.loss[0])
    assert found.loss[1:] == (math.inf, 0.0)


@pytest.mark.parametrize("damage", ["cut", "flipped", "newer", "foreign"])
def test_a_file_that_is_not_whole_is_skipped_with_one_warning(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = TokenStore(tmp_path)
    path = store.write(1, 0, [tokens("t/0", 400)])
    store.write(1, 1, [tokens("t/1")])
    raw = path.read_bytes()
    if damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif damage == "flipped":
        path.write_bytes(raw[:900] + bytes([raw[900] ^ 255]) + raw[901:])
    elif damage == "newer":
        newer = {b"agentrl.tokens_version": b"9"}
        pq.write_table(pq.read_table(path).replace_schema_metadata(newer), path)
    else:
        pq.write_table(pq.read_table(path).replace_schema_metadata(None).drop(["loss"]), path)
    with caplog.at_level(logging.WARNING):
        assert [row.rollout_id for row in store.read(1)] == ["t/1"]
        assert [row.rollout_id for row in store.read(1)] == ["t/1"]
    assert len(caplog.records) == 1
    assert path.name in caplog.text


def test_what_cannot_be_written_leaves_the_older_file(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    store.write(1, 0, [tokens()])
    for bad in (
        replace(tokens(), loss=[0.0]),
        replace(tokens(), clip=[0, 0, 0, 1000]),
        replace(tokens(), updates=2**40),
    ):
        with pytest.raises(DataError, match="t/0"):
            store.write(1, 0, [bad])
    with pytest.raises(DataError, match="not negative"):
        store.write(-1, 0, [tokens()])
    assert len(store.read(1)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001.rank-0.parquet"]


def test_one_rollout_of_a_large_step_is_read_without_most_others(tmp_path: Path) -> None:
    # Fails if the step becomes one row group: reading 2 million tokens takes a quarter of a second.
    store = TokenStore(tmp_path)
    one = tokens("x/0", 8000)
    store.write(1, 0, [replace(one, rollout_id=f"x/{i}") for i in range(256)])
    assert len(store.read(1, "x/77")) == 1
    (path,) = tmp_path.glob("*.parquet")
    step = pq.ParquetFile(path).metadata
    assert max(step.row_group(at).num_rows for at in range(step.num_row_groups)) <= 256 // 8
