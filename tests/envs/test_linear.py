"""What reads a model's words in environments and tools takes time in proportion to their length.

The patterns are found by walking the packages, so a new one is covered by being there; functions
that search without one, or build one, are listed.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator

import agentrl_envs
import agentrl_tools
import pytest
from agentrl_envs.arithmetic import final_number
from agentrl_envs.code.extract import defines, extract_code
from agentrl_envs.marked_text import last_between
from agentrl_envs.openenv.actions import Actions
from agentrl_envs.openenv.session import ActionRefused
from agentrl_envs.reasoning.env import final_answer
from agentrl_envs.tau2.host import answered, numbers_in
from agentrl_tools.calculator import computed
from agentrl_tools.edit import _nearly, _positions
from agentrl_tools.search import _without_braces

import agentrl.chat
import agentrl.rollout
from agentrl.errors import ToolError, choices
from tests.testing.growth import characters, pieces_of, superlinear

OURS = ("agentrl_envs.swe.make", "agentrl_envs.swe.report_plugin")
"""What reads only what we ship or load, and what can be imported only where it runs."""
OF_TASKS = ("agentrl_envs.swe.harbor:_WORKDIR",)
"""Patterns that read files of a task, which no model has written."""
AT_A_PLACE = (
    "agentrl.chat.calls.json_calls:MistralParser._named",
    "agentrl.chat.auto:FencedJsonParser.opening",
    "agentrl.chat.calls.gemma_calls:_SPACE",
    "agentrl.chat.calls.gemma_calls:GemmaParser._name",
    "agentrl_envs.swe.runners:_DJANGO_NAME",
)
"""Patterns that are matched at one place and never looked for."""
MARKS = (
    "```\n", "```python\n", "def f():\n", "async def ", "<answer>", "</answer>", "<action>",
    "Answer: ", "answer is ", "1,", "0.", "\r\n", " \n", "@@ -1 +1 @@\n", "{,}", "{a,b}", "$", "-",
)  # fmt: skip


def modules() -> Iterator[object]:
    for package in (agentrl_envs, agentrl_tools, agentrl.chat, agentrl.rollout):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(OURS):
                yield importlib.import_module(found.name)


def patterns() -> dict[str, re.Pattern[str]]:
    """Every compiled pattern of a module or a class in it, by where it stands."""
    found: dict[str, re.Pattern[str]] = {}
    for module in modules():
        for name, value in vars(module).items():
            inside = vars(value) if isinstance(value, type) else {}
            for inner, part in {"": value, **inside}.items():
                known = part in found.values()
                if isinstance(part, re.Pattern) and isinstance(part.pattern, str) and not known:
                    found[f"{module.__name__}:{name}.{inner}".rstrip(".")] = part
    return {name: part for name, part in found.items() if name not in OF_TASKS}


PATTERNS = patterns()


def test_patterns_are_found() -> None:
    assert len(PATTERNS) > 15
    assert any("fenced_code" in name for name in PATTERNS)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_takes_more_than_the_length_of_a_text(name: str) -> None:
    pattern = PATTERNS[name]
    words = pieces_of(re.sub(r"\\[a-zA-Z]|[\[\]()?*+|^$\\{}]", " ", pattern.pattern))

    def read(text: str) -> object:
        return pattern.match(text) if name in AT_A_PLACE else sum(1 for _ in pattern.finditer(text))

    slow = superlinear(read, [*characters(), *MARKS, *words], most=2**16)
    begins = [word for word in (*words, *MARKS) if len(word) > 1][:12]
    slow += superlinear(read, [" ", "\n", "a", "0", "`", "-"], begins=begins)
    assert not slow, "\n".join(map(str, slow))


def quiet(function: Callable[[str], object]) -> Callable[[str], object]:
    def read(text: str) -> None:
        try:
            function(text)
        except (ToolError, ActionRefused):
            return

    return read


def halves(function: Callable[[str, str], object]) -> Callable[[str], object]:
    return lambda text: function(text, text[: len(text) // 2])


READERS: dict[str, Callable[[str], object]] = {
    "code: defines": lambda text: defines(text, "f"),
    "code: extract": lambda text: extract_code(text[:50_000], (), "f"),
    "arithmetic": final_number,
    "reasoning": final_answer,
    "marks": lambda text: last_between(text, "<action>", "</action>"),
    "openenv: json": quiet(Actions("json").read),
    "openenv: marks": quiet(Actions({"a": "{action}"}).read),
    "tau2: numbers": numbers_in,
    "tau2: answered": lambda text: answered(["10", "camera"], [text], ()),
    "tau2: list": lambda text: answered(["10"], [f"1. {text}"], ()),
    "calculator": quiet(lambda text: computed(text[:300])),
    "edit: positions": halves(_positions),
    "edit: nearly": halves(_nearly),
    "search: braces": quiet(lambda text: _without_braces(text[:4096])),
    "choices": lambda text: choices(text, ["calculator", "python", "aaaa"]),
}


@pytest.mark.parametrize("name", READERS)
def test_no_reader_takes_more_than_the_length_of_a_text(name: str) -> None:
    slow = superlinear(READERS[name], [*characters(), *MARKS], most=2**18)
    begins = ["```", "```python\n", "<answer>", "answer", "def "]
    slow += superlinear(READERS[name], [" ", "\n", "a", "0", "`"], begins=begins)
    assert not slow, "\n".join(map(str, slow))


def test_the_measure_sees_a_pattern_that_tries_again() -> None:
    """Fails if the two lengths are too close to tell."""
    bad = re.compile(r"\n*+def f")
    assert superlinear(lambda text: bad.search(text), ["\n"], most=40_000)
    assert not superlinear(lambda text: text.count("\n"), ["\n"])
