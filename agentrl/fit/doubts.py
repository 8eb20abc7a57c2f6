"""Doubts about a fit that are reported before it trains, and keep nothing from going on."""

from __future__ import annotations

from agentrl.config.fit import DpoObjective, FitConfig
from agentrl.fit.sets import FitSets

_COMPARED = ("sigmoid", "robust", "ipo", "hinge")
"""Built-in pair losses that compare with a reference."""
_LEAST_RATIO, _MOST_RATIO = 1.0, 1.5
"""Weight of all desirable answers over that of all others, as the authors of KTO advise."""


def fit_doubts(config: FitConfig, sets: FitSets) -> list[str]:
    """Doubts about the data: numbers that the loss does not look at, prompts on both sides."""
    objective, examples = config.objective, sets.train.examples
    soft = sum(example.label_probability is not None for example in examples)
    margins = sum(example.margin is not None for example in examples)
    said: list[str] = []
    trained = {example.prompt_ids for example in examples}
    for name, data in sets.evals.items():
        if seen := sum(example.prompt_ids in trained for example in data.examples):
            said.append(f"eval {name}: {seen} of {len(data.examples)} prompts are trained on, too")
    if objective.kind == "dpo" and objective.reference == "none" and objective.loss in _COMPARED:
        said.append(
            f"objective.reference is none, so nothing holds the policy of loss {objective.loss} "
            "where it began; watch pref/logp_chosen"
        )
    if objective.kind == "dpo" and soft and objective.loss in (*_COMPARED[1:], "simpo", "orpo"):
        said.append(
            f"{soft} pairs have a label probability, which objective.loss {objective.loss} does "
            "not look at; sigmoid does"
        )
    if objective.kind == "dpo" and objective.unpaired:
        said += _imbalance(objective, sets)
    if margins and not (objective.kind == "rm" and objective.margin_scale):
        what = "objective.margin_scale is 0" if objective.kind == "rm" else "dpo has no margins"
        said.append(f"{margins} pairs have a margin, which is not used: {what}")
    return said


def _imbalance(objective: DpoObjective, sets: FitSets) -> list[str]:
    """One kind of answers may outweigh the other: https://arxiv.org/abs/2402.01306, section 4.2."""
    good = sum(bool(example.desirable) for example in sets.train.examples)
    bad = len(sets.train.examples) - good
    ratio = good * objective.desirable_weight / (bad * objective.undesirable_weight)
    if _LEAST_RATIO <= ratio <= _MOST_RATIO:
        return []
    return [
        f"{good} answers are desirable and {bad} are not, so with their weights the first count "
        f"{ratio:.2g} times as much; kto wants {_LEAST_RATIO:g} to {_MOST_RATIO:g}: set "
        f"objective.desirable_weight or undesirable_weight"
    ]
