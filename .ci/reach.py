"""Reach of slow test files: every file whose change could change what their tests find.

A test file is slow if its module-level `pytestmark` holds `pytest.mark.slow`. Its reach is the
test file, the `conftest.py` files above it, all they import at any level, and what their source
names in strings: modules and import strings, files, folders beside `__file__`. The non-Python files
of a folder belong to the modules in it. A test file that reaches more names it in a marker,
`pytest.mark.slow(reach=["agentrl.runtime"])`: a package stands for all files below it, and `.` for
all files of the project. Source is searched as text, so that a name too many is found rather than
one too few; docstrings and comments are left out.

Left out is what changes no test: which modules a fork server imports beforehand (`PRELOAD`; who
uses one names it), the scripts that choose and record, and what `pyproject.toml` tells tools that
check source.

The digest of a reach holds names and contents of its files, and is equal on every machine.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

RECORD = ".ci/passed.txt"
ALWAYS = ("Makefile", "pyproject.toml", ".gitignore")
"""Files that every reach holds, besides those of `.ci`."""
CHOOSING = (RECORD, ".ci/reach.py", ".ci/record.py", ".ci/newcomer.py")
"""Files of `.ci` that choose tests or begin others, and change none."""
ROOTS = {"envs": "agentrl_envs", "tools": "agentrl_tools", "sandboxes": "agentrl_sandboxes"}
"""Folders that hold one package of ours each."""
SHIPPED = ("agentrl/", *(f"{folder}/" for folder in ROOTS))
TOPS = ("agentrl", *ROOTS.values(), "tests", "benchmarks", "examples")
DATA_FOLDERS = ("configs", "examples", "benchmarks")
NOT_IMPORTED = {("distribution.py", "agentrl.cli")}
"""Names that a file of this name compares with others and never imports."""
SUFFIXES = r"py|ya?ml|jinja|js|css|html|txt|jsonl?|toml|md|gz|parquet|svg|conf|sh|csv"

_CHECKERS = re.compile(
    r"^\[+tool\.(?:ruff|pyright|importlinter|typos)\b.*\n(?:[^\[\n].*\n|\n)*", re.MULTILINE
)
"""Sections of `pyproject.toml` about checks of source."""
_PRELOAD = re.compile(r"^PRELOAD = \[[^\]]*\]", re.MULTILINE)
_NAMING = (".yaml", ".yml", ".txt", ".jinja", ".sh", ".toml")
"""Data whose text may name modules and files."""
_TOKENS = re.compile(
    r'#[^\n]*|"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""|\'\'\'[^\'\\]*(?:(?:\\.|\'(?!\'\'))[^\'\\]*)*'
    r"'''|\"[^\"\\\n]*(?:\\.[^\"\\\n]*)*\"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'",
    re.DOTALL,
)
_FROM = re.compile(r"from[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n;]*)")
_IMPORT = re.compile(
    r"(?:^|[\"';n])[ \t]*import[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)", re.MULTILINE
)
_TOP = "|".join(sorted(TOPS, key=len, reverse=True))
_DOTTED = re.compile(rf"((?:{_TOP})(?:(?:\.\w+)+|(?=:\w)))")
_QUOTED = re.compile(rf"[\"']((?:{_TOP})(?:\.\w+)*)(?:\.?[\"']|\.\{{)")
_SUFFIX = re.compile(rf"\.(?:{SUFFIXES})\b")
_NAME_BEFORE = re.compile(r"[\w./-]*$")
_PATTERN = re.compile(rf"\*[\w*]*(\.(?:{SUFFIXES}))\b")
_WORD = re.compile(r"[\"']([\w.-]+)/?[\"']")
_JOINED = re.compile(
    r"(?:/|joinpath\(|with_name\(|import_module\(|\.parent,)\s*[\"']([\w.-]+)/?[\"']"
)
_PROGRAM = re.compile(
    r"(?:[\[/][ \t]*|which\(|with_name\(|-m[\"', \t]+)[\"']?agentrl(?:[\"']|[ \t]+[a-z])"
)
"""Starts of the command line: `"-m", "agentrl"`, `["agentrl", ...]`, `bin / "agentrl"`."""
_VLLM = re.compile(
    r"^[ \t]*(?:from|import) vllm\b|[\"']vllm\.|find_spec\(\"vllm\"\)|-m.{0,8}vllm", re.MULTILINE
)


def project_files(root: Path) -> list[str]:
    """Files of the project, sorted: what git would commit, or all that lies there without git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        top = subprocess.run(
            ["git", "rev-parse", "--show-prefix"], cwd=root, capture_output=True, text=True
        )
        found = subprocess.run(command, cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        top = found = None
    # An unpacked archive inside another repository is not that repository's.
    ours = top is not None and top.returncode == 0 and not top.stdout.strip()
    if ours and found is not None and found.returncode == 0:
        names = found.stdout.split("\0")
        return sorted({name for name in names if name and (root / name).is_file()})
    return sorted(_walk(root))


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if name not in ("__pycache__", "runs", "dist", "build")
            and (not name.startswith(".") or name == ".ci")
            and not name.endswith(".egg-info")
        ]
        for name in names:
            yield (Path(folder) / name).relative_to(root).as_posix()


def without_prose(source: str) -> str:
    """Python source without comments and docstrings."""

    def keep(match: re.Match[str]) -> str:
        text = match[0]
        if text.startswith("#"):
            return ""
        if text.startswith(('"""', "'''")):
            line = source.rfind("\n", 0, match.start()) + 1
            before = source[:line].rstrip()[-1:]
            # After an open bracket or an operator it is a value that some call takes.
            if not source[line : match.start()].strip(" \trR") and before not in {*"([{,=+%|\\\"'"}:
                return '""'
        return text

    return _TOKENS.sub(keep, source)


class Project:
    """Files of a checkout and what each of them names."""

    def __init__(self, root: Path, files: Iterable[str] | None = None) -> None:
        """Read names only; contents are read when a reach asks for them."""
        self.root = root
        self.files = sorted(project_files(root) if files is None else files)
        self._known = frozenset(self.files)
        self._modules: dict[str, str] = {}
        self._by_name: dict[str, list[str]] = {}
        self._below: dict[str, list[str]] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._hashes: dict[str, str] = {}
        for file in self.files:
            path = PurePosixPath(file)
            self._by_name.setdefault(path.name, []).append(file)
            for folder in path.parents:
                self._below.setdefault(folder.as_posix(), []).append(file)
            if path.suffix == ".py":
                parts = path.with_suffix("").parts
                parts = parts[1:] if parts[0] in ROOTS and len(parts) > 1 else parts
                parts = parts[:-1] if parts[-1] == "__init__" else parts
                self._modules[".".join(parts)] = file
        self._data = self._data_by_folder()

    def _data_by_folder(self) -> dict[str, list[str]]:
        """Non-Python files by the nearest folder above them that holds modules."""
        homes = {str(PurePosixPath(file).parent) for file in self._modules.values()}
        found: dict[str, list[str]] = {}
        for file in self.files:
            if file.endswith((".py", ".md")):
                continue
            home = next((f.as_posix() for f in PurePosixPath(file).parents if str(f) in homes), "")
            found.setdefault(home, []).append(file)
        return found

    def text(self, file: str) -> str:
        """Contents of a file, or nothing if it is no text."""
        try:
            return (self.root / file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return ""

    def content_hash(self, file: str) -> str:
        """SHA-256 of the contents, of `pyproject.toml` without what checks source."""
        if file not in self._hashes:
            content = (self.root / file).read_bytes()
            if file == "pyproject.toml":
                content = _CHECKERS.sub("", content.decode()).encode()
            self._hashes[file] = hashlib.sha256(content).hexdigest()
        return self._hashes[file]

    @cached_property
    def slow_files(self) -> dict[str, list[str]]:
        """Test files marked slow as a whole, and the reach that their marker names."""
        found = {}
        for file in self.test_files:
            text = self.text(file)
            if "mark.slow" in text and (named := _slow_marker(text)) is not None:
                found[file] = named
        return found

    @property
    def test_files(self) -> list[str]:
        """All files of tests."""
        below = self._below.get("tests", [])
        return [f for f in below if PurePosixPath(f).match("test_*.py")]

    def reach(self, test: str) -> frozenset[str]:
        """Files whose change could change what the tests of this file find."""
        named = self.slow_files.get(test, [])
        if "." in named:
            return self._known - {*CHOOSING}
        always = {file for file in self.files if file in ALWAYS or file.startswith(".ci/")}
        found = {*always, *self._closure([test, *self._conftests(test)])}
        for name in named:
            found |= self._closure(self._all_of(name))
        return frozenset(found - {*CHOOSING})

    def digest(self, test: str) -> str:
        """Digest of names and contents of the files in reach."""
        lines = [f"{file} {self.content_hash(file)}\n" for file in sorted(self.reach(test))]
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]

    def _conftests(self, test: str) -> list[str]:
        above = [folder / "conftest.py" for folder in PurePosixPath(test).parents]
        return [path.as_posix() for path in above if path.as_posix() in self._known]

    def _all_of(self, name: str) -> list[str]:
        """Files that a marker names: a package, a module, a folder or a file."""
        found = [*self._package(name), *self._below.get(name, [])]
        found += [name] if name in self._known else []
        found += [self._modules[name]] if name in self._modules else []
        if not found:
            raise ValueError(
                f"pytest.mark.slow(reach=[{name!r}]): expected a package, module, folder or file "
                "of this project, or '.' for all of it"
            )
        return found

    def _closure(self, start: Iterable[str]) -> set[str]:
        found: set[str] = set()
        plugins: set[str] = set()
        loaded: set[str] = set()
        todo = list(start)
        while todo:
            file = todo.pop()
            if file in found:
                continue
            found.add(file)
            names = self.names(file)
            if PurePosixPath(file).name == "conftest.py":
                own = self._plugins(file)
                plugins |= own
                names = names - own
                # Pytest loads a plug-in for every test; what it imports, for those who use it.
                loaded |= own
            todo += names - found
            if not todo:
                todo = [plugin for plugin in plugins - found if self._uses(found, plugin)]
        return found | loaded

    def _plugins(self, conftest: str) -> frozenset[str]:
        """Files that a conftest names in `pytest_plugins`."""
        listed = re.search(r"^pytest_plugins = \[([^\]]*)\]", self.text(conftest), re.MULTILINE)
        names = re.findall(r"[\"']([\w.]+)[\"']", listed[1]) if listed else []
        return frozenset(self._modules[name] for name in names if name in self._modules)

    def _uses(self, files: Iterable[str], plugin: str) -> bool:
        """Whether one of the tests' files names something that a plug-in of pytest defines."""
        fixtures = re.findall(r"def (\w+)", self.text(plugin))
        if "autouse" in self.text(plugin) or not fixtures:
            return True
        pattern = re.compile(rf"\b(?:{'|'.join(fixtures)})\b")
        mine = (f for f in files if f.startswith("tests/") and f != "tests/conftest.py")
        return any(pattern.search(self.text(file)) for file in mine if file.endswith(".py"))

    def names(self, file: str) -> frozenset[str]:
        """Files that this one names, imports or has beside it."""
        if file not in self._names:
            found: set[str] = set()
            if file.endswith(".py"):
                source = without_prose(self.text(file))
                source = _PRELOAD.sub("", source) if file.startswith("tests/") else source
                found |= self._imports(file, source)
                found |= self._strings(file, source)
                found |= set(self._data.get(PurePosixPath(file).parent.as_posix(), []))
            elif file.endswith(_NAMING) and file not in ALWAYS and not file.startswith(".ci/"):
                source = self.text(file)
                found |= self._dotted(file, source) | self._named_files(file, source)
            self._names[file] = frozenset(found - {file, RECORD})
        return self._names[file]

    def _imports(self, file: str, source: str) -> set[str]:
        found: set[str] = set()
        for module, names in _FROM.findall(source):
            found |= self._module(file, module)
            for name in re.findall(r"\w+", names):
                if f"{module}.{name}" in self._modules:
                    found |= self._module(file, f"{module}.{name}")
                elif self._is_folder(f"{module}.{name}"):
                    found |= set(self._package(f"{module}.{name}"))
        for names in _IMPORT.findall(source):
            for module in re.findall(r"[\w.]+", names):
                found |= self._module(file, module)
        return found

    def _module(self, file: str, name: str) -> set[str]:
        """Files of a module: its own and the `__init__` of each package above it."""
        top = name.partition(".")[0]
        if top not in TOPS:
            # A module of ours imports its neighbours by their whole names; a script does not.
            foreign = file.startswith(SHIPPED) and top in sys.stdlib_module_names
            return set() if foreign else self._neighbour(file, name)
        parts = name.split(".")
        tops = [".".join(parts[: n + 1]) for n in range(len(parts))]
        return {self._modules[part] for part in tops if part in self._modules}

    def _neighbour(self, file: str, name: str) -> set[str]:
        """A module beside a script, or in a folder that was put on `sys.path`."""
        folder = PurePosixPath(file).parent.as_posix()
        places = [folder] if file.startswith(SHIPPED) else [folder, *DATA_FOLDERS]
        found: set[str] = set()
        tail = name.replace(".", "/")
        top = name.partition(".")[0]
        ends = (f"/{tail}.py", f"/{tail}/__init__.py", f"/{top}.py", f"/{top}/__init__.py")
        candidates = [
            *self._by_name.get(PurePosixPath(f"{tail}.py").name, []),
            *self._by_name.get(f"{top}.py", []),
            *(f for f in self._by_name.get("__init__.py", []) if f.endswith(ends)),
        ]
        for candidate in candidates:
            beside = PurePosixPath(candidate).parent.as_posix() == folder
            inside = any(candidate.startswith(f"{place}/") for place in places[1:])
            package = candidate.startswith(f"{folder}/") and candidate.endswith("__init__.py")
            if candidate.endswith(ends) and (beside or inside or package):
                found.add(candidate)
        return found

    def _strings(self, file: str, source: str) -> set[str]:
        shipped = file.startswith(SHIPPED)
        found = self._dotted(file, source) | self._named_files(file, source)
        for name in _QUOTED.findall(source):
            if "." in name or not shipped:
                # A test that names the whole of it is about its command, which comes below.
                found |= set(self._package(name)) if name not in ("agentrl", "tests") else set()
        if not shipped and _PROGRAM.search(source):
            found |= self._module(file, "agentrl.cli") | set(self._package("agentrl.cli"))
        if _VLLM.search(source):
            found |= set(self._plugged_in)
        folder = PurePosixPath(file).parent.as_posix()
        if "__file__" in source or "files(" in source or "import_module" in source:
            # Shipped code has many words that are names of folders, too.
            for word in (_JOINED if shipped else _WORD).findall(source):
                found |= set(self._below.get(f"{folder}/{word}", []))
                found |= {f for f in [f"{folder}/{word}.py"] if f in self._known}
        if not shipped:
            for word in _WORD.findall(source):
                found |= set(self._below[word]) if word in DATA_FOLDERS else set()
            for suffix in set(_PATTERN.findall(source)) if "__file__" in source else ():
                found |= {f for f in self.files if f.endswith(suffix)}
        return found

    @cached_property
    def _plugged_in(self) -> frozenset[str]:
        """Modules that vLLM loads of itself: our entry points."""
        text = self.text("pyproject.toml") if "pyproject.toml" in self._known else ""
        section = re.search(r"^\[project\.entry-points[^\n]*\n((?:[^\[\n][^\n]*\n?)*)", text, re.M)
        return frozenset(self._dotted("pyproject.toml", section[1]) if section else ())

    def _dotted(self, file: str, source: str) -> set[str]:
        """Modules named by their whole name, in code and strings alike."""
        found: set[str] = set()
        for name in set(_DOTTED.findall(source)):
            if (PurePosixPath(file).name, name) not in NOT_IMPORTED:
                found |= self._module(file, name)
        return found

    def _is_folder(self, name: str) -> bool:
        return bool(self._package(name)) and name not in self._modules

    def _package(self, name: str) -> list[str]:
        """All files below a package, by its dotted name."""
        if not name.startswith(TOPS):
            return []
        top, *rest = name.split(".")
        home = next((folder for folder, package in ROOTS.items() if package == top), None)
        return self._below.get("/".join(filter(None, [home, top, *rest])), [])

    def _named_files(self, file: str, source: str) -> set[str]:
        found: set[str] = set()
        shipped = file.startswith(SHIPPED)
        folder = PurePosixPath(file).parent.as_posix()
        for match in _SUFFIX.finditer(source):
            before = _NAME_BEFORE.search(source, max(0, match.start() - 120), match.start())
            path = (before[0] if before else "") + match[0]
            path = path.removeprefix("n") if path not in self._known else path
            whole = re.sub(r"^(?:\.*/)+", "", path)
            name = PurePosixPath(whole).name
            for candidate in {*self._by_name.get(name, []), *self._by_name.get(f"n{name}", [])}:
                if candidate.endswith("/__init__.py") or (
                    name.endswith(".md") and (shipped or "__file__" not in source)
                ):
                    continue
                near = PurePosixPath(candidate).parent.as_posix() == folder
                outside = not candidate.startswith(SHIPPED) and not shipped
                exact = "/" in whole and f"/{candidate}".endswith(f"/{whole}")
                data = not name.endswith((".py", ".md"))
                # Tests write files of these names in folders of their own.
                written = name == "conftest.py" or name.startswith("test_")
                outside = outside and not written
                if near or exact or outside or data:
                    found.add(candidate)
        return found


def _slow_marker(source: str) -> list[str] | None:
    """Names in `reach` of the module-level marker; None without one."""
    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.Assign):
            continue
        if [t.id for t in statement.targets if isinstance(t, ast.Name)] != ["pytestmark"]:
            continue
        for node in ast.walk(statement.value):
            if isinstance(node, ast.Attribute) and node.attr == "slow":
                return [
                    name
                    for call in ast.walk(statement.value)
                    if isinstance(call, ast.Call) and call.func is node
                    for keyword in call.keywords
                    if keyword.arg == "reach"
                    for name in ast.literal_eval(keyword.value)
                ]
    return None
