"""The tables of the report of a reward model, as text that Markdown and the page show alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.fit.rating.reward_report import RewardReport
from agentrl.reward.calibration import Calibration, TemperatureEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """One table of a report."""

    title: str
    """Heading of its part."""
    columns: tuple[str, ...]
    """Heads of the columns."""
    rows: Sequence[Sequence[str]]
    """Cells, as many in a row as there are columns; may be empty."""
    note: str
    """Sentence that stands for the rows where there are none, or below them; may be empty."""


def report_facts(report: RewardReport) -> dict[str, str]:
    """The most telling numbers, by their names."""
    found = report.calibration
    after = found.overall.after
    share = "unknown, as all scores are equal"
    if found.length_r2 is not None:
        share = f"{found.length_r2:.3f}"
    facts = {
        "model": report.model,
        "data": f"{report.data}, {after.pairs} pairs measured",
        "accuracy": f"{after.accuracy:.3f} [{after.accuracy_low:.3f}, {after.accuracy_high:.3f}]",
    }
    if report.temperature_problem:
        facts["no temperature"] = report.temperature_problem
    else:
        facts["temperature"] = f"{found.temperature:.4g}, fitted on {report.calibrated_on}"
        if report.temperature_prior:
            facts["prior"] = report.temperature_prior
    facts["variance that length explains"] = share
    facts |= _disagreement(report)
    if report.left_out:
        reasons = (f"{number} ({why})" for why, number in report.left_out.items())
        facts["left out"] = "; ".join(reasons)
    return facts


def report_tables(report: RewardReport) -> list[ReportTable]:
    """Calibration, reliability before and after the temperature, and probes, in this order."""
    overall = report.calibration.overall
    tables = [
        _calibration(report),
        _reliability("Reliability at temperature 1", overall.before),
        _reliability("Reliability at the temperature", overall.after),
        _probes(report),
    ]
    if report.temperature_problem:
        del tables[2]
    return tables


def scale_text(report: RewardReport) -> str:
    """The scale for RL in one line, or why there is none."""
    scale, heads = report.scale, report.head_scales
    if heads:
        return (
            f"of {len(heads)} heads, one for each: "
            f"temperature {_range([each.temperature for each in heads])}, "
            f"mean {_range([each.mean for each in heads])}, "
            f"deviation {_range([each.std for each in heads])}, of {report.whitened_on}"
        )
    if scale is None:
        return f"none: {report.scale_problem}"
    return (
        f"temperature {scale.temperature:.4g}, mean {scale.mean:.4g}, deviation {scale.std:.4g}, "
        f"of {report.whitened_on}"
    )


def _disagreement(report: RewardReport) -> dict[str, str]:
    """Facts of an ensemble; none of any other model."""
    found = report.disagreement
    if found is None:
        return {}
    parts = [f"{found.mean:.3g} on average between {found.members}"]
    for where, value in (("right", found.where_right), ("wrong", found.where_wrong)):
        if value is not None:
            parts.append(f"{value:.3g} in pairs ranked {where}")
    facts = {"deviation between members": ", ".join(parts)}
    if found.accuracies:
        facts["accuracy of one head alone"] = _range(found.accuracies)
    return facts


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.4g} to {max(values):.4g}"


def _calibration(report: RewardReport) -> ReportTable:
    found = report.calibration
    effects: dict[str, TemperatureEffect | None] = {
        "all": found.overall,
        "of one length": found.length_matched,
        **found.by_source,
    }
    rows: list[list[str]] = []
    for name, effect in effects.items():
        if effect is None:
            continue
        for when, each in (("before", effect.before), ("after", effect.after)):
            interval = f"[{each.accuracy_low:.3f}, {each.accuracy_high:.3f}]"
            rows.append(
                [
                    name,
                    when,
                    str(each.pairs),
                    f"{each.accuracy:.3f} {interval}",
                    f"{each.ece:.3f}",
                    f"{each.ece_by_chance:.3f}",
                    f"{each.max_error:.3f}",
                    f"{each.brier:.3f}",
                    f"{each.nll:.3f}",
                ]
            )
    columns = (
        "pairs of",
        "temperature",
        "pairs",
        "accuracy",
        "ECE",
        "by chance",
        "largest error",
        "Brier",
        "NLL",
    )
    return ReportTable(title="Calibration", columns=columns, rows=rows, note="")


def _reliability(title: str, found: Calibration) -> ReportTable:
    rows = [
        [str(each.count), f"{each.mean_p:.3f}", f"{each.share_right:.3f}"] for each in found.table
    ]
    return ReportTable(title=title, columns=("pairs", "mean p", "share right"), rows=rows, note="")


def _probes(report: RewardReport) -> ReportTable:
    note = ""
    if not report.probes:
        note = f"none: {report.not_probed} pairs without a text that could be changed"
    elif report.not_probed:
        note = f"{report.not_probed} pairs had no text that could be changed."
    rows = [
        [
            name,
            each.meaning,
            str(each.pairs),
            f"{each.below:.3f} [{each.below_low:.3f}, {each.below_high:.3f}]",
            f"{each.mean_drop:.3g}",
        ]
        for name, each in report.probes.items()
    ]
    return ReportTable(
        title="Probes",
        columns=("probe", "answer", "pairs", "scores below", "mean drop"),
        rows=rows,
        note=note,
    )
