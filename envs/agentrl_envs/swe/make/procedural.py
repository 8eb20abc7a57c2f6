"""Tasks from bugs that operators put into the newest release of a library."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.sandbox import Snapshot
from agentrl_envs.swe.make.in_order import in_order
from agentrl_envs.swe.make.journal import MakeJournal
from agentrl_envs.swe.make.library import Workshop, pick_release
from agentrl_envs.swe.make.mutation.sites import Site, SourceFile
from agentrl_envs.swe.make.progress import MakeProgress
from agentrl_envs.swe.make.project import Project
from agentrl_envs.swe.make.rows import base_row
from agentrl_envs.swe.make.verdict import Baseline, ChangeVerdict, statement
from agentrl_envs.swe.patches import make_patch
from agentrl_envs.swe.trees import TreeFile, TreeStore

_MAX_SOURCE_BYTES = 200_000
"""Larger files are mostly tables, and slow to parse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bug:
    """A file with one bug put in."""

    operator: str
    path: str
    function: str
    text: str

    @property
    def key(self) -> str:
        """The same for the same bug, in every run."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        return f"{self.operator}:{self.path}:{self.function}:{digest}"


async def procedural_rows(
    shop: Workshop, store: TreeStore, wanted: str, *, count: int, seed: int, per_function: int,
    jobs: int, progress: MakeProgress,
    keep: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Up to `count` tasks of one library, always the same for a seed.

    Args:
        shop: index, sandboxes and rules.
        store: takes the trees.
        wanted: `name` or `name==version`.
        count: how many at most.
        seed: chooses which bugs are tried, and in which order.
        per_function: at most so many tasks of one function.
        jobs: sandboxes at once.
        progress: called with what happens.
        keep: called with the tasks so far, after each.

    Raises:
        DataError: the library cannot be had or used; says why.
        SandboxError: the sandboxes failed.
    """
    release = await asyncio.to_thread(pick_release, shop.index, wanted)
    progress.phase(release, "reading")
    project = await shop.project(release)
    journal = shop.journal(release)
    snapshot = await shop.runner.frozen(project.tree)
    try:
        progress.phase(release, "running its tests")
        baseline = await shop.baseline(project, snapshot, journal, cover=True)
        progress.baseline(release, project.license, baseline)
        bugs = _bugs(await asyncio.to_thread(_sources, project, baseline), project, seed)
        return await _accept(
            shop, store, project, baseline, snapshot, journal, bugs,
            count=count, per_function=per_function, jobs=jobs, progress=progress, keep=keep,
        )  # fmt: skip
    finally:
        await snapshot.close()


async def _accept(
    shop: Workshop, store: TreeStore, project: Project, baseline: Baseline, snapshot: Snapshot,
    journal: MakeJournal, bugs: Iterator[_Bug], *, count: int, per_function: int, jobs: int,
    progress: MakeProgress, keep: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """The first bugs, in their order, that make tasks; tried side by side."""

    async def verdict(bug: _Bug) -> tuple[_Bug, Mapping[str, Any]]:
        known = journal.get(bug.key)
        if known is None:
            changed = {bug.path: bug.text.encode()}
            found = await shop.judge(project, baseline, snapshot, changed)
            # Only what makes a task is worth its room: names of tests are long.
            known = _noted(found) if not found.reason else {"reason": found.reason}
            journal.put(bug.key, known)
        return bug, known

    rows: list[dict[str, Any]] = []
    functions: Counter[tuple[str, str]] = Counter()

    def open_functions() -> Iterator[_Bug]:
        return (bug for bug in bugs if functions[bug.path, bug.function] < per_function)

    if count <= 0:
        return rows
    async with contextlib.aclosing(in_order(open_functions(), verdict, jobs)) as found:
        async for bug, known in found:
            site = (bug.path, bug.function)
            # In the order of the bugs, not of the answers: the same tasks whatever was faster.
            taken = not known["reason"] and functions[site] < per_function
            if taken:
                functions[site] += 1
                rows.append(_row(shop, store, project, baseline, bug, _read(known, baseline)))
                keep(rows)
            progress.tried(project.release, known["reason"], len(rows), count)
            if len(rows) >= count:
                break
    return rows


def _noted(found: ChangeVerdict) -> dict[str, Any]:
    return {"reason": "", "broken": list(found.fail_to_pass), "messages": dict(found.messages),
            "kept": list(found.pass_to_pass)}  # fmt: skip


def _read(known: Mapping[str, Any], baseline: Baseline) -> ChangeVerdict:
    return ChangeVerdict(
        reason="",
        fail_to_pass=tuple(known["broken"]),
        pass_to_pass=tuple(known["kept"]),
        messages=known["messages"],
    )


def _sources(project: Project, baseline: Baseline) -> dict[str, SourceFile]:
    found: dict[str, SourceFile] = {}
    copies = Counter(entry.data for entry in project.tree.values())
    for path in project.sources():
        data = project.tree[path].data
        covered = baseline.covered.get(path)
        # A file of which the tree holds a second copy would be fixed by copying it.
        if not covered or len(data) > _MAX_SOURCE_BYTES or copies[data] > 1 or b"\r" in data:
            continue
        try:
            found[path] = SourceFile(data.decode("utf-8"), covered=covered)
        except ValueError:
            continue
    return found


def _bugs(files: Mapping[str, SourceFile], project: Project, seed: int) -> Iterator[_Bug]:
    """Every bug that could be, the operators taking turns, each in an order that the seed says."""
    groups: dict[str, list[tuple[str, Site]]] = {}
    for path in sorted(files):
        for site in files[path].sites:
            groups.setdefault(site.operator, []).append((path, site))
    for name, group in groups.items():
        random.Random(f"{seed}:{project.release.name}:{name}").shuffle(group)
    turns = itertools.zip_longest(*(groups[name] for name in sorted(groups)))
    seen: set[tuple[str, str]] = set()
    for path, site in (item for turn in turns for item in turn if item is not None):
        text = files[path].changed(site)
        # Two operators may come to the same text.
        if text is None or (path, text) in seen:
            continue
        seen.add((path, text))
        yield _Bug(operator=site.operator, path=path, function=site.function, text=text)


def _row(
    shop: Workshop, store: TreeStore, project: Project, baseline: Baseline, bug: _Bug,
    verdict: ChangeVerdict,
) -> dict[str, Any]:  # fmt: skip
    old = project.tree[bug.path]
    new = TreeFile(data=bug.text.encode(), executable=old.executable)
    release = project.release
    digest = hashlib.sha256(bug.key.encode()).hexdigest()[:8]
    return base_row(shop, project, baseline, verdict) | {
        "instance_id": f"{release.name}-{release.version}.{bug.operator}.{digest}",
        "base_commit": store.put({**project.tree, bug.path: new}),
        "patch": make_patch({bug.path: new}, {bug.path: old}),
        "problem_statement": statement(release.name, release.version, verdict, shown=True),
        "kind": "procedural",
        "operator": bug.operator,
        "source_file": bug.path,
        "provenance": {"name": release.name, **release.provenance()},
    }
