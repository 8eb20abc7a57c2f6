"""The `agentrl rm` commands: measures reward models, and scores answers with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.cli.console.start import open_console, prepare

if TYPE_CHECKING:
    from agentrl.fit.rating.scored_pairs import NamedPairs

app = typer.Typer(no_args_is_help=True, help="Measure reward models, and score answers with them.")

_RM = typer.Argument(metavar="RM", help="Run directory of a fit, checkpoint folder or hub name.")
_DEVICE = typer.Option(help="auto, cpu, cuda or cuda:N.")
_TOKENS = typer.Option(min=16, help="Most packed tokens of a pass; longer answers are left out.")


@app.command()
def report(
    rm: Annotated[str, _RM],
    data: Annotated[
        str, typer.Option("--data", metavar="SOURCE", help="Held-out pairs, as of 'prefs check'.")
    ],
    split: Annotated[str, typer.Option(help="Split to take, where there are several.")] = "train",
    calibrate_on: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Pairs that the temperature is fitted on. Default: half of the prompts of "
            "--data, and the other half is measured.",
        ),
    ] = None,
    whiten_on: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Pairs whose answers give mean and deviation of the scale. Default: --data.",
        ),
    ] = None,
    store: Annotated[
        bool, typer.Option("--store", help="Write reward_scale.json beside the checkpoint.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Where the reports go. Default: RM."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read only so many rows.")] = None,
    probed: Annotated[int, typer.Option(min=0, help="Pairs that probes are made of.")] = 200,
    device: Annotated[str, _DEVICE] = "auto",
    batch_tokens: Annotated[int, _TOKENS] = 8192,
) -> None:
    """Measure a reward model on held-out pairs.

    Accuracy with Wilson's interval, calibration before and after one temperature, the share of the
    variance that length explains, all of it by source, and probes: answers made worse, which must
    score below their original; of an ensemble also the deviation between members. Writes
    report.json, report.md, reliability.svg (how often it is right where it says how sure it is,
    before and after the temperature) and report.html, which shows all of it and asks for nothing.
    """
    from agentrl.errors import ConfigError
    from agentrl.fit.rating.report_text import report_markdown
    from agentrl.fit.rating.reward_files import write_report
    from agentrl.fit.rating.reward_model import open_reward_model
    from agentrl.fit.rating.reward_report import measure_reward_model

    prepare()
    pairs = _pairs(data, split, limit)
    fitted = None if calibrate_on is None else _pairs(calibrate_on, split, limit)
    white = None if whiten_on is None else _pairs(whiten_on, split, limit)
    model = open_reward_model(rm, device=device, batch_tokens=batch_tokens)
    if model.folder is None and (store or out is None):
        raise ConfigError(
            f"{rm!r} is no folder: give --out, and leave out --store, or download it first"
        )
    with _counted("rows scored") as done:
        found = measure_reward_model(
            model, pairs, calibrate_on=fitted, whiten_on=white, probed=probed, done=done
        )
    written = write_report(found, model, out or Path(rm).expanduser(), store=store)
    console = open_console()
    console.print(report_markdown(found), markup=False, soft_wrap=True, end="")
    for path in written:
        console.print(f"wrote {path}", markup=False, soft_wrap=True)


@app.command()
def posterior(
    rm: Annotated[str, _RM],
    data: Annotated[
        str, typer.Option("--data", metavar="SOURCE", help="Pairs of its fit, as of 'prefs check'.")
    ],
    against: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Pairs of other answers, to compare deviations with."),
    ] = None,
    split: Annotated[str, typer.Option(help="Split to take, where there are several.")] = "train",
    limit: Annotated[int | None, typer.Option(min=1, help="Read only so many rows.")] = None,
    device: Annotated[str, _DEVICE] = "auto",
    batch_tokens: Annotated[int, _TOKENS] = 8192,
) -> None:
    """Write how sure the head of a reward model is, for `reward.models.NAME.uncertainty`.

    Reads the pairs of the fit once and writes reward_posterior.npz beside the checkpoint: the
    posterior of the head's weights by Laplace's approximation. The deviation that it gives a reward
    is larger for answers unlike those of the pairs; with `uncertainty` a run takes it off. Of the
    run of an ensemble every member gets its own.
    """
    from agentrl.errors import ConfigError
    from agentrl.fit.rating.head_posterior import (
        checkpoint_paths,
        measure_posterior,
        posterior_text,
    )
    from agentrl.fit.rating.reward_model import open_reward_model

    prepare()
    pairs = _pairs(data, split, limit)
    others = None if against is None else _pairs(against, split, limit)
    console = open_console()
    for path in checkpoint_paths(rm):
        model = open_reward_model(path, device=device, batch_tokens=batch_tokens)
        if model.folder is None:
            raise ConfigError(f"{rm!r} is no folder, but the posterior is a file in it")
        with _counted("rows read") as done:
            found = measure_posterior(model, pairs, against=others, done=done)
        console.print(posterior_text(found), markup=False, soft_wrap=True)
        written = found.posterior.save(model.folder)
        console.print(f"wrote {written}", markup=False, soft_wrap=True)


@app.command()
def score(
    rm: Annotated[str, _RM],
    file: Annotated[str, typer.Argument(metavar="FILE", help="Pairs or conversations.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of JSON lines to write.")],
    split: Annotated[str, typer.Option(help="Split to take, where there are several.")] = "train",
    device: Annotated[str, _DEVICE] = "auto",
    batch_tokens: Annotated[int, _TOKENS] = 8192,
) -> None:
    """Score every answer of a file.

    A line has the id and `score`, or `chosen` and `rejected` of a pair: raw scores, with `reward`
    where the checkpoint has a stored scale. The score of an ensemble is the mean of whitened ones,
    with `deviation` between them. Exit status 1: an answer could not be scored, and its
    line has an `error`.
    """
    from agentrl.fit.rating.reward_model import open_reward_model
    from agentrl.fit.rating.score_file import read_answers, write_scores

    prepare()
    items = read_answers(file, split=split)
    model = open_reward_model(rm, device=device, batch_tokens=batch_tokens)
    with _counted("answers scored") as done:
        failed = write_scores(model, items, out, done=done)
    text = f"{len(items) - failed} of {len(items)} scored; wrote {out}"
    open_console().print(text, markup=False, soft_wrap=True)
    raise typer.Exit(int(failed > 0))


def _pairs(source: str, split: str, limit: int | None) -> NamedPairs:
    from agentrl.fit.data.preferences.load import load_pairs
    from agentrl.fit.rating.scored_pairs import NamedPairs

    return NamedPairs(name=source, pairs=load_pairs(source, split=split, limit=limit))


@contextmanager
def _counted(what: str) -> Iterator[Callable[[int, int], None]]:
    """A line on the terminal that counts progress."""
    with open_console(stderr=True).status("") as status:
        yield lambda done, of: status.update(f"{done} of {of} {what}")
