"""Every bug that could be put into a library, in the order in which a seed tries them."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentrl_envs.swe.make.mutation.removal import merged, removals
from agentrl_envs.swe.make.mutation.sites import Site, SourceFile
from agentrl_envs.swe.trees import Tree

KINDS = ("procedural", "several", "removed")
"""One small change, several that have each to be mended, and a feature that is not there."""
_MAX_SOURCE_BYTES = 200_000
"""Larger files are mostly tables, and slow to parse."""
_SAME_FILE = 0.6
"""Share of the bugs of kind `several` that stay in one file."""
_THREE = 0.2
"""Share of them with three places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """Files with something wrong."""

    kind: str
    """One of `KINDS`."""
    operator: str
    """Which operator put it in; of several those of the parts, joined by `+`."""
    texts: Mapping[str, str]
    """The changed files."""
    places: tuple[tuple[str, str], ...]
    """File and dotted function of each change."""
    parts: tuple[Bug, ...] = ()
    """The bugs that it is made of; empty for one alone."""
    manual: str = ""
    """Docstring that the file no longer has."""

    @property
    def key(self) -> str:
        """The same for the same bug, in every run."""
        if self.parts:
            parts = "\n".join(part.key for part in self.parts)
            return f"several:{hashlib.sha256(parts.encode()).hexdigest()[:16]}"
        ((path, function),) = self.places
        digest = hashlib.sha256(self.texts[path].encode()).hexdigest()[:16]
        return f"{self.operator}:{path}:{function}:{digest}"

    def changed(self) -> dict[str, bytes]:
        """The changed files as they are written."""
        return {path: text.encode() for path, text in self.texts.items()}


def bugs_of(
    kinds: Collection[str],
    tree: Tree,
    sources: Sequence[str],
    covered: Mapping[str, Collection[int]],
    seed: str,
) -> Iterator[Bug]:
    """Every bug of some kinds, the kinds taking turns, each in the order of the seed.

    Args:
        kinds: of `KINDS`.
        tree: of the library.
        sources: its source files.
        covered: first lines of the functions that tests run, by file.
        seed: decides the order.
    """
    files = _files(tree, sources, covered)
    makers: Mapping[str, Callable[[], Iterator[Bug]]] = {
        "procedural": lambda: _singles(files, seed),
        "several": lambda: _several(files, seed),
        "removed": lambda: _removed(files, covered, seed),
    }
    turns = itertools.zip_longest(*(makers[kind]() for kind in KINDS if kind in kinds))
    return (bug for turn in turns for bug in turn if bug is not None)


def _files(
    tree: Tree, sources: Sequence[str], covered: Mapping[str, Collection[int]]
) -> dict[str, SourceFile]:
    found: dict[str, SourceFile] = {}
    copies = Counter(entry.data for entry in tree.values())
    for path in sources:
        data = tree[path].data
        lines = covered.get(path)
        # A file of which the tree holds a second copy would be fixed by copying it.
        if not lines or len(data) > _MAX_SOURCE_BYTES or copies[data] > 1 or b"\r" in data:
            continue
        try:
            found[path] = SourceFile(data.decode("utf-8"), covered=lines)
        except ValueError:
            continue
    return found


def _sites(files: Mapping[str, SourceFile], seed: str) -> Iterator[tuple[str, Site]]:
    """The places of small changes, the operators taking turns."""
    groups: dict[str, list[tuple[str, Site]]] = {}
    for path in sorted(files):
        for site in files[path].sites:
            groups.setdefault(site.operator, []).append((path, site))
    for name, group in groups.items():
        random.Random(f"{seed}:{name}").shuffle(group)
    turns = itertools.zip_longest(*(groups[name] for name in sorted(groups)))
    return (item for turn in turns for item in turn if item is not None)


def _singles(files: Mapping[str, SourceFile], seed: str) -> Iterator[Bug]:
    seen: set[tuple[str, str]] = set()
    for path, site in _sites(files, seed):
        bug = _single(files, path, site)
        # Two operators may come to the same text.
        if bug is not None and (path, bug.texts[path]) not in seen:
            seen.add((path, bug.texts[path]))
            yield bug


def _single(files: Mapping[str, SourceFile], path: str, site: Site) -> Bug | None:
    text = files[path].changed(site)
    if text is None:
        return None
    return Bug(
        kind="procedural",
        operator=site.operator,
        texts={path: text},
        places=((path, site.function),),
    )


def _several(files: Mapping[str, SourceFile], seed: str) -> Iterator[Bug]:
    """Small changes of different functions, in one file or in several, put together."""
    draw = random.Random(f"{seed}:several")
    sites = list(_sites(files, f"{seed}:several"))
    seen: set[str] = set()
    for first in sites:
        chosen = [first]
        for _ in range(2 if draw.random() < _THREE else 1):
            near = draw.random() < _SAME_FILE
            places = {(path, site.function) for path, site in chosen}
            # A handful of tries: a file may have one function only.
            for path, site in (draw.choice(sites) for _ in range(40)):
                if (path, site.function) not in places and (path == first[0]) == near:
                    chosen.append((path, site))
                    break
        parts = [_single(files, path, site) for path, site in chosen]
        if len(parts) < 2 or None in parts:
            continue
        bug = _joined(files, [part for part in parts if part is not None])
        if bug is not None and bug.key not in seen:
            seen.add(bug.key)
            yield bug


def _joined(files: Mapping[str, SourceFile], parts: Sequence[Bug]) -> Bug | None:
    texts: dict[str, str] = {}
    for path in sorted({path for part in parts for path in part.texts}):
        mine = [part.texts[path] for part in parts if path in part.texts]
        text = merged(files[path].text, mine)
        if text is None:
            return None
        texts[path] = text
    return Bug(
        kind="several",
        operator="+".join(part.operator for part in parts),
        texts=texts,
        places=tuple(place for part in parts for place in part.places),
        parts=tuple(parts),
    )


def without(files: Mapping[str, str], bug: Bug, kept: int) -> dict[str, str]:
    """The texts of a bug's files with all but one of its parts mended.

    Args:
        files: the unbroken texts.
        bug: of kind `several`.
        kept: number of the part that stays.
    """
    return {path: bug.parts[kept].texts.get(path, files[path]) for path in bug.texts}


def _removed(
    files: Mapping[str, SourceFile], covered: Mapping[str, Collection[int]], seed: str
) -> Iterator[Bug]:
    groups: dict[str, list[Bug]] = {}
    for path in sorted(files):
        for one in removals(files[path].text, covered[path]):
            groups.setdefault(one.operator, []).append(
                Bug(
                    kind="removed",
                    operator=one.operator,
                    texts={path: one.text},
                    places=((path, one.function),),
                    manual=one.manual,
                )
            )
    for name, group in groups.items():
        random.Random(f"{seed}:{name}").shuffle(group)
    turns = itertools.zip_longest(*(groups[name] for name in sorted(groups)))
    return (bug for turn in turns for bug in turn if bug is not None)
