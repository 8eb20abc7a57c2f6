"""The packages that libraries declare they need, at run time and for their tests.

They are read from metadata, and nothing of a library is run for it: from PKG-INFO, which older
builds of setuptools leave without requirements, from `requires.txt` beside it, from the dependency
groups of `pyproject.toml` and from files such as `requirements-test.txt`. What names no pure-Python
wheel is left out by `make_environment`.
"""

from __future__ import annotations

import email.parser
import re
import tomllib
from collections.abc import Iterator, Sequence

from agentrl.errors import DataError
from agentrl_envs.swe.make.index import Index
from agentrl_envs.swe.make.library import canonical, pick_release
from agentrl_envs.swe.make.sdist import Sdist, read_sdist

_TEST_EXTRAS = ("test", "tests", "testing")
_FILES = re.compile(
    r"(?:.*/)?(?:requirements?[-_.]?(?:tests?|testing)|(?:tests?|testing)(?:[-_.]|/)requirements?)"
    r"\.(?:txt|in)"
)
_LEFT_OUT = frozenset(
    (
        *("pytest-cov", "pytest-randomly", "pytest-random-order", "pytest-xdist", "pytest-sugar"),
        *("pytest-timeout", "pytest-rerunfailures", "pytest-repeat", "pytest-benchmark"),
        *("pytest-flake8", "pytest-black", "pytest-mypy", "pytest-ruff", "pytest-pycodestyle"),
        *("coverage", "tox", "nox", "flake8", "black", "mypy", "ruff", "isort", "pre-commit"),
        *("build", "twine", "setuptools", "wheel", "pip"),
    )
)
"""They change the order, the number or the time of tests, or are no part of them."""


def declared_packages(index: Index, packages: Sequence[str]) -> tuple[str, ...]:
    """Requirements of libraries, as for pip, sorted; without the libraries themselves.

    A library that cannot be read is passed over: it is refused, with the reason, when its tasks are
    to be made.

    Args:
        index: where they are.
        packages: as `name` or `name==version`.
    """
    own = {canonical(package.partition("==")[0]) for package in packages}
    found: dict[str, str] = {}
    for package in packages:
        try:
            release = pick_release(index, package)
            sdist = read_sdist(index.fetch(release), release.file)
        except DataError:
            continue
        for name, wanted in _needed(sdist):
            if name not in own and name not in _LEFT_OUT:
                # Of two libraries that want different versions the first is served.
                found.setdefault(name, wanted)
    return tuple(found[name] for name in sorted(found))


def _needed(sdist: Sdist) -> Iterator[tuple[str, str]]:
    # Imported here: it is part of an extra.
    from packaging.requirements import InvalidRequirement, Requirement

    fields = email.parser.Parser().parsestr(sdist.metadata, headersonly=True)
    stated = [(str(text), _TEST_EXTRAS) for text in fields.get_all("Requires-Dist") or ()]
    stated += [(text, _TEST_EXTRAS) for text in _of_setuptools(sdist)]
    stated += [(text, ()) for text in (*_groups(sdist), *_of_files(sdist))]
    for text, extras in stated:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        marker = wanted.marker
        if wanted.url is None and (
            marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
        ):
            yield canonical(wanted.name), f"{wanted.name}{wanted.specifier}"


def _groups(sdist: Sdist) -> list[str]:
    """Requirements in the dependency groups of tests (PEP 735)."""
    project = sdist.tree.get("pyproject.toml")
    try:
        groups = (
            tomllib.loads(project.data.decode()).get("dependency-groups", {}) if project else {}
        )
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError):
        return []
    named = [groups.get(name) for name in _TEST_EXTRAS] if isinstance(groups, dict) else []
    return [
        text
        for group in named
        if isinstance(group, list)
        for text in group
        if isinstance(text, str)
    ]


def _of_setuptools(sdist: Sdist) -> Iterator[str]:
    """Requirements in `NAME.egg-info/requires.txt`, as metadata words them.

    Example:
        `[test:python_version < "3.11"]`, then `tomli`, is
        `tomli ; (python_version < "3.11") and (extra == "test")`.
    """
    for path in sorted(sdist.tree):
        if path.endswith(".egg-info/requires.txt"):
            section = ""
            for line in _lines(sdist, path):
                if line.startswith("["):
                    extra, _, marker = line.strip("[]").partition(":")
                    parts = [marker, f'extra == "{extra}"' if extra else ""]
                    section = " and ".join(f"({part})" for part in parts if part)
                else:
                    yield f"{line} ; {section}" if section else line


def _of_files(sdist: Sdist) -> Iterator[str]:
    for path in sorted(sdist.tree):
        if _FILES.fullmatch(path.lower()):
            yield from _lines(sdist, path)


def _lines(sdist: Sdist, path: str) -> Iterator[str]:
    for line in sdist.tree[path].data.decode("utf-8", "replace").splitlines():
        if text := line.partition(" #")[0].strip():
            yield text
