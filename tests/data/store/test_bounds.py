"""Parquet files and links of a run that a stranger made: refused before they cost memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.data import TrajectoryStore
from agentrl.data.run.labels import RolloutLabel, add_label
from agentrl.data.run.paths import RunPaths
from agentrl.data.store.bounds import open_parquet
from agentrl.data.store.page_headers import read_header
from agentrl.errors import DataError, UntrustedFile
from agentrl.images import ImageFolder
from agentrl.inspect.read.run_files import RunFiles
from agentrl.machine.inside import TRUST, refuse_links
from tests.data.records import group, trajectory


def _words(count: int, size: int) -> pa.Array:
    """One long word, many times; a few kilobytes in a file."""
    numbers = pa.array(np.zeros(count, dtype=np.int32))
    return pa.DictionaryArray.from_arrays(numbers, pa.array(["x" * size]))


def _lying(path: Path) -> Path:
    """Pages of a megabyte whose headers claim 128; the footer says a megabyte."""
    texts = {name: ["y" * 1_100_000] for name in "abc"}
    pq.write_table(
        pa.table(texts), path, compression="zstd", use_dictionary=False, write_statistics=False
    )
    data = bytearray(path.read_bytes())
    with pq.ParquetFile(path) as file:
        for column in range(3):
            # Field 2 of the header, after the page type: a varint of four bytes.
            at = file.metadata.row_group(0).column(column).data_page_offset + 3
            assert data[at - 1] == 0x15
            data[at : at + 4] = b"\xfe\xff\xff\x7f"
    path.write_bytes(data)
    return path


def test_bombs_are_refused_by_their_pages_and_files_of_any_writer_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bombs: dict[str, tuple[pa.Table, dict[str, Any]]] = {
        # 300 MB of one word; a dictionary makes 3 kilobytes of it.
        "words": (pa.table({"a": _words(1_000_000, 300)}), {}),
        "prefixes": (
            pa.table({"a": ["y" * 100_000] * 3000}),
            {"use_dictionary": False, "column_encoding": {"a": "DELTA_BYTE_ARRAY"}},
        ),
        "nulls": (pa.table({name: pa.nulls(9_000_000, pa.int64()) for name in "abcd"}), {}),
        "rows": (pa.table({"a": pa.nulls(11_000_000, pa.bool_())}), {}),
    }
    for name, (table, options) in bombs.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table, path, compression="zstd", **options)
        assert path.stat().st_size < 400_000, name
        with pytest.raises(UntrustedFile, match=TRUST):
            open_parquet(path)
    with pytest.raises(UntrustedFile, match="MiB of memory"):
        open_parquet(_lying(tmp_path / "lying.parquet"))
    numbers = pa.array([f"id-{number % 50}" for number in range(100_000)])
    nested = pa.array([[number, number] for number in range(1000)] * 100)
    fine = pa.table({"a": numbers, "b": nested, "c": pa.array(range(100_000), pa.float32())})
    for codec in ("zstd", "snappy", "brotli", "gzip", "none"):
        for version in ("1.0", "2.0"):
            path = tmp_path / f"{codec}-{version}.parquet"
            pq.write_table(fine, path, compression=codec, data_page_version=version)
            with open_parquet(path) as file:
                assert file.read().equals(fine)
                chunk = file.metadata.row_group(0).column(1)
                with path.open("rb") as raw:
                    page, _ = read_header(raw, chunk.data_page_offset)
                assert 0 < page.values <= chunk.num_values
    monkeypatch.setenv(TRUST, "1")
    with open_parquet(tmp_path / "words.parquet") as file:
        assert file.metadata.num_rows == 1_000_000


def test_every_reader_of_a_run_leaves_a_bomb_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = TrajectoryStore(tmp_path / "trajectories")
    store.write(1, "train", [group(trajectory())])
    small = pq.read_table(store.path(1, "train"))
    many = small.take(pa.array(np.zeros(2000, dtype=np.int64)))
    at = many.schema.get_field_index("prompt_text")
    bomb = many.set_column(at, "prompt_text", _words(2000, 200_000))
    path = store.path(2, "train")
    pq.write_table(bomb.replace_schema_metadata(small.schema.metadata), path, store_schema=False)
    assert path.stat().st_size < 2**20
    assert [row.step for row in store.read()] == [1]
    assert "would take more than" in caplog.text
    files = RunFiles(tmp_path)
    files.refresh()
    assert [file.rows for file in files.trajectories] == [small.num_rows]
    assert "would take more than" in files.notes[0]


def test_no_link_leaves_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.mkdir()
    (outside / "notes").write_text("mine")
    label = RolloutLabel(kind="train", step=1, rollout="r", by="ann", label="odd")
    (run / "labels.jsonl").symlink_to(outside / "notes")
    with pytest.raises(UntrustedFile, match="leads out of"):
        add_label(RunPaths(run).labels_file, label)
    assert (outside / "notes").read_text() == "mine"
    (run / "images").mkdir()
    (run / "images" / "9f86d081884c7d65").symlink_to(outside / "notes")
    with pytest.raises(DataError, match="leads out of"):
        ImageFolder(RunPaths(run).images).data("9f86d081884c7d65")
    # A folder of files, and one of its files.
    there = TrajectoryStore(outside / "trajectories")
    there.write(1, "train", [group(trajectory())])
    (run / "trajectories").mkdir()
    (run / "trajectories" / "train").symlink_to(outside / "trajectories" / "train")
    store = TrajectoryStore(RunPaths(run).trajectories)
    assert not list(store.read("train"))
    with pytest.raises(UntrustedFile):
        store.write(2, "train", [group(trajectory())])
    files = RunFiles(run)
    files.refresh()
    assert not files.trajectories
    with pytest.raises(UntrustedFile, match=r"labels\.jsonl|images|train"):
        refuse_links(run)
    # A run that is a link itself, and links within a run, are as good as any other.
    (tmp_path / "latest").symlink_to(run)
    (run / "metrics.jsonl").write_text("")
    (run / "metrics.jsonl").rename(run / "kept.jsonl")
    (run / "metrics.jsonl").symlink_to("kept.jsonl")
    assert RunPaths(tmp_path / "latest").metrics_file.is_file()
    monkeypatch.setenv(TRUST, "1")
    assert len(list(store.read("train"))) == 1


def test_what_we_wrote_is_always_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if many samples of one long prompt, which compress as a bomb does, are left out."""
    prompt = tuple(range(1, 33)) * 2000
    rows = [
        trajectory(rollout_id=f"1-t0-{n}", prompt_ids=prompt, prompt_text="an error; " * 25_600)
        for n in range(64)
    ]
    store = TrajectoryStore(tmp_path / "trajectories")
    path = store.write(1, "train", [group(*rows)])
    assert len(list(store.read())) == 64
    # As a run of sixty-four times as many, of which the bounds are these.
    monkeypatch.setattr("agentrl.data.store.bounds._SMALL", 2**22)
    before, bomb = path.stat().st_size, tmp_path / "bomb.parquet"
    bomb.write_bytes(path.read_bytes())  # no file is judged twice
    path = store.write(2, "train", [group(*rows)])
    assert before < path.stat().st_size < 2**21
    with (
        pytest.raises(UntrustedFile, match="would take more"),
        open_parquet(bomb),
    ):
        pass
    with open_parquet(path) as file:
        read = file.read()
    assert read.num_rows == 64
    assert set(read["prompt_text"].to_pylist()) == {"an error; " * 25_600}
    assert [row.trajectory.prompt_ids for row in store.read(step=2)] == [prompt] * 64
