from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONFIG_TAKERS = 20
"""Functions with a parameter annotated `RunConfig`."""
FILES_A_FOLDER = 21
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
        ("agentrl.config", "agentrl.metrics", "agentrl.chat", "agentrl.rollout", "agentrl.data"),
        ("agentrl.reward", "agentrl.batch", "agentrl.runtime", "agentrl.testing"),
        ("agentrl.cli", "agentrl.cli.traj.command", "agentrl.cli.config"),
        ("agentrl_envs", "agentrl_tools", "agentrl_sandboxes"),
    ],
)
def test_what_needs_no_tensors_loads_none(modules: tuple[str, ...]) -> None:
    # Fails if one of them imports torch at the top of a module, directly or through another.
    assert imported(*modules) & HEAVY == set()


def test_an_environment_author_loads_little() -> None:
    more = {"pyarrow", "numpy", "yaml", "typer", "aiohttp", "jinja2"}
    assert imported("agentrl") & (HEAVY | more) == set()


PUBLIC = {
    "agentrl": [
        "Action", "AgentInstance", "AgentrlError", "Engine", "EnvContext", "ExecResult",
        "Explanation", "FunctionTool", "Generator", "Message", "Observation", "Outcome", "Sandbox",
        "SandboxBackend", "SandboxLimits", "StepResult", "Task", "Termination", "Tool",
        "ToolCall", "ToolContext", "ToolError", "ToolResult", "Trajectory", "TrajectoryGroup",
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


@cache
def source_files() -> list[Path]:
    roots = [ROOT / "agentrl", *(ROOT / name for name in ("envs", "tools", "sandboxes"))]
    return [path for root in roots for path in sorted(root.rglob("*.py"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """Those parts of a source file that these tests ask for; whole trees would fill the memory."""

    imports: tuple[ast.Import | ast.ImportFrom, ...]
    """Anywhere: at the top, in a function, for types."""
    lazy: tuple[ast.Import | ast.ImportFrom, ...]
    """Those in a function."""
    loads: tuple[ast.Import | ast.ImportFrom, ...]
    """Those that run as the file is loaded."""
    classes: tuple[tuple[str, int], ...]
    """Name and line of each."""
    prints: tuple[int, ...]
    """Lines that call `print`."""
    docstrings: tuple[tuple[int, str], ...]
    """Line and docstring of what is public."""
    first_lines: tuple[tuple[int, str], ...]
    """Line and first line of each docstring: of what is private and of fields too."""
    takes_config: tuple[int, ...]
    """Lines of functions with a parameter whose annotation names `RunConfig`."""


def first_lines(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and first line of every text that stands as a statement, as docstrings do."""
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if text.strip():
                yield node.lineno, text.strip().splitlines()[0]
            case _:
                pass


def is_for_types(test: ast.expr) -> bool:
    """Return true for the condition of a block that only a type checker reads."""
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


@cache
def facts_of(path: Path) -> SourceFacts:
    """Parse a file once for all of these tests."""
    tree = ast.parse(path.read_bytes())
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {id(node): node for function in functions for node in ast.walk(function)}
    for_types = [node for node in nodes if isinstance(node, ast.If) and is_for_types(node.test)]
    apart = inner | {id(node): node for block in for_types for node in ast.walk(block)}
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return SourceFacts(
        imports=tuple(imports),
        lazy=tuple(node for node in imports if id(node) in inner),
        loads=tuple(node for node in imports if id(node) not in apart),
        classes=tuple((node.name, node.lineno) for node in nodes if isinstance(node, ast.ClassDef)),
        prints=tuple(
            node.lineno
            for node in nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ),
        docstrings=tuple(public_docstrings(tree)),
        first_lines=tuple(first_lines(nodes)),
        takes_config=tuple(node.lineno for node in functions if takes_config(node)),
    )


def takes_config(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a parameter is annotated with the root config, also as one of several types."""
    spec = function.args
    noted = [arg.annotation for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
    return any(
        isinstance(node, ast.Name) and node.id == "RunConfig"
        for annotation in noted
        if annotation is not None
        for node in ast.walk(annotation)
    )


def test_few_functions_take_the_whole_config() -> None:
    """`plan_run` resolves it into records; what comes after takes one of them, or a section."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in source_files()
        for line in facts_of(path).takes_config
    ]
    assert 0 < len(found) <= CONFIG_TAKERS, "\n".join([f"{len(found)} functions:", *found])


def test_only_the_standard_streams_of_commands_are_printed_to() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in source_files()
        for line in facts_of(path).prints
    ]
    assert found == []


def test_nothing_is_called_utils() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "misc", "manager"}
    found = [path for path in source_files() if {path.stem, *path.parent.parts} & vague]
    assert found == []


def test_no_folder_is_crowded() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    count: dict[str, int] = defaultdict(int)
    for line in set(listed.stdout.splitlines()):
        if (ROOT / line).exists():
            count[str(Path(line).parent)] += 1
    crowded = {folder: n for folder, n in sorted(count.items()) if n > FILES_A_FOLDER}
    assert crowded == {}, (
        f"more than {FILES_A_FOLDER} files: make packages of those that belong together"
    )


def modules() -> dict[str, Path]:
    """Dotted name to file, of all modules of `agentrl`."""
    found: dict[str, Path] = {}
    for path in sorted((ROOT / "agentrl").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name: str, path: Path, known: Mapping[str, Path]) -> set[str]:
    """Modules of `known` that a file imports."""
    found: set[str] = set()
    for node in facts_of(path).imports:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & known.keys()) or {str(node.module)}
    return (found & known.keys()) - {name}


def circle_in(graph: Mapping[str, set[str]]) -> Sequence[str]:
    """One circle of imports, its first module again at the end; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]  # graphlib names who is imported first
    return ()


def test_no_two_modules_import_one_another() -> None:
    # Fails if, for example, agentrl/health/records.py imports agentrl.health.watch in a function.
    known = modules()
    graph = {name: imports_of(name, path, known) for name, path in known.items()}
    assert " -> ".join(circle_in(graph)) == ""


def test_a_lazy_import_closes_a_circle_too(tmp_path: Path) -> None:
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("from x import second\n")
    second.write_text("def f():\n    import x.first\n")
    known = {"x.first": first, "x.second": second}
    graph = {name: imports_of(name, path, known) for name, path in known.items()}
    assert sorted(set(circle_in(graph))) == ["x.first", "x.second"]


def loaded_by(name: str, known: Mapping[str, Path]) -> set[str]:
    """Modules that are loaded with one, packages above it and those of other people included."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        parts = waiting.pop().split(".")
        for module in {".".join(parts[: end + 1]) for end in range(len(parts))} - found:
            found.add(module)
            if module in known:
                waiting += sorted(loads_of(known[module], known))
    return found


def loads_of(path: Path, known: Mapping[str, Path]) -> set[str]:
    """Modules that a file imports as it is loaded: neither in a function nor for types."""
    found: set[str] = set()
    for node in facts_of(path).loads:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {str(node.module), *(inner & known.keys())}
    return found


def test_runtime_imports_in_functions_only_to_keep_heavy_libraries_away() -> None:
    # Fails if, for example, agentrl/runtime/launch.py imports agentrl.data in a function.
    known = modules()
    lazy = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.module}": str(node.module)
        for name, path in known.items()
        if name.startswith("agentrl.runtime")
        for node in facts_of(path).lazy
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("agentrl")
    }
    light = [place for place, name in lazy.items() if not loaded_by(name, known) & HEAVY]
    assert light == [], "nothing heavy comes with it: import it at the top"
    assert len(lazy) <= 30, list(lazy)


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in source_files():
        for name, line in facts_of(path).classes:
            places[name].append(f"{path.relative_to(ROOT)}:{line}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def public_docstrings(node: ast.Module | ast.ClassDef) -> Iterator[tuple[int, str]]:
    """Line and docstring of a module or class and of what is public in it."""
    yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""
    for child in node.body:
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if child.name.startswith("_"):
            continue
        if isinstance(child, ast.ClassDef):
            yield from public_docstrings(child)
        else:
            yield child.lineno, ast.get_docstring(child) or ""


def test_first_lines_of_docstrings_say_what_a_thing_is_or_does() -> None:
    riddle = re.compile(r"(What|Whether|Who|Whose|Whoever|Where|How|That)\b")
    found = [
        f"{path.relative_to(ROOT)}:{line}: {first}"
        for path in source_files()
        for line, text in facts_of(path).docstrings
        if text and (len((first := text.splitlines()[0]).split()) <= 3 or riddle.match(first))
    ]
    assert found == []


def test_first_lines_of_docstrings_use_the_words_of_the_field() -> None:
    # Fails if, for example, a method's docstring begins with "Let time pass"; it was tried.
    vague = re.compile(r"\b(say|says|said|saying|let|lets|letting)\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{line}: {first}"
        for path in source_files()
        for line, first in facts_of(path).first_lines
        if vague.search(first)
    ]
    assert found == []


def test_source_is_ascii() -> None:
    found = [path for path in source_files() if not path.read_bytes().isascii()]
    assert found == []


def test_the_top_level_holds_what_the_layout_names() -> None:
    named = {
        "pyproject.toml", "README.md", "agentrl", "envs", "tools", "sandboxes", "configs", "tests",
        "examples", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", ".ci",
        ".pre-commit-config.yaml", "benchmarks", "docs",
    }  # fmt: skip
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert top - named <= {".gitignore", ".gitattributes", ".github"}
