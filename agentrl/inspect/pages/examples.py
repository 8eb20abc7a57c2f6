"""Examples that a fit measured at its evaluations: the list of them, and one token by token.

What an example is worth depends on what was trained for. With l the log-probability of an answer's
trained tokens, lr that under the reference, N their number:

    dpo                       a = l - lr (l without a reference), over N where `length_normalized`
    simpo, orpo               a = l / N
    rm                        a = the score
    h = a(chosen) - a(rejected), and the margin that is trained is beta h (h itself for `rm`)
    kto                       a = l - lr of a single answer; beta a is its reward
    sft                       a = l / N of the only answer
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.data.store.example_columns import ShownAnswer
from agentrl.errors import DataError, RunError, choices
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import number, shown

Pieces = Callable[[Sequence[int]], list[str]]

_EXCERPT_CHARS = 300
_MOST_TOKENS = 200_000
"""Of one answer or prompt that are shown."""
_MOST_STEPS = 60
"""Evaluations over which the course of an example is read."""
_WITHOUT_REFERENCE = ("simpo", "orpo")
"""Losses that compare mean log-probabilities and ask no reference."""
_ALONE, _PAIR = ("answer",), ("chosen", "rejected")


def examples_answer(
    reader: RunReader, dataset: str | None = None, step: int | None = None
) -> dict[str, Any]:
    """The examples of one evaluation.

    Args:
        reader: of the run.
        dataset: name of the data; None takes the first.
        step: of the evaluation; None takes the last, any other the nearest that is not later.

    Raises:
        RunError: the run has none, or its file is damaged.
    """
    steps = _steps(reader)
    at = _nearest(steps, step)
    objective, answers = _read(reader, at)
    names = list(dict.fromkeys(answer.dataset for answer in answers))
    chosen = _dataset(names, dataset)
    pieces = reader.pieces()
    return {
        "step": at,
        "steps": steps,
        "dataset": shown(chosen),
        "datasets": [shown(name) for name in names],
        "objective": objective,
        "examples": [
            _summary(objective, of, pieces) for of in _by_example(answers, chosen).values()
        ],
    }


def example_answer(reader: RunReader, dataset: str, step: int, example: str) -> dict[str, Any]:
    """One example with the numbers of every token.

    Args:
        reader: of the run.
        dataset: name of the data.
        step: of the evaluation.
        example: its id, as `examples_answer` gives it.

    Raises:
        RunError: there is no such example, or its file is damaged.
    """
    steps = _steps(reader)
    objective, answers = _read(reader, step)
    names = list(dict.fromkeys(answer.dataset for answer in answers))
    chosen = _dataset(names, dataset)
    found = _by_example(answers, chosen)
    ids = {shown(name): name for name in found}
    if example not in ids:
        raise RunError(f"example: {choices(example, ids)}")
    of, pieces = found[ids[example]], reader.pieces()
    prompt = of[0].prompt_ids
    names_of = _PAIR if len(of) > 1 else _ALONE
    return {
        **_summary(objective, of, pieces),
        "step": step,
        "steps": steps,
        "dataset": shown(chosen),
        "objective": objective,
        "neighbours": list(ids),
        "prompt_ids": prompt[:_MOST_TOKENS],
        "prompt_text": _texts(pieces, prompt),
        "answers": [
            _tokens(name, answer, pieces) for name, answer in zip(names_of, of, strict=False)
        ],
        "course": _course(reader, steps, chosen, ids[example]),
    }


def _steps(reader: RunReader) -> list[int]:
    steps = reader.examples.steps()
    if not steps:
        raise RunError(
            "this run has kept no examples; agentrl fit keeps the first of every set of "
            "eval.datasets at each evaluation (eval.shown)"
        )
    return steps


def _nearest(steps: Sequence[int], step: int | None) -> int:
    if step is None:
        return steps[-1]
    return max((at for at in steps if at <= step), default=steps[0])


def _read(reader: RunReader, step: int) -> tuple[dict[str, Any], list[ShownAnswer]]:
    try:
        objective, answers = reader.examples.read(step)
    except DataError as error:
        raise RunError(f"examples/{error}") from error
    # Numbers and names only: what is computed with has to be what it claims to be.
    known = {
        "kind": _name(objective.get("kind")),
        "loss": _name(objective.get("loss")),
        "beta": number(objective.get("beta")),
        "length_normalized": objective.get("length_normalized") is True,
    }
    return known, answers


def _name(value: Any) -> str:
    return shown(value, 200) if isinstance(value, str) else ""


def _dataset(names: Sequence[str], wanted: str | None) -> str:
    by_name = {shown(name): name for name in names}
    if wanted is None and names:
        return names[0]
    if wanted is None or wanted not in by_name:
        raise RunError(f"dataset: {choices(wanted or '', by_name)}")
    return by_name[wanted]


def _by_example(answers: Sequence[ShownAnswer], dataset: str) -> dict[str, list[ShownAnswer]]:
    """Answers by example, the chosen one first, examples in the order of their data."""
    found: dict[str, list[ShownAnswer]] = {}
    for answer in sorted(answers, key=lambda one: (one.index, one.answer)):
        if answer.dataset == dataset:
            found.setdefault(answer.example_id, []).append(answer)
    return found


def _summary(
    objective: Mapping[str, Any], of: Sequence[ShownAnswer], pieces: Pieces | None
) -> dict[str, Any]:
    first = of[0]
    values = [_value(objective, answer) for answer in of]
    h = None
    if len(of) > 1 and values[0] is not None and values[1] is not None:
        h = number(values[0] - values[1])
    beta = objective["beta"] if objective["kind"] == "dpo" else 1.0
    worth = h if len(of) > 1 else values[0]
    return {
        "id": shown(first.example_id),
        "index": first.index,
        "source": shown(first.source, 2000),
        "margin": number(first.margin),
        "label_probability": number(first.label_probability),
        "desirable": first.desirable,
        "weight": number(first.weight),
        "prompt": _excerpt(pieces, first.prompt_ids[-_EXCERPT_CHARS:], end=True),
        "excerpts": [_excerpt(pieces, answer.ids[:_EXCERPT_CHARS]) for answer in of],
        "sums": [_sums(answer, value) for answer, value in zip(of, values, strict=True)],
        "h": h,
        "scaled": None if worth is None or beta is None else number(beta * worth),
    }


def _value(objective: Mapping[str, Any], answer: ShownAnswer) -> float | None:
    """The number a of an answer, as the module defines it."""
    if objective["kind"] == "rm":
        return number(answer.score)
    tokens = sum(answer.trained)
    own, reference = _sum(answer.log_probs), _sum(answer.ref_log_probs)
    if own is None or not tokens:
        return None
    if objective["kind"] == "sft" or objective["loss"] in _WITHOUT_REFERENCE:
        return own / tokens
    return (own - (reference or 0.0)) / (tokens if objective["length_normalized"] else 1)


def _sums(answer: ShownAnswer, value: float | None) -> dict[str, float | None]:
    own, reference = _sum(answer.log_probs), _sum(answer.ref_log_probs)
    ratio = None if own is None or reference is None else own - reference
    return {
        "tokens": sum(answer.trained),
        "log_prob": number(own),
        "ref_log_prob": number(reference),
        "log_ratio": number(ratio),
        "score": number(answer.score),
        "value": number(value),
    }


def _sum(values: Sequence[float | None] | None) -> float | None:
    if values is None:
        return None
    return math.fsum(value for value in values if value is not None and math.isfinite(value))


def _tokens(name: str, answer: ShownAnswer, pieces: Pieces | None) -> dict[str, Any]:
    most = _MOST_TOKENS
    own, reference = answer.log_probs, answer.ref_log_probs
    ratios = None
    if own is not None and reference is not None:
        ratios = [
            None if a is None or b is None else number(a - b)
            for a, b in zip(own, reference, strict=True)
        ]
    return {
        "name": name,
        "ids": answer.ids[:most],
        "text": _texts(pieces, answer.ids),
        "trained": answer.trained[:most],
        "log_prob": None if own is None else [number(value) for value in own[:most]],
        "ref_log_prob": (
            None if reference is None else [number(value) for value in reference[:most]]
        ),
        "log_ratio": None if ratios is None else ratios[:most],
    }


def _course(reader: RunReader, steps: Sequence[int], dataset: str, example: str) -> dict[str, Any]:
    """What the example was worth at each evaluation, of many a part; damaged ones are left out."""
    stride = max(1, math.ceil(len(steps) / _MOST_STEPS))
    values: list[float] = []
    at: list[int] = []
    for step in sorted({*steps[::stride], steps[-1]}):
        try:
            objective, answers = _read(reader, step)
        except RunError:
            continue
        of = _by_example(answers, dataset).get(example)
        worth = None
        if of:
            found = _summary(objective, of, None)
            worth = found["h"] if len(of) > 1 else found["sums"][0]["value"]
        if worth is not None:
            at.append(step)
            values.append(worth)
    return {"steps": at, "values": values}


def _texts(pieces: Pieces | None, ids: Sequence[int]) -> list[str] | None:
    return None if pieces is None else [shown(text) for text in pieces(ids[:_MOST_TOKENS])]


def _excerpt(pieces: Pieces | None, ids: Sequence[int], *, end: bool = False) -> str:
    if pieces is None:
        return " ".join(map(str, ids[-20:] if end else ids[:20]))
    text = "".join(pieces(ids))
    return shown(text[-_EXCERPT_CHARS:] if end else text[:_EXCERPT_CHARS])
