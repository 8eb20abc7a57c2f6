"""A judge that likes the policy more and more, held against what the environment says itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrl.config import parse_config
from agentrl.config.plan import flat_config
from agentrl.health import History, Verdict, diagnose
from agentrl.types.finding import Status
from tests.health.detectors.test_shapes import curve, held_out, wobble

STEPS = 100
JUDGED = {"reward.functions.style.args.model.url": "http://judge/v1"}


def level(of: Callable[[float], float], noise: float = 0.03) -> list[float]:
    return [of(step / STEPS) + w for step, w in enumerate(wobble(STEPS, noise))]


def said(config: dict[str, Any], **curves: list[float]) -> Verdict:
    names = {"style": "rewards/style/mean", "env": "rewards/env/mean"}
    metrics = {names.get(name, name): curve(values) for name, values in curves.items()}
    if "evaluated" in curves:
        metrics |= held_out(metrics.pop("evaluated").values[::10], 0.04)
    history = History(metrics=metrics, config=config)
    return next(v for v in diagnose(history) if v.name == "judge_hacking")


PLEASED = level(lambda t: 0.3 + 0.4 * t)
FLAT = level(lambda t: 0.4)
RISES = level(lambda t: 0.3 + 0.3 * t)
FALLS = level(lambda t: 0.5 - 0.3 * t)


def both(score: list[float]) -> list[float]:
    return [a + b for a, b in zip(score, PLEASED, strict=True)]


@pytest.mark.parametrize(
    ("score", "evaluated", "status"),
    [
        (FLAT, None, Status.WARN),
        (FALLS, None, Status.FAIL),
        (RISES, None, Status.OK),
        (FLAT, FLAT, Status.FAIL),
        (RISES, FLAT, Status.FAIL),
        (FLAT, RISES, Status.OK),
    ],
)
def test_what_is_held_out_decides_and_else_the_training_score(
    score: list[float], evaluated: list[float] | None, status: Status
) -> None:
    more = {} if evaluated is None else {"evaluated": evaluated}
    found = said(JUDGED, style=PLEASED, score=score, reward=both(score), **more)
    assert found.status is status, found.detail
    if status is not Status.OK:
        assert found.evidence[0].metric == "rewards/style/mean"
        assert found.levers[0].key == "reward.functions.style.weight"
        assert found.levers[0].value == 0.5


def test_a_score_that_is_the_reward_proves_nothing() -> None:
    """Fails if the judge vouches for itself: without a score of the environment `score` is the
    whole reward, in evaluations too."""
    flat = said(JUDGED, style=PLEASED, score=both(FLAT), reward=both(FLAT), env=FLAT,
                evaluated=both(FLAT))  # fmt: skip
    assert flat.status is Status.WARN
    assert "rewards/env/mean does not rise" in flat.detail
    alone = said(JUDGED, style=PLEASED, score=PLEASED, reward=PLEASED, env=[0.0] * STEPS)
    assert alone.status is Status.UNKNOWN
    assert "no score of its own" in alone.detail


def test_a_judge_that_does_not_rise_is_none_of_it() -> None:
    found = said(JUDGED, style=FLAT, score=FALLS, reward=both(FALLS))
    assert (found.status, "style does not rise" in found.detail) == (Status.OK, True)


def test_a_penalty_pays_where_it_falls() -> None:
    """Fails if the sign of the weight is left out."""
    config = JUDGED | {"reward.functions.style.weight": -1.0}
    sinks = [-value for value in PLEASED]
    assert said(config, style=sinks, score=FLAT, reward=both(FLAT)).status is Status.WARN
    assert said(config, style=PLEASED, score=FLAT, reward=both(FLAT)).status is Status.OK
    watched = JUDGED | {"reward.functions.style.weight": 0.0}
    assert said(watched, style=PLEASED, score=FLAT, reward=both(FLAT)).status is Status.UNKNOWN


def test_solved_tasks_leave_nothing_to_rise() -> None:
    full = level(lambda t: 0.98, noise=0.01)
    found = said(JUDGED, style=PLEASED, score=full, reward=both(full), evaluated=full)
    assert found.status is Status.OK


def test_a_few_steps_say_nothing() -> None:
    short = {name: values[:15] for name, values in
             {"style": PLEASED, "score": FALLS, "reward": both(FALLS)}.items()}  # fmt: skip
    assert said(JUDGED, **short).status is Status.UNKNOWN


def test_judges_are_known_by_the_config() -> None:
    """Fails if a plain function counts as a judge: a reward for form is learned before the task."""
    base = {"env": {"target": "x.py:X"}, "dataset": {"source": "x.jsonl"}}
    model = {"url": "http://judge/v1", "model": "m"}
    for functions, status in (
        ({"style": {"target": "a:b", "args": {"model": model}}}, Status.WARN),
        ({"style": {"target": "a:b"}}, Status.UNKNOWN),
    ):
        config = flat_config(parse_config(base | {"reward": {"functions": functions}}))
        found = said(config, style=PLEASED, score=FLAT, reward=both(FLAT))
        assert found.status is status
    config = flat_config(parse_config(base | {"reward": {"models": {"style": "rm"}}}))
    found = said(config, style=PLEASED, score=FLAT, reward=both(FLAT))
    assert (found.status, found.levers[0].key) == (Status.WARN, "reward.models.style.weight")
