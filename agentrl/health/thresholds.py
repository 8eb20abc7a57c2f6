"""Every bound a detector compares with, as data: its name, its value and where it is from.

`health.thresholds` of the config, or `agentrl doctor --thresholds`, replaces a value by its name.
Sources: `guide 7.1` and the like are parts of the project's guide to running RL ("The Minimum
Dashboard", "The Five Canonical Failure Modes", "Prevention", "Pre-Flight Checklist"); `ours` are
numbers that the guide only describes in words, tuned on one half of the streams of
benchmarks/health/detectors.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.errors import ConfigError, choices

SEED_7_1 = "guide 7.1"
SEED_7_2 = "guide 7.2"
SEED_7_4 = "guide 7.4"
_OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One bound."""

    name: str
    """`DETECTOR/WHAT`; no dots, so that it can be set as a dotted config key."""
    value: float
    """The default."""
    what: str
    """What is compared with it, unit included."""
    source: str
    """Where the number is from."""


Limits = Mapping[str, float]
"""Value of every threshold, by name."""


def limits(overrides: Mapping[str, float] | None = None) -> Limits:
    """The value of every threshold, with `overrides` in place of defaults.

    Raises:
        ConfigError: an unknown name, or a value that is not a finite number.
    """
    found = {item.name: item.value for item in THRESHOLDS}
    for name, value in (overrides or {}).items():
        if name not in found:
            raise ConfigError(f"health.thresholds: unknown threshold: {choices(name, found)}")
        if isinstance(value, bool) or not math.isfinite(value):
            raise ConfigError(f"health.thresholds.{name} is {value}; expected a finite number")
        found[name] = float(value)
    return found


def _of(detector: str, *rows: tuple[str, float, str, str]) -> tuple[Threshold, ...]:
    return tuple(
        Threshold(name=f"{detector}/{name}", value=value, what=what, source=source)
        for name, value, what, source in rows
    )


THRESHOLDS: tuple[Threshold, ...] = (
    *_of(
        "entropy_collapse",
        ("floor", 0.05, "entropy in nats a token that counts as near zero", f"{_OURS}, for 7.4"),
        ("steps", 10, "consecutive steps below the floor", SEED_7_4),
        (
            "drop",
            0.1,
            "entropy now over entropy at the start: a plummet below",
            f"{_OURS}, for 7.1",
        ),
        ("within", 100, "steps within which a fall is a plummet", SEED_7_2),
    ),
    *_of(
        "entropy_explosion",
        ("ceiling", 6.0, "nats a token, `pinned at vocab-log` (ln 50000 is 10.8)", _OURS),
        ("rise", 2.0, "entropy now over its lowest level before", _OURS),
        ("nats", 0.7, "nats a token above that level", _OURS),
    ),
    *_of(
        "kl_too_large",
        ("bound", 2.0, "KL to the reference in nats a token", SEED_7_1),
        ("steps", 20, "steps above the bound that end a run", SEED_7_4),
        ("warn_steps", 3, "steps above the bound that are worth a look", _OURS),
    ),
    *_of(
        "kl_too_small",
        ("bound", 0.005, "KL to the reference in nats a token", SEED_7_1),
        ("after", 40, "steps before it is looked at", _OURS),
    ),
    *_of(
        "clip_fraction",
        ("warn", 0.1, "share of tokens at a bound: no longer healthy", SEED_7_1),
        ("bound", 0.3, "share of tokens at a bound", SEED_7_1),
        ("steps", 5, "steps that count as sustained", _OURS),
    ),
    *_of(
        "grad_norm",
        ("spike", 10.0, "norm over the median of the 20 steps before", f"{_OURS}, for 7.1"),
        ("repeats", 3, "spikes within 50 steps that count as repeated", _OURS),
        ("breaks", 0.3, "share of the reward lost with a single spike, for good", _OURS),
        ("clips", 10.0, "norm over train.max_grad_norm for 10 steps", f"{_OURS}, for 7.1"),
    ),
    *_of(
        "length_hacking",
        ("truncated", 0.7, "share of rollouts cut off by a limit", SEED_7_1),
        ("rise", 1.4, "mean length now over mean length at the start", _OURS),
        ("pays", 0.5, "correlation of reward and length inside groups", _OURS),
        ("steps", 10, "steps before it is looked at", _OURS),
    ),
    *_of(
        "truncation",
        ("bound", 0.7, "share of rollouts cut off by a limit", SEED_7_1),
        ("steps", 10, "steps that count as sustained", _OURS),
    ),
    *_of(
        "gibberish",
        (
            "surprise",
            1.25,
            "bits a character of what is written now, in the eyes of a model of "
            "what the first steps wrote, over those of the first steps",
            _OURS,
        ),
        ("bits", 1.0, "bits a character above the first steps", _OURS),
        ("alien", 3.0, "the same ratio, where nothing of the first language is left", _OURS),
    ),
    *_of(
        "pattern_collapse",
        (
            "alike",
            0.5,
            "share of pairs of answers to different tasks that are near-identical",
            f"{_OURS}, for 7.2.1",
        ),
        ("skew", 2.0, "skewness of the rewards of a step (right-tailed)", f"{_OURS}, for 7.2.2"),
        ("words", 5, "median words of an answer below which likeness says nothing", _OURS),
    ),
    *_of(
        "decoupling",
        (
            "gain",
            0.1,
            "rise of the training reward, as a share of its range, worth comparing",
            _OURS,
        ),
        ("share", 0.25, "of that rise the held-out score must be able to follow", _OURS),
        ("drop", 0.1, "fall of the held-out score from its best evaluation", _OURS),
    ),
    *_of(
        "value_divergence",
        (
            "explained",
            -0.2,
            "explained variance of the returns: a critic that misleads",
            f"{_OURS}, for 7.1",
        ),
        ("after", 10, "steps in which a critic may still know nothing", _OURS),
        (
            "worse",
            5.0,
            "value loss over that of a critic which always says 0",
            f"{_OURS}, for 7.1",
        ),
        ("growth", 5.0, "value loss now over its best level", f"{_OURS}, for 7.1"),
        (
            "swing",
            1.5,
            "standard deviation of the change of ln(value loss) from step to step",
            f"{_OURS}, for 7.1",
        ),
        ("steps", 10, "steps that count as persistent", _OURS),
    ),
    *_of(
        "sampler_learner_gap",
        ("warn", 0.1, "mean difference of log-probabilities in nats a token", _OURS),
        ("bound", 1.0, "mean difference of log-probabilities in nats a token", SEED_7_2),
        ("ess", 0.5, "effective share of tokens left by the importance ratios", _OURS),
        ("ratio_min", 0.001, "smallest importance ratio of a step", f"{_OURS}, for 7.1"),
        ("ratio_max", 1000.0, "largest importance ratio of a step", f"{_OURS}, for 7.1"),
        ("steps", 5, "steps that count as sustained", _OURS),
    ),
    *_of(
        "empty_gradient",
        ("warn", 0.7, "share of rollouts in groups without spread", _OURS),
        ("bound", 0.95, "share of rollouts in groups without spread (`near 1.0`)", SEED_7_2),
        ("steps", 5, "steps in a row (`batch after batch`)", f"{_OURS}, for 7.2"),
        ("idle", 50, "steps that a solved run may go on without a gradient", _OURS),
        (
            "idle_share",
            0.9,
            "share of rollouts without spread that is no gradient to speak of",
            _OURS,
        ),
    ),
    *_of(
        "reward",
        ("zero", 0.01, "mean reward that counts as zero", _OURS),
        ("zero_steps", 15, "steps at zero", _OURS),
        ("flat_steps", 60, "steps without any measurable change of the reward", _OURS),
        ("spike_steps", 20, "steps within which a climb is vertical", SEED_7_1),
        ("spike_share", 0.5, "of the range of the reward, gained in one such climb", _OURS),
        ("fall", 0.3, "fall from the best level as a share of it", _OURS),
    ),
    *_of(
        "turns_collapse",
        ("drop", 0.6, "turns or calls a rollout now over those at the start", _OURS),
        (
            "gone",
            0.1,
            "the same share: the agent has given up its tools, whatever its score",
            _OURS,
        ),
        ("least", 1.3, "turns a rollout at the start below which nothing can collapse", _OURS),
    ),
    *_of(
        "tool_errors",
        ("warn", 0.3, "share of calls that fail", _OURS),
        ("bound", 0.6, "share of calls that fail", _OURS),
        ("always", 0.95, "share of the calls of one tool that fail: the tool is broken", _OURS),
        ("calls", 20, "calls of a tool before it is judged", _OURS),
        ("steps", 8, "steps that count as sustained", _OURS),
    ),
    *_of(
        "infrastructure",
        (
            "warn",
            0.05,
            "share of rollouts lost to sandboxes, engines, environments, graders",
            _OURS,
        ),
        ("bound", 0.2, "share of rollouts lost", _OURS),
        ("steps", 5, "steps that count as sustained", _OURS),
    ),
    *_of(
        "repetition",
        ("loops", 0.5, "share of a text's 4-word sequences that it wrote before: it loops", _OURS),
        ("share", 0.3, "share of rollouts that loop", _OURS),
        ("rise", 0.2, "by which that share grew since the start", _OURS),
    ),
)
"""Every threshold, by detector."""
