"""`.ci/reach.py`: a digest changes with all that a slow test file reaches, and nothing else."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Not by `sys.path`: children of tests inherit that, and `.ci/tests.py` would hide the package.
_SPEC = importlib.util.spec_from_file_location("reach", ROOT / ".ci" / "reach.py")
assert _SPEC is not None
assert _SPEC.loader is not None
reach = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reach)

TEST = "tests/part/test_slow.py"
FILES = {
    TEST: (
        '"""Docstrings name `agentrl.unrelated` and are left out."""\n'
        "import pytest\n"
        "from tests.part import fakes\n"
        "pytestmark = [pytest.mark.timeout(9), pytest.mark.slow(reach=['agentrl.named'])]\n"
        "TARGETS = ['agentrl_envs.code:CodeTask', 'agentrl_tools:run']\n"
        "SCRIPT = 'run.sh'  # not agentrl.unrelated\n"
        "def test_it():\n    from agentrl import first\n"
        "    text = '''\n"
        '"""\n'
        "from agentrl.quoted import x\n'''\n"
    ),
    "tests/part/fakes.py": "PRELOAD = [\n    'agentrl.warm',\n]\nimport late",
    "tests/part/table.json": "{}",
    "tests/part/late.py": "CONFIG = 'configs/a.yaml'",
    "tests/conftest.py": "pytest_plugins = ['tests.shared']",
    "tests/shared.py": "def server():\n    import agentrl.server",
    "tests/other/test_slow.py": "import pytest\npytestmark = pytest.mark.slow\nserver = 1",
    "agentrl/__init__.py": "",
    "agentrl/first.py": "def f():\n    import agentrl.second.third",
    "agentrl/second/__init__.py": "",
    "agentrl/second/third.py": "from agentrl.second import (\n    fourth,\n)\n",
    "agentrl/second/fourth.py": "command = [python, '-m', 'agentrl.main']",
    "agentrl/second/page/style.css": "",
    "agentrl/second/README.md": "",
    "agentrl/main.py": "",
    "agentrl/quoted.py": "",
    "agentrl/server.py": "",
    "agentrl/unrelated.py": "",
    "agentrl/warm.py": "",
    "agentrl/named/deep/one.py": "",
    "envs/agentrl_envs/__init__.py": "",
    "envs/agentrl_envs/code/__init__.py": "",
    "envs/agentrl_envs/code/templates/a.jinja": "",
    "envs/agentrl_envs/yaml_named.py": "",
    "tools/agentrl_tools/__init__.py": "",
    "configs/a.yaml": "env: {target: 'agentrl_envs.yaml_named:Task'}",
    "configs/b.yaml": "",
    ".ci/constraints.txt": "",
    ".ci/passed.txt": "",
    ".ci/newcomer.py": "",
    "pyproject.toml": "[project]\n[tool.ruff]\na = [\n    'b',\n]\n\n[tool.pytest]\n",
    "Makefile": "",
}
REACHED = [
    *(TEST, "tests/part/fakes.py", "tests/part/table.json", "tests/part/late.py"),
    *(
        "tests/conftest.py",
        "tests/shared.py",
        "agentrl/__init__.py",
        "agentrl/first.py",
        "agentrl/second/__init__.py",
    ),
    *("agentrl/second/third.py", "agentrl/second/fourth.py", "agentrl/second/page/style.css"),
    *("agentrl/main.py", "agentrl/quoted.py", "agentrl/named/deep/one.py", "configs/a.yaml"),
    *("envs/agentrl_envs/__init__.py", "envs/agentrl_envs/code/__init__.py"),
    *("envs/agentrl_envs/code/templates/a.jinja", "envs/agentrl_envs/yaml_named.py"),
    *("tools/agentrl_tools/__init__.py", ".ci/constraints.txt", "pyproject.toml", "Makefile"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def digest(root: Path, test: str = TEST) -> str:
    return reach.Project(root).digest(test)


@pytest.mark.parametrize("file", FILES)
def test_a_digest_changes_with_what_is_reached_and_nothing_else(project: Path, file: str) -> None:
    before = digest(project)
    with (project / file).open("a") as text:
        text.write("\n")
    assert (digest(project) != before) == (file in REACHED)


def test_of_pyproject_what_checks_source_is_left_out(project: Path) -> None:
    before = digest(project)
    file = project / "pyproject.toml"
    file.write_text(file.read_text().replace("'b',", "'b', 'c',"))
    assert digest(project) == before
    file.write_text(file.read_text().replace("[tool.pytest]", "[tool.pytest]\nx = 1"))
    assert digest(project) != before


def test_a_shared_fixture_counts_for_those_who_name_it(project: Path) -> None:
    found = reach.Project(project)
    assert "agentrl/server.py" in found.reach("tests/other/test_slow.py")
    assert "agentrl/server.py" not in found.reach(TEST)


def test_new_files_in_reach_change_the_digest(project: Path) -> None:
    before = digest(project)
    (project / "agentrl/second/page/new.js").write_text("")
    assert digest(project) != before


def test_git_and_an_unpacked_archive_give_equal_digests(project: Path, tmp_path: Path) -> None:
    """Fails if a build folder, a time or the path of the checkout is part of a digest."""
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(project, copy)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    subprocess.run(["git", "add", "."], cwd=project, check=True)
    for folder in ("__pycache__", ".venv/lib", "agentrl.egg-info"):
        (copy / "agentrl" / folder).mkdir(parents=True)
        (copy / "agentrl" / folder / "junk.txt").write_text("")
    assert digest(copy) == digest(project)


def test_only_files_that_are_slow_as_a_whole_have_a_reach(project: Path) -> None:
    text = "import pytest\n@pytest.mark.slow\ndef test_a(): pass\n"
    (project / "tests" / "test_partly.py").write_text(text)
    assert sorted(reach.Project(project).slow_files) == ["tests/other/test_slow.py", TEST]


def test_a_reach_that_names_nothing_is_refused(project: Path) -> None:
    (project / TEST).write_text(FILES[TEST].replace("agentrl.named", "agentrl.moved"))
    with pytest.raises(ValueError, match=r"reach=\['agentrl.moved'\].*expected a package"):
        digest(project)


def test_real_files_reach_what_they_run() -> None:
    """A command line in a test reaches the commands, these their packages, and vLLM the plug-in."""
    found = reach.Project(ROOT)
    reached = found.reach("tests/runtime/test_run_processes.py")
    assert {"agentrl/cli/train.py", "agentrl/train/trainer.py"} <= reached
    assert "agentrl/sync/vllm/plugin.py" in found.reach("tests/serving/vllm/test_stuck.py")
    page = found.reach("tests/inspect/browser/test_browser_views.py")
    assert "agentrl/inspect/static/views/charts/csv.js" in page
    assert "configs/swe_docker.yaml" in found.reach("tests/envs/swe/test_readers.py")
    assert "agentrl/runtime/launch.py" not in found.reach("tests/sandboxes/test_conformance.py")
    # What crews of processes import beforehand is not what they are for.
    trained = found.reach("tests/train/prove/test_planted_losses.py")
    assert "agentrl/train/trainer.py" in trained
    assert not [file for file in trained if file.startswith(("agentrl/cli/", "agentrl/inspect/"))]


def test_nothing_of_ci_is_imported_by_name() -> None:
    """Fails if a test file puts `.ci` on the path: its `tests.py` hides our `tests` in children."""
    assert ROOT / ".ci" not in [Path(place).resolve() for place in sys.path]
