"""Levers on a fit: strength of the loss, noise of labels, lengths, passes over the data."""

from __future__ import annotations

from agentrl.health.levers.policy import Config, lower_rate, value_of
from agentrl.health.records import Lever

_WITH_REFERENCE = ("sigmoid", "robust", "ipo", "hinge")
"""Pair losses that compare with a reference."""
_SMOOTHED = ("sigmoid", "robust")
"""Pair losses that know of wrong labels."""


def keep_chosen_likely(config: Config) -> list[Lever]:
    """Hold the likelihood of the chosen answers where it was."""
    found: list[Lever] = []
    loss = value_of(config, "objective.loss", "sigmoid")
    if loss != "kto":
        coef = value_of(config, "objective.nll_coef", 0.0)
        found.append(
            Lever(
                key="objective.nll_coef",
                value=round(2 * coef, 6) if coef else 1.0,
                why="Adds the likelihood of the chosen answer, which the difference of two answers "
                "does not hold up (RPO, arXiv 2404.19733).",
            )
        )
    if loss in (*_WITH_REFERENCE, "kto"):
        found.append(
            Lever(
                key="objective.beta",
                value=round(2 * value_of(config, "objective.beta", 0.1), 6),
                why="A stronger pull towards the reference: the same margin with smaller "
                "log-ratios (1.1).",
            )
        )
    return [*found, *lower_rate(config)]


def less_sure(config: Config) -> list[Lever]:
    """Stop growing scores that order no further pair."""
    found: list[Lever] = []
    loss = value_of(config, "objective.loss", "")
    if loss in _SMOOTHED and not value_of(config, "objective.label_smoothing", 0.0):
        found.append(
            Lever(
                key="objective.label_smoothing",
                value=0.1,
                why="Says that one label of ten may be wrong, so that no margin pays without end "
                "(cDPO).",
            )
        )
    if value_of(config, "objective.kind", "") == "rm":
        coef = value_of(config, "objective.center_coef", 0.0)
        found.append(
            Lever(
                key="objective.center_coef",
                value=round(2 * coef, 6) if coef else 0.01,
                why="Keeps rewards around 0, so that their scale cannot grow for nothing (5.2).",
            )
        )
    epochs = value_of(config, "data.epochs", 1)
    if epochs > 1:
        found.append(
            Lever(
                key="data.epochs",
                value=max(1, epochs // 2),
                why="Pairs that are seen again are learned by heart (ours).",
            )
        )
    return [*found, *lower_rate(config)]


def balanced_lengths(config: Config) -> list[Lever]:
    """Lengths of answers out of the comparison, or out of the data."""
    found: list[Lever] = []
    loss = value_of(config, "objective.loss", "sigmoid")
    normalized = value_of(config, "objective.length_normalized", False)
    if loss in _WITH_REFERENCE and not normalized:
        found.append(
            Lever(
                key="objective.length_normalized",
                value=True,
                why="A log-ratio is a sum over tokens: divided by their number, it does not grow "
                "with the answer (part 2).",
            )
        )
    found.append(
        Lever(
            key="data.source",
            value="the file of `agentrl prefs balance SOURCE --out FILE`",
            why="As many longer answers are chosen there as shorter ones, at every ratio of "
            "lengths (ours).",
        )
    )
    return found


def wary_ensemble(config: Config, name: str) -> list[Lever]:
    """Pay less for what the members of an ensemble do not agree on.

    Args:
        config: of the run.
        name: of the reward model.
    """
    present = value_of(config, f"reward.models.{name}.disagreement", 0.0)
    return [
        Lever(
            key=f"reward.models.{name}.disagreement",
            value=round(2 * present, 6) if present else 1.0,
            why=f"Takes deviations between members off the reward of {name}: answers that only "
            "some of them like earn less.",
        )
    ]


def refreshed_model(config: Config, name: str, *, judged: bool) -> list[Lever]:
    """Train the reward model on what the policy writes now, where the run can.

    Only a single model can be refreshed, and only where no rollout is under way between steps.

    Args:
        config: of the run.
        name: of the reward model.
        judged: whether the environment's own reward can say which of two rollouts is better.
    """
    paths = value_of(config, f"reward.models.{name}.path", ())
    single = isinstance(paths, str) or len(paths) == 1
    ahead = (
        value_of(config, "schedule.staleness_threshold", 0.0) > 0
        or value_of(config, "schedule.trigger_parameter_sync_step", 1) > 1
        or value_of(config, "schedule.oversample", 1.0) > 1
    )
    steps = value_of(config, "train.steps", 20)
    if not single or ahead or steps < 2 or value_of(config, "reward.refresh.every_steps", 0):
        return []
    values = {
        "model": (name, "The model that is left behind."),
        "every_steps": (
            max(1, steps // 10),
            "The policy writes what the model has not seen: train it on the newest rollouts.",
        ),
        "labeller": (
            "verifier" if judged else "human",
            "Decides which of two new rollouts is better.",
        ),
        "old_pairs": (
            "none",
            "Trains on new pairs alone; leave it out where a fit of this project made the model, "
            "whose pairs are then mixed in.",
        ),
    }
    return [
        Lever(key=f"reward.refresh.{key}", value=value, why=why)
        for key, (value, why) in values.items()
    ]
