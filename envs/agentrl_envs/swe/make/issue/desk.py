"""From a defect to its report: scripts of failing tests, run with it and without, made short."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.sandbox import Snapshot
from agentrl_envs.swe.locate import TestIndex
from agentrl_envs.swe.make.issue.definitions import NoScriptError, definitions_of
from agentrl_envs.swe.make.issue.leaks import Secrets, leaks
from agentrl_envs.swe.make.issue.observe import Effect, first_difference, last_effect
from agentrl_envs.swe.make.issue.scripts import Script, script_of
from agentrl_envs.swe.make.issue.snippet import Snippet, snippets
from agentrl_envs.swe.make.issue.words import Reported, Story, written
from agentrl_envs.swe.make.issue.writer import ServedWriter
from agentrl_envs.swe.make.project import Project
from agentrl_envs.swe.make.suite import Suite, SuiteRunner
from agentrl_envs.swe.proof.parsing import parsing

_PROGRAM = Path(__file__).parent.parent / "inside" / "observe.py"
_MOST_TESTS = 8
"""Failing test functions that are looked at for a report."""
_MOST_READ = 64
"""Failing test functions of which the shortest are looked for."""
_MOST_WAYS = 8
"""Ways to show one of them."""
_MOST_VALUE = 500
"""Characters of a value that someone would still paste."""
_OBSERVE_S = 60.0
_TESTING = frozenset(("unittest", "doctest", "test", "_pytest"))
_NATURAL = 3
"""The report is drawn from so many of the shortest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A tree with something wrong."""

    snapshot: Snapshot
    """The tree, but for `changed`."""
    changed: Mapping[str, bytes]
    """Files of it that are other ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenIssue:
    """A problem text and who wrote it."""

    text: str
    """The text."""
    refused: str = ""
    """Why the text of a served model was not taken; empty if it was, or none was asked."""


class IssueFinder:
    """Finds what a user would notice of a defect in one library, and writes it down."""

    def __init__(
        self, runner: SuiteRunner, project: Project, suite: Suite, fixed: Snapshot
    ) -> None:
        """Look at one library.

        Args:
            runner: of its tests.
            project: the library, with all its tests.
            suite: how its tests are run.
            fixed: its tree with nothing wrong.
        """
        self._runner = runner
        self._project = project
        self._suite = suite
        self._fixed = fixed
        allowed = (set(sys.stdlib_module_names) - _TESTING) | set(project.modules)
        self._modules = frozenset(allowed)
        self._short = _short_imports(project)

    async def symptoms(
        self,
        tests: Sequence[str],
        defect: Defect,
        whole: Defect | None = None,
        marks: Sequence[tuple[str, str]] = (),
    ) -> list[Reported]:
        """All short programs found that show a defect, the shortest first.

        Args:
            tests: that fail with it, by node id.
            defect: the tree with it.
            whole: the tree with this and other defects; the report is of what that one does.
            marks: file and dotted name of the functions with the defect, for `Reported.depth`.

        Raises:
            SandboxError: the sandboxes failed.
        """
        scripts = await parsing(self._scripts, tests)
        if not scripts:
            return []
        request = [script.request() for script in scripts]
        good = await self._answer(self._fixed, {}, request)
        bad = await self._answer(defect.snapshot, defect.changed, request)
        if good is None or bad is None:
            return []
        ways = await parsing(self._ways, scripts, good, bad)
        if not ways:
            return []
        shown = await self._shown([way for _, way in ways], defect, whole, marks)
        best: dict[int, Reported] = {}
        for (number, _), reported in zip(ways, shown, strict=True):
            if reported is not None:
                best.setdefault(number, reported)
        unique = {one.snippet.call: one for one in best.values()}
        return sorted(unique.values(), key=lambda one: one.size)

    def _ways(
        self, scripts: Sequence[Script], good: Sequence[Any], bad: Sequence[Any]
    ) -> list[tuple[int, Snippet]]:
        """Ways to show where scripts differ, each with the number of its script."""
        found: list[tuple[int, Snippet]] = []
        for number, script in enumerate(scripts):
            symptom = first_difference(script, good[number], bad[number])
            if symptom is not None:
                made = snippets(script, symptom.moment, self._modules, self._short)
                found += [(number, way) for way in itertools.islice(made, _MOST_WAYS)]
        return found

    async def _shown(
        self,
        ways: Sequence[Snippet],
        defect: Defect,
        whole: Defect | None,
        marks: Sequence[tuple[str, str]],
    ) -> list[Reported | None]:
        """The snippets that do show the defect when they are run by themselves."""
        request = [way.script().request(marks) for way in ways]
        answers = [await self._answer(self._fixed, {}, request)]
        for tree in (defect, whole):
            if tree is not None:
                answers.append(await self._answer(tree.snapshot, tree.changed, request))
        known = [answer for answer in answers if answer is not None]
        if len(known) < len(answers):
            return [None] * len(ways)
        return [
            _reported(way, [answer[number] for answer in known]) for number, way in enumerate(ways)
        ]

    async def _answer(
        self, snapshot: Snapshot, changed: Mapping[str, bytes], request: Any
    ) -> list[Any] | None:
        return await self._runner.answer(
            self._suite, snapshot, _PROGRAM, request, changed=changed, timeout_s=_OBSERVE_S
        )

    def _scripts(self, tests: Sequence[str]) -> list[Script]:
        """Scripts of the test functions, the shortest first."""
        files = {path: entry.data for path, entry in self._project.tree.items()}
        index = TestIndex(files, tests)
        found: dict[str, Script] = {}
        # One set of parameters stands for all: they are in the script.
        named = {test.partition("[")[0]: test for test in tests}
        for name in sorted(named)[:_MOST_READ]:
            try:
                found[name] = _script(named[name], index)
            except (NoScriptError, SyntaxError, RecursionError):
                continue
        ordered = sorted(found.values(), key=lambda script: len(repr(script.steps)))
        return ordered[:_MOST_TESTS]


def _script(test: str, index: TestIndex) -> Script:
    where = index.find(test)
    if where is None:
        raise NoScriptError("its definition is not found")
    own, _, rest = test.partition("::")
    classes = rest.partition("[")[0].split("::")[:-1]
    module = _module(index.sources[where.path])
    definitions = definitions_of(index.sources[where.path])
    if not classes:
        function = _named(module.body, ast.FunctionDef, where.function)
        return script_of(test, function, (), definitions)
    around: list[ast.ClassDef] = []
    if where.path != own:
        definitions = (*definitions_of(index.sources[own]), *definitions)
    first = _named(_module(index.sources[own]).body, ast.ClassDef, classes[-1])
    around.append(first)
    function = next((node for node in first.body if _is(node, where.function)), None)
    if function is None:
        owners = [
            node
            for node in module.body
            if isinstance(node, ast.ClassDef)
            and any(_is(part, where.function) for part in node.body)
        ]
        if len(owners) != 1:
            raise NoScriptError("its class is not found")
        around.append(owners[0])
        function = next(node for node in owners[0].body if _is(node, where.function))
    assert isinstance(function, ast.FunctionDef)
    return script_of(test, function, around, definitions)


@functools.lru_cache(maxsize=32)
def _module(source: str) -> ast.Module:
    return ast.parse(source)


def _is(node: Any, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _named(body: Sequence[Any], kind: type[Any], name: str) -> Any:
    for node in body:
        if isinstance(node, kind) and node.name == name:
            return node
    raise NoScriptError(f"{name} is not found")


def _reported(way: Snippet, answers: Sequence[Mapping[str, Any]]) -> Reported | None:
    steps = len(way.script().steps)
    shown = [last_effect(answer, steps) for answer in answers]
    effects = [one.effect for one in shown if one is not None]
    if len(effects) != len(shown):
        return None
    expected, actual = effects[0], effects[-1]
    if any(effect == expected or not effect.is_plain for effect in effects[1:]):
        return None
    if not expected.is_plain or max(len(actual.value), len(expected.value)) > _MOST_VALUE:
        return None
    first = shown[0]
    depths = first.depths.values() if first is not None else ()
    return Reported(
        snippet=way, actual=actual, expected=expected, depth=max(depths) if depths else None
    )


def _short_imports(project: Project) -> dict[str, str]:
    """`from pkg import name` for `from pkg.module import name`, where `pkg` has that name."""
    found: dict[str, str] = {}
    prefix = "" if project.python_path == "." else f"{project.python_path}/"
    for module in project.modules:
        entry = project.tree.get(f"{prefix}{module}/__init__.py")
        if entry is None:
            continue
        for path in project.tree:
            inner = path.removeprefix(prefix).removesuffix(".py").replace("/", ".")
            if path.endswith(".py") and inner.startswith(f"{module}."):
                found[inner] = module
    return found


def symptoms_to_keep(found: Sequence[Reported]) -> list[Any]:
    """As a journal keeps it."""
    return [dataclasses.asdict(one) for one in found]


def kept_symptoms(found: Sequence[Any]) -> list[Reported]:
    """As a journal has kept it."""
    return [
        Reported(
            snippet=Snippet(
                imports=tuple(one["snippet"]["imports"]),
                setup=tuple(one["snippet"]["setup"]),
                call=one["snippet"]["call"],
                is_value=one["snippet"]["is_value"],
            ),
            actual=Effect(**one["actual"]),
            expected=Effect(**one["expected"]),
            depth=one["depth"],
        )
        for one in found
    ]


def choose_symptoms(
    found: Sequence[Sequence[Reported]], seed: str, secrets: Secrets, *, most: int
) -> tuple[Reported, ...]:
    """Symptoms for a text, one of each defect and up to `most`; none if one gives a secret away.

    Args:
        found: of each defect.
        seed: chooses among the shortest.
        secrets: what must not be given away.
        most: how many at most, unless there are more defects.
    """
    draw = random.Random(seed)
    taken: list[Reported] = []
    rest: list[Reported] = []
    for symptoms in found:
        fit = [one for one in symptoms if not leaks(_shown_text(one), secrets, ())]
        # One that shows another defect too is reported once.
        new = [one for one in fit if one.snippet.call not in {it.snippet.call for it in taken}]
        if not fit:
            return ()
        if new:
            taken.append(draw.choice(new[:_NATURAL]))
            rest += [one for one in new if one is not taken[-1]]
    for one in sorted(rest, key=lambda it: it.size)[: max(most - len(taken), 0)]:
        if one.snippet.call not in {it.snippet.call for it in taken}:
            taken.append(one)
    return tuple(taken)


def _shown_text(one: Reported) -> str:
    """What a report holds of a symptom, without the call itself, which names what it names."""
    return "\n".join((one.actual.message, one.expected.message))


async def write_issue(
    story: Story, seed: str, secrets: Secrets, writer: ServedWriter | None
) -> WrittenIssue | None:
    """The text of a problem, by the served model if there is one and its text may be taken.

    Returns:
        None where even the template would give something away.
    """
    refused = ""
    if writer is not None:
        text, refused = await writer.write(story, secrets)
        if text:
            return WrittenIssue(text=text)
    text = await parsing(written, story, seed)
    facts = [story.manual, *(part for one in story.symptoms for part in one.facts())]
    if leaks(text, secrets, facts):
        return None
    return WrittenIssue(text=text, refused=refused)
