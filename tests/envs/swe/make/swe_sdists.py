"""Tiny libraries of our own as source distributions, and a test environment without a network."""

from __future__ import annotations

import importlib.metadata
import io
import json
import shutil
import tarfile
from pathlib import Path

from agentrl_envs.swe.make.environment import compile_packages

MIT = """MIT License

Permission is hereby granted, free of charge, to any person obtaining a copy of this software, to
deal in it without restriction. It is provided "as is".
"""

SHAPES = '''"""Areas and counts."""


def area(width, height):
    """The area of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("sides are not negative")
    return width * height  # the sides multiplied


def count_below(values, limit):
    """How many values are below the limit."""
    return sum(1 for value in values if value < limit)


def clamp(value, low, high):
    """The value, moved into the range."""
    return max(low, min(value, high))


def chunks(items, size):
    """The items in lists of a size."""
    found = []
    for start in range(0, len(items), size):
        found.append(items[start : start + size])
    return found


def never_tested(value):
    return value + 1
'''

TESTS = """import itertools
import pytest
import shapes


@pytest.mark.parametrize(("width", "height"), list(itertools.product(range(3), range(3))))
def test_area(width, height):
    assert shapes.area(width, height) == width * height


@pytest.mark.parametrize("width", [-1, -5])
def test_negative(width):
    with pytest.raises(ValueError, match="negative"):
        shapes.area(width, 2)


@pytest.mark.parametrize("limit", range(5))
def test_count_below(limit):
    assert shapes.count_below(range(10), limit) == limit


@pytest.mark.parametrize("value", range(-2, 8))
def test_clamp(value):
    assert 0 <= shapes.clamp(value, 0, 5) <= 5


@pytest.mark.parametrize("size", [1, 2, 3])
def test_chunks(size):
    assert sum(shapes.chunks(list(range(7)), size), []) == list(range(7))
"""


def write_sdist(folder: Path, name: str, version: str, files: dict[str, str | bytes]) -> Path:
    """`name-version.tar.gz` in `folder`, with a licence and metadata beside `files`."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense-Expression: MIT\n"
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for inner, content in {"PKG-INFO": info, "LICENSE": MIT, **files}.items():
            data = content if isinstance(content, bytes) else content.encode()
            member = tarfile.TarInfo(f"{name}-{version}/{inner}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def shapes(**changed: str) -> dict[str, str | bytes]:
    """The files of the library `shapes`, some replaced."""
    return {"shapes.py": SHAPES, "tests/test_shapes.py": TESTS, **changed}


def copy_environment(folder: Path, packages: tuple[str, ...] = ("pytest",)) -> Path:
    """A test environment copied from the one that runs this test: no index is asked."""
    pinned = []
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        found = importlib.metadata.distribution(name)
        pinned.append(f"{name}=={found.version}")
        for file in found.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(found.locate_file(file), target)
    stated = {"id": "copied", "requirements": sorted(pinned), "packages": sorted(packages)}
    (folder / "environment.json").write_text(json.dumps(stated))
    compile_packages(folder)
    return folder
