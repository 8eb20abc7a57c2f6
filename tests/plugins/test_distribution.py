"""The distribution's name: one place, commands that work in a clone and in an install."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from agentrl.plugins.distribution import DISTRIBUTION, install_command, other_program

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_name_is_that_of_the_project():
    assert PROJECT["name"] == DISTRIBUTION


def test_a_clone_is_installed_in_place_and_a_wheel_from_the_index(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert install_command("train").endswith("-m pip install -e '.[train]'")
    assert install_command("train", "ray", root=tmp_path).endswith(
        f"-m pip install '{DISTRIBUTION}[train,ray]'"
    )
    (tmp_path / "pyproject.toml").touch()
    assert install_command("train", root=tmp_path).endswith(
        f"-m pip install -e '{tmp_path}[train]'"
    )
    gone = tmp_path / "gone"
    gone.mkdir()
    for folder in (tmp_path, gone):
        monkeypatch.chdir(folder)
        if folder == gone:
            gone.rmdir()
        assert install_command("train").startswith(sys.executable)


def written() -> list[Path]:
    folders = ("agentrl", "envs", "tools", "sandboxes", "configs", "examples", "docs")
    files = [path for name in folders for path in (ROOT / name).rglob("*")]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    return [p for p in files if p.suffix in (".py", ".md", ".yaml", "") and p.is_file()]


def test_nothing_tells_anybody_to_install_the_other_program():
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in written()
        for match in re.finditer(r"\bagentrl\[[a-z]|pip install '?agentrl\b(?!-)", path.read_text())
        if path.name != "distribution.py"
    ]
    assert not found, f"name it with install_command(), or as '.[extra]' in a clone: {found}"


def test_every_extra_that_a_message_names_exists():
    named = {
        extra
        for path in written()
        if path.suffix == ".py"
        for call in re.findall(r"install_command\(([^)]*)\)", path.read_text())
        for extra in re.findall(r"['\"](\w+)['\"]", call)
    }
    assert {"train", "inspect", "ray"} - named == {"train"}  # `train` is looked up in a table
    assert named <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize("folder", ["AgentRL-0.0.18.dist-info", "agentrl-0.0.18.dist-info"])
def test_the_other_program_is_named_where_it_is_installed(tmp_path, folder):
    (tmp_path / folder).mkdir()
    found = other_program([str(tmp_path), str(tmp_path / "gone")])
    assert found is not None
    assert "'agentrl' 0.0.18 is installed in" in found
    assert "-m pip uninstall agentrl, then install agentrl-platform again" in found


def test_our_own_distributions_are_not_taken_for_it(tmp_path):
    (tmp_path / "agentrl_platform-0.1.0.dist-info").mkdir()
    older = tmp_path / "agentrl-0.1.0.dist-info"
    older.mkdir()
    (older / "entry_points.txt").write_text("[console_scripts]\nagentrl = agentrl.cli:main\n")
    assert other_program([str(tmp_path)]) is None
