"""The table of findings that every command with a report prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from agentrl.inspect.read.safe_terminal import visible
from agentrl.types.finding import Finding, Status

STYLES: Mapping[Status, str] = {
    Status.OK: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.UNKNOWN: "dim",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredColumns:
    """Headings of a table whose findings hold a number."""

    headings: Sequence[str]
    """Titles of the columns with the name, the status, the number and the detail."""
    number: Callable[[Any], str]
    """Number of a finding as it is printed; empty where it has none."""


def findings_table(
    findings: Iterable[Finding],
    *,
    words: Mapping[Status, str] | None = None,
    columns: MeasuredColumns | None = None,
    title: str | None = None,
) -> Table:
    """One row for each finding, and one below it for its fix.

    Args:
        findings: in the order of the report.
        words: what the command calls a status, as in `{Status.OK: "pass"}`.
        columns: adds headings and a number to each row, and begins it with the name; None begins
            it with the status.
        title: stands above the table.
    """
    table = Table(
        title=title, title_justify="left", show_header=columns is not None, box=None, pad_edge=False
    )
    for heading in columns.headings if columns else ("status", "name", "detail"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        word = (words or {}).get(finding.status, finding.status.value)
        status, name = visible(word, STYLES[finding.status]), visible(finding.name)
        detail = visible(finding.detail)
        if columns is None:
            table.add_row(status, name, detail)
        else:
            table.add_row(name, status, columns.number(finding), detail)
        if finding.fix:
            empty = [""] * (len(table.columns) - 1)
            table.add_row(*empty, visible(f"-> {finding.fix}", "italic"))
    return table
