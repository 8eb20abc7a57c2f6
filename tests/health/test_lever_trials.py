"""Every lever of every detector, applied to the run's own file: a whole dry run passes, and the
number of the stream that fired is pushed the right way."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.fit import run_fit
from agentrl.config import load_config
from agentrl.config.keys import dotted
from agentrl.config.load import FIT_FILE
from agentrl.config.plan import flat_config
from agentrl.data.tasks.pass_rates import Measured, append_measured
from agentrl.health import (
    DETECTORS,
    History,
    Lever,
    RolloutFacts,
    Series,
    Status,
    Verdict,
    limits,
)
from agentrl.reward.scale import RewardScale
from tests.fit.fit_project import write_fit
from tests.health.lever_numbers import FITS, NUMBERS, Number
from tests.preflight.check_lines import dry_run
from tests.runtime.reward_checkpoints import write_reward_model
from tests.runtime.tiny_project import write_project

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "health"))

from faults.planted import ILL, ILL_FITS
from faults.synthetic import drawn

PULLED_FITS = {
    "dpo": ("objective.nll_coef=0.5", "objective.label_smoothing=0.2", "objective.beta=0.3"),
    "rm": ("objective.center_coef=0.1",),
}

FACT = RolloutFacts(
    step=80, kind="train", task_id="t", group_id="g", rollout_id="r", reward=None, score=None,
    advantage=None, termination="sandbox_failed", action_tokens=0, duration_s=1.0, turns=1,
    tool_calls=0, tool_errors=0, text="", errors=("killed: out of memory",),
)  # fmt: skip


def beside(history: History, **counts: float) -> History:
    """The history with counts a step in all its steps."""
    series = {
        name.replace("__", "/"): Series(
            steps=history.metrics["reward"].steps,
            values=(count,) * len(history.metrics["reward"].steps),
        )
        for name, count in counts.items()
    }
    return replace(history, metrics={**history.metrics, **series})


def without(history: History, name: str) -> History:
    return replace(history, metrics={n: of for n, of in history.metrics.items() if n != name})


EDITS: dict[str, tuple[str, Callable[[History], History]]] = {
    "weights do not arrive": (
        "sampler far behind", lambda history: without(history, "staleness/lag_mean")),
    "nothing is solved": ("reward is never paid", lambda history: without(history, "score")),
    "turns run out": (
        "limit too low", lambda history: beside(history, rollout__termination__max_turns=50.0)),
    "calls have no form": (
        "calls become unreadable",
        lambda history: beside(history, tools__parse_error__no_json=9.0)),
    "sandboxes run out of memory": (
        "sandboxes fail more and more", lambda history: replace(history, rollouts=(FACT,))),
}  # fmt: skip
"""Streams of the benchmark with one thing changed."""

STAND_INS = {
    "your_package.rewards:well_formed_trace": "rewards.py:paid",
    "what agentrl tasks profile wrote": "rates.jsonl",
    "a file of tasks that are not trained on": "held.jsonl",
    "the run of an agentrl fit on solved examples (objective: sft)": "model",
    "the folder of a reward model": "rm0",
    "the file of `agentrl prefs balance SOURCE --out FILE`": "held.jsonl",
}
"""What the words of a lever ask a user to make first, and what is made here in its place."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("levers")
    path = write_project(folder, train__steps=100)
    for seed in range(2):
        scale = RewardScale(std=2.0)
        write_reward_model(folder / f"rm{seed}", folder / "model", seed=seed, scale=scale)
    (folder / "rewards.py").write_text("def paid(trajectory, task, model=None):\n    return 0.0\n")
    (folder / "tasks.py").write_text(
        "from agentrl.types import Task\n\n\ndef tasks(split='train'):\n"
        "    return [Task(id=f'{split}-{n}', prompt=f'say {n}') for n in range(12)]\n"
    )
    with (folder / "rates.jsonl").open("wb") as file:
        for n in range(12):
            item = Measured(
                task_id=f"train-{n}", digest="", n=2, failed=0, mean=0.5, low=0.1, high=0.9,
                scores=(0.0, 1.0), model="m", temperature=1.0,
            )  # fmt: skip
            append_measured(file, item)
    return path


def found_in(name: str, stream: str, config: Mapping[str, Any]) -> Verdict:
    """What a detector finds in a stream, as if this run had logged it."""
    base, edit = EDITS.get(stream, (stream, lambda history: history))
    (made,) = drawn({base: (ILL | ILL_FITS)[base]})
    seen = edit(made.history)
    history = History(
        metrics=seen.metrics, rollouts=seen.rollouts, config=config, not_finite=seen.not_finite
    )
    found = DETECTORS.find(name)(history, limits())
    number = (NUMBERS | FITS)[name]
    assert number.streams or number.metric.rpartition("/")[2] in " ".join(seen.metrics)
    assert not number.streams or number.metric in {*seen.metrics, *seen.not_finite}
    return found


def word(lever: Lever) -> str:
    """The lever as it is written on the command line."""
    value = STAND_INS.get(lever.value, lever.value) if isinstance(lever.value, str) else lever.value
    return f"{lever.key}={json.dumps(value)}"


def more(before: Any, after: Any) -> int:
    """1 where a lever asks for more of a key than the run has, -1 where it asks for less."""
    if type(before) in (int, float) and type(after) in (int, float):
        return (after > before) - (after < before)
    return -1 if after is None else int(before != after)


def off_pace(rate: float, config: Mapping[str, Any]) -> float:
    """Distance of a critic's rate from 15 times that of the policy, in factors of e."""
    return abs(math.log(rate / (15 * config["train.learning_rate"])))


def check_ways(verdict: Verdict, number: Number, config: Mapping[str, Any]) -> None:
    """Each lever changes its key so that the number of the stream goes where it has to."""
    for lever in verdict.levers:
        assert lever.key in f"{number.raised_by} {number.lowered_by}".split(), (
            f"{verdict.name}: it is not known how {lever.key} moves {number.metric}"
        )
        push = 1 if lever.key in number.raised_by.split() else -1
        ends = (config.get(lever.key), lever.value)
        if lever.key == "critic.learning_rate":
            ends = tuple(off_pace(rate, config) for rate in ends)
        change = more(*ends)
        where = f"{verdict.name}: {lever.key}: {config.get(lever.key)} -> {lever.value}"
        assert change * push == number.way, where


def test_every_detector_is_tried() -> None:
    assert set(DETECTORS) == {*NUMBERS, *FITS}


@pytest.mark.parametrize("name", NUMBERS)
async def test_levers_pass_a_dry_run_of_the_run_and_push_its_number(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails for advice that the run's parts refuse, that changes nothing, or makes it worse."""
    monkeypatch.chdir(project.parent)
    number, tried = NUMBERS[name], set[tuple[str, ...]]()
    keys = set[str]()
    for stream in number.streams:
        for run in number.runs:
            config = flat_config(load_config(project, run))
            verdict = found_in(name, stream, config)
            assert verdict.status in (Status.WARN, Status.FAIL), (stream, verdict.detail)
            assert verdict.levers, (name, stream, run)
            check_ways(verdict, number, config)
            keys |= {lever.key for lever in verdict.levers}
            words = [word(lever) for lever in verdict.levers if lever.key != "algorithm.preset"]
            alone = [word(lever) for lever in verdict.levers if lever.key == "algorithm.preset"]
            for asked in (words, alone):
                if asked and (run, *asked) not in tried:
                    tried.add((*run, *asked))
                    changed = load_config(project, [*run, *asked])
                    lines = await dry_run(changed, project.parent)
                    wrong = {n: x.detail for n, x in lines.items() if x.status is Status.FAIL}
                    assert not wrong, (name, run, asked)
    listed = {*number.raised_by.split(), *number.lowered_by.split()}
    assert keys == listed, "a lever that the table lists is not tried"


@pytest.mark.parametrize(
    ("name", "kind", "stream"),
    [
        ("margin_alone", "dpo", "margin for nothing"),
        ("margin_alone", "rm", "scores for nothing"),
        ("likelihood_falls", "dpo", "both answers are unlearned"),
        ("length_preference", "dpo", "longer is better"),
    ],
)
@pytest.mark.parametrize("pulled", [False, True])
def test_levers_pass_a_dry_run_of_the_fit_and_push_its_number(
    name: str,
    kind: str,
    stream: str,
    *,
    pulled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same for fits, whose dry run reads and encodes all data."""
    monkeypatch.chdir(tmp_path)
    path, changes = write_fit(tmp_path, kind), PULLED_FITS[kind] if pulled else ()
    config = dotted(FIT_FILE.load(path, changes).model_dump(mode="json"))
    verdict = found_in(name, stream, config)
    assert verdict.status is Status.WARN, verdict.detail
    assert verdict.levers
    check_ways(verdict, FITS[name], config)
    assert run_fit(path, [*changes, *map(word, verdict.levers)], resume=False, dry_run=True) == 0
