"""Shapes of curves that streams written by somebody else showed to be missed or misread."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.health import History, Series, Verdict, diagnose
from agentrl.types.finding import Status

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "health"))


def curve(values: Sequence[float], every: int = 1) -> Series:
    steps = tuple(range(0 if every > 1 else 1, every * len(values) + 1, every))[: len(values)]
    return Series(steps=steps, values=tuple(values))


def held_out(values: Sequence[float], half: float, every: int = 10) -> dict[str, Series]:
    """A held-out score with its 95 % interval."""
    return {
        "eval/held/score": curve(values, every),
        "eval/held/score_low": curve([value - half for value in values], every),
        "eval/held/score_high": curve([value + half for value in values], every),
    }


def said(detector: str, metrics: dict[str, Series]) -> Verdict:
    return next(v for v in diagnose(History(metrics=metrics)) if v.name == detector)


def wobble(count: int, size: float) -> list[float]:
    """Noise without randomness: period 7, mean near zero."""
    return [size * ((step * 3) % 7 - 3) / 3 for step in range(count)]


RISING = curve([0.3 + 0.3 * step / 200 + w for step, w in enumerate(wobble(200, 0.05))])


def test_one_unlucky_evaluation_after_a_lucky_one_is_no_fall() -> None:
    scores = [0.21, 0.29, 0.31, 0.33, 0.35, 0.43, 0.48, 0.42, 0.42, 0.5, 0.46, 0.51, 0.53, 0.53,
              0.47, 0.58, 0.62, 0.54, 0.59, 0.57, 0.43]  # fmt: skip
    metrics = {"reward": RISING, **held_out(scores, 0.098)}
    assert said("decoupling", metrics).status is Status.OK
    low = [*scores[:18], 0.3, 0.28, 0.31]
    assert said("decoupling", metrics | held_out(low, 0.098)).status is Status.FAIL, "three are one"


SINKING = [0.39, 0.43, 0.42, 0.42, 0.43, 0.39, 0.37, 0.34, 0.35, 0.32, 0.41, 0.35, 0.31, 0.33,
           0.37, 0.36, 0.32, 0.34, 0.32, 0.28, 0.33]  # fmt: skip


def test_a_fall_that_all_evaluations_show_together_is_one() -> None:
    """Fails if only the first and the last are compared, whose intervals overlap."""
    found = said("decoupling", {"reward": RISING, **held_out(SINKING, 0.098)})
    assert found.status is Status.FAIL
    assert "held falls" in found.detail


def test_length_that_only_the_reward_likes_is_hacking() -> None:
    longer = {"completions/mean_length": curve([300 + 4 * step for step in range(200)])}
    worse = {"reward": RISING, **longer, **held_out(SINKING, 0.098)}
    assert said("length_hacking", worse).status is Status.WARN
    level = curve([0.4 + w for w in wobble(200, 0.05)])
    assert said("length_hacking", worse | {"reward": level}).status is Status.OK


def test_a_flat_reward_is_flat_whatever_its_first_and_last_steps_were() -> None:
    noise = wobble(200, 0.08)
    flat = [0.3 + w for w in noise]
    flat[:10] = [0.29 + w / 4 for w in noise[:10]]
    flat[-10:] = [0.35 + w / 4 for w in noise[-10:]]
    assert said("reward_flat", {"reward": curve(flat)}).status is Status.WARN
    early = [0.1 + 0.1 * min(step, 6) + w / 4 for step, w in enumerate(noise)]
    assert said("reward_flat", {"reward": curve(early)}).status is Status.OK, "it rose at once"


def test_a_jump_out_of_a_level_stretch_is_suspicious_even_without_evaluation() -> None:
    late = [0.15 + 0.75 * (step > 100) + w for step, w in enumerate(wobble(200, 0.03))]
    assert said("reward_spike", {"reward": curve(late)}).status is Status.WARN
    early = [0.15 + 0.75 * (step > 8) + w for step, w in enumerate(wobble(200, 0.03))]
    assert said("reward_spike", {"reward": curve(early)}).status is Status.OK


def test_a_spike_of_the_gradient_that_costs_the_reward_is_named_long_after() -> None:
    norms = [0.4 + w for w in wobble(200, 0.1)]
    norms[100] = 1e5
    whole = [0.5 + w for w in wobble(200, 0.05)]
    broken = [value * (1 if step <= 100 else 0.3) for step, value in enumerate(whole)]
    found = said("grad_norm", {"train/grad_norm": curve(norms), "reward": curve(broken)})
    assert found.status is Status.FAIL
    assert found.first_step == 101
    kept = {"train/grad_norm": curve(norms), "reward": curve(whole)}
    assert said("grad_norm", kept).status is Status.OK
    later = [value * (1 if step <= 140 else 0.3) for step, value in enumerate(whole)]
    assert said("grad_norm", kept | {"reward": curve(later)}).status is Status.OK


def test_a_held_out_score_is_held_against_the_training_score_at_the_same_step() -> None:
    """Fails if one low first evaluation is enough to say that the score might have followed."""
    jump = [0.3 + 0.5 * (step > 100) + w for step, w in enumerate(wobble(200, 0.05))]
    flat = [0.2, *[0.27 + w for w in wobble(20, 0.04)]]
    metrics = {"reward": curve(jump), "score": curve(jump), **held_out(flat, 0.087)}
    assert said("decoupling", metrics).status is Status.FAIL
    follows = [0.25 + 0.2 * (step > 10) + w for step, w in enumerate(wobble(21, 0.04))]
    assert said("decoupling", metrics | held_out(follows, 0.087)).status is Status.OK


def test_the_luckiest_five_of_a_thousand_steps_are_not_the_level_to_fall_from() -> None:
    noise = wobble(1000, 0.06)
    noise[500:505] = [0.1, 0.09, 0.1, 0.11, 0.1]
    reward = [0.2 + w for w in noise]
    reward[-5:] = [0.18, 0.2, 0.19, 0.18, 0.2]
    assert said("reward_fall", {"reward": curve(reward)}).status is Status.OK
    reward[-5:] = [0.05, 0.04, 0.05, 0.06, 0.05]
    assert said("reward_fall", {"reward": curve(reward)}).status is Status.FAIL


def test_tools_given_up_are_named_whatever_the_score_does() -> None:
    """Fails if a score that rises without tools hides that nobody uses them."""
    for last, status in ((1.02, Status.WARN), (2.4, Status.OK)):
        turns = [4.0] * 20 + [last] * 80
        found = said("turns_collapse", {"num_turns/mean": curve(turns), "reward": RISING})
        assert found.status is status, last


def test_a_ratio_of_whole_sequences_is_not_judged_by_the_bounds_of_tokens() -> None:
    metrics = {"clip_ratio/region_mean": curve([0.16] * 40)}
    for level, status in (("sequence", Status.UNKNOWN), ("token", Status.WARN)):
        history = History(metrics=metrics, config={"algorithm.importance_level": level})
        found = next(v for v in diagnose(history) if v.name == "clip_fraction")
        assert found.status is status, level


@pytest.mark.parametrize(("steps", "status"), [(40, Status.OK), (120, Status.WARN)])
def test_a_solved_run_may_end_but_not_idle(steps: int, status: Status) -> None:
    empty = [0.3] * 80 + [1.0, 0.9, 0.95, 1.0] * (steps // 4)
    metrics = {"frac_reward_zero_std": curve(empty), **held_out([0.5, 0.98, 0.99], 0.02, 50)}
    assert said("empty_gradient", metrics).status is status


@pytest.mark.slow
def test_streams_labelled_without_sight_of_the_detectors_are_judged_well() -> None:
    """The same measure as for the project's own streams, on a draw of their own."""
    from blind_streams import judge

    found = judge(0, fresh=False)
    sick = [one for one in found if one.stream.fault]
    well = [one for one in found if not one.stream.fault]
    assert len(sick) >= 60
    assert len(well) >= 25
    assert sum(one.named for one in sick) >= 0.9 * len(sick)
    assert sum(bool(one.spoke) for one in well) <= 0.05 * len(well)


def test_a_clip_that_changes_no_reward_is_no_fault() -> None:
    on = {"reward_shaping/clip/at_bound": curve([0.9] * 5)}
    assert said("reward_clipped", {}).status is Status.UNKNOWN
    idle = on | {"reward_shaping/clip/share": curve([0.0] * 5)}
    assert said("reward_clipped", idle).status is Status.OK
    found = said("reward_clipped", on | {"reward_shaping/clip/share": curve([0.8] * 5)})
    assert found.status is Status.WARN
    assert [(lever.key, lever.value) for lever in found.levers] == [
        ("reward.normalize", True),
        ("reward.clip", [-10.0, 10.0]),
    ]
    assert "90 % of the rewards lie on a bound of reward.clip" in found.detail


def test_failed_calls_are_never_called_working() -> None:
    """Calls that cannot be parsed are failures, however the tools themselves do."""
    fails = {"tools/failure_frequency": curve([0.0] * 5)}
    found = said("tool_errors", fails | {"tools/parse_error_frequency": curve([0.2134] * 5)})
    assert (found.status, found.detail) == (Status.OK, "21.3 % of the tool calls cannot be parsed")
    assert said("tool_errors", fails).detail == "no tool call fails"
