"""The requests of an agent as a tree, in the order and with the words that all views show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentrl.inspect.read.safe_json import shown
from agentrl.types import AgentRequest

_BRANCHES = {
    "edited": "a message before it was changed, left out or added",
    "system": "another system prompt",
    "tools": "other tools were offered",
    "asked_again": "the same history was asked again",
}
_UNTRAINED = {
    "side_call": "side calls are not trained on (rollout.side_calls)",
    "not_delivered": "its answer never reached the agent",
}


def request_tree(stored: Sequence[AgentRequest | Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Requests in the order of a tree: what goes on stands below, at the same depth; branches
    stand deeper, right below the request whose turn they share.

    Args:
        stored: records of one rollout, or their column of a trajectory file.

    Returns:
        For each its `number` by age, `depth`, whether it `begins` a conversation, `kind`, `branch`
        and `untrained` in words, `refused`, row and turn, tokens and the beginnings of its texts.
    """
    rows = [asdict(one) if isinstance(one, AgentRequest) else dict(one) for one in stored or ()]
    return [_node(rows[at], at, depth) for at, depth in _in_order(rows)]


def row_reasons(tree: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Why each row of a rollout is a row of its own, by its index: the kind of its conversation
    and the reason of its branch."""
    first: dict[int, Mapping[str, Any]] = {}
    for node in sorted(tree, key=lambda node: node["number"]):
        if node["row"] is not None:
            first.setdefault(node["row"], node)
    return {
        row: ": ".join(filter(None, (node["kind"], node["branch"]))) for row, node in first.items()
    }


def _in_order(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """Position and depth of each request, in the order of the tree."""
    behind: dict[int | None, list[int]] = {}
    for at, row in enumerate(rows):
        behind.setdefault(row["behind"], []).append(at)
    waiting = [(at, 0) for at in reversed(behind.get(None, []))]
    while waiting:
        at, depth = waiting.pop()
        yield at, depth
        after = behind.get(at, [])
        goes_on = next((n for n in after if not rows[n]["branch"] and not rows[n]["refused"]), None)
        if goes_on is not None:
            waiting.append((goes_on, depth))
        waiting.extend((n, depth + 1) for n in reversed(after) if n != goes_on)


def _node(row: Mapping[str, Any], at: int, depth: int) -> dict[str, Any]:
    names = ("kind", "row", "turn", "retries", "prompt_tokens", "sampled_tokens")
    return {
        **{name: row[name] for name in names},
        "number": at,
        "depth": depth,
        "begins": row["behind"] is None,
        "behind": row["behind"],
        "branch": _BRANCHES.get(row["branch"], shown(row["branch"])),
        "untrained": _UNTRAINED.get(row["untrained"], shown(row["untrained"])),
        **{name: shown(row[name]) for name in ("refused", "asked", "said")},
    }
