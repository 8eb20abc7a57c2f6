"""The report of a reward model as Markdown, which a terminal shows as well."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.reward.calibration import Calibration, TemperatureEffect
from agentrl.runtime.fit.rating.reward_report import RewardReport


def report_markdown(report: RewardReport) -> str:
    """Headings, tables and one line for each warning."""
    found = report.calibration
    after = found.overall.after
    lines = [
        "# Reward model",
        "",
        f"- model: {report.model}",
        f"- data: {report.data}, {after.pairs} pairs measured",
        f"- accuracy: {after.accuracy:.3f} [{after.accuracy_low:.3f}, {after.accuracy_high:.3f}]",
    ]
    if report.temperature_problem:
        lines.append(f"- no temperature: {report.temperature_problem}")
    else:
        lines.append(f"- temperature: {found.temperature:.4g}, fitted on {report.calibrated_on}")
    share = "unknown, as all scores are equal" if found.length_r2 is None else None
    lines.append(
        f"- variance that length explains: {share or f'{100 * (found.length_r2 or 0):.1f} %'}"
    )
    lines += [f"- left out: {number} ({why})" for why, number in report.left_out.items()]
    lines += ["", "## Calibration", "", *_calibrations(report)]
    lines += ["", "## Reliability at the temperature", "", *_reliability(after)]
    lines += ["", "## Probes", "", *_probes(report)]
    lines += ["", "## Scale", ""]
    if report.scale is None:
        lines.append(f"none: {report.scale_problem}")
    else:
        scale = report.scale
        lines.append(
            f"temperature {scale.temperature:.4g}, mean {scale.mean:.4g}, deviation "
            f"{scale.std:.4g}, of {report.whitened_on}"
        )
    return "\n".join(lines) + "\n"


def _calibrations(report: RewardReport) -> list[str]:
    found = report.calibration
    effects: dict[str, TemperatureEffect | None] = {
        "all": found.overall, "of one length": found.length_matched, **found.by_source,
    }  # fmt: skip
    rows = []
    for name, effect in effects.items():
        if effect is None:
            continue
        for when, each in (("before", effect.before), ("after", effect.after)):
            interval = f"[{each.accuracy_low:.3f}, {each.accuracy_high:.3f}]"
            rows.append([
                name, when, str(each.pairs), f"{each.accuracy:.3f} {interval}", f"{each.ece:.3f}",
                f"{each.ece_by_chance:.3f}", f"{each.max_error:.3f}", f"{each.brier:.3f}",
                f"{each.nll:.3f}",
            ])  # fmt: skip
    titles = ["pairs of", "temperature", "pairs", "accuracy", "ECE", "by chance", "largest error",
              "Brier", "NLL"]  # fmt: skip
    return _table(titles, rows)


def _reliability(found: Calibration) -> list[str]:
    rows = [[str(each.count), f"{each.mean_p:.3f}", f"{each.share_right:.3f}"]
            for each in found.table]  # fmt: skip
    return _table(["pairs", "mean p", "share right"], rows)


def _probes(report: RewardReport) -> list[str]:
    if not report.probes:
        return [f"none: {report.not_probed} pairs without a text that could be changed"]
    rows = [
        [name, each.meaning, str(each.pairs),
         f"{each.below:.3f} [{each.below_low:.3f}, {each.below_high:.3f}]", f"{each.mean_drop:.3g}"]
        for name, each in report.probes.items()
    ]  # fmt: skip
    lines = _table(["probe", "answer", "pairs", "scores below", "mean drop"], rows)
    if report.not_probed:
        lines += ["", f"{report.not_probed} pairs had no text that could be changed."]
    return lines


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of one width, so that the source reads well, too."""
    cells = [list(titles), *([cell.replace("|", "/") for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(titles))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
             + " |" for row in cells]  # fmt: skip
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return lines
