"""README, docs and CHANGELOG: links that lead somewhere, sizes, code that the examples have."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_is_read_in_three_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 150
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 60


def test_code_of_the_readme_and_of_environments_is_in_the_examples() -> None:
    """Fails if a page shows code that no test runs (`tests/cli/env` runs the examples)."""
    examples = [path.read_text() for path in (ROOT / "examples").glob("my_*")]
    for page in (README, ROOT / "docs/environments.md"):
        blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", page.read_text(), re.DOTALL)
        assert blocks
        missing = [block for block in blocks if not any(block in text for text in examples)]
        assert missing == []


def test_places_that_the_readme_names_exist() -> None:
    table = README.read_text().split("## Where things are")[1]
    named = re.findall(r"`((?:agentrl|envs|tools|sandboxes)/[\w/.]*)`", table)
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_python_that_the_makefile_runs_finds_what_it_imports() -> None:
    """The Makefile goes on where it fails to fetch a model, so a wrong name would stay unseen."""
    imports = re.findall(r"-c .*?from (\S+) import (\w+)", (ROOT / "Makefile").read_text())
    assert imports
    missing = [pair for pair in imports if not hasattr(importlib.import_module(pair[0]), pair[1])]
    assert missing == []
