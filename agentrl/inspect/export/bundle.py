"""The modules of the page as one script, for a file that loads nothing from a server.

Each module becomes a function that is called once and returns what the module exports. Only the
forms of `import` and `export` that our modules use are understood; another one is an error here,
not on the page.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

_IMPORT = re.compile(
    r'^import (?:(?P<default>\w+)|\{(?P<names>[^}]*)\}) from "(?P<path>[^"]+)";\n', re.MULTILINE
)
_EXPORT = re.compile(
    r"^export (?P<what>(?:async )?function|class|const|let) (?P<name>\w+)", re.MULTILINE
)
_DEFAULT = re.compile(r"^export default (?!function|class)", re.MULTILINE)
_LIST = re.compile(r"^export \{(?P<names>[^}]*)\};\n", re.MULTILINE)
_LEFT_OVER = re.compile(r"^\s*(?:import|export)\b|\bimport\(", re.MULTILINE)


def bundle(folder: Path, entry: str) -> str:
    """A script that does what the module `entry` of `folder` does.

    Args:
        folder: where modules lie, and below.
        entry: path of the first module in `folder`, as in `main.js`.

    Raises:
        ValueError: a module imports or exports in a form that is not understood, or in a circle.
    """
    done: dict[str, str] = {}
    _add(folder, entry, done, ())
    return '"use strict";\n(() => {\nconst modules = {};\n' + "".join(done.values()) + "})();\n"


def _add(folder: Path, name: str, done: dict[str, str], above: tuple[str, ...]) -> None:
    if name in done:
        return
    if name in above:
        raise ValueError(f"modules import one another in a circle: {' -> '.join((*above, name))}")
    text = (folder / name).read_text()
    for match in _IMPORT.finditer(text):
        _add(folder, _resolved(name, match["path"]), done, (*above, name))
    done[name] = _module(name, text)


def _module(name: str, text: str) -> str:
    exports: dict[str, str] = {match["name"]: match["name"] for match in _EXPORT.finditer(text)}
    for match in _LIST.finditer(text):
        exports |= {there: here for here, there in _pairs(match["names"]).items()}
    body = _IMPORT.sub(lambda match: _constants(name, match), text)
    body = _LIST.sub("", _EXPORT.sub(r"\g<what> \g<name>", body))
    body, defaults = _DEFAULT.subn("const defaultExport = ", body)
    if defaults:
        exports["default"] = "defaultExport"
    if left := _LEFT_OVER.search(body):
        line = body[left.start() : body.find("\n", left.end())].strip()
        raise ValueError(f"{name}: this form of import or export is not understood: {line}")
    given = ", ".join(f"{there}: {here}" for there, here in exports.items())
    return f'modules["{name}"] = (() => {{\n{body}return {{ {given} }};\n}})();\n'


def _constants(name: str, match: re.Match[str]) -> str:
    source = f'modules["{_resolved(name, match["path"])}"]'
    if match["default"]:
        return f"const {match['default']} = {source}.default;\n"
    pairs = ", ".join(f"{there}: {here}" for there, here in _pairs(match["names"]).items())
    return f"const {{ {pairs} }} = {source};\n"


def _pairs(names: str) -> Mapping[str, str]:
    """`a, b as c` as `{"a": "a", "b": "c"}`."""
    parts = [part.split() for part in names.split(",") if part.strip()]
    return {part[0]: part[-1] for part in parts}


def _resolved(name: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
