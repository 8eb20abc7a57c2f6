"""Pairs of rollouts of one task, one of either set: failed before and solved after, or lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl.inspect.pages.compare.causes import ERROR, RAISED
from agentrl.inspect.pages.compare.prompts import question
from agentrl.inspect.pages.compare.tried import Tried, long_columns, solved_from
from agentrl.inspect.pages.outcomes import closes, writes_file
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import shown

_MOST_PAIRS = 20
"""Pairs listed of either direction."""
_MOST_EXPLAINED = 40
"""Pairs of either direction whose reasons are counted: their files are read."""
_ANSWER_CHARS = 600


def sample_pairs(before: Tried, after: Tried) -> dict[str, Any]:
    """For each direction the tasks that moved most, with one rollout of either set.

    The rollouts are the worst and the best of the task, so that the pair shows the difference.
    """
    limit = solved_from(before.scores, after.scores)
    ours, theirs = _ends_by_task(before), _ends_by_task(after)
    common = [task for task in ours if task in theirs]
    solved = [
        t for t in common if ours[t].mean < theirs[t].mean and ours[t].low < limit <= theirs[t].high
    ]
    lost = [
        t for t in common if ours[t].mean > theirs[t].mean and theirs[t].low < limit <= ours[t].high
    ]

    def entries(tasks: Sequence[str], sign: int) -> list[dict[str, Any]]:
        order = sorted(tasks, key=lambda t: (sign * (ours[t].mean - theirs[t].mean), t))
        most = order[:_MOST_EXPLAINED]
        a = before.places([ours[t].worst if sign > 0 else ours[t].best for t in most])
        b = after.places([theirs[t].best if sign > 0 else theirs[t].worst for t in most])
        return [
            {"task_id": task, "before": ours[task].mean, "after": theirs[task].mean, "a": x, "b": y}
            for task, x, y in zip(most, a, b, strict=True)
        ]

    return {
        "common_tasks": len(common),
        "solved_from": limit,
        "solved": entries(solved, 1),
        "solved_count": len(solved),
        "lost": entries(lost, -1),
        "lost_count": len(lost),
    }


def explain_pairs(found: dict[str, Any], before: RunReader, after: RunReader) -> None:
    """Explain of each pair why one failed, count the reasons, and show the turns of one of them.

    Shown is the first one with the commonest reason, of which both took one turn if there is such a
    one: `NAME_example` is its place in the list.

    Args:
        found: as `sample_pairs` gives it; pairs beyond those that are listed are taken out.
        before: run of the first set.
        after: run of the second set.
    """
    readers = {"a": before, "b": after}
    for name, failed in (("solved", "a"), ("lost", "b")):
        pairs = found[name]
        causes = [pair[failed]["cause"] for pair in pairs]
        long = long_columns(readers[failed], [pair[failed] for pair in pairs], ["explanation"])
        for pair, cause, of in zip(pairs, causes, long, strict=True):
            said = (of["explanation"] or {}).get("reason") or ""
            pair["said"] = shown(said[:_ANSWER_CHARS])
            error = ERROR.search(said) if cause == RAISED else None
            pair["why"] = f"the answer raised {error[0]}" if error else cause
        counts = Counter(causes).most_common()
        found[f"{name}_why"] = [{"why": why, "tasks": count} for why, count in counts]
        found[name] = pairs[:_MOST_PAIRS]
        typical = [n for n, why in enumerate(causes[:_MOST_PAIRS]) if why == counts[0][0]]
        short = [n for n in typical if all(found[name][n][side]["turns"] == 1 for side in "ab")]
        found[f"{name}_example"] = example = next(iter([*short, *typical]), 0)
        for pair in pairs[example : example + 1]:
            for side, reader in readers.items():
                [of] = long_columns(reader, [pair[side]], ["turns", "prompt_text", "explanation"])
                reason = (of["explanation"] or {}).get("reason") or ""
                pair[side] |= _answer(of["turns"])
                pair[side]["said"] = shown(reason[:_ANSWER_CHARS]).partition("\n")[0]
                pair["question"] = shown(question(of["prompt_text"] or "")[:_ANSWER_CHARS])


def _answer(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`text` of the turn that was graded last, and its number among those of the policy.

    It is the last one, or the last that wrote a file where the rest is closing words.
    """
    said = [turn for turn in turns if turn["role"] == "assistant"]
    place = len(said) - 1
    calls = [n for n, turn in enumerate(said) if any(map(writes_file, turn["tool_calls"]))]
    if calls and closes(said[-1]):
        place = calls[-1]
    text = said[place]["text"] if said else ""
    return {"text": shown(text[:_ANSWER_CHARS]), "turn": place + 1, "turns": len(said)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """Worst and best rollout of one task."""

    mean: float
    low: float
    high: float
    worst: int
    best: int


def _ends_by_task(tried: Tried) -> dict[str, _Ends]:
    known = np.flatnonzero(~np.isnan(tried.scores))
    order = known[np.lexsort((tried.scores[known], tried.of_task[known]))]
    starts = np.flatnonzero(np.diff(tried.of_task[order], prepend=-1))
    found: dict[str, _Ends] = {}
    for members in np.split(order, starts[1:]) if len(order) else ():
        scores = tried.scores[members]
        found[tried.tasks[int(tried.of_task[members[0]])]] = _Ends(
            mean=float(scores.mean()),
            low=float(scores[0]),
            high=float(scores[-1]),
            worst=int(members[0]),
            best=int(members[-1]),
        )
    return found
