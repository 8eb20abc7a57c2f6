"""The `agentrl prefs` commands: preference pairs out of runs, what is wrong with pairs, and the
balance of their lengths."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agentrl.cli.console.start import open_console, prepare

if TYPE_CHECKING:
    from agentrl.fit.data.preferences.from_runs import Decode, PairCounts, PairMaker
    from agentrl.types import TrajectoryGroup

app = typer.Typer(
    no_args_is_help=True, help="Make preference pairs of stored rollouts, check and balance pairs."
)

_COLUMN = typer.Option(
    metavar="NAME=COLUMN", help="Where prompt, chosen, rejected, margin ... are."
)


@app.command()
def make(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN ...", help="Run directories.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to make.")],
    kind: Annotated[str, typer.Option(help="'train', or one 'eval/NAME'.")] = "train",
    by: Annotated[str, typer.Option(metavar="reward|score", help="What is compared.")] = "reward",
    min_gap: Annotated[float, typer.Option(min=1e-9, help="Least difference of a pair.")] = 1e-9,
    per_group: Annotated[int, typer.Option(min=1, help="Most pairs of a group.")] = 4,
    held_out: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of the tasks that go to heldout.parquet.")
    ] = 0.1,
    flip_scale: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Draw labels from sigmoid(difference * SCALE), so that the right "
            "probability of every pair is known.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
) -> None:
    """Make preference pairs of rollouts that had the same task and different rewards.

    OUT/train.parquet and OUT/heldout.parquet hold the very tokens that were sampled and their
    masks, and the same as text, so other trainers read them as plain pairs. No task is in both.
    OUT/images has the files of the images that were shown in them.
    """
    from agentrl.data.run.paths import RunPaths
    from agentrl.errors import DataError, RunError, choices
    from agentrl.fit.data.preferences.files import PairWriter
    from agentrl.fit.data.preferences.from_runs import PairMaker, PairParts, PairRules
    from agentrl.images import ImageFolder

    prepare()
    if by not in ("reward", "score"):
        raise RunError(f"--by: {choices(by, ('reward', 'score'))}")
    if out.exists() and any(out.glob("*.parquet")):
        raise RunError(f"--out {out} holds data already; name another folder, or remove it")
    console = open_console()
    what: Literal["reward", "score"] = "score" if by == "score" else "reward"
    maker = PairMaker(
        PairRules(by=what, min_gap=min_gap, per_group=per_group, flip_scale=flip_scale, seed=seed)
    )
    parts = PairParts(held_out, seed)
    shown = ImageFolder(RunPaths(out).images)
    with (
        PairWriter(out / "train.parquet") as train,
        PairWriter(out / "heldout.parquet") as heldout,
    ):
        for run in runs:
            decode = _decoder(run)
            if decode is None:
                text = f"{run} has no checkpoint with a tokenizer.json: its pairs have no texts"
                console.print(text, markup=False, soft_wrap=True)
            kept = ImageFolder(RunPaths(run).images)
            for where, group in _groups(run, kind):
                for pair in maker.pairs(str(run), where, group, decode):
                    apart = parts.is_held_out(pair)
                    if apart is None:
                        reason = "task and prompt are in different parts"
                        maker.counts.pairs_left_out[reason] += 1
                    else:
                        for span in (*pair.chosen.images, *pair.rejected.images):
                            shown.copy(span.digest, kept)
                        (heldout if apart else train).write(pair)
        if not train.count + heldout.count:
            raise DataError(
                f"no pair in {maker.counts.groups} groups of {', '.join(map(str, runs))} ({kind}): "
                f"{_left_out(maker.counts) or 'all rollouts of a group have the same ' + by}"
            )
    made = {"train": train, "heldout": heldout}
    rows = {part: writer.count for part, writer in made.items()}
    _write_origin(out, runs, kind, maker, rows)
    for part, writer in made.items():
        text = f"{writer.count} pairs of {len(writer.tasks)} tasks"
        where = f" in {out / part}.parquet" if writer.count else f" for the part {part!r}"
        console.print(text + where, markup=False, soft_wrap=True)
    left = _left_out(maker.counts)
    console.print(
        f"{maker.counts.without} of {maker.counts.groups} groups gave none"
        + (f"; {left}" if left else ""),
        markup=False,
        soft_wrap=True,
    )
    console.print(f"next: agentrl prefs check {out}", markup=False, soft_wrap=True)


@app.command()
def balance(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="File, folder, hf:NAME or module:function.")
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="File to make: .jsonl, or .parquet for sampled tokens."),
    ],
    split: Annotated[str, typer.Option(help="Split to take.")] = "train",
    column: Annotated[list[str] | None, _COLUMN] = None,
    width: Annotated[
        float,
        typer.Option(
            min=0.001, max=100.0, help="Of a class, in the logarithm of the ratio of lengths."
        ),
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Figures as JSON.")] = False,
) -> None:
    """Leave pairs out until length no longer tells the chosen one; write the others.

    Pairs are classed by the ratio of their lengths. Of each class as many stay whose chosen one is
    the longer as whose chosen one is the shorter; which of the more numerous kind is drawn by
    their ids. Pairs of equal lengths stay. Nothing of a pair is changed. The figures before and
    after are those of 'prefs check'.
    """
    from agentrl.errors import RunError
    from agentrl.fit.data.preferences.balance import balance_lengths
    from agentrl.fit.data.preferences.check import length_bias
    from agentrl.fit.data.preferences.load import load_pairs
    from agentrl.fit.data.preferences.write import write_pairs

    prepare()
    if out.exists():
        raise RunError(f"--out {out} is there already; name another file, or remove it")
    pairs = load_pairs(source, split=split, columns=_columns(column or []))
    found = balance_lengths(pairs, width=width, seed=seed)
    write_pairs(out, found.pairs, source=Path(source))
    before, after = (length_bias(each).detail for each in (pairs, found.pairs))
    console = open_console()
    if as_json:
        counts = {name: value for name, value in asdict(found).items() if name != "pairs"}
        figures = {"before": before, "after": after, "pairs": len(pairs), **counts}
        figures |= {"kept": len(found.pairs), "width": width, "seed": seed, "out": str(out)}
        console.file.write(json.dumps(figures, indent=2) + "\n")
        return
    for text in (
        f"before: {before}",
        f"after:  {after}",
        f"{len(found.pairs)} of {len(pairs)} pairs in {out}: {found.each} with the longer one "
        f"chosen and {found.each} with the shorter, in classes of the ratio of lengths "
        f"(width {width:g}; {found.classes} have both), and {found.equal} of equal lengths",
        f"left out: {found.longer_left_out} with the longer one chosen and "
        f"{found.shorter_left_out} with the shorter, drawn with seed {seed}",
        f"next: agentrl prefs check {out}",
    ):
        console.print(text, markup=False, soft_wrap=True)


@app.command()
def check(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="File, folder, hf:NAME or module:function.")
    ],
    split: Annotated[str, typer.Option(help="Split to take.")] = "train",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="The other part, whose prompts must not come here. Default for a folder of "
            "'prefs make': its heldout.parquet.",
        ),
    ] = None,
    against_split: Annotated[
        str | None, typer.Option(help="Split of --against, or of SOURCE where it has several.")
    ] = None,
    column: Annotated[list[str] | None, _COLUMN] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read only so many rows.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,
) -> None:
    """Find what is wrong with preference pairs before anything learns from them.

    Layouts are recognised by their columns: chosen and rejected with or without a prompt (TRL,
    OpenRLHF, hh-rlhf, UltraFeedback), scored completions, rated responses (HelpSteer2), two
    responses with a preference (HelpSteer3), and what 'prefs make' writes. Exit status 1: there is
    a failure.
    """
    from agentrl.cli.console.findings import findings_table
    from agentrl.errors import ConfigError
    from agentrl.fit.data.preferences.check import check_pairs
    from agentrl.fit.data.preferences.load import load_pairs
    from agentrl.types.finding import any_failed

    prepare()
    columns = _columns(column or [])
    pairs = load_pairs(source, split=split, columns=columns, limit=limit, collect_broken=True)
    theirs, their_split = against, against_split or "train"
    if against is None and against_split is not None:
        if Path(source).is_file():
            raise ConfigError(f"--against-split {against_split}: the file {source} has no splits")
        theirs = source
    elif against is None and split == "train" and (Path(source) / "heldout.parquet").is_file():
        theirs = str(Path(source) / "heldout.parquet")
    other = None
    if theirs is not None:
        other = load_pairs(theirs, split=their_split, columns=columns, collect_broken=True)
    findings = check_pairs(pairs, other)
    console = open_console()
    if as_json:
        console.file.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    else:
        console.print(findings_table(findings))
    raise typer.Exit(1 if any_failed(findings) else 0)


def _groups(run: Path, kind: str) -> Iterator[tuple[str, TrajectoryGroup]]:
    from agentrl.cli.traj.stored import check_kind, open_store
    from agentrl.disk.stored_groups import stored_groups

    store = open_store(run)
    check_kind(store, kind)
    for step in store.steps(kind):
        for group in stored_groups(store, kind, step):
            yield f"{kind} step {step}", group


def _decoder(run: Path) -> Decode | None:
    """Ids together to text, with special tokens; characters may be spread over several tokens."""
    from agentrl.inspect.read.reader import RunReader
    from agentrl.inspect.read.runs import FoundRun

    path = RunReader(FoundRun(id=run.name, path=run.resolve())).tokenizer_file()
    if path is None:
        return None
    tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def _columns(given: Sequence[str]) -> dict[str, str]:
    from agentrl.errors import ConfigError

    found: dict[str, str] = {}
    for word in given:
        name, equals, column = word.partition("=")
        if not equals or not column:
            raise ConfigError(f"--column {word!r}: expected NAME=COLUMN, as in chosen=better")
        found[name] = column
    return found


def _left_out(counts: PairCounts) -> str:
    parts = {"rollouts": counts.rollouts_left_out, "pairs": counts.pairs_left_out}
    return "; ".join(
        f"{what}: {', '.join(f'{why} ({n})' for why, n in reasons.most_common() if n)}"
        for what, reasons in parts.items()
        if reasons.total()
    )


def _write_origin(
    out: Path, runs: Sequence[Path], kind: str, maker: PairMaker, parts: dict[str, int]
) -> None:
    """Write `made.json`: the runs that the pairs come from, and by which rules."""
    from agentrl.data.store.atomic import atomic_file

    counts = maker.counts
    made = {
        "runs": [str(run.resolve()) for run in runs],
        "kind": kind,
        "rules": asdict(maker.rules),
        "groups": counts.groups,
        "groups_without_pair": counts.without,
        "rollouts_left_out": counts.rollouts_left_out,
        "pairs_left_out": counts.pairs_left_out,
        "parts": parts,
    }
    with atomic_file(out / "made.json") as file:
        file.write((json.dumps(made, indent=2) + "\n").encode())
