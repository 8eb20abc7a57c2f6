"""`agentrl traj query` and `traj find`: ask a run in SQL, or for words."""

from __future__ import annotations

import enum
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.cli.traj.stored import check_run
from agentrl.errors import RunError, choices
from agentrl.inspect.pages.find_line import FILTERS

if TYPE_CHECKING:
    from agentrl.inspect.query.result import Answer

_CELL_CHARS = 200
_TABLE_ROWS = 1000

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]


class AnswerFormat(enum.StrEnum):
    """Format in which an answer is printed or written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def query(
    run: RunArgument,
    sql: Annotated[
        str,
        typer.Argument(
            metavar="SELECT",
            help="One SELECT over trajectories, turns, calls, tokens, metrics; "
            "'describe trajectories' lists columns.",
        ),
    ],
    format: Annotated[
        AnswerFormat | None, typer.Option(help="Default: what FILE's name says, else a table.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it there.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Most rows; default {_TABLE_ROWS} for a table, else all."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds the query may take.")] = 60.0,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten long cells.")] = False,
) -> None:
    """Ask in SQL (DuckDB's), read only, as the inspector does.

    Evaluations are rows, too: kind is 'train' or 'eval/NAME'.

    Example: agentrl traj query runs/x "select step, avg(reward) from trajectories where
    kind='train' group by 1 order by 1"
    """
    from agentrl.inspect.query.sql import Queries

    check_run(run)
    format = format or _implied(out)
    if format is AnswerFormat.PARQUET and out is None:
        raise RunError("--format parquet: say which file to write with --out FILE")
    if limit is None and format is AnswerFormat.TABLE:
        limit = _TABLE_ROWS
    with Queries() as queries:
        answer = queries.ask(run, sql, limit=limit, timeout_s=timeout)
    say_notes(answer.notes)
    _show(answer, format, out, full)


def find(
    run: RunArgument,
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS", help=f"Text to find, and filters as in: {FILTERS}"),
    ],
    limit: Annotated[int, typer.Option(min=1, help="Most rollouts listed.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Find rollouts by their text, their score and how they ended.

    Example: agentrl traj find runs/x "not found" "reward<0.5" end:max_turns
    """
    from agentrl.inspect.pages.find import find_answer
    from agentrl.inspect.pages.find_line import parse_question
    from agentrl.inspect.query.result import finite
    from agentrl.inspect.read.reader import RunReader
    from agentrl.inspect.read.runs import FoundRun

    check_run(run)
    reader = RunReader(FoundRun(id=run.name, path=run.resolve()))
    answer = find_answer(reader, parse_question(" ".join(words), limit=limit))
    say_notes(answer["notes"])
    if as_json:
        for hit in answer["hits"]:
            sys.stdout.write(json.dumps(finite(hit)) + "\n")
        return
    _hits(answer)


def _implied(out: Path | None) -> AnswerFormat:
    if out is None:
        return AnswerFormat.TABLE
    suffix = out.suffix.removeprefix(".")
    if suffix not in list(AnswerFormat) or suffix == AnswerFormat.TABLE:
        raise RunError(f"--out {out}: say --format, {choices(suffix, AnswerFormat)}")
    return AnswerFormat(suffix)


def _hits(answer: Mapping[str, Any]) -> None:
    from agentrl.inspect.read.safe_terminal import number, visible

    _plain_errors()
    table = Table("step", "kind", "reward", "ended by")
    table.add_column("rollout", overflow="fold")
    table.add_column("where", overflow="fold")
    for hit in answer["hits"]:
        where = Text()
        if hit["snippet"]:
            before, match, after = (re.sub(r"\s+", " ", part) for part in hit["snippet"])
            where = visible(before[-30:]).append_text(visible(match, "bold"))
            where.append_text(visible(after[:40]))
        table.add_row(
            str(hit["step"]),
            visible(hit["kind"]),
            number(hit["reward"]),
            visible(hit["termination"]),
            visible(hit["rollout_id"]),
            where,
        )
    console = Console()
    console.print(table)
    shown = f", the first {len(answer['hits'])}" if answer["total"] > len(answer["hits"]) else ""
    text = f"{answer['total']} rollouts{shown}; agentrl traj show RUN --step N --rollout ID"
    console.print(text, style="dim", highlight=False, soft_wrap=True)


def say_notes(notes: Iterable[str]) -> None:
    """Name on stderr what could not be read."""
    from agentrl.inspect.read.safe_terminal import visible

    for note in notes:
        sys.stderr.write(f"left out {visible(note).plain}\n")


def _show(answer: Answer, format: AnswerFormat, out: Path | None, full: bool) -> None:
    from agentrl.inspect.query import result

    if format is AnswerFormat.PARQUET and out is not None:
        import pyarrow.parquet as pq

        from agentrl.data.store.atomic import atomic_file

        with atomic_file(out) as file:
            pq.write_table(answer.table, file, compression="zstd")
    elif format is AnswerFormat.TABLE:
        console = Console() if out is None else Console(file=out.open("w"), width=240)
        _table(answer, console, full)
    else:
        writer = result.answer_as_json if format is AnswerFormat.JSON else result.answer_as_csv
        if out is None:
            _print(writer(answer))
        else:
            _write(out, writer(answer))
    if out is not None:
        sys.stdout.write(f"{answer.table.num_rows} rows in {out}\n")


def _write(out: Path, pieces: Iterable[str]) -> None:
    from agentrl.data.store.atomic import atomic_file

    with atomic_file(out) as file:
        for piece in pieces:
            # A lone surrogate, which UTF-8 cannot hold, is spelled out.
            file.write(piece.encode(errors="backslashreplace"))


def _print(pieces: Iterable[str]) -> None:
    from agentrl.inspect.read.safe_terminal import visible

    _plain_errors()
    terminal = sys.stdout.isatty()
    for piece in pieces:
        # A file keeps the text as it is; a terminal must not interpret it.
        sys.stdout.write(visible(piece).plain if terminal else piece)


def _table(answer: Answer, console: Console, full: bool) -> None:
    from agentrl.inspect.read.safe_terminal import visible

    _plain_errors()
    table = Table()
    for name in answer.columns:
        table.add_column(visible(name), overflow="fold")
    for row in answer.rows():
        table.add_row(*(visible(_cell(value, full)) for value in row))
    console.print(table)
    more = "; there are more, see --limit" if answer.truncated else ""
    rows = answer.table.num_rows
    console.print(
        f"{rows} row{'s' * (rows != 1)} in {answer.took_s:.2f} s{more}",
        style="dim",
        highlight=False,
    )


def _cell(value: Any, full: bool) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if full or len(text) <= _CELL_CHARS:
        return text
    return f"{text[:_CELL_CHARS]} [... {len(text) - _CELL_CHARS} more]"


def _plain_errors() -> None:
    # What a terminal cannot show must not end the command.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
