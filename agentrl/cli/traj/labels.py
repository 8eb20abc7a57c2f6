"""`agentrl traj label` and `labels`: reviewers' labels of rollouts and tokens."""

from __future__ import annotations

import dataclasses
import getpass
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.errors import RunError
from agentrl.health.measures.curves import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from agentrl.data.run.labels import RolloutLabel
    from agentrl.judges.reviewers import ReviewerAgreement

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]


def label(
    run: RunArgument,
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="Id of a stored rollout.")],
    words: Annotated[
        list[str] | None, typer.Option("--label", help="A word, as 'hacked'; may come again.")
    ] = None,
    comment: Annotated[str, typer.Option(help="Free text, kept with the words or alone.")] = "",
    tokens: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Only tokens A to B - 1 of the response of ROLLOUT."),
    ] = None,
    by: Annotated[str | None, typer.Option(help="The reviewer; default the user name.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="'train' or 'eval/NAME', if both have it.")
    ] = None,
    step: Annotated[
        str | None, typer.Option(metavar="N|first|last", help="Step, if several have it.")
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take back what the same reviewer has said.")
    ] = False,
) -> None:
    """Label a rollout, or some of its tokens; kept in RUN/labels.jsonl.

    Example: agentrl traj label runs/x 3/0007-sum/2 --label hacked --comment "prints the answer"
    """
    from agentrl.cli.traj.stored import console
    from agentrl.data.run.labels import RolloutLabel, add_label
    from agentrl.data.run.paths import RunPaths

    where_kind, where_step, size = _the_rollout(run, rollout, kind, step)
    first, end = (None, None) if tokens is None else _tokens(tokens, size)
    given = [
        RolloutLabel(
            kind=where_kind,
            step=where_step,
            rollout=rollout,
            by=by or getpass.getuser(),
            label=word,
            comment=comment,
            first_token=first,
            end_token=end,
        )
        for word in (words or [""])
    ]
    path = RunPaths(run).labels_file
    for one in given:
        try:
            add_label(path, one, taken_back=remove)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error}; labels are kept there") from error
    console().print(
        f"{len(given)} {'taken back' if remove else 'written'} in {path}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def labels(
    run: RunArgument,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print labels and agreement as JSON.")
    ] = False,
) -> None:
    """List labels and comments, how often each word was given, and how far reviewers agree."""
    from agentrl.cli.traj.stored import check_run, console
    from agentrl.data.run.labels import read_labels
    from agentrl.data.run.paths import RunPaths
    from agentrl.inspect.read.reader import RunReader
    from agentrl.inspect.read.run_labels import agreements_of
    from agentrl.inspect.read.runs import FoundRun

    check_run(run)
    found = read_labels(RunPaths(run).labels_file)
    reader = RunReader(FoundRun(id=run.name, path=run.resolve()))
    agreements = agreements_of(reader, found)
    if as_json:
        document = {
            "labels": [dataclasses.asdict(one) for one in found],
            "agreement": [dataclasses.asdict(one) for one in agreements],
        }
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    _print(console(), found, agreements)


def _the_rollout(
    run: Path, rollout: str, kind: str | None, step: str | None
) -> tuple[str, int, int]:
    """Kind and step of the rollout that is meant, and the tokens of its response."""
    from agentrl.cli.traj.stored import check_kind, open_store, step_number, summaries, unknown

    store = open_store(run)
    if kind is not None:
        check_kind(store, kind)
    known = [one for one in summaries(store) if kind in (None, one.kind)]
    if step is not None:
        number = step_number(step, {one.step for one in known})
        known = [one for one in known if one.step == number]
    found = [one for one in known if one.rollout_id == rollout]
    if not found:
        raise RunError(unknown("ROLLOUT", rollout, [one.rollout_id for one in known]))
    if len(found) > 1:
        places = ", ".join(f"--kind {one.kind} --step {one.step}" for one in found[:4])
        raise RunError(f"ROLLOUT {rollout!r} is stored {len(found)} times; say which one: {places}")
    one = found[0]
    rows = list(store.read(one.kind, step=one.step, rollout_ids=[rollout]))
    return one.kind, one.step, sum(len(row.trajectory.response_ids) for row in rows)


def _tokens(text: str, size: int) -> tuple[int, int]:
    first, colon, end = text.partition(":")
    if not colon or not first.isdecimal() or not end.isdecimal():
        raise RunError(f"--tokens {text!r}: expected A:B, positions in the response, as in 4:9")
    if not int(first) < int(end) <= size:
        raise RunError(f"--tokens {text}: expected A < B <= {size}, the tokens of the response")
    return int(first), int(end)


def _print(
    console: Console, found: Sequence[RolloutLabel], agreements: Sequence[ReviewerAgreement]
) -> None:
    from rich.table import Table

    from agentrl.inspect.read.safe_terminal import visible

    table = Table("kind", "step", "rollout", "tokens", "label", "by", "comment")
    for one in found:
        tokens = "" if one.first_token is None else f"{one.first_token}:{one.end_token}"
        texts = (one.kind, str(one.step), one.rollout, tokens, one.label, one.by, one.comment)
        table.add_row(*(visible(text) for text in texts))
    if found:
        console.print(table)
    counts = Counter(one.label for one in found if one.label)
    words = ", ".join(f"{word} {count}" for word, count in counts.most_common())
    lines = [f"{len(found)} labels and comments" + (f": {words}" if words else "")]
    lines += [
        f"{one.first} and {one.second}, {one.label or 'all words'}: the same on "
        f"{percent(one.share)} of {one.rollouts} rollouts, Cohen's kappa {_kappa(one)}"
        for one in agreements
    ]
    for line in lines:
        console.print(visible(line), soft_wrap=True)


def _kappa(one: ReviewerAgreement) -> str:
    from agentrl.inspect.read.safe_terminal import number

    if one.kappa is None:
        return "unknown (one answer to all)"
    ends = one.kappa_interval
    return number(one.kappa) + (f" [{number(ends[0])}, {number(ends[1])}]" if ends else "")
