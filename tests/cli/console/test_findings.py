"""The table in which commands show findings."""

from __future__ import annotations

import io
from dataclasses import dataclass

from rich.console import Console

from agentrl.cli.console.findings import MeasuredColumns, findings_table
from agentrl.types.finding import Finding, Status, any_failed, fail, warn


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed(Finding):
    seconds: float


def printed(table: object) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_row_is_status_name_and_detail_with_the_fix_below() -> None:
    found = [
        Finding(name="model", status=Status.OK, detail="works"),
        warn("kl", "no reference [bold] policy", "set algorithm.kl_coef: 0.001"),
        fail("disk", "full of \x1b[2J"),
    ]
    assert printed(findings_table(found)) == [
        "ok    model  works",
        "warn  kl     no reference [bold] policy",
        "             -> set algorithm.kl_coef: 0.001",
        "fail  disk   full of \\e[2J",
    ]
    assert any_failed(found)
    assert not any_failed(found[:2])


def test_a_measured_row_begins_with_its_name_and_takes_the_words_of_the_command() -> None:
    found = [
        Timed(name="fork_bomb", status=Status.OK, seconds=0.25),
        Timed(name="reset", status=Status.UNKNOWN, detail="too weak", seconds=0.0),
    ]
    columns = MeasuredColumns(
        headings=("check", "verdict", "seconds", "what was seen"),
        number=lambda finding: f"{finding.seconds:.2f}",
    )
    words = {Status.OK: "passed", Status.UNKNOWN: "not offered"}
    lines = printed(findings_table(found, words=words, columns=columns, title="Sandbox process"))
    assert [line.split() for line in lines] == [
        ["Sandbox", "process"],
        ["check", "verdict", "seconds", "what", "was", "seen"],
        ["fork_bomb", "passed", "0.25"],
        ["reset", "not", "offered", "0.00", "too", "weak"],
    ]
