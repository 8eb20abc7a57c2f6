"""Can reward models be trusted: accuracy and calibration on pairs whose odds are known.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/learning/reward_models.py

Small random Llamas are trained with `agentrl fit` on the planted pairs of
`agentrl.testing.preferences`, three with `bt`, three with `purm`, and one with `bt` on labels that
pay for length; all of a kind see the same pairs, each in an order of its own. They are measured by
the code of `agentrl rm report` on pairs of other prompts. Labels are drawn, and no fit or
temperature sees their odds; where the odds are used to measure, the table says so. Settings were
chosen on training prompts.
"""

from __future__ import annotations

import datetime
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from harness import measured_with, options
from planted_rewards import PAID_LENGTH, Plan, Trust, ensemble_auroc, measure, train

RESULTS = Path(__file__).parents[1] / "results" / "reward_models.md"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table."""

    name: str
    """Of the figure."""
    values: Sequence[float]
    """One for each seed."""
    demand: str = ""
    """Demand in words; empty where there is none."""
    holds: Callable[[float], bool] | None = None
    """Test of the demand, for a value."""
    form: str = "{:.3f}"
    """Format of a value."""

    def row(self) -> str:
        """Median [least, largest], and whether the median and every seed hold the demand."""
        middle, shown = statistics.median(self.values), [*map(self.form.format, self.values)]
        text = self.form.format(middle)
        if len(shown) > 1:
            text += f" [{self.form.format(min(self.values))}, {self.form.format(max(self.values))}]"
        reached = ""
        if self.holds is not None:
            number = sum(map(self.holds, self.values))
            verdict = "yes" if self.holds(middle) else "**no**"
            reached = f"{verdict} ({number} of {len(self.values)})"
        return f"| {self.name} | {text} | {self.demand} | {reached} |"


def figures(bt: Sequence[Trust], purm: Sequence[Trust], paid: Trust) -> list[Figure]:
    """Everything that was measured.

    Args:
        bt: one for each seed.
        purm: the same.
        paid: trained on labels that pay for length.
    """
    found: list[Figure] = []
    above, below = (">= 0.9", lambda x: x >= 0.9), ("<= 0.02", lambda x: x <= 0.02)
    four = "{:.4f}"
    for loss, seeds in (("bt", bt), ("purm", purm)):
        calibration = [one.report.calibration for one in seeds]
        after = [one.overall.after for one in calibration]
        found += [
            Figure(f"`{loss}`: accuracy, drawn labels", [one.accuracy for one in after]),
            Figure(f"`{loss}`: expected accuracy / Bayes accuracy",
                   [one.bayes_share for one in seeds], ">= 0.97", lambda x: x >= 0.97),
            Figure(f"`{loss}`: ECE before T, drawn labels",
                   [one.overall.before.ece for one in calibration], form=four),
            Figure(f"`{loss}`: ECE after T, drawn labels",
                   [one.ece for one in after], *below, four),
            Figure(f"`{loss}`: ECE that chance alone gives with these labels",
                   [one.ece_by_chance for one in after], form=four),
            Figure(f"`{loss}`: ECE after T, known odds (chance gives 0)",
                   [one.ece_true for one in seeds], *below, four),
            Figure(f"`{loss}`: fitted T", [one.temperature for one in calibration]),
            Figure(f"`{loss}`: fitted T / best T on the test pairs - 1, known odds",
                   [one.temperature_off for one in seeds], "within 0.1", lambda x: abs(x) <= 0.1,
                   "{:+.3f}"),
            Figure(f"`{loss}`: NLL after T less that of the true odds, known odds",
                   [one.nll_true - one.nll_bayes for one in seeds], form=four),
            Figure(f"`{loss}`: R^2 of the reward explained by length",
                   [one.length_r2 or 0.0 for one in calibration], form=four),
        ]  # fmt: skip
    overlaps = zip(*(one.overlap_aurocs for one in purm), strict=True)
    return [
        *found,
        Figure("`purm`: NLL after T less that of `bt` of the same seed, known odds",
               [one.nll_true - other.nll_true for one, other in zip(purm, bt, strict=True)],
               "<= 0", lambda x: x <= 0, "{:+.4f}"),
        Figure("`purm`: AUROC of its deviation, grammar B against A",
               [one.deviation_auroc for one in purm], *above),
        *(Figure(f"`{loss}`: AUROC of the deviation by the head's posterior, B against A",
                 [one.posterior_auroc for one in seeds], *above)
          for loss, seeds in (("bt", bt), ("purm", purm))),
        *(Figure(f"`purm`: AUROC of its overlap with {others}, B against A", values)
          for others, values in zip(("answers of A", "answers of both"), overlaps, strict=True)),
        Figure(f"{len(bt)} `bt`, whitened: AUROC of the deviation between them, B against A",
               [ensemble_auroc(bt)]),
        Figure("`bt` on labels that pay for length: R^2 explained by length",
               [paid.report.calibration.length_r2 or 0.0]),
        Figure("R^2 explained by length in the latent reward of those labels", [paid.latent_r2]),
    ]  # fmt: skip


def run(plan: Plan, work: Path, *, say: Callable[[str], None]) -> list[Figure]:
    """Train and measure everything.

    Args:
        plan: sizes and settings.
        work: empty folder for data, models and runs.
        say: called with what has been done.
    """

    def one(loss: str, seed: int, *, paid: bool = False) -> Trust:
        began = time.monotonic()
        weights = PAID_LENGTH if paid else None
        path = train(work, plan, loss=loss, seed=seed, weights=weights)
        trained = time.monotonic()
        found = measure(path, plan, seed=seed, weights=weights)
        say(
            f"{path.name}: fit {trained - began:.0f} s, measured {time.monotonic() - trained:.0f} "
            f"s, {found.bayes_share:.3f} of Bayes accuracy"
        )
        return found

    bt = [one("bt", seed) for seed in range(plan.seeds)]
    purm = [one("purm", seed) for seed in range(plan.seeds)]
    return figures(bt, purm, one("bt", 0, paid=True))


def table(found: Sequence[Figure]) -> str:
    """All figures in Markdown."""
    head = ["| figure | median [least, largest] | demand | reached |", "|--|--|--|--|"]
    return "\n".join([*head, *(figure.row() for figure in found)])


def page(plan: Plan, found: Sequence[Figure], *, minutes: float, cpu_minutes: float) -> str:
    """The whole text of the results."""
    template = Path(__file__).with_name("pages") / RESULTS.name
    return template.read_text(encoding="utf-8").format(
        plan=plan,
        table=table(found),
        minutes=minutes,
        cpu_minutes=cpu_minutes,
        at=f"{measured_with()}; {datetime.date.today().isoformat()}",
        load=os.getloadavg()[2],
    )


def main() -> None:
    args = options(__doc__, out=RESULTS)
    began, plan = time.monotonic(), Plan()
    with tempfile.TemporaryDirectory() as folder:
        found = run(plan, Path(folder), say=lambda text: print(text, flush=True))
    minutes, cpu_minutes = (time.monotonic() - began) / 60, time.process_time() / 60
    text = page(plan, found, minutes=minutes, cpu_minutes=cpu_minutes)
    args.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
