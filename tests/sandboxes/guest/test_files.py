"""Paths of the work directory, as a program may have bent them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from agentrl_sandboxes.guest import files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    return place


def read(root: Path, path: str) -> bytes:
    return files.read(bytes(root), {"path": path.encode(), "max_bytes": 100})


def write(root: Path, path: str) -> None:
    files.write(bytes(root), {"path": path.encode(), "data": b"new"})


def test_chain_of_links_is_followed_as_far_as_the_kernel_does(root: Path) -> None:
    # Fails if a path is resolved by recursion: RecursionError, which is no OSError.
    (root / "end").write_text("x")
    (root / "l0").symlink_to("end")
    for number in range(1, 3000):
        (root / f"l{number}").symlink_to(f"l{number - 1}")
    assert read(root, f"l{files.LINKS - 1}") == b"x"
    for number in (files.LINKS, 2999):
        with pytest.raises(PermissionError, match="too many links"):
            read(root, f"l{number}")
        with pytest.raises(PermissionError, match="too many links"):
            write(root, f"l{number}/below")


def test_long_way_is_given_up_soon(root: Path) -> None:
    # Fails if only links are counted: 40 of them are a way of some 30,000 names below each other.
    deep = root
    for _ in range(15):
        deep = deep / ("d" * 200)
        deep.mkdir()
    here = os.path.relpath(deep, root)
    for number in range(39):
        (root / f"l{number}").symlink_to(f"{here}/{'../' * 15}" + f"./{'./' * 450}l{number + 1}")
    started = time.process_time()
    with pytest.raises(PermissionError, match="too many links or directories"):
        read(root, "l0")
    assert time.process_time() - started < 2.0


def test_link_to_what_is_missing_is_written_through_inside_only(root: Path) -> None:
    (root / "inner").symlink_to("a/b/missing")
    (root / "outer").symlink_to("../missing")
    (root / "far").symlink_to("../a/b/missing")
    write(root, "inner")
    assert (root / "a/b/missing").read_text() == "new"
    assert (root / "inner").is_symlink()
    for name in ("outer", "far"):
        with pytest.raises(PermissionError, match="leads out"):
            write(root, name)
        with pytest.raises(PermissionError, match="leads out"):
            read(root, name)
    assert sorted(path.name for path in root.parent.iterdir()) == ["work"]


def test_work_directory_that_became_a_link_is_left(root: Path) -> None:
    other = root.parent / "other"
    other.mkdir()
    (other / "f").write_text("x")
    root.rmdir()
    root.symlink_to(other)
    with pytest.raises(PermissionError, match="leads out"):
        read(root, "f")
    with pytest.raises(PermissionError, match="leads out"):
        write(root, "new")


def test_work_directory_that_is_gone_is_made_again(root: Path) -> None:
    root.rmdir()
    with pytest.raises(FileNotFoundError):
        read(root, "f")
    write(root, "d/f")
    assert (root / "d" / "f").read_text() == "new"


@pytest.mark.parametrize("path", ["", ".", "d", "d/", "d/.", "d/..", "new/"])
def test_directory_is_no_file(root: Path, path: str) -> None:
    (root / "d").mkdir()
    with pytest.raises(IsADirectoryError):
        write(root, path)
    assert [item.name for item in root.iterdir()] == ["d"]


def test_nothing_is_left_open(root: Path) -> None:
    (root / "f").write_text("x")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("f", "missing", "../f", "/etc/passwd", "f/below"):
        for call in (read, write):
            try:
                call(root, path)
            except OSError:
                continue
    assert len(list(Path("/proc/self/fd").iterdir())) == before
