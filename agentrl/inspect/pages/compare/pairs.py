"""Pairs of rollouts of one task, one of either set: failed before and solved after, or lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from agentrl.inspect.pages.endings import ending_name
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import number, rows_of, shown
from agentrl.types import Termination

_MOST_PAIRS = 20
"""Pairs listed of either direction."""
_MOST_EXPLAINED = 40
"""Pairs of either direction whose reasons are counted: their files are read."""
_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
"""Name of an exception in what a grader says."""
_MOST_GRADED = 2000
"""Rollouts of a side whose graders are read, which takes a second at this size."""
_USER = re.compile(r"(?:\[INST\]|<[^<>\n]*\buser\b[^<>\n]*>|<[^<>\n]*>user\b)(?:<[^<>\n]*>)*\s*")
"""Where a message of the user begins in a rendered prompt."""
_SPECIAL = re.compile(r"<\|[^<>\n]*\|>|</?(?:s|end_of_turn|start_of_turn)>|\[/INST\]")
"""A special token of a chat template, with which a message ends."""
_SIGN_OFF = 40
"""Characters of a turn that says no more than that it is done."""
_HALF = 0.5
"""A score from here on is solved; where values leave 0 to 1, the middle between the extremes is."""
_PLACE = ["kind", "step", "row", "group_id", "rollout_id", "reward", "score", "termination"]
_ANSWER_CHARS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Rollouts of one set with their tasks and scores."""

    rollouts: pa.Table
    """Their last rows, as in the index."""
    tasks: Sequence[str]
    """Distinct ids."""
    of_task: np.ndarray
    """[rollouts] Number of the task of each."""
    scores: np.ndarray
    """[rollouts] Score; NaN where it cannot be trusted."""
    failed_calls: np.ndarray
    """[rollouts] Tool calls that could not be read or gave an error."""
    turns: np.ndarray
    """[rollouts] Turns of the policy."""


def sample_pairs(before: Tried, after: Tried) -> dict[str, Any]:
    """For each direction the tasks that moved most, with one rollout of either set.

    The rollouts are the worst and the best of the task, so that the pair shows the difference.
    """
    limit = solved_from(before.scores, after.scores)
    ours, theirs = _ends_by_task(before), _ends_by_task(after)
    common = [task for task in ours if task in theirs]
    solved = [t for t in common if ours[t].mean < theirs[t].mean
              and ours[t].low < limit <= theirs[t].high]  # fmt: skip
    lost = [t for t in common if ours[t].mean > theirs[t].mean
            and theirs[t].low < limit <= ours[t].high]  # fmt: skip

    def entries(tasks: Sequence[str], sign: int) -> list[dict[str, Any]]:
        order = sorted(tasks, key=lambda t: (sign * (ours[t].mean - theirs[t].mean), t))
        most = order[:_MOST_EXPLAINED]
        a = _places(before, [ours[t].worst if sign > 0 else ours[t].best for t in most])
        b = _places(after, [theirs[t].best if sign > 0 else theirs[t].worst for t in most])
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
    """Say of each pair why one failed, count the reasons, and show what one of them said.

    Shown is the first one with the commonest reason, of which both took one turn if there is such a
    one: `NAME_example` is its place in the list.

    Args:
        found: as `sample_pairs` gives it; pairs beyond those that are listed are taken out.
        before: run of the first set.
        after: run of the second set.
    """
    readers = {"a": before, "b": after}
    for name, failed, solved in (("solved", "a", "b"), ("lost", "b", "a")):
        pairs = found[name]
        long = _long(readers[failed], [pair[failed] for pair in pairs], ["explanation"])
        for pair, of in zip(pairs, long, strict=True):
            said = (of["explanation"] or {}).get("reason") or ""
            pair["said"] = shown(said[:_ANSWER_CHARS])
            pair["why"] = _why(pair[failed], pair[solved], pair["said"])
        counts = Counter(_ERROR.sub("an error", pair["why"]) for pair in pairs)
        found[f"{name}_why"] = [{"why": w, "tasks": count} for w, count in counts.most_common()]
        found[name] = pairs[:_MOST_PAIRS]
        typical = [
            n
            for n, pair in enumerate(found[name])
            if _ERROR.sub("an error", pair["why"]) == counts.most_common(1)[0][0]
        ]
        short = [n for n in typical if all(found[name][n][side]["turns"] == 1 for side in "ab")]
        found[f"{name}_example"] = example = next(iter([*short, *typical]), 0)
        for pair in pairs[example : example + 1]:
            for side, reader in readers.items():
                [of] = _long(reader, [pair[side]], ["turns", "prompt_text", "explanation"])
                reason = (of["explanation"] or {}).get("reason") or ""
                pair[side] |= _answer(of["turns"])
                pair[side]["said"] = shown(reason[:_ANSWER_CHARS]).partition("\n")[0]
                pair["question"] = shown(question(of["prompt_text"] or "")[:_ANSWER_CHARS])


def question(prompt: str) -> str:
    """The text of the last user message of a rendered prompt; the prompt's end without one."""
    marks = list(_USER.finditer(prompt))
    if not marks:
        return prompt[-_ANSWER_CHARS:].strip()
    return _SPECIAL.split(prompt[marks[-1].end() :], maxsplit=1)[0].strip()


def _answer(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`text` of the turn that was graded last, and its number among those of the policy.

    It is the last one, or the last with a call where the rest is no more than a sign-off.
    """
    said = [turn for turn in turns if turn["role"] == "assistant"]
    place = len(said) - 1
    calls = [n for n, turn in enumerate(said) if turn["tool_calls"]]
    if calls and len(said[-1]["text"]) < _SIGN_OFF:
        place = calls[-1]
    text = said[place]["text"] if said else ""
    return {"text": shown(text[:_ANSWER_CHARS]), "turn": place + 1, "turns": len(said)}


def raised(tried: Tried, reader: RunReader) -> np.ndarray:
    """[rollouts] 1 where the grader says that the answer raised an error, else 0.

    NaN where no score can be trusted, and everywhere if there are more than are read for it.
    """
    found = np.where(np.isnan(tried.scores), np.nan, 0.0)
    if len(found) > _MOST_GRADED:
        return np.full(len(found), np.nan)
    places = rows_of(tried.rollouts.select(["kind", "step", "row"]))
    graded = _long(reader, places, ["explanation"])
    said = [(of["explanation"] or {}).get("reason") or "" for of in graded]
    if not any(said):
        return np.full(len(found), np.nan)
    return found + np.array([float(_ERROR.search(text) is not None) for text in said])


def _why(failed: Mapping[str, Any], solved: Mapping[str, Any], said: str) -> str:
    """What the failed rollout of a pair has that the other one has not, in words."""
    ending = failed["termination"]
    if ending not in (Termination.ENV_DONE, solved["termination"]):
        return f"ended by {ending_name(ending)}"
    if failed["failed_calls"] > solved["failed_calls"]:
        return "more calls not parsed or broken"
    if error := _ERROR.search(said):
        return f"the answer raised {error[0]}"
    return "a wrong answer, no error" if said else "a wrong answer"


def _long(
    reader: RunReader, places: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> list[dict[str, Any]]:
    """Long columns of some rollouts, with one reading a step."""
    of_step: dict[tuple[str, int], list[int]] = {}
    for place in places:
        of_step.setdefault((place["kind"], place["step"]), []).append(place["row"])
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for (kind, step), rows in of_step.items():
        order = sorted(set(rows))
        table = reader.rows.read(reader.rows.shelf(kind, step), order, columns)
        for row, of in zip(order, rows_of(table), strict=True):
            found[kind, step, row] = of
    return [found[place["kind"], place["step"], place["row"]] for place in places]


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


def solved_from(*scores: np.ndarray) -> float:
    """The score from which on a rollout counts as solved."""
    known = np.concatenate([of[~np.isnan(of)] for of in scores])
    if not len(known) or (known.min() >= 0 and known.max() <= 1):
        return _HALF
    return float(known.min() + known.max()) / 2


def _places(tried: Tried, rollouts: Sequence[int]) -> list[dict[str, Any]]:
    found = rows_of(tried.rollouts.select(_PLACE).take(pa.array(rollouts, pa.int64())))
    return [
        {
            **row,
            "reward": number(row["reward"]),
            "score": number(row["score"]),
            "termination": shown(row["termination"], 100),
            "failed_calls": int(tried.failed_calls[rollout]),
            "turns": int(tried.turns[rollout]),
        }
        for rollout, row in zip(rollouts, found, strict=True)
    ]
