from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.config import load_module, resolve, resolve_callable
from agentrl.errors import ConfigError


def test_a_module_and_a_file_resolve(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Outer:\n    class Inner:\n        x = 3\n")
    assert resolve("pathlib:Path") is Path
    assert resolve("mine.py:Outer.Inner", base=tmp_path).x == 3
    assert resolve(f"{tmp_path}/mine.py:Outer.Inner.x") == 3
    # The same file twice is one module: isinstance checks across two import strings hold.
    assert resolve("mine.py:Outer", base=tmp_path) is resolve("./mine.py:Outer", base=tmp_path)


def test_a_file_may_import_its_neighbour_and_leaves_no_trace_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("value = 5\n")
    (tmp_path / "mine.py").write_text("from neighbour_of_mine import value\n")
    before = list(sys.path)
    assert resolve("mine.py:value", base=tmp_path) == 5
    assert sys.path == before


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("pathlib", "expected 'package.module:Name'"),
        (":Name", "expected 'package.module:Name'"),
        ("pathlib:", "expected 'package.module:Name'"),
        ("pathlib:Pth", r"'pathlib' was imported but has no 'Pth'.*did you mean 'Path'"),
        ("no_such_module_xyz:A", r"module 'no_such_module_xyz' was not found"),
        ("os.no_such:A", r"module 'os.no_such' was not found"),
        ("needs.py:A", r"needs.py needs 'absent_package_xyz', which is not installed$"),
        ("raises.py:A", r"raises.py raised while being imported: ZeroDivisionError"),
        ("syntax.py:A", r"SyntaxError"),
        ("raise.py:A", r"does not exist.*did you mean 'raises.py'"),
        ("fine.py:b", r"has no 'b'.*valid: A"),
    ],
)
def test_the_half_that_failed_is_named(target: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "needs.py").write_text("import absent_package_xyz\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "syntax.py").write_text("def (\n")
    (tmp_path / "fine.py").write_text("A = 1\n")
    with pytest.raises(ConfigError, match=message):
        resolve(target, base=tmp_path)


def test_a_package_that_one_of_our_extras_brings_comes_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.py").write_text("from openai.types import chat\n")
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.setitem(sys.modules, "openai.types", None)
    with pytest.raises(ConfigError, match=r"needs 'openai.*; run .* install .*\[gateway\]"):
        resolve("agent.py:agent", base=tmp_path)


def test_a_file_that_failed_is_tried_again_after_it_was_mended(tmp_path: Path) -> None:
    file = tmp_path / "mended.py"
    file.write_text("1 / 0\n")
    with pytest.raises(ConfigError):
        load_module("mended.py", base=tmp_path)
    file.write_text("A = 1  # mended, and of another length\n")
    assert load_module("mended.py", base=tmp_path).A == 1


def test_something_that_is_not_callable_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text("A = 1\n")
    with pytest.raises(ConfigError, match="names a int, not callable"):
        resolve_callable("fine.py:A", base=tmp_path)
