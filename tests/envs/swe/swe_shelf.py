"""A second tiny library, whose one defect shows in tests of many styles; a row for each style."""

from __future__ import annotations

import json
from pathlib import Path

from agentrl_envs.swe import SweTask, TreeStore, swe_tasks
from agentrl_envs.swe.patches import make_patch
from agentrl_envs.swe.record import STORE_FOLDER, TASKS_FILE

from agentrl.types import Task
from tests.envs.swe.swe_library import RUNNER_ENV, TEST_COMMAND, make_folder, tree

GOOD = '''"""Names for shelves."""

import re


def slug(text, joiner="-"):
    words = [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]
    return joiner.join(words)


def is_slug(text):
    return re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", text) is not None


def shelf(number):
    if number < 0:
        raise ValueError("no shelf below 0")
    return f"shelf {number}"
'''
BROKEN = GOOD.replace(" if word]", "]")
TESTS = """import unittest

import pytest

from shelves import is_slug, shelf, slug

CASES = [("Hello, World!", "hello-world"), ("  a  b ", "a-b"), ("(x) [y]", "x-y")]


def compare(given, wanted):
    assert slug(given) == wanted


def test_helper():
    compare("Rows & columns.", "rows-columns")
    compare(" left", "left")


@pytest.mark.parametrize(("given", "wanted"), CASES)
def test_table(given, wanted):
    assert slug(given) == wanted


def test_loop():
    for given, wanted in CASES:
        assert slug(given) == wanted


class Base(unittest.TestCase):
    def assertSlug(self, given, wanted):
        self.assertEqual(slug(given), wanted)


class TestSlug(Base):
    def test_method(self):
        self.assertSlug("One. Two. ", "one-two")

    def test_near(self):
        self.assertAlmostEqual(len(slug("end of it!")), 9)


@pytest.mark.parametrize("given", ["a.", ".b", "c!!", "(d)", "e ", "f?", " g", "h:", "i;", ";j"])
def test_truth(given):
    assert is_slug(slug(given, joiner="-"))


def test_slug_of_one_word():
    assert slug("word") == "word"


def test_joiner():
    assert slug("A b", joiner="_") == "a_b"


def test_shelf():
    assert shelf(3) == "shelf 3"


def test_no_shelf():
    with pytest.raises(ValueError, match="below"):
        shelf(-1)
"""
_FILE = "tests/test_shelves.py"
STYLES = {
    "helper": ("test_helper",),
    "table": tuple(f"test_table[{a}-{b}]" for a, b in
                   (("Hello, World!", "hello-world"), ("  a  b ", "a-b"), ("(x) [y]", "x-y"))),
    "loop": ("test_loop",),
    "method": ("TestSlug::test_method",),
    "near": ("TestSlug::test_near",),
    "truth": tuple(f"test_truth[{text}]" for text in
                   ("a.", ".b", "c!!", "(d)", "e ", "f?", " g", "h:", "i;", ";j")),
}  # fmt: skip
_KEPT = ("test_slug_of_one_word", "test_joiner", "test_shelf", "test_no_shelf")
BASE = {
    "tests/test_shelves.py": TESTS,
    "shelves/__init__.py": "from shelves.names import is_slug, shelf, slug\n",
    "shelves/names.py": BROKEN,
}
MEND = "sed -i 's/text.lower())]/text.lower()) if word]/' repo/shelves/names.py"
OTHER = (
    "sed -i 's/^    words = .*/    words = re.findall(r\"[a-z0-9]+\", text.lower())/' "
    "repo/shelves/names.py"
)
"""Another repair than the gold one."""


def make_shelf(folder: Path) -> dict[str, Task]:
    """Write the data set; its tasks by the style of the tests that fail."""
    make_folder(folder)
    base = tree(BASE)
    tree_id = TreeStore(folder / STORE_FOLDER).put(base)
    patch = make_patch(base, tree({**BASE, "shelves/names.py": GOOD}))
    rows = [
        SweTask(
            instance_id=f"shelves__{style}",
            repo="shelves",
            base_commit=tree_id,
            patch=patch,
            problem_statement="Slugs begin or end with a dash.",
            FAIL_TO_PASS=tuple(f"{_FILE}::{name}" for name in failing),
            PASS_TO_PASS=tuple(f"{_FILE}::{name}" for name in _KEPT),
            source_paths=("shelves",),
            test_paths=("tests",),
            python_path=(".",),
            test_command=TEST_COMMAND,
            test_env=RUNNER_ENV,
            test_seconds=0.5,
            environment="e",
        )
        for style, failing in STYLES.items()
    ]
    lines = "".join(json.dumps(row.to_row()) + "\n" for row in rows)
    (folder / TASKS_FILE).write_text(lines)
    return {task.id.removeprefix("shelves__"): task for task in swe_tasks(str(folder))}
