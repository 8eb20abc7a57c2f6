"""The siblings of a group by how they did: their order, their outcomes, and the two to compare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.health.measures.paid_wrong import PaidLimits
from agentrl.inspect.pages.explanation import grading, passed_tests
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import json_value, number, rows_of
from agentrl.inspect.read.shelf import Shelf
from agentrl.inspect.read.stored_rows import rollouts_of
from agentrl.types import CallStatus

_OUTCOME_CHARS = 400


def best_first(
    reader: RunReader, shelf: Shelf, index: Sequence[Mapping[str, Any]]
) -> list[Sequence[Mapping[str, Any]]]:
    """Index rows of the rollouts of a group by reward, the highest first.

    Equal rewards stand by score, and equal scores by the tests that passed; those without a reward
    stand at the end.

    Args:
        reader: of the run.
        shelf: with the rows.
        index: rows of one group.
    """
    order = sorted(row["row"] for row in index)
    stored = rows_of(reader.rows.read(shelf, order, ["explanation"]))
    passed = {row: passed_tests(one["explanation"]) for row, one in zip(order, stored, strict=True)}

    def key(rows: Sequence[Mapping[str, Any]]) -> tuple[bool, float, float, int]:
        last = rows[-1]
        reward, score = number(last["reward"]), number(last["score"])
        return reward is None, -(reward or 0.0), -(score or 0.0), -passed[last["row"]]

    return sorted(rollouts_of(index), key=key)


def distinct_outcomes(
    siblings: Sequence[dict[str, Any]], limits: PaidLimits | None
) -> list[dict[str, Any]]:
    """The outcomes of siblings, each once: best first, then the most frequent.

    A sibling that did the same as one before it, word by word, is marked as `same_as` that one. An
    outcome that is paid and wrong by the score is `paid_wrong`; one that is right and not paid
    `right_unpaid`.

    Args:
        siblings: of one group.
        limits: of the run; None where nothing can be paid and wrong.
    """
    first: dict[str, str] = {}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in siblings:
        end = (one["reward"], one["score"], one["termination"])
        key = json.dumps([one["actions"], *end])
        same = first.setdefault(key, one["rollout_id"])
        one["same_as"] = None if same == one["rollout_id"] else same
        text = _graded_text(one["actions"])
        said = f"{_unread_call(one['actions'])}{grading(one['explanation'])}"
        # Answers that differ in white space alone look the same in the table.
        seen = " ".join(text.split())
        of = found.setdefault(
            (seen, *end),
            {
                "text": text[:_OUTCOME_CHARS],
                "reward": one["reward"],
                "score": one["score"],
                "termination": one["termination"],
                "said": said[:_OUTCOME_CHARS],
                "paid_wrong": limits is not None and limits.wrong(one["reward"], one["score"]),
                "right_unpaid": limits is not None and limits.unpaid(one["reward"], one["score"]),
                "rollouts": [],
            },
        )
        of["rollouts"].append(one["rollout_id"])
    order = {of["reward"]: n for n, of in reversed(list(enumerate(found.values())))}
    return sorted(found.values(), key=lambda of: (order[of["reward"]], -len(of["rollouts"])))


def _graded_text(actions: Sequence[Mapping[str, Any]]) -> str:
    """The last answer; where that is closing words, the last call before it that wrote a file.

    An agent's closing words are much the same whatever it did: the file that it wrote is graded.
    """
    if not actions:
        return ""
    calls = [call for action in actions for call in action["tool_calls"] if writes_file(call)]
    if not calls or not closes(actions[-1]):
        return actions[-1]["text"]
    written = "\n".join(
        value if isinstance(value, str) else json.dumps(value)
        for value in _arguments(calls[-1]).values()
    )
    return f"{calls[-1]['name']}: {written}"


def closes(turn: Mapping[str, Any]) -> bool:
    """True for a turn of the policy without a call and without code."""
    return not turn["tool_calls"] and "```" not in turn["text"]


def writes_file(call: Mapping[str, Any]) -> bool:
    """True if the arguments of a call name a file and something beside it, as editors' do."""
    names = _arguments(call)
    return len(names) > 1 and any("path" in name or "file" in name for name in names)


def _arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """Of a call as it is stored, in JSON, or as it is shown."""
    found = call["arguments"]
    found = json_value(found) if isinstance(found, str) else found
    return found if isinstance(found, dict) else {}


def _unread_call(actions: Sequence[Mapping[str, Any]]) -> str:
    """Why the call of the last turn could not be read, to stand before the grade; else empty.

    A grader sees only that nothing was done, and its words blame something else.
    """
    calls = actions[-1]["tool_calls"] if actions else ()
    if not calls or calls[-1]["status"] != CallStatus.MALFORMED:
        return ""
    return f"the last tool call could not be read ({calls[-1]['error']}), so nothing was done; "


def first_pair(
    siblings: Sequence[Mapping[str, Any]], outcomes: Sequence[Mapping[str, Any]]
) -> dict[str, str] | None:
    """The two siblings that a reader compares first, `best` and `other`, and what the pair is.

    The failure that several siblings share says more than the lowest reward. None where all gave
    the same last answer.
    """
    rated = [one for one in siblings if one["reward"] is not None]
    if not rated:
        return None
    best = rated[0]
    failed = [of for of in outcomes if of["reward"] is not None and of["reward"] < best["reward"]]
    common = max(failed, key=lambda of: (len(of["rollouts"]), -of["reward"]), default=None)
    if common is not None and len(common["rollouts"]) > 1:
        name, why = "Best and commonest failure", "the failed answer that most siblings gave"
        other = common["rollouts"][0]
    else:
        own = next(of for of in outcomes if best["rollout_id"] in of["rollouts"])
        others = [one for one in rated if one["rollout_id"] not in own["rollouts"]]
        if not others:
            return None
        name, other = "Best and worst", others[-1]["rollout_id"]
        why = "no failed answer was given twice, so there is no commonest failure"
        if others[-1]["reward"] == best["reward"]:
            why = "all rewards are equal: by score, then by tests passed"
    return {"best": best["rollout_id"], "other": other, "name": name, "why": why}
