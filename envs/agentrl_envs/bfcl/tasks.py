"""BFCL's multi-turn conversations as tasks.

    env:
      target: agentrl_envs.bfcl:BfclTask
    dataset:
      source: agentrl_envs.bfcl:multi_turn_tasks
    chat:
      tool_parser: hermes

The four categories hold the same 200 conversations in four forms, so a split is by the number of
the conversation: what is held out was seen in no category.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from agentrl.errors import ConfigError, DataError, choices
from agentrl.types import Task
from agentrl_envs.bfcl.functions import documents, json_schema, package_data

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
"""Kinds of conversation: plain, a function comes late, a value comes late, much to read."""
_SPLITS = ("train", "held_out", "all")
_NEW_FUNCTIONS = "More functions can be called from now on:\n{}\nDo what I asked for with them."


def multi_turn_tasks(split: str = "train", categories: tuple[str, ...] = CATEGORIES) -> list[Task]:
    """The conversations of some categories, in the order of the dataset.

    Args:
        split: `train` has four of five conversations of each category, `held_out` the fifth,
            `all` both. BFCL itself is an evaluation with no split.
        categories: which of `base`, `miss_func`, `miss_param` and `long_context`.

    Returns:
        200 tasks a category over both splits. The label holds the expected calls by user turn; the
        metadata what the environment needs.

    Raises:
        ConfigError: an unknown split or category, or bfcl-eval is not installed.
        DataError: a file of the package is not as expected.
    """
    if split not in _SPLITS:
        raise ConfigError(f"agentrl_envs.bfcl split: {choices(split, _SPLITS)}")
    if isinstance(categories, str):
        categories = (categories,)
    for category in categories:
        if category not in CATEGORIES:
            raise ConfigError(f"agentrl_envs.bfcl categories: {choices(category, CATEGORIES)}")
    return [task for category in categories for task in _category(category, split)]


def _category(category: str, split: str) -> list[Task]:
    name = f"BFCL_v4_multi_turn_{category}.json"
    answers = {row["id"]: row["ground_truth"] for row in _rows(f"possible_answer/{name}")}
    tasks: list[Task] = []
    for number, row in enumerate(_rows(name)):
        part = "held_out" if number % 5 == 4 else "train"
        if split not in (part, "all"):
            continue
        try:
            tasks.append(_task(row, answers[row["id"]], category, part))
        except (KeyError, TypeError, IndexError) as error:
            raise DataError(
                f"{package_data() / name}, row {number + 1}: {type(error).__name__} {error}; "
                "expected id, question, initial_config, involved_classes, and a possible answer "
                "for every turn"
            ) from error
    return tasks


def _rows(name: str) -> list[dict[str, Any]]:
    path = package_data() / name
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; install bfcl-eval==2026.3.23 again") from error


def _task(row: dict[str, Any], expected: list[list[str]], category: str, split: str) -> Task:
    late = {
        turn: [name for name in names if not _needed(name, expected[: int(turn)])]
        for turn, names in (row.get("missed_function") or {}).items()
    }
    turns = [
        {"text": _said(row, index, late), "new": late.get(str(index), [])}
        for index in range(len(row["question"]))
    ]
    if len(expected) != len(turns):
        raise IndexError(f"{len(turns)} turns, {len(expected)} answers")
    return Task(
        id=row["id"],
        prompt=turns[0]["text"],
        label={"expected": expected},
        metadata={
            "category": category,
            "turns": turns,
            "classes": row["involved_classes"],
            "config": row["initial_config"],
        },
        split=split,
    )


def _needed(name: str, turns: list[list[str]]) -> bool:
    """True if one of these turns cannot be done without a function. Entry miss_func_49 withholds
    one that is expected earlier; no model could be right there, so it is not withheld."""
    return any(call.startswith(f"{name}(") for calls in turns for call in calls)


def _said(row: dict[str, Any], index: int, late: dict[str, list[str]]) -> str:
    """The user's text of a turn; a turn that brings functions has none of its own."""
    if str(index) not in late:
        return "\n".join(message["content"] for message in row["question"][index])
    lines = [
        json.dumps({**item, "parameters": json_schema(item["parameters"])})
        for backend in row["involved_classes"]
        for item in documents(backend)
        if item["name"] in late[str(index)]
    ]
    return _NEW_FUNCTIONS.format("\n".join(lines))


def expected_calls(task: Task) -> list[list[tuple[str, dict[str, Any]]]]:
    """The expected calls of a task by user turn, with named arguments, for a replay."""
    parameters = {
        item["name"]: list(item["parameters"]["properties"])
        for backend in task.metadata["classes"]
        for item in documents(backend)
    }
    turns: list[list[tuple[str, dict[str, Any]]]] = []
    for calls in task.label["expected"]:
        parsed: list[tuple[str, dict[str, Any]]] = []
        for text in calls:
            tree: Any = ast.parse(text, mode="eval").body
            given = zip(parameters[tree.func.id], tree.args, strict=False)
            arguments = {name: ast.literal_eval(value) for name, value in given}
            arguments |= {word.arg: ast.literal_eval(word.value) for word in tree.keywords}
            parsed.append((tree.func.id, arguments))
        turns.append(parsed)
    return turns
