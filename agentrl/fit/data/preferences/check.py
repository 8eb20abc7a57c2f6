"""Checks of preference pairs, before anything learns from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from statistics import correlation

from agentrl.fit.data.preferences.load import LoadedPairs
from agentrl.metrics.intervals import wilson_interval
from agentrl.types import Completion, PreferencePair
from agentrl.types.finding import Finding, Status, fail, warn

LONGER_WARNS = 0.1
"""The longer completion may be the chosen one so much more or less often than half of the time."""
SHOWN = 3
"""Pairs that are named of those with a fault."""

_PairKey = tuple[Hashable, Hashable, Hashable]


def check_pairs(pairs: LoadedPairs, against: LoadedPairs | None = None) -> list[Finding]:
    """Look at the pairs of one source, and at what it shares with another.

    Args:
        pairs: as `load_pairs` gives them.
        against: pairs of the other part, as of a test set, whose prompts must not come here.
    """
    findings = [
        _read(pairs),
        _broken(pairs),
        _equal(pairs),
        _empty(pairs),
        _ends(pairs),
        _ties(pairs),
        _duplicates(pairs),
        _contradictions(pairs),
        _negative(pairs),
        length_bias(pairs),
    ]
    if against is not None:
        findings.append(_leaks(pairs, against))
    return findings


def _read(pairs: LoadedPairs) -> Finding:
    layouts = ", ".join(sorted(layout.value for layout in pairs.layouts)) or "pairs of a function"
    detail = (
        f"{len(pairs)} pairs of {len({_prompt(pair) for pair in pairs})} prompts from "
        f"{pairs.rows} rows ({layouts})"
    )
    if pairs.unscored:
        detail += f"; {pairs.unscored} completions without a score are in none"
    if not pairs:
        return fail("pairs", f"{detail}: nothing says that one completion is better than another")
    return Finding(name="pairs", status=Status.OK, detail=detail)


def _broken(pairs: LoadedPairs) -> Finding:
    if not pairs.broken:
        return Finding(name="broken rows", status=Status.OK)
    shown = "; ".join(pairs.broken[:SHOWN])
    text = f"{len(pairs.broken)} of {pairs.rows} rows cannot be read: {shown}"
    return fail("broken rows", text, "mend these rows, or leave them out")


def _equal(pairs: Sequence[PreferencePair]) -> Finding:
    found = [pair for pair in pairs if _content(pair.chosen) == _content(pair.rejected)]
    fix = "leave them out: they teach nothing, and count in every denominator"
    return _counted("equal completions", found, pairs, "chosen and rejected are the same", fix)


def _empty(pairs: Sequence[PreferencePair]) -> Finding:
    chosen = [pair for pair in pairs if _silent(pair.chosen)]
    if chosen:
        text = "the chosen completion is empty"
        return _counted("empty completions", chosen, pairs, text, "leave them out")
    found = [pair for pair in pairs if _silent(pair.rejected)]
    text = "the rejected completion is empty: nothing but its end can be learned"
    return _counted("empty completions", found, pairs, text, "leave them out", Status.WARN)


def _silent(completion: Completion) -> bool:
    spoken = [message for message in completion.messages if message.role == "assistant"]
    said = any(message.content.strip() or message.tool_calls for message in spoken)
    return not completion.length or bool(spoken and not said)


def _ends(pairs: Sequence[PreferencePair]) -> Finding:
    found = [
        pair
        for pair in pairs
        if any(
            each.messages and each.messages[-1].role != "assistant"
            for each in (pair.chosen, pair.rejected)
        )
    ]
    text = "a completion does not end with the assistant"
    fix = "cut the messages after the last answer, or leave the pairs out"
    return _counted("ends", found, pairs, text, fix, Status.WARN)


def _ties(pairs: LoadedPairs) -> Finding:
    labelled = [pair for pair in pairs if pair.margin == 0]
    if labelled:
        text = "both scores are the same, so the label is a coin toss"
        return _counted("ties", labelled, pairs, text, "leave them out", Status.WARN)
    detail = f"{pairs.ties} comparisons with equal scores were left out" if pairs.ties else ""
    return Finding(name="ties", status=Status.OK, detail=detail)


def _duplicates(pairs: Sequence[PreferencePair]) -> Finding:
    seen: set[_PairKey] = set()
    found: list[PreferencePair] = []
    for pair in pairs:
        if (key := _key(pair)) in seen:
            found.append(pair)
        seen.add(key)
    text = "the same prompt and completions come again"
    return _counted("duplicates", found, pairs, text, "leave them out", Status.WARN)


def _contradictions(pairs: Sequence[PreferencePair]) -> Finding:
    known = {_key(pair) for pair in pairs}
    found = [pair for pair in pairs if (_key(pair)[0], *_key(pair)[:0:-1]) in known]
    drawn = [pair for pair in found if pair.label_probability is not None]
    text = "another pair prefers the other completion"
    if found and len(drawn) == len(found):
        return Finding(
            name="contradictions",
            status=Status.OK,
            detail=f"{len(found)} of {len(pairs)}, all with drawn labels (label_probability)",
        )
    fix = "leave both out, or give label_probability"
    different = [pair for pair in found if _content(pair.chosen) != _content(pair.rejected)]
    return _counted("contradictions", different, pairs, text, fix, Status.WARN)


def _negative(pairs: Sequence[PreferencePair]) -> Finding:
    found = [
        pair
        for pair in pairs
        if pair.margin is not None and pair.margin < 0 and pair.label_probability is None
    ]
    text = "the rejected completion has the higher score"
    fix = "see whether chosen and rejected are the wrong way round, or the scores are costs"
    status = Status.FAIL if 2 * len(found) > len(pairs) else Status.WARN
    return _counted("scores against labels", found, pairs, text, fix, status)


def length_bias(pairs: Sequence[PreferencePair]) -> Finding:
    """See if length alone gives the label away: a model would learn that first."""
    lengths = [(pair.chosen.length, pair.rejected.length) for pair in pairs]
    different = [(chosen, rejected) for chosen, rejected in lengths if chosen != rejected]
    if len(different) < 2:
        return Finding(name="length", status=Status.UNKNOWN, detail="no pairs of different lengths")
    longer = [float(chosen > rejected) for chosen, rejected in different]
    share = sum(longer) / len(longer)
    interval = wilson_interval(longer)
    ratio = sum(math.log((c + 1) / (r + 1)) for c, r in different) / len(different)
    detail = (
        f"the longer one is chosen in {sum(longer):.0f} of {len(different)} pairs of different "
        f"lengths, {100 * share:.3g} %"
        + (f" [{100 * interval[0]:.3g}, {100 * interval[1]:.3g}]" if interval else "")
        + f"; the chosen one has {math.exp(ratio):.2f} times the length"
    )
    margins = [
        (pair.margin, float(pair.chosen.length - pair.rejected.length))
        for pair in pairs
        if pair.margin is not None
    ]
    if len({margin for margin, _ in margins}) > 1 and len({more for _, more in margins}) > 1:
        both = correlation(*zip(*margins, strict=True))
        detail += f"; margin and difference in length correlate by {both:+.2f}"
    if interval and (interval[0] > 0.5 + LONGER_WARNS or interval[1] < 0.5 - LONGER_WARNS):
        fix = "balance the lengths: agentrl prefs balance SOURCE --out FILE"
        return warn("length", detail, fix)
    return Finding(name="length", status=Status.OK, detail=detail)


def _leaks(pairs: Sequence[PreferencePair], against: Sequence[PreferencePair]) -> Finding:
    if {bool(pair.prompt_ids) for pair in pairs} & {not pair.prompt_ids for pair in against}:
        detail = "one part has token ids and the other messages; they cannot be compared"
        return Finding(name="leaks", status=Status.UNKNOWN, detail=detail)
    theirs = {_prompt(pair) for pair in against}
    tasks = {pair.task_id for pair in against} - {""}
    found = [pair for pair in pairs if _prompt(pair) in theirs or pair.task_id in tasks]
    fix = "divide by task and prompt, as prefs make does, never by pair"
    return _counted("leaks", found, pairs, "the prompt or the task is in the other part too", fix)


def _counted(
    name: str,
    found: Sequence[PreferencePair],
    pairs: Sequence[PreferencePair],
    text: str,
    fix: str,
    status: Status = Status.FAIL,
) -> Finding:
    if not found:
        return Finding(name=name, status=Status.OK)
    places = Counter(pair.source for pair in found)
    shown = "; ".join(list(places)[:SHOWN])
    detail = f"{len(found)} of {len(pairs)} ({len(found) / len(pairs):.3f}): {text} ({shown})"
    return Finding(name=name, status=status, detail=detail, fix=fix)


def _prompt(pair: PreferencePair) -> Hashable:
    return (pair.prompt_ids, pair.prompt_images) if pair.prompt_ids else repr(pair.prompt)


def _content(completion: Completion) -> Hashable:
    if not completion.ids:
        return repr(completion.messages)
    return completion.ids, tuple(span.digest for span in completion.images)


def _key(pair: PreferencePair) -> _PairKey:
    return _prompt(pair), _content(pair.chosen), _content(pair.rejected)
