"""tau2's tasks: telecom, retail and airline.

    env:
      target: agentrl_envs.tau2:Tau2Task
    dataset:
      source: agentrl_envs.tau2:tau2_tasks
      args: {domains: [telecom]}
    chat:
      tool_parser: hermes

Tasks, policies and databases lie in the package inspect-evals (MIT) and come from
sierra-research/tau2-bench (MIT, Copyright (c) 2025 Sierra Research). The fourth domain in there,
banking (97 tasks), is left out: its users call tools of their own.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, DataError, choices
from agentrl.types import Task

DOMAINS = ("telecom", "retail", "airline")
"""Domains whose tasks can be played."""
_SPLITS = ("train", "test", "base", "full", "small")
_WITHOUT_EFFECT = ("calculate", "find_", "get_", "list_", "search_", "transfer_")
_BASIS = ("DB", "COMMUNICATE")


@lru_cache(maxsize=1)
def package_data() -> Path:
    """The folder of tau2's data in the installed `inspect_evals`, without importing that.

    Raises:
        ConfigError: it is not installed.
    """
    spec = importlib.util.find_spec("inspect_evals")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "agentrl_envs.tau2 needs the package inspect-evals, which holds the tasks and the "
            "tools; install it with: pip install --no-deps inspect-evals==0.26.0"
        )
    return Path(spec.submodule_search_locations[0]) / "tau2" / "data" / "domains"


def tau2_tasks(
    split: str = "train", domains: tuple[str, ...] = DOMAINS, idle: bool | None = None
) -> list[Task]:
    """The tasks of some domains, in the order of their files.

    Args:
        split: `train` (178 tasks over all domains, 17 of them idle) and `test` (100) share none
            and make up `base`; telecom also has `full` (2285) and `small` (20). As tau2 has them.
        domains: which of `telecom`, `retail` and `airline`.
        idle: whether to have tasks that are right when nothing happens, such as a wish to be
            refused. tau2 pays there for doing nothing, which is not to be learned: by default
            `train` leaves them out and all other splits have them.

    Returns:
        Tasks whose label says what should be in the end; the metadata sets the scene.

    Raises:
        ConfigError: an unknown split or domain, or inspect-evals is not installed.
        DataError: a file of the package is not as expected.
    """
    if isinstance(domains, str):
        domains = (domains,)
    if split not in _SPLITS:
        raise ConfigError(f"agentrl_envs.tau2 split: {choices(split, _SPLITS)}")
    for domain in domains:
        if domain not in DOMAINS:
            raise ConfigError(f"agentrl_envs.tau2 domains: {choices(domain, DOMAINS)}")
    tasks = [task for domain in domains for task in _domain(domain, split)]
    wanted = split != "train" if idle is None else idle
    return [task for task in tasks if wanted or not is_idle(task)]


def is_idle(task: Task) -> bool:
    """True if a task asks for no change, no word to the user and no action of its own."""
    label = task.label
    if label["told"] or not {"DB", "COMMUNICATE"} >= set(label["basis"]):
        return False
    return all(item["name"].startswith(_WITHOUT_EFFECT) for item in label["expected"])


def policy(domain: str) -> str:
    """The policy of a domain's agent, with the knowledge that its work needs."""
    folder = package_data() / domain
    names = ("policy.txt",)
    if domain == "telecom":
        names = ("main_policy_solo.txt", "tech_support_workflow_solo.txt")
    return "\n\n".join((folder / name).read_text("utf-8").strip() for name in names)


def _domain(domain: str, split: str) -> list[Task]:
    folder = package_data() / domain
    splits = _json(folder / "split_tasks.json")
    if split not in splits:
        raise ConfigError(f"agentrl_envs.tau2 split of {domain}: {choices(split, splits)}")
    chosen = frozenset(splits[split])
    path = folder / ("tasks.json.gz" if domain == "telecom" else "tasks.json")
    tasks: list[Task] = []
    for number, row in enumerate(_json(path), start=1):
        try:
            if row["id"] in chosen:
                tasks.append(_task(row, domain, split))
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}, task {number}: {type(error).__name__} {error}; expected id, "
                "user_scenario.instructions and evaluation_criteria"
            ) from error
    return tasks


def _json(path: Path) -> Any:
    try:
        raw = path.read_bytes()
        return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; install inspect-evals==0.26.0 again") from error


def _task(row: dict[str, Any], domain: str, split: str) -> Task:
    wanted = row["evaluation_criteria"]
    scene = row.get("initial_state") or {}
    instructions = row["user_scenario"]["instructions"]
    return Task(
        id=f"{domain}-{row['id']}",
        prompt=row.get("ticket") or instructions["reason_for_call"],
        label={
            "expected": wanted.get("actions") or [],
            "checks": wanted.get("env_assertions") or [],
            "told": wanted.get("communicate_info") or [],
            # tau2's own default for tasks that do not say.
            "basis": wanted.get("reward_basis") or list(_BASIS),
        },
        metadata={
            "domain": domain,
            "scenario": instructions,
            "persona": row["user_scenario"].get("persona"),
            "begin": scene.get("initialization_actions") or [],
        },
        split=split,
    )
