"""Tasks from what really changed between two releases: the old source under the new tests."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.errors import DataError
from agentrl.sandbox import Snapshot
from agentrl_envs.swe.make.index import NoAnswer, Release
from agentrl_envs.swe.make.journal import MakeJournal
from agentrl_envs.swe.make.library import Workshop, canonical, pairs, pick_release
from agentrl_envs.swe.make.progress import MakeProgress
from agentrl_envs.swe.make.project import Project
from agentrl_envs.swe.make.rows import Broken, Telling, base_row
from agentrl_envs.swe.make.verdict import Baseline, noted, read_verdict
from agentrl_envs.swe.patches import changed_lines, make_patch
from agentrl_envs.swe.trees import TreeFile, TreeStore

_MAX_LINES = 400
"""A gold change of more lines is a rewrite, not a repair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fix:
    """Part of what a release changed, taken back."""

    paths: tuple[str, ...]
    """Source files that are as in the old release."""
    start: Mapping[str, TreeFile]
    """What the model starts from: the old release, but the new source where it is not taken
    back."""
    graded: Mapping[str, TreeFile]
    """The new release with those files taken back."""
    patch: str
    """Patch with the new source."""
    test_patch: str
    """Patch with the new tests."""


async def release_rows(
    shop: Workshop,
    store: TreeStore,
    wanted: str,
    *,
    count: int,
    most_pairs: int,
    progress: MakeProgress,
    telling: Telling,
    keep: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
) -> list[dict[str, Any]]:
    """Up to `count` tasks of one library, the newest releases first.

    Args:
        shop: index, sandboxes and rules.
        store: takes the trees.
        wanted: `name`, or `name==version` for the newest release to look at.
        count: how many at most.
        most_pairs: how many pairs of consecutive releases are looked at.
        progress: called with what happens.
        telling: how problems are put into words.
        keep: called with the tasks so far, after each pair.

    Raises:
        DataError: the library cannot be had.
        NoAnswer: the index could not be asked, be it for one pair.
        SandboxError: the sandboxes failed.
    """
    newest = await asyncio.to_thread(pick_release, shop.index, wanted)
    releases = await asyncio.to_thread(shop.index.releases, canonical(newest.name))
    at = releases.index(newest)
    rows: list[dict[str, Any]] = []
    for old, new in pairs(releases[at:], most_pairs):
        if len(rows) >= count:
            break
        try:
            made = await _pair(shop, store, old, new, count - len(rows), progress, telling)
        except NoAnswer:
            raise  # of the pair nothing is known
        except DataError as error:
            progress.refused(f"{new.name} {old.version} to {new.version}", str(error))
            continue
        rows += made
        keep(rows)
        progress.tried(new, "", len(rows), count)
    return rows


async def _pair(
    shop: Workshop,
    store: TreeStore,
    old: Release,
    new: Release,
    count: int,
    progress: MakeProgress,
    telling: Telling,
) -> list[dict[str, Any]]:
    progress.phase(new, f"reading what changed since {old.version}")
    before, after = await shop.project(old), await shop.project(new)
    fixes = _fixes(before, after)
    journal = shop.journal(new, old)
    snapshot = await shop.runner.frozen(after.tree)
    try:
        progress.phase(new, "running its tests")
        baseline = await shop.baseline(after, snapshot, journal, cover=False)
        progress.baseline(new, after.license, baseline)
        rows: list[dict[str, Any]] = []
        for fix in fixes:
            if len(rows) >= count:
                break
            row = await _judged(shop, store, old, after, baseline, fix, snapshot, journal, telling)
            rows += [row] if row is not None else []
        return rows
    finally:
        await snapshot.close()


async def _judged(
    shop: Workshop,
    store: TreeStore,
    old: Release,
    after: Project,
    baseline: Baseline,
    fix: _Fix,
    fixed: Snapshot,
    journal: MakeJournal,
    telling: Telling,
) -> dict[str, Any] | None:
    """The row of a fix; None if it makes no task."""
    key = f"release:{hashlib.sha256(fix.patch.encode()).hexdigest()[:16]}"
    known = journal.get(key)
    if known is not None and known["reason"]:
        return None
    snapshot = await shop.runner.frozen(fix.graded)
    try:
        if known is None:
            verdict = await shop.judge(after, baseline, snapshot)
            known = noted(verdict)
            journal.put(key, known)
        verdict = read_verdict(known)
        if verdict.reason:
            return None
        new = after.release
        digest = hashlib.sha256(fix.patch.encode()).hexdigest()[:8]
        broken = Broken(
            key=key,
            instance_id=f"{new.name}-{new.version}.release.{digest}",
            graded=fix.graded,
            start=fix.start,
            patch=fix.patch,
            verdict=verdict,
            places=(),
            snapshot=snapshot,
            changed={},
        )
        told = await telling.row(shop, store, after, journal, fixed, broken)
    finally:
        await snapshot.close()
    if told is None:
        return None
    return (
        base_row(shop, after, baseline, verdict)
        | told
        | {
            "instance_id": broken.instance_id,
            "patch": fix.patch,
            "test_patch": fix.test_patch,
            "kind": "releases",
            "operator": "",
            "source_file": fix.paths[0],
            "provenance": {
                "name": new.name,
                **new.provenance(),
                **old.provenance("old_"),
            },
        }
    )


def _fixes(before: Project, after: Project) -> list[_Fix]:
    """Each changed file on its own, the smallest change first, then the whole change.

    Raises:
        DataError: nothing that makes a task changed; says what did.
    """
    what = f"{after.release.name} {before.release.version} to {after.release.version}"
    if (before.python_path, before.modules) != (after.python_path, after.modules):
        raise DataError(f"{what}: the package moved or was renamed")

    def source(path: str) -> bool:
        return before.is_source(path) or after.is_source(path)

    changed = sorted(
        path
        for path in {*before.tree, *after.tree}
        if source(path) and before.tree.get(path) != after.tree.get(path)
    )
    python = [path for path in changed if path.endswith(".py")]
    if not python:
        raise DataError(f"{what}: no source file changed")
    alone = [_fix(before, after, (path,)) for path in python if len(changed) > 1]
    found = [fix for fix in alone if fix is not None]
    found.sort(key=lambda fix: (changed_lines(fix.patch), fix.paths))
    whole = _fix(before, after, tuple(changed))
    found += [whole] if whole is not None else []
    if not found:
        raise DataError(f"{what}: more than {_MAX_LINES} lines of source changed, or no text")
    return found


def _fix(before: Project, after: Project, paths: tuple[str, ...]) -> _Fix | None:
    """The release with the files `paths` taken back; None if that is too much, or not text."""

    def taken_back(tree: Mapping[str, TreeFile]) -> dict[str, TreeFile]:
        made = {path: entry for path, entry in tree.items() if path not in paths}
        return made | {path: before.tree[path] for path in paths if path in before.tree}

    new_source = {path: entry for path, entry in after.tree.items() if after.is_source(path)}
    old_rest = {path: entry for path, entry in before.tree.items() if not before.is_source(path)}
    start = {**old_rest, **taken_back(new_source)}
    graded = taken_back(after.tree)
    gold = {path: after.tree[path] for path in paths if path in after.tree}
    broken = {path: before.tree[path] for path in paths if path in before.tree}
    try:
        patch = make_patch(broken, gold)
        tests = make_patch(_tests(before), _tests(after))
    except DataError:
        return None
    if changed_lines(patch) > _MAX_LINES:
        return None
    return _Fix(paths=paths, start=start, graded=graded, patch=patch, test_patch=tests)


def _tests(project: Project) -> dict[str, TreeFile]:
    """Its test files that are text; a picture that changed is no reason to leave a pair out."""
    return {
        path: entry
        for path, entry in project.tree.items()
        if not project.is_source(path)
        and path.endswith((".py", ".ini", ".cfg", ".toml", ".txt"))
        and _is_text(entry.data)
    }


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
