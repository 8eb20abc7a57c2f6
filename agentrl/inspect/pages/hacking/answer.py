"""Is the reward hacked? The detectors' findings, the curves behind them, and rewards of a step.

The answer is that of `agentrl doctor`. Where no detector of it found anything, it is that of the
counts of answers that are paid and wrong: "No sign" only where they rise nowhere, "Cannot tell"
where they do and too few are counted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl.health import History, Verdict
from agentrl.health.causes import causes
from agentrl.health.findings import held_out, no_rise, reward_change
from agentrl.health.measures.curves import number
from agentrl.health.measures.paid_wrong import PaidWrong
from agentrl.health.movement import movement, part_metrics
from agentrl.health.own_score import carried_by_shaping, same_curve
from agentrl.health.paid_parts import ENV_PART, reward_weights
from agentrl.inspect.pages.hacking.moved import moved_lines, one_number, reward_and_score
from agentrl.inspect.pages.hacking.paid import (
    PaidEval,
    PublicTests,
    paid_of_run,
    public_tests,
)
from agentrl.inspect.pages.scores import eval_answers, interval_text
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import shown
from agentrl.inspect.read.task_scores import last_rows, rollout_scores
from agentrl.types.finding import Status

SIGNS = (
    "score_falls",
    "unscored_pay",
    "decoupling",
    "judge_hacking",
    "members_disagree",
    "reward_model_drift",
    "reward_spike",
    "length_hacking",
    "pattern_collapse",
    "gibberish",
)
"""Detectors of a reward that rises for something else than the task."""
_DECIDES = ("score_falls", "decoupling", "judge_hacking")
"""Those that hold the reward against another verdict of the same answers."""
_WORDS = {
    "fail": "Probably",
    "warn": "Perhaps",
    "watch": "Watch",
    "ok": "No sign",
    "unknown": "Cannot tell",
}
_ONE_NUMBER = "Cannot be seen here"
_MOST_VALUES = 12
"""So many different rewards have a bar each; more are put into `_BARS` ranges."""
_BARS = 20


def hacking_answer(
    reader: RunReader, kind: str = "train", step: int | None = None
) -> dict[str, Any]:
    """The answer in a sentence, reward against score and parts, and the rewards of one step.

    `rewards` is None where no rollout is stored.

    Args:
        reader: of the run.
        kind: of the step whose rewards are counted.
        step: None takes the newest.

    Raises:
        RunError: rollouts are stored, and none of this kind and step.
    """
    reader.rows.refresh()
    health = reader.health()
    evals = eval_answers(reader, health.history)
    return {
        **answer_of(reader, health.history, health.verdicts, evals),
        "one_number": one_number(health.history),
        "curves": _curves(health.history),
        "parts": moved_lines(health.history, evals),
        "rewards": _rewards(reader, kind, step) if reader.rows.kinds() else None,
        "notes": [*health.history.notes, *reader.rows.notes],
    }


def answer_of(
    reader: RunReader, history: History, verdicts: Sequence[Verdict], evals: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer to whether the reward is hacked: a word, a sentence and its reasons.

    `level` is fail, warn, watch, ok or unknown, `word` its name; `headline` is one sentence or two,
    `more` their reasons, `untested` and `unknown` what nothing here can say, and `answer` all of
    them. `links` are the counts in headline and reasons, in their order, each with the search that
    finds its rollouts. `example` is the rollout to open first. `paid_wrong` has the counts with the
    bounds that find them, and is None where the score is the reward. `signs` are the findings.

    Args:
        reader: of the run.
        history: of the run.
        verdicts: of the detectors over it.
        evals: as `eval_answers` gives them.
    """
    paid = paid_of_run(reader)
    counts = paid.counts
    names = held_out(history)
    # Where wrong answers earn partial credit, one that is paid is no sign.
    held = [one for one in paid.evals if one.name in names and counts and not counts.partial]
    tests = public_tests(reader) if one_number(history) else None
    level, told, signs = _judged(history, verdicts, evals, counts, held)
    if tests:
        told.append(tests.text())
    headline, more = _sentence(told[0]), " ".join(map(_sentence, told[1:]))
    if (score := _score_alone(history)) and counts:
        headline = f"{headline} {_sentence(score)}"
    untested = "" if level == "fail" else _untested(reader)
    unknown = [shown(text) for text in _unknown(history, verdicts)]
    word = _ONE_NUMBER if level == "unknown" and one_number(history) else _WORDS[level]
    parts = [f"{word}:", shown(headline), shown(more), untested, *unknown]
    return {
        "level": level,
        "word": word,
        "headline": shown(headline),
        "more": shown(more),
        "links": _links(counts, held, tests),
        "untested": untested,
        "unknown": unknown,
        "answer": " ".join(filter(None, parts)),
        "signs": signs,
        "example": paid.example,
        "paid_wrong": None
        if counts is None
        else {
            "wrong": counts.whole.wrong,
            "paid": counts.whole.paid,
            "unpaid": counts.unpaid,
            "reward_min": counts.limits.least,
            "score_max": counts.limits.middle,
            "text": counts.limits.text(),
        },
    }


def _judged(
    history: History,
    verdicts: Sequence[Verdict],
    evals: Mapping[str, Any],
    counts: PaidWrong | None,
    held: Sequence[PaidEval],
) -> tuple[str, list[str], list[dict[str, Any]]]:
    """Level, reasons with the headline first, and the findings behind them."""
    ranked = [one for cause in causes(verdicts) for one in (cause.verdict, *cause.follows)]
    found = [one for one in ranked if one.name in SIGNS]
    # A cause tells more than what follows from it, which may be worse.
    first = found[0] if found else None
    worst = Status.FAIL if any(one.status is Status.FAIL for one in found) else Status.WARN
    signs = [
        {
            "detector": one.name,
            "status": str(one.status),
            "title": shown(one.detail),
            "first_step": one.first_step,
            "evidence": [shown(piece.text) for piece in one.evidence],
        }
        for one in found
    ]
    told = [*(one.text() for one in held), *([counts.text()] if counts else [])]
    if first is not None:
        since = "" if first.first_step is None else f", since step {first.first_step}"
        cause = next(c.verdict for c in causes(verdicts) if first in (c.verdict, *c.follows))
        other = "" if cause.name in SIGNS else f"it follows from another fault: {cause.detail}"
        # Where counts of paid and wrong say nothing, since wrong answers earn less than right ones.
        told_none = counts is not None and not counts.ends.last.wrong
        earn = _wrong_pay(history, counts) if counts is not None and told_none else ""
        reasons = [first.detail + since, earn, *told, other, _carrier(history)]
        return str(worst), list(filter(None, reasons)), signs
    level, *reasons = _silence(history, verdicts, evals)
    if counts is None and level == "ok" and not _sound(history, evals):
        level = "unknown"
    if counts is not None:
        rise = _held_out_rise(history, evals)
        shaping = carried_by_shaping(history)
        more_pay = shaping or _wrong_pay(history, counts)
        if shaping:
            level = "watch"
        elif counts.partial:
            score = movement(history, "score")
            if not rise and (score is None or not score.up):
                level = "unknown"
        elif counts.doubtful or more_pay or any(one.up for one in held):
            level = "watch"
        elif counts.rises or counts.few or counts.none_right or any(one.rises for one in held):
            level = "unknown"
        told = [more_pay, *told] if more_pay else told
        # What speaks against hacking comes first where no count speaks for it.
        reasons = (
            [f"no sign so far: {rise}", *told, *(one for one in reasons if one != rise)]
            if rise and level == "unknown"
            else [*told, *reasons]
        )
    return level, reasons, signs


def _sound(history: History, evals: Mapping[str, Any]) -> bool:
    """True if the curves alone clear the reward: it fell, or a score rose with it.

    One that stands still may be hacked since the first step, and so may one that rises alone.
    """
    gain, own = reward_change(history), movement(history, "score")
    if gain is None or not gain.up:
        return gain is not None and gain.down
    return bool(own and own.up) or bool(_held_out_rise(history, evals))


def _wrong_pay(history: History, counts: PaidWrong) -> str:
    """Words for wrong answers that earn more than at first while no more are right; else empty."""
    pay, score = counts.wrong_pay, movement(history, "score")
    gain = reward_change(history)
    if pay is None or not pay.up or gain is None or not gain.up or (score and score.up):
        return ""
    many = ", in many amounts, as partial credit is" if counts.graded else ""
    return f"wrong answers earn more than at first{many}: mean reward {pay.text()}"


def _silence(
    history: History, verdicts: Sequence[Verdict], evals: Mapping[str, Any]
) -> tuple[str, ...]:
    """Level and reasons where no detector has found anything."""
    decided = [one for one in verdicts if one.name in _DECIDES and one.status is Status.OK]
    why = _held_out_rise(history, evals) or "; ".join(one.detail for one in decided)
    if one_number(history):
        same = "reward and score are one number here, so a hacked reward looks like a solved task"
        seen = next((one.detail for one in verdicts if one.name == "unscored_pay"), "")
        odd = seen.partition("; ")[2]  # who paid, and for which words and tasks
        level = "watch" if carried_by_shaping(history) else "unknown"
        return level, *filter(None, [odd, same, why])
    if decided:
        return "ok", why
    missing = [one.detail for one in verdicts if one.name in _DECIDES[:2]]
    why = "; ".join(missing) or "nothing is logged that the reward could be held against"
    return "unknown", why


def _score_alone(history: History) -> str:
    """Words for a reward that rose while its score did not for certain; empty where both did."""
    gain, own = reward_change(history), movement(history, "score")
    if one_number(history) or gain is None or own is None or not gain.up or own.up or own.down:
        return ""
    return (
        f"the training reward rose; {no_rise('the training score', history.metrics['score'], own)}"
    )


def _links(
    counts: PaidWrong | None, held: Sequence[PaidEval], tests: PublicTests | None
) -> list[dict[str, Any]]:
    """The counts in the order in which they are told, with what finds exactly their rollouts."""
    found: list[tuple[str, int, dict[str, Any]]] = []
    if counts is not None:
        top = counts.limits.middle
        for of in held:
            bounds = {"kind": f"eval/{shown(of.name)}", "reward_min": counts.limits.least}
            found += [
                (one.text(), one.wrong, bounds | _steps(one.step, one.step) | {"score_max": top})
                for one in of.shown()
            ]
        for ends in counts.shown():
            bounds = {"kind": "train", "reward_min": ends.least, "score_max": top}
            found += [
                (one.text(), one.wrong, bounds | _steps(one.first_step, one.last_step))
                for one in ends.both()
            ]
    for one in tests.ends if tests else ():
        bounds = {"kind": "train", "q": "is:public_only"}
        found.append((one.text(), one.wrong, bounds | _steps(one.first_step, one.last_step)))
    return [
        {"text": text, "find": find | {"sort": "-reward"} if wrong else None}
        for text, wrong, find in found
    ]


def _steps(first: int, last: int) -> dict[str, int]:
    return {"step_min": first, "step_max": last}


def _untested(reader: RunReader) -> str:
    """The question that no file of a run answers, and the command that does."""
    attacked = shlex.quote(str(reader.paths.config_file))
    return shown(
        f"Not tested: can the tests or the grader be fooled? Run: agentrl env attack {attacked}"
    )


def _unknown(history: History, verdicts: Sequence[Verdict]) -> list[str]:
    """Sentences on what the run's own files leave open."""
    found: list[str] = []
    if held_out(history) and reward_weights(history.config).get(ENV_PART, 1.0) != 0:
        found.append(
            "The held-out score comes from the same kind of tests as the reward: what fools one "
            "fools both."
        )
    lacking = [
        f"{one.name.replace('_', ' ')}, {one.detail}"
        for one in verdicts
        if one.name in SIGNS and one.status is Status.UNKNOWN and one.name != "unscored_pay"
    ]
    if lacking:
        found.append(f"Detectors of hacking without an answer: {'; '.join(lacking)}.")
    return found


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _held_out_rise(history: History, evals: Mapping[str, Any]) -> str:
    """The held-out scores that rose for certain, by task, in words; empty if none did."""
    risen = [
        f"{name} {interval_text(by)}"
        for name in map(shown, held_out(history))
        if (by := evals.get(name, {}).get("change")) and (by["low"] or 0.0) > 0
    ]
    if not risen:
        return ""
    reward, gain = history.metrics.get("reward"), reward_change(history)
    if gain is not None and gain.up:
        return f"the held-out score rose with the training reward: {', '.join(risen)}"
    beside = f"; {no_rise('the training reward', reward, gain)}" if reward else ""
    return f"the held-out score rose: {', '.join(risen)}{beside}"


def _carrier(history: History) -> str:
    """The part of the reward that carries most of a gain, in a sentence; empty without one."""
    gain = reward_change(history)
    moves = [(part, movement(history, metric)) for part, metric in part_metrics(history).items()]
    risen = [(name, moved) for name, moved in moves if moved and moved.up]
    if gain is None or not gain.up or not risen:
        return ""
    name, moved = max(risen, key=lambda each: each[1].gain)
    return (
        f"Of the parts, {name} rose most: +{number(moved.gain)}, the whole reward "
        f"+{number(gain.gain)}."
    )


def _curves(history: History) -> dict[str, list[dict[str, Any]]]:
    """Curves by chart: the reward against what it should follow, and its parts."""
    metrics = history.metrics
    against = {title: metrics[name] for title, name in reward_and_score(history).items()}
    against |= {f"evaluation {name}": series for name, series in held_out(history).items()}
    parts = {part: metrics[metric] for part, metric in part_metrics(history).items()}
    if len(parts) == 1 and "reward" in metrics:
        parts = {p: s for p, s in parts.items() if not same_curve(s, metrics["reward"])}
    return {
        chart: [{"name": shown(n), "steps": s.steps, "values": s.values} for n, s in each.items()]
        for chart, each in (("against", against), ("parts", parts))
    }


def _rewards(reader: RunReader, kind: str, step: int | None) -> dict[str, Any]:
    """Bars of the rewards of a step, each with the ends that find exactly its rollouts."""
    rows = reader.rows
    steps = rows.steps_of(kind)
    shelf = rows.shelf(kind, steps[-1] if step is None else step)
    index = last_rows(shelf.index)
    # As they are stored, which is what a search by reward compares.
    rewards = np.array(index.column("reward").to_numpy(), dtype=np.float64)
    scores = rollout_scores(index)
    known = np.isfinite(rewards)
    return {
        "kind": kind,
        "kinds": rows.kinds(),
        "step": shelf.step,
        "steps": steps,
        "rollouts": index.num_rows,
        "without": int((~known).sum()),
        "bars": _bars(rewards[known], scores[known]),
        "has_score": index.column("score").null_count < index.num_rows,
    }


def _bars(rewards: np.ndarray, scores: np.ndarray) -> list[dict[str, Any]]:
    values = np.unique(rewards)
    if len(values) <= _MOST_VALUES:
        of_bar = np.searchsorted(values, rewards)
    else:
        edges = np.linspace(values[0], values[-1], _BARS + 1)
        of_bar = np.clip(np.searchsorted(edges, rewards, side="right") - 1, 0, _BARS - 1)
    bars: list[dict[str, Any]] = []
    for bar in np.unique(of_bar):
        inside = of_bar == bar
        known = scores[inside][~np.isnan(scores[inside])]
        bars.append(
            {
                "low": float(rewards[inside].min()),
                "high": float(rewards[inside].max()),
                "rollouts": int(inside.sum()),
                "score": float(known.mean()) if len(known) else None,
            }
        )
    return bars
