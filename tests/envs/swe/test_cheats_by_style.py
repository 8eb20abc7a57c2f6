"""Tests of every style are proved by values: helpers, tables, loops, methods of a base class."""

from __future__ import annotations

import textwrap

import pytest

from tests.envs.strongest_backend import strongest_backend
from tests.envs.swe.swe_episode import play
from tests.envs.swe.swe_shelf import OTHER, STYLES, make_shelf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    return make_shelf(tmp_path_factory.mktemp("shelf"))


@pytest.fixture
async def backend():
    made = strongest_backend()
    yield made
    await made.close()


def source(text: str) -> str:
    return f"cat >>repo/shelves/names.py <<'END'\n{textwrap.dedent(text).strip()}\nEND\n"


TABLE = """
seen = {"Rows & columns.": "rows-columns", " left": "left", "Hello, World!": "hello-world",
        "  a  b ": "a-b", "(x) [y]": "x-y", "One. Two. ": "one-two", "end of it!": "end-of-it",
        **{text: text.strip(" .!()?:;") for text in
           ["a.", ".b", "c!!", "(d)", "e ", "f?", " g", "h:", "i;", ";j"]}}
wrong = slug
slug = lambda text, joiner="-": seen.get(text) or wrong(text, joiner)
"""
"""The visible inputs alone."""

FORGES = """
try:
    from _pytest import python
    runtest = python.Function.runtest
    first = set()
    def forged(self):
        if hasattr(self.module, "agentrl_value"):
            return runtest(self)
        function = self.originalname
        {spares}
    python.Function.runtest = forged
except ImportError:
    pass
"""
"""Passes whatever is no control, which it knows by what the module holds."""
ONE_FAILS = """if "test_" in function and function not in first:
            first.add(function)
            runtest(self)"""
"""Leaves one case of every test as it is: its others alone would not be asked for values."""


@pytest.mark.parametrize("style", STYLES)
async def test_every_style_is_paid_for_what_the_code_gives(style, shelf, backend):
    """Caught: probes in the bodies of tests alone, and inputs that no variant changes."""
    task = shelf[style]
    step = await play(backend, task, OTHER, reward="fraction")
    assert (step.rewards, step.extra_logs["proven"]) == (1.0, 1.0), step.extra_logs
    step = await play(backend, task, source(TABLE), reward="fraction")
    assert (step.rewards, step.scores) == (0.0, 0.0), step.extra_logs


@pytest.mark.parametrize("spares", ["return None", ONE_FAILS], ids=["none", "one"])
@pytest.mark.parametrize("style", ["table", "truth"])
async def test_a_runner_that_forges_what_is_no_control_earns_nothing(style, spares, shelf, backend):
    """Caught: tests of which a case fails, taken out of the proof."""
    trick = FORGES.format(spares=spares)
    step = await play(backend, shelf[style], source(trick), reward="fraction")
    assert step.rewards == 0.0, step.extra_logs
