"""The `agentrl judge` commands: a reward function against what people think of the same answers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl.cli.console.start import open_console, prepare, read_config

if TYPE_CHECKING:
    from rich.table import Table

    from agentrl.config.plan import RewardPlan
    from agentrl.judges.agreement import JudgeAgreement
    from agentrl.judges.drift import JudgeDrift
    from agentrl.preflight.reward.judge_check import JudgedAnswers, LabelledAnswers

logger = logging.getLogger(__name__)

app = typer.Typer(
    no_args_is_help=True, help="Measure a judge, or any reward function, against labels."
)


@app.callback()
def group() -> None:
    """Measure a judge, or any reward function, against labels."""


@app.command()
def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Run file or run directory.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[section.key=value]...", help="Win over the file."),
    ] = None,
    data: Annotated[
        str, typer.Option("--data", metavar="FILE", help="Labelled answers, as dataset.source.")
    ] = "",
    split: Annotated[str, typer.Option(help="Split to take.")] = "train",
    function: Annotated[
        str | None, typer.Option(help="Name in reward.functions; needed where there are several.")
    ] = None,
    response: Annotated[str, typer.Option(help="Column of the answer.")] = "response",
    label: Annotated[str, typer.Option(help="Column of the label.")] = "score",
    reference: Annotated[
        str, typer.Option(help="Column of the right answer, the label of the task.")
    ] = "label",
    bounds: Annotated[
        str, typer.Option("--range", metavar="LOW:HIGH", help="Worst and best label.")
    ] = "0:1",
    limit: Annotated[int | None, typer.Option(min=1, help="Read only so many rows.")] = None,
    min_kappa: Annotated[
        float | None,
        typer.Option(min=-1.0, max=1.0, help="Fail if kappa is not surely above: its interval."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the verdicts, to compare with later ones."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Fail if the judge has drifted from these verdicts."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Numbers as JSON.")] = False,
) -> None:
    """Measure how well a judge of a run file agrees with people.

    FILE has rows with a prompt, a response and a score from 0 to 1 (or --range), of at most ten
    values. A score of the judge counts as the label that is nearest to it. Printed are accuracy
    with Wilson's interval, Cohen's kappa with a bootstrap over prompts, and the confusion matrix.

    With --against the verdicts are compared with those of an earlier --save on the same answers;
    the model is then asked afresh, whatever a cache holds.

    Exit status 1: an answer could not be judged, the lower end of kappa's interval is below
    --min-kappa, or mean score or kappa differ from those of --against by more than chance (95 %).
    """
    from agentrl.config.plan import plan_run
    from agentrl.errors import ConfigError
    from agentrl.judges.agreement import agreement
    from agentrl.judges.drift import drift, load_verdicts, save_verdicts
    from agentrl.preflight.reward.judge_check import LabelledAnswers

    prepare()
    if not data:
        raise ConfigError("--data is missing; give a file of labelled answers")
    low, high = _bounds(bounds)
    earlier = None if against is None else load_verdicts(against)
    settings, base = read_config(config, overrides or [])
    # A file named on the command line is looked for where the command runs.
    source = str(Path(data).absolute()) if Path(data).exists() else data
    answers = LabelledAnswers(
        source=source,
        split=split,
        response=response,
        label=label,
        reference=reference,
        low=low,
        high=high,
        limit=limit,
    )
    rewards = plan_run(settings, base).rewards
    judged = _judged(rewards, answers, function=function, fresh=earlier is not None)
    found = agreement(judged.cases, seed=seed) if judged.cases else None
    moved = (
        drift(earlier, judged.cases, seed=seed) if earlier is not None and judged.cases else None
    )
    if save is not None and judged.failures:
        logger.warning("%s is not written: not all answers could be judged", save)
    elif save is not None:
        save_verdicts(save, judged.function, judged.cases)
    _show(judged, found, moved, as_json=as_json)
    failed = bool(judged.failures) or found is None
    if found is not None and min_kappa is not None:
        failed |= found.kappa_interval is None or found.kappa_interval[0] < min_kappa
    failed |= moved is not None and bool(moved.drifted)
    raise typer.Exit(int(failed))


def _judged(
    rewards: RewardPlan, answers: LabelledAnswers, *, function: str | None, fresh: bool
) -> JudgedAnswers:
    """Ask the judge of a run file about all answers, with a count on the terminal."""
    from agentrl.preflight.reward.judge_check import judge_answers

    with open_console(stderr=True).status("") as status:

        def done(count: int, of: int) -> None:
            status.update(f"{count} of {of} answers judged")

        return asyncio.run(
            judge_answers(rewards, answers, function=function, fresh=fresh, done=done)
        )


def _show(
    judged: JudgedAnswers,
    found: JudgeAgreement | None,
    moved: JudgeDrift | None,
    *,
    as_json: bool,
) -> None:
    console = open_console()
    if as_json:
        console.file.write(json.dumps(_document(judged, found, moved), indent=2) + "\n")
    else:
        for line in _lines(judged, found):
            console.print(line, markup=False, soft_wrap=True)
        if found is not None:
            console.print(_confusion(found))
        for line in _drift_lines(moved) if moved is not None else []:
            console.print(line, markup=False, soft_wrap=True)


def _bounds(text: str) -> tuple[float, float]:
    from agentrl.errors import ConfigError

    low, _, high = text.partition(":")
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = 0.0, 0.0
    if not bounds[0] < bounds[1]:
        raise ConfigError(f"--range {text!r}: expected LOW:HIGH with LOW < HIGH, as in 1:5")
    return bounds


def _document(
    judged: JudgedAnswers, found: JudgeAgreement | None, moved: JudgeDrift | None
) -> dict[str, Any]:
    return {
        "function": judged.function,
        "agreement": None if found is None else asdict(found),
        "drift": None if moved is None else asdict(moved),
        "failures": list(judged.failures),
        "spent": judged.spent,
    }


def _lines(judged: JudgedAnswers, found: JudgeAgreement | None) -> list[str]:
    lines = []
    if found is not None:
        lines += [
            f"{judged.function}: {found.cases} answers",
            f"accuracy {found.accuracy:.3f} {_interval(found.accuracy_interval)}",
            f"Cohen's kappa {_value(found.kappa)} {_interval(found.kappa_interval)}",
        ]
        if len(found.values) > 2:
            lines.append(f"weighted by squared distance {_value(found.weighted_kappa)}")
        lines.append(f"mean score {found.mean_score:.3f}, mean label {found.mean_label:.3f}")
    if judged.failures:
        reasons = Counter(text.partition(": ")[2] for text in judged.failures)
        lines.append(f"answers that could not be judged: {len(judged.failures)}")
        lines += [f"  {count} x {text}" for text, count in reasons.most_common(3)]
    spent = judged.spent
    if spent:
        lines.append(
            f"{spent.get('served/requests', 0):.0f} requests, "
            f"{spent.get('served/cached', 0):.0f} answers known before, "
            f"{spent.get('served/prompt_tokens', 0):.0f} tokens read, "
            f"{spent.get('served/completion_tokens', 0):.0f} written, "
            f"cost {spent.get('served/cost', 0):.4g}"
        )
    return lines


def _drift_lines(moved: JudgeDrift) -> list[str]:
    lines = [
        f"against earlier verdicts: {moved.cases} answers, {moved.changed} have another score",
        f"mean score {moved.mean_then:.3f} -> {moved.mean_now:.3f}, "
        f"difference {_interval(moved.mean_interval)}",
        f"Cohen's kappa {_value(moved.kappa_then)} -> {_value(moved.kappa_now)}, "
        f"difference {_interval(moved.kappa_interval) or 'unknown'}",
    ]
    if moved.missing:
        lines.append(f"answers that are in one of the two only: {moved.missing}")
    names = {"mean": "mean score", "kappa": "kappa"}
    drifted = " and ".join(names[name] for name in moved.drifted)
    return [*lines, f"DRIFTED: {drifted}" if drifted else "no drift beyond chance"]


def _value(number: float | None) -> str:
    return "unknown (one value for all)" if number is None else f"{number:.3f}"


def _interval(bounds: Sequence[float] | None) -> str:
    return "" if bounds is None else f"[{bounds[0]:.3f}, {bounds[1]:.3f}]"


def _confusion(found: JudgeAgreement) -> Table:
    from rich.table import Table

    table = Table("label", *(f"judge {value:g}" for value in found.values), box=None)
    for value, counts in zip(found.values, found.confusion, strict=True):
        table.add_row(f"{value:g}", *map(str, counts))
    return table
