"""Findings as plain records: ranked causes, and one list of what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agentrl.health.causes import causes, merged_levers
from agentrl.health.commands import next_command
from agentrl.health.records import Verdict


def ranked_records(verdicts: Sequence[Verdict], run: str) -> dict[str, list[dict[str, Any]]]:
    """`causes`, first to last, and `levers`, each key once; verdicts are named by their detector.

    Args:
        verdicts: of `diagnose`.
        run: the run directory, as it is typed in a command.
    """
    ranked = causes(verdicts)
    return {
        "causes": [
            {
                "detector": cause.verdict.name,
                "follows": [verdict.name for verdict in cause.follows],
                "command": (next_command(cause.verdict, run) or ("",))[0],
            }
            for cause in ranked
        ],
        "levers": [{**asdict(lever), "detector": name} for lever, name in merged_levers(ranked)],
    }
