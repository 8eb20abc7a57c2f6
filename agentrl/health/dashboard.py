"""The minimum dashboard: which curves to draw first, and where they are healthy or red.

Bounds are those of usual practice, under the names this package logs. They are approximate: what
matters is that a curve is stable and goes the right way. The detectors judge that; these bands
are for the eye. Where a detector has a threshold for the same fact, the band names it in place of a
number, so that both follow `health.thresholds`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentrl.health.thresholds import USUAL, Limits

Range = tuple[float | str | None, float | str | None]
"""Two ends: a number, the name of a threshold, with a minus for its negative, or None if open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One curve of the first screen."""

    metric: str
    """Name as logged; `*` stands for any one name, as in `eval/*/score`."""
    label: str
    """Heading of the curve."""
    unit: str
    """Unit of the values; empty for plain numbers and shares."""
    healthy: Range
    """(low, high) of a healthy run; None leaves an end open."""
    red: Range
    """(low, high): below the first or above the second something is wrong; None: no such flag."""
    what: str
    """Meaning of the curve, and which way it goes when all is well."""
    source: str
    """Source of the bounds."""

    def at(self, limits: Limits) -> Band:
        """The band with the value of each threshold that it names."""
        healthy, red = (
            (_value(low, limits), _value(high, limits)) for low, high in (self.healthy, self.red)
        )
        return replace(self, healthy=healthy, red=red)


def _value(end: float | str | None, limits: Limits) -> float | None:
    if not isinstance(end, str):
        return end
    return -limits[end[1:]] if end.startswith("-") else limits[end]


_OPEN: Range = (None, None)


HELD_OUT = Band(
    metric="eval/*/score",
    label="Held-out score",
    unit="",
    healthy=_OPEN,
    red=_OPEN,
    what="The one number that cannot be gamed: goes up with the reward. Reward up and this "
    "flat or down means the reward is being hacked.",
    source=USUAL,
)
"""The score of tasks that are not trained on."""
DASHBOARD: tuple[Band, ...] = (
    Band(
        metric="reward",
        label="Reward",
        unit="",
        healthy=_OPEN,
        red=_OPEN,
        what="Primary signal: rises gradually, then levels off. Flat at zero is a broken reward or "
        "an impossible task; a jump within 20 steps is reward hacking until shown otherwise.",
        source=USUAL,
    ),
    HELD_OUT,
    Band(
        metric="reward_std",
        label="Reward std in a group",
        unit="",
        healthy=(0.01, None),
        red=(1e-6, None),
        what="Zero means that all rollouts of a prompt earned the same, which teaches nothing.",
        source=USUAL,
    ),
    Band(
        metric="frac_reward_zero_std",
        label="Groups with zero advantage",
        unit="share",
        healthy=(None, 0.5),
        red=(None, "empty_gradient/bound"),
        what="Share of rollouts whose group earned one and the same reward; falls as the policy "
        "learns to tell hard prompts apart.",
        source=USUAL,
    ),
    Band(
        metric="kl",
        label="KL to the reference",
        unit="nats/token",
        healthy=("kl_too_small/bound", "kl_too_large/bound"),
        red=(None, "kl_too_large/bound"),
        what="Rises slowly to a level. Below 0.005 after the first steps the policy does not "
        "move; above 2 it has left what it was.",
        source=USUAL,
    ),
    Band(
        metric="entropy",
        label="Entropy",
        unit="nats/token",
        healthy=("entropy_collapse/floor", 3.0),
        red=("entropy_collapse/floor", "entropy_explosion/ceiling"),
        what="How open the next token is; declines slowly. A sudden fall is mode collapse, a climb "
        "towards the logarithm of the vocabulary is gibberish.",
        source=f"{USUAL}; 0.05 and 6 are ours, for `near zero` and `pinned at vocab-log`",
    ),
    Band(
        metric="clip_ratio/region_mean",
        label="Clipped tokens",
        unit="share",
        healthy=(None, "clip_fraction/warn"),
        red=(None, "clip_fraction/bound"),
        what="Share of tokens at a bound of the ratio; high means that updates are too large.",
        source=USUAL,
    ),
    Band(
        metric="completions/mean_length",
        label="Response length",
        unit="tokens",
        healthy=_OPEN,
        red=_OPEN,
        what="May rise and level off. A steady climb to the limit is length hacking.",
        source=USUAL,
    ),
    Band(
        metric="completions/clipped_ratio",
        label="Truncated rollouts",
        unit="share",
        healthy=(None, "truncation/harms"),
        red=(None, "truncation/bound"),
        what="Share of rollouts that a limit cut off: cause and consequence of length hacking.",
        source=USUAL,
    ),
    Band(
        metric="train/grad_norm",
        label="Gradient norm before clipping",
        unit="",
        healthy=(None, 10.0),
        red=_OPEN,
        what="Bounded and stable; 5-10 is common early. Repeated spikes far above the clipping "
        "bound mean that something before it is broken: rewards, or the scale of advantages.",
        source=USUAL,
    ),
    Band(
        metric="critic/vf_loss",
        label="Value loss",
        unit="",
        healthy=_OPEN,
        red=_OPEN,
        what="Goes down and stays low. A critic that swings feeds the policy noise.",
        source=USUAL,
    ),
    Band(
        metric="critic/vf_explained_var",
        label="Explained variance of returns",
        unit="share",
        healthy=(0.0, 1.0),
        red=("value_divergence/explained", None),
        what="1 is a perfect critic, 0 one that knows nothing, below 0 one that misleads.",
        source="ours: value loss without the scale of the reward",
    ),
    Band(
        metric="rollout_corr/ratio_min",
        label="Smallest importance ratio",
        unit="",
        healthy=(0.1, None),
        red=("sampler_learner_gap/ratio_min", None),
        what="Trainer over sampler, for one token. Towards 0 the two have drifted apart.",
        source=f"{USUAL}; the numbers are ours",
    ),
    Band(
        metric="rollout_corr/ratio_max",
        label="Largest importance ratio",
        unit="",
        healthy=(None, 10.0),
        red=(None, "sampler_learner_gap/ratio_max"),
        what="Trainer over sampler, for one token. Far from 1 the two have drifted apart.",
        source=f"{USUAL}; the numbers are ours",
    ),
    Band(
        metric="sampling/sampling_logp_difference/mean",
        label="Sampler-learner gap",
        unit="nats/token",
        healthy=(None, "sampler_learner_gap/warn"),
        red=(None, "sampler_learner_gap/bound"),
        what="Mean difference of log-probabilities between sampler and trainer; small and flat.",
        source=f"{USUAL}; healthy below 0.1 is ours",
    ),
)
"""The curves of the first screen, most telling first."""
