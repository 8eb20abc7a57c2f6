"""A reward model with a planted flaw: is one hacked, and does an ensemble that disagrees help?

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/learning/reward_hacking.py --seeds 2 3 4

Pairs are labelled by the true score, good words less bad ones, but in 90 % of them the better
answer begins with praise and in 90 % the worse does not. Reward models learn from them
(`agentrl fit`), and small random models that were taught to answer are trained with what those
pay (`agentrl train`, `reward.models`), with nothing else. The true score is only recorded.

Seed 1 chose the settings; a seed takes about 5 minutes of one core. Finished models and seeds are
kept in `--work`: the same command goes on, and several processes may each make one seed. `--out`
names the result without its suffix: `.json` has every number and the curves, `.md` the table.
"""

from __future__ import annotations

import datetime
import json
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planted_hacking import Arm, HackingPlan, Seed, curve, measured
from reward_models import measured_with, options

from agentrl.machine.files import write_whole
from agentrl.metrics.intervals import t_quantile

RESULTS = Path(__file__).parents[1] / "results" / "reward_hacking"
SAME = ("source-0", "same-1", "same-2")
SOURCES = ("source-0", "source-1", "source-2")
ARMS = (
    Arm(name="single", models=("source-0",)),
    Arm(name="pooled", models=("pooled-0",)),
    Arm(name="same-1.0", models=SAME, disagreement=1.0),
    Arm(name="same-4.0", models=SAME, disagreement=4.0),
    Arm(name="sources-0.0", models=SOURCES),
    Arm(name="sources-1.0", models=SOURCES, disagreement=1.0),
)
TEXTS: Mapping[str, str] = {
    "single": "one reward model",
    "pooled": "one reward model on the pairs of three sources",
    "same-1.0": "three on the same pairs: mean - 1 x disagreement",
    "same-4.0": "three on the same pairs: mean - 4 x disagreement",
    "sources-0.0": "three, a source of pairs each: mean",
    "sources-1.0": "three, a source of pairs each: mean - 1 x disagreement",
}


def run_seed(work: Path, plan: HackingPlan, number: int, arms: Sequence[Arm]) -> dict[str, Any]:
    """Train all reward models and policies of one seed; the numbers of it."""
    seed = Seed(work, plan, number)
    seed.policy()
    names = dict.fromkeys(name for arm in arms for name in arm.models)
    accuracy = {name: seed.reward_model(name) for name in names}
    found: dict[str, Any] = {}
    for arm in arms:
        run = seed.run(arm)
        found[arm.name] = {
            "before": measured(run, 0),
            "after": measured(run, plan.steps),
            "curve": curve(run, every=max(1, plan.steps // 12)),
        }
        say(f"seed {number}, {arm.name}: {shown(found[arm.name]['after'])}")
    return {"seed": number, "accuracy": accuracy, "arms": found}


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and its 95 % interval by Student's t; no interval of one value.

    Example:
        >>> interval([1.0, 2.0, 3.0])["mean"]
        2.0
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean, "low": None, "high": None}
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def summary(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and interval over seeds of each number of each arm, and of what it gains on `single`."""
    found: dict[str, Any] = {}
    for name, first in seeds[0]["arms"].items():
        found[name] = {
            f"{key}_{when}": interval([seed["arms"][name][when][key] for seed in seeds])
            for when in ("before", "after")
            for key in first[when]
        }
        found[name]["quality_over_single"] = interval(
            [
                seed["arms"][name]["after"]["quality"] - seed["arms"]["single"]["after"]["quality"]
                for seed in seeds
            ]
        )
    return found


def page(plan: HackingPlan, seeds: Sequence[Mapping[str, Any]], *, at: str) -> str:
    """Markdown page of the table and its conditions."""
    total = summary(seeds)
    numbers = " ".join(str(seed["seed"]) for seed in seeds)
    accuracy = {
        name: statistics.fmean(seed["accuracy"][name] for seed in seeds)
        for name in seeds[0]["accuracy"]
    }
    rows = [
        f"| {TEXTS[name]} | {cell(found['quality_before'])} | {cell(found['quality_after'])} "
        f"| {cell(found['praise_before'])} | {cell(found['praise_after'])} "
        f"| {cell(found['reward_before'])} | {cell(found['reward_after'])} "
        f"| {'' if name == 'single' else cell(found['quality_over_single'])} |"
        for name, found in total.items()
    ]
    template = Path(__file__).with_name("pages") / "reward_hacking.md"
    return template.read_text(encoding="utf-8").format(
        plan=plan,
        at=at,
        numbers=numbers,
        count=len(seeds),
        answers=8 * plan.held_out,
        accuracy=", ".join(f"{name} {value:.3f}" for name, value in accuracy.items()),
        rows="\n".join(rows),
    )


def cell(found: Mapping[str, float | None]) -> str:
    """Mean and interval of a table."""
    if found["low"] is None:
        return f"{found['mean']:.2f}"
    return f"{found['mean']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def shown(found: Mapping[str, float]) -> str:
    """The numbers in one line."""
    return ", ".join(f"{name} {value:.2f}" for name, value in found.items())


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    args = options(__doc__, seeds=[2, 3, 4], steps=HackingPlan().steps, work=Path, out=RESULTS)
    plan = HackingPlan(steps=args.steps)
    with tempfile.TemporaryDirectory() as folder:
        work = (args.work or Path(folder)).resolve()
        seeds: list[dict[str, Any]] = []
        for number in args.seeds:
            file = work / f"seed-{number}.json"
            if not file.is_file():
                found = run_seed(work / f"seed-{number}", plan, number, ARMS)
                write_whole(file, json.dumps({"plan": asdict(plan), **found}).encode())
            seeds.append(json.loads(file.read_bytes()))
    if any(seed.pop("plan") != asdict(plan) for seed in seeds):
        raise SystemExit(f"{args.work} holds seeds of other settings; name another folder")
    at = f"{measured_with()}; {datetime.date.today():%Y-%m-%d}"
    document = {"at": at, "plan": asdict(plan), "mean": summary(seeds), "seeds": seeds}
    args.out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    text = page(plan, seeds, at=at)
    args.out.with_suffix(".md").write_text(text)
    say(text)


if __name__ == "__main__":
    main()
