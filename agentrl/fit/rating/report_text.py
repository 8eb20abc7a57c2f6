"""The report of a reward model as Markdown, which a terminal shows as well."""

from __future__ import annotations

from agentrl.fit.rating.report_tables import (
    ReportTable,
    report_facts,
    report_tables,
    scale_text,
)
from agentrl.fit.rating.reward_report import RewardReport


def report_markdown(report: RewardReport) -> str:
    """Headings, tables and one line for each warning."""
    lines = ["# Reward model", ""]
    lines += [f"- {name}: {text}" for name, text in report_facts(report).items()]
    for table in report_tables(report):
        lines += ["", f"## {table.title}", ""]
        if table.rows:
            lines += _table(table)
        if table.note:
            lines += [*([""] if table.rows else []), table.note]
    lines += ["", "## Scale", "", scale_text(report)]
    return "\n".join(lines) + "\n"


def _table(table: ReportTable) -> list[str]:
    """Columns of one width, so that the source reads well, too."""
    rows = ([cell.replace("|", "/") for cell in row] for row in table.rows)
    cells = [list(table.columns), *rows]
    widths = [max(len(row[index]) for row in cells) for index in range(len(table.columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return lines
