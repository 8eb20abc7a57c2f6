"""Tasks from bugs that are put into the newest release of a library."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.sandbox import Snapshot
from agentrl_envs.swe.make.in_order import in_order
from agentrl_envs.swe.make.journal import MakeJournal
from agentrl_envs.swe.make.library import Workshop, pick_release
from agentrl_envs.swe.make.mutation.bugs import Bug, bugs_of, without
from agentrl_envs.swe.make.progress import MakeProgress
from agentrl_envs.swe.make.project import Project
from agentrl_envs.swe.make.rows import Broken, Telling, base_row
from agentrl_envs.swe.make.verdict import Baseline, ChangeVerdict, noted, read_verdict
from agentrl_envs.swe.patches import make_patch
from agentrl_envs.swe.proof.parsing import one_by_one, parsing
from agentrl_envs.swe.trees import TreeFile, TreeStore

Keep = Callable[[list[dict[str, Any]]], None]


async def procedural_rows(
    shop: Workshop,
    store: TreeStore,
    wanted: str,
    *,
    kinds: Sequence[str],
    count: int,
    seed: int,
    per_function: int,
    jobs: int,
    progress: MakeProgress,
    telling: Telling,
    keep: Keep = lambda rows: None,
) -> list[dict[str, Any]]:
    """Up to `count` tasks of one library, always the same for a seed.

    Args:
        shop: index, sandboxes and rules.
        store: takes the trees.
        wanted: `name` or `name==version`.
        kinds: of `mutation.bugs.KINDS`.
        count: how many at most.
        seed: chooses which bugs are tried, and in which order.
        per_function: at most so many tasks of one function.
        jobs: sandboxes at once.
        progress: called with what happens.
        telling: how problems are put into words.
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
        trial = _Trial(
            shop=shop,
            store=store,
            project=project,
            baseline=baseline,
            snapshot=snapshot,
            journal=journal,
            telling=telling,
        )
        bugs = await parsing(
            bugs_of,
            kinds,
            project.tree,
            project.sources(),
            baseline.covered,
            f"{seed}:{release.name}",
        )
        return await _accept(
            trial,
            bugs,
            count=count,
            per_function=per_function,
            jobs=jobs,
            progress=progress,
            keep=keep,
        )
    finally:
        await snapshot.close()


async def _accept(
    trial: _Trial,
    bugs: Iterator[Bug],
    *,
    count: int,
    per_function: int,
    jobs: int,
    progress: MakeProgress,
    keep: Keep,
) -> list[dict[str, Any]]:
    """The first bugs, in their order, that make tasks; tried side by side."""
    rows: list[dict[str, Any]] = []
    functions: Counter[tuple[str, str]] = Counter()

    def is_open(bug: Bug) -> bool:
        return all(functions[place] < per_function for place in bug.places)

    if count <= 0:
        return rows
    wanted = (bug for bug in one_by_one(bugs) if is_open(bug))
    async with contextlib.aclosing(in_order(wanted, trial.tried, jobs)) as found:
        async for bug, reason, row in found:
            # In the order of the bugs, not of the answers: the same tasks whatever was faster.
            if row is not None and is_open(bug):
                functions.update(bug.places)
                rows.append(row)
                keep(rows)
            progress.tried(trial.project.release, reason, len(rows), count)
            if len(rows) >= count:
                break
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """All that is needed to try the bugs of one library."""

    shop: Workshop
    store: TreeStore
    project: Project
    baseline: Baseline
    snapshot: Snapshot
    journal: MakeJournal
    telling: Telling

    async def tried(self, bug: Bug) -> tuple[Bug, str, dict[str, Any] | None]:
        """A bug, why it makes no task, and its row if it makes one."""
        verdict = await self._verdict(bug)
        parts = [await self._verdict(part) for part in bug.parts if not verdict.reason]
        reason = verdict.reason or _unfit(verdict, parts)
        if reason:
            return bug, reason, None
        return (bug, *await self._row(bug, verdict, parts))

    async def _verdict(self, bug: Bug) -> ChangeVerdict:
        known = self.journal.get(bug.key)
        if known is None:
            found = await self.shop.judge(self.project, self.baseline, self.snapshot, bug.changed())
            known = noted(found)
            self.journal.put(bug.key, known)
        return read_verdict(known)

    async def _row(
        self, bug: Bug, verdict: ChangeVerdict, parts: Sequence[ChangeVerdict]
    ) -> tuple[str, dict[str, Any] | None]:
        tree, release = self.project.tree, self.project.release
        good = {path: tree[path] for path in bug.texts}
        bad = {path: _file(text, good[path]) for path, text in bug.texts.items()}
        digest = hashlib.sha256(bug.key.encode()).hexdigest()[:8]
        name = bug.operator if bug.kind != "several" else bug.kind
        whole = {path: entry.data.decode() for path, entry in good.items()}
        alone = [without(whole, bug, number) for number in range(len(bug.parts))]
        broken = Broken(
            key=bug.key,
            instance_id=f"{release.name}-{release.version}.{name}.{digest}",
            graded={**tree, **bad},
            patch=make_patch(bad, good),
            verdict=verdict,
            places=bug.places,
            snapshot=self.snapshot,
            changed=bug.changed(),
            alone=tuple(
                ({path: text.encode() for path, text in texts.items()}, part.fail_to_pass)
                for texts, part in zip(alone, parts, strict=True)
            ),
            missing=bug.kind == "removed" and bug.operator != "remove_branch",
            manual=bug.manual,
        )
        told = await self.telling.row(
            self.shop, self.store, self.project, self.journal, self.snapshot, broken
        )
        if told is None:
            return "no report", None
        kept = [{path: _file(text, good[path]) for path, text in texts.items()} for texts in alone]
        return "", base_row(self.shop, self.project, self.baseline, verdict) | told | {
            "instance_id": broken.instance_id,
            "patch": broken.patch,
            "parts": [make_patch(bad, one) for one in kept],
            "kind": bug.kind,
            "operator": bug.operator,
            "source_file": bug.places[0][0],
            "provenance": {"name": release.name, **release.provenance()},
        }


def _unfit(verdict: ChangeVerdict, parts: Sequence[ChangeVerdict]) -> str:
    """The reason why several bugs are no task; empty if each of them has to be mended."""
    for part in parts:
        if part.reason:
            return f"one alone: {part.reason}"
        if not set(part.fail_to_pass) & set(verdict.fail_to_pass):
            return "one hides another"
    return ""


def _file(text: str, old: TreeFile) -> TreeFile:
    return TreeFile(data=text.encode(), executable=old.executable)
