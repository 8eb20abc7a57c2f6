"""The files of a new environment: class, tasks, held-out tasks, tests, run file, package."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from importlib import resources
from itertools import combinations
from string import Template
from typing import Any

TASKS_FILE = "tasks.jsonl"
"""Its name is the same for every environment, so a folder holds one scaffold."""
_HELD_OUT_FILE = "held_out.jsonl"
_TRAIN, _HELD_OUT = 24, 12

PRICES = {"pea": 3, "egg": 2, "hat": 9, "ink": 6, "jam": 8, "cod": 7, "cap": 41, "fig": 5, "nut": 4}
"""As many items as fit on one line of the file that is written."""

Row = dict[str, Any]


def scaffold(name: str, kind: str, *, package: bool = False) -> dict[str, str]:
    """File names and their texts.

    Args:
        name: of the environment, a Python name.
        kind: one of `KINDS`.
        package: whether they are a project that can be installed, in a folder of their name.
    """
    class_name = class_of(name)
    rows = KINDS[kind]()
    random.Random(name).shuffle(rows)
    words = {
        "name": name,
        "class_name": class_name,
        "distribution": name.strip("_").replace("_", "-") or "env",
        "prices": json.dumps(PRICES),
        "env": f"{name}:{class_name}" if package else f"{name}.py:{class_name}",
        "train": f"{name}:make_tasks" if package else TASKS_FILE,
        "held_out": f"{name}:make_tasks" if package else _HELD_OUT_FILE,
        "run": f"../{name}.yaml" if package else f"{name}.yaml",
        "sandbox": "RUN.sandbox" if kind == "sandbox" else "None",
    }

    def text(template: str) -> str:
        folder = resources.files("agentrl.cli.env.scaffold").joinpath("templates")
        return Template(folder.joinpath(f"{template}.txt").read_text("utf-8")).substitute(words)

    files = {
        "env": text(f"{kind}.py"),
        "test": text("test.py"),
        "run": text("run.yaml") + text(f"{kind}.yaml"),
        "tasks": _lines(rows[:_TRAIN], 0),
        "held_out": _lines(rows[_TRAIN : _TRAIN + _HELD_OUT], _TRAIN),
    }
    if not package:
        names = f"{name}.py", f"test_{name}.py", f"{name}.yaml", TASKS_FILE, _HELD_OUT_FILE
        return dict(zip(names, files.values(), strict=True))
    inner = f"{name}/{name}"
    names = f"{inner}/env.py", f"{name}/tests/test_{name}.py", f"{name}/{name}.yaml"
    data = f"{inner}/{TASKS_FILE}", f"{inner}/{_HELD_OUT_FILE}"
    return {
        f"{name}/README.md": text("README.md"),
        f"{name}/pyproject.toml": text("pyproject.toml"),
        f"{inner}/__init__.py": text("package.py"),
        **dict(zip((*names, *data), files.values(), strict=True)),
    }


def class_of(name: str) -> str:
    """Name of the class in an environment called `name`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_") if part) or "Env"


def _lines(rows: list[Row], first: int) -> str:
    return "".join(json.dumps({"id": f"{i}", **row}) + "\n" for i, row in enumerate(rows, first))


def _price_rows() -> list[Row]:
    return [
        {
            "prompt": f"What do one {one} and one {other} cost together? Look the prices up, then "
            "say the number and nothing else.",
            "label": str(PRICES[one] + PRICES[other]),
            "items": [one, other],
        }
        for one, other in combinations(PRICES, 2)
    ]


def _sum_rows() -> list[Row]:
    return [
        {"prompt": f"What is {a} + {b}? Say the number and nothing else.", "label": str(a + b)}
        for a, b in combinations(range(3, 40, 3), 2)
    ]


def _guess_rows() -> list[Row]:
    draw = random.Random(0)
    return [
        {
            "prompt": f"I think of a number from {low} to {low + 7}. Say one number; I say whether "
            "mine is higher or lower.",
            "label": draw.randint(low, low + 7),
            "low": low,
            "high": low + 7,
        }
        for low in range(1, 37)
    ]


def _file_rows() -> list[Row]:
    return [
        {
            "prompt": f"What do all items of prices.txt with the letter {one} or {other} in their "
            "name cost together? Run Python to find out, then say the number and nothing else.",
            "label": str(sum(p for item, p in PRICES.items() if one in item or other in item)),
            "letters": one + other,
        }
        for one, other in combinations("aegnptcud", 2)
    ]


KINDS: Mapping[str, Callable[[], list[Row]]] = {
    "tools": _price_rows,
    "single-turn": _sum_rows,
    "multi-turn": _guess_rows,
    "sandbox": _file_rows,
}
"""What an environment may be, with its rows; the templates are called so, too."""
