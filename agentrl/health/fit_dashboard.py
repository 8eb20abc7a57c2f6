"""The curves that are drawn first of a fit, and where they are healthy or red.

Bounds are those of the detectors of `detectors/preferences.py`; as for RL, what matters is that a
curve is stable and goes the right way.
"""

from __future__ import annotations

from agentrl.health.dashboard import Band, Range
from agentrl.health.thresholds import OURS, USUAL

_OPEN: Range = (None, None)


def _band(
    metric: str, label: str, unit: str, what: str, *, healthy: Range = _OPEN, red: Range = _OPEN
) -> Band:
    return Band(
        metric=metric, label=label, unit=unit, healthy=healthy, red=red, what=what, source=OURS
    )


FIT_DASHBOARD: tuple[Band, ...] = (
    _band(
        "eval/*/pref/accuracy", "Held-out pairs in order", "share",
        "Rises from 0.5. A margin that grows while this stays is more sure and not more right.",
    ),
    _band(
        "eval/*/rm/accuracy", "Held-out pairs in order", "share",
        "Rises from 0.5. A margin that grows while this stays is more sure and not more right.",
    ),
    _band(
        "eval/*/sft/nll", "Held-out negative log-likelihood", "nats",
        "Falls, and rises again once the data is learned by heart.",
    ),
    _band(
        "eval/*/score", "Held-out score", "",
        "Of rollouts; without them it is minus the loss, which is higher for a better model.",
    ),
    _band("pref/accuracy", "Training pairs in order", "share", "Far above the held-out one, pairs "
          "are learned by heart."),
    _band("rm/accuracy", "Training pairs in order", "share", "Far above the held-out one, pairs "
          "are learned by heart."),
    _band("pref/margin", "Margin", "", "beta h, what the loss looks at: rises and levels off."),
    _band("rm/margin", "Margin", "", "Score of the chosen answer less that of the rejected one."),
    _band(
        "pref/logp_chosen", "Log-probability of chosen answers", "nats",
        "Stays near its start. Where it falls with that of the rejected ones, both are unlearned.",
    ),
    _band(
        "pref/logp_rejected", "Log-probability of rejected answers", "nats",
        "Falls, more than that of the chosen ones.",
    ),
    _band(
        "pref/length_corr", "Margin with length", "",
        "Near 1 the longer answer is preferred, near -1 the shorter one.",
        healthy=("-length_preference/corr", "length_preference/corr"),
    ),
    _band("rm/reward_mean", "Mean reward of both answers", "", "Stays near 0 with center_coef or "
          "bsr_coef; its drift alone changes no order."),
    _band("sft/nll", "Negative log-likelihood of a token", "nats", "Falls and levels off."),
    Band(
        metric="train/grad_norm",
        label="Gradient norm before clipping",
        unit="",
        healthy=_OPEN,
        red=_OPEN,
        what="Bounded and stable; repeated spikes come from single broken examples.",
        source=USUAL,
    ),
)  # fmt: skip
"""The curves of the first screen of a fit, most telling first."""
