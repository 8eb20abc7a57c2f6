from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "transformers", "ray", "vllm", "deepspeed", "tensorboard", "datasets"}


def test_the_import_table_holds() -> None:
    # Fails if, for example, agentrl/data/store.py imports agentrl.batch, or a new package has no
    # row; both were tried.
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[done.stdout.find("Broken") :] + done.stderr


def test_every_package_has_a_row_in_the_import_table() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = {c["id"]: c for c in config["tool"]["importlinter"]["contracts"]}
    rows = set(re.findall(r"\w+", " ".join(contracts["rows"]["layers"])))
    packages = {path.parent.name for path in (ROOT / "agentrl").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "agentrl").glob("*.py")} - {"__init__"}
    assert packages | modules <= rows | {"testing"}


def imported(*modules: str) -> set[str]:
    """Top-level packages a fresh process has loaded after importing `modules`."""
    code = (
        f"import {', '.join(modules)}, sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "modules",
    [
        ("agentrl",),
        ("agentrl.config", "agentrl.metrics"),
        ("agentrl.chat", "agentrl.rollout"),
        ("agentrl.data", "agentrl.reward"),
        ("agentrl.batch",),
        ("agentrl.runtime",),
        ("agentrl.cli", "agentrl.cli.traj.command", "agentrl.cli.config"),
        ("agentrl_envs", "agentrl_tools", "agentrl_sandboxes"),
        ("agentrl.testing",),
    ],
)
def test_what_needs_no_tensors_loads_none(modules: tuple[str, ...]) -> None:
    # Fails if one of them imports torch at the top of a module, directly or through another.
    assert imported(*modules) & HEAVY == set()


def test_an_environment_author_loads_little() -> None:
    assert imported("agentrl") & {"pyarrow", "numpy", "yaml", "typer", "aiohttp", "jinja2"} == set()


PUBLIC = {
    "agentrl": [
        "Action", "AgentInstance", "AgentrlError", "Engine", "EnvContext", "ExecResult",
        "FunctionTool", "Generator", "Message", "Observation", "Outcome", "Sandbox",
        "SandboxBackend", "SandboxLimits", "StepResult", "Task", "Termination", "Tool",
        "ToolError", "ToolResult", "Trajectory", "TrajectoryGroup",
    ],
    "agentrl.config": [
        "RunConfig", "dump_config", "leaves", "load_config", "load_module", "parse_config",
        "resolve", "resolve_callable",
    ],
    "agentrl.metrics": [
        "CATALOG", "JsonlSink", "MetricBag", "MetricName", "MetricSink", "MetricsLog",
        "TensorBoardSink", "find_metric", "read_metrics", "verl_name",
    ],
    "agentrl.data": [
        "StoredTrajectory", "TaskCursor", "TokenStore", "TrajectoryStore", "load_tasks",
    ],
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_frozen(module: str) -> None:
    # Users import these. A name goes only with a CHANGELOG entry, and comes with one too.
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == PUBLIC[module]
    for name in loaded.__all__:
        assert getattr(loaded, name).__doc__, f"{module}.{name} has no docstring"


def source_files() -> list[Path]:
    roots = [ROOT / "agentrl", *(ROOT / name for name in ("envs", "tools", "sandboxes"))]
    return [path for root in roots for path in sorted(root.rglob("*.py"))]


def test_only_the_standard_streams_of_commands_are_printed_to() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in source_files()
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert found == []


def test_nothing_is_called_utils() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "misc", "manager"}
    found = [path for path in source_files() if {path.stem, *path.parent.parts} & vague]
    assert found == []


def test_source_is_ascii() -> None:
    found = [path for path in source_files() if not path.read_bytes().isascii()]
    assert found == []


def test_the_top_level_holds_what_the_layout_names() -> None:
    named = {
        "pyproject.toml", "README.md", "agentrl", "envs", "tools", "sandboxes", "configs", "tests",
        "examples", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", ".ci",
        ".pre-commit-config.yaml", "benchmarks",
    }  # fmt: skip
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert top - named <= {".gitignore", ".gitattributes", ".github"}
