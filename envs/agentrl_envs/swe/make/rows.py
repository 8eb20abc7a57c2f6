"""The fields that rows of all kinds of tasks have in common, and how they word a problem."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.sandbox import Snapshot
from agentrl_envs.swe.make.difficulty import figures
from agentrl_envs.swe.make.issue import (
    Defect,
    IssueFinder,
    Secrets,
    ServedWriter,
    Story,
    WrittenIssue,
    choose_symptoms,
    hide_tests,
    kept_symptoms,
    symptoms_to_keep,
    write_issue,
)
from agentrl_envs.swe.make.journal import MakeJournal
from agentrl_envs.swe.make.library import Workshop
from agentrl_envs.swe.make.project import TEST_ENV, Project
from agentrl_envs.swe.make.verdict import Baseline, ChangeVerdict, statement
from agentrl_envs.swe.patches import make_patch
from agentrl_envs.swe.proof.parsing import parsing
from agentrl_envs.swe.trees import Tree, TreeStore


def base_row(
    shop: Workshop, project: Project, baseline: Baseline, verdict: ChangeVerdict
) -> dict[str, Any]:
    """The fields of `SweTask` that do not depend on how the source was broken."""
    return {
        "repo": project.release.name,
        "version": project.release.version,
        "created_at": project.release.uploaded,
        "FAIL_TO_PASS": list(verdict.fail_to_pass),
        "PASS_TO_PASS": list(verdict.pass_to_pass),
        "source_paths": list(project.source_paths),
        "test_paths": list(project.test_paths),
        "python_path": [project.python_path],
        "test_command": list(project.test_command),
        "test_env": TEST_ENV,
        "test_seconds": round(baseline.seconds, 2),
        "environment": shop.environment.id,
        "requirements": list(shop.environment.requirements),
        "python": platform.python_version(),
        "license": project.license,
        "license_file": project.license_file,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A broken library of which a task is made."""

    key: str
    """Names the bug in the journal."""
    instance_id: str
    """Names the task."""
    graded: Tree
    """The tree with the bug and with all tests."""
    start: Tree | None = None
    """What the model starts from, where that is already without the failing tests."""
    patch: str
    """The gold change."""
    verdict: ChangeVerdict
    """The tests that fail."""
    places: Sequence[tuple[str, str]]
    """File and function of each change; empty where they are not known."""
    snapshot: Snapshot
    """The tree with the bug, but for `changed`."""
    changed: Mapping[str, bytes]
    """Files of the snapshot that are broken."""
    alone: Sequence[tuple[Mapping[str, bytes], Sequence[str]]] = ()
    """Of several bugs each alone: its files, and the tests that fail with it."""
    missing: bool = False
    """Whether a feature was taken out."""
    manual: str = ""
    """Documentation that was taken out with it."""


@dataclass(slots=True, kw_only=True)
class Telling:
    """The way the problems of a data set are put into words, and counts of who wrote them."""

    style: str = "tests"
    """One of `difficulty.STYLES`."""
    seed: int = 0
    """Chooses among symptoms and words."""
    writer: ServedWriter | None = None
    """A served model that writes; None takes the templates."""
    written: Counter[str] = field(default_factory=Counter[str])
    """Texts by who wrote them: `template`, `model`, and why a model's text was not taken."""

    async def row(
        self,
        shop: Workshop,
        store: TreeStore,
        project: Project,
        journal: MakeJournal,
        fixed: Snapshot,
        broken: Broken,
    ) -> dict[str, Any] | None:
        """The fields of a row that describe what is wrong; None if nothing shows it to a user.

        Raises:
            SandboxError: the sandboxes failed.
        """
        release, verdict = project.release, broken.verdict
        if self.style == "tests":
            shown = broken.start is None
            text = statement(release.name, release.version, verdict, shown=shown)
            start = store.put(broken.start if broken.start is not None else broken.graded)
            trees = {"base_commit": start}
            trees |= {} if shown else {"grade_tree": store.put(broken.graded)}
            return trees | {"problem_statement": text} | self._figures(broken, None)
        start = broken.start
        if start is None:
            start = await parsing(hide_tests, broken.graded, verdict.fail_to_pass)
        reported = None
        if start is not None:
            reported = await self._reported(shop, project, journal, fixed, broken)
        if reported is None or start is None:
            return None
        issue, depth = reported
        tests = {}
        if broken.start is None:
            tests["test_patch"] = make_patch(
                {path: start[path] for path in start if start[path] != broken.graded[path]},
                {path: broken.graded[path] for path in start if start[path] != broken.graded[path]},
            )
        return {
            "base_commit": store.put(start),
            "grade_tree": store.put(broken.graded),
            **tests,
            "problem_statement": issue.text,
            **self._figures(broken, depth),
        }

    def _figures(self, broken: Broken, depth: int | None) -> dict[str, Any]:
        found = figures(
            style=self.style,
            patch=broken.patch,
            places=broken.places,
            depth=depth,
            fail_to_pass=broken.verdict.fail_to_pass,
            pass_to_pass=broken.verdict.pass_to_pass,
        )
        return {"style": self.style, "figures": found}

    async def _reported(
        self,
        shop: Workshop,
        project: Project,
        journal: MakeJournal,
        fixed: Snapshot,
        broken: Broken,
    ) -> tuple[WrittenIssue, int | None] | None:
        key = f"report:{broken.key}"
        known = journal.get(key)
        if known is None:
            known = {"of": await _symptoms(shop, project, fixed, broken)}
            journal.put(key, known)
        paths = tuple(dict.fromkeys(path for path, _ in broken.places)) or tuple(_paths(broken))
        secrets = Secrets(
            paths=paths,
            patch=broken.patch,
            tests=broken.verdict.fail_to_pass,
            functions=tuple(function for _, function in broken.places),
        )
        seed = f"{self.seed}:{broken.key}"
        found = [kept_symptoms(of) for of in known["of"]]
        most = 3 if broken.missing else 1
        symptoms = choose_symptoms(found, seed, secrets, most=most)
        if not symptoms:
            return None
        story = Story(
            library=project.release.name,
            version=project.release.version,
            python=platform.python_version(),
            symptoms=symptoms,
            missing=broken.missing,
            manual=broken.manual,
        )
        issue = await self._issue(journal, story, seed, secrets)
        depths = [one.depth for one in symptoms if one.depth is not None]
        return None if issue is None else (issue, max(depths, default=None))

    async def _issue(
        self, journal: MakeJournal, story: Story, seed: str, secrets: Secrets
    ) -> WrittenIssue | None:
        if self.writer is None:
            issue = await write_issue(story, seed, secrets, None)
            self.written["template"] += issue is not None
            return issue
        key = f"text:{self.writer.name}:{seed}"
        known = journal.get(key)
        if known is None:
            made = await write_issue(story, seed, secrets, self.writer)
            known = {"text": made.text if made else "", "refused": made.refused if made else ""}
            journal.put(key, known)
        if not known["text"]:
            return None
        self.written["template" if known["refused"] else "model"] += 1
        if known["refused"]:
            self.written[known["refused"]] += 1
        return WrittenIssue(text=known["text"], refused=known["refused"])


async def _symptoms(
    shop: Workshop, project: Project, fixed: Snapshot, broken: Broken
) -> list[list[Any]]:
    """What a user would notice of each bug, as a journal keeps it."""
    finder = IssueFinder(shop.runner, project, shop.suite(project), fixed)
    whole = Defect(snapshot=broken.snapshot, changed=broken.changed)
    failing = broken.verdict.fail_to_pass
    if not broken.alone:
        return [symptoms_to_keep(await finder.symptoms(failing, whole, marks=broken.places))]
    found: list[list[Any]] = []
    for (changed, tests), place in zip(broken.alone, broken.places, strict=True):
        mine = [test for test in failing if test in set(tests)]
        alone = Defect(snapshot=broken.snapshot, changed=changed)
        symptoms = await finder.symptoms(mine, alone, whole, marks=[place])
        found.append(symptoms_to_keep(symptoms))
        if not symptoms:
            break
    return found


def _paths(broken: Broken) -> list[str]:
    return [
        line.split(" b/", 1)[-1]
        for line in broken.patch.splitlines()
        if line.startswith("diff --git ")
    ]
