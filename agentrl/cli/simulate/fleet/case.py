"""The size of a simulated run, and the config that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.config import RunConfig, parse_config
from agentrl.errors import RunError

GROUP = 8
"""Conversations of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleCase:
    """The size of a simulated run."""

    servers: int = 8
    """Fake servers."""
    conversations: int = 512
    """Conversations at once, all of a step."""
    turns: int = 5
    """Turns of a conversation."""
    turn_s: float = 1.0
    """Seconds that a fake server takes for a turn."""
    result_chars: int = 2000
    """Characters that the tool returns in each turn."""
    steps: int = 2
    """Steps of the run."""
    workers: int = 0
    """Rollout workers in child processes, as `runtime.worker_processes`; 0 for none."""
    tokenizer: str = "quickstart"
    """Model folder or hub name whose tokenizer is used."""


def run_config(case: ScaleCase, urls: Sequence[str], folder: Path) -> RunConfig:
    """The config of a simulated run.

    Args:
        case: its size.
        urls: addresses of the fake servers.
        folder: of the run.

    Raises:
        RunError: the conversations are no multiple of a group.
        ConfigError: a number of the case is out of its range.
    """
    if case.conversations % GROUP:
        raise RunError(
            f"{case.conversations} conversations cannot be divided into groups of {GROUP}; take "
            f"a multiple of {GROUP}"
        )
    result_tokens = case.result_chars + 64  # results are ASCII: at most one token a character
    response = case.turns * (result_tokens + 512)
    return parse_config(
        {
            "run": {"dir": str(folder), "name": "scale"},
            "model": {"path": case.tokenizer, "device": "cpu"},
            "chat": {"tool_parser": "hermes"},
            "env": {
                "target": "agentrl.cli.simulate.fleet.conversation:SimulatedConversation",
                "args": {"turns": case.turns},
                "tools": ["agentrl.cli.simulate.fleet.conversation:read"],
            },
            "dataset": {"source": "simulated.jsonl"},
            "rollout": {
                "prompts_per_step": case.conversations // GROUP,
                "n_samples_per_prompt": GROUP,
                "max_assistant_turns": case.turns,
                "max_user_turns": case.turns,
                "max_response_tokens": response,
                "max_context_tokens": response + 1024,
                "max_tool_tokens": result_tokens,
                "timeout_s": 3600.0,
                "retries": 0,
            },
            "serving": {"engine": "external", "urls": list(urls)},
            "sync": {"backend": "shm"},
            "train": {"steps": case.steps, "micro_batch_tokens": response + 1024},
            "runtime": {"kind": "local", "worker_processes": case.workers},
            "checkpoint": {"every_steps": case.steps},
            "log": {"tensorboard": False, "tokens": False},
        }
    )
