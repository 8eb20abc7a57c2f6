"""`agentrl doctor`: read a run, and report what is wrong with it, why, and which lever to pull."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.cli.console.findings import STYLES
from agentrl.errors import ConfigError, RunError
from agentrl.inspect.read.safe_terminal import visible
from agentrl.types.finding import Status

if TYPE_CHECKING:
    from agentrl.health import Evidence, History, Lever, RankedCause, Verdict

_TOO_LITTLE = re.compile(r"fewer than|too few|under \d|not logged|no metrics")
"""In the reason of a detector that did not judge; else the run lacks the part it is about."""


def command(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Run directory: running, finished, copied or torn."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    thresholds: Annotated[
        bool, typer.Option("--thresholds", help="List all thresholds with their sources, and end.")
    ] = False,
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another value for one threshold."),
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option("--detector", metavar="FILE.py:NAME", help="A detector of yours as well."),
    ] = None,
) -> None:
    """Judge a run by every detector; exit status 0 healthy, 1 findings."""
    from agentrl.health import DETECTORS, diagnose, read_history

    if thresholds:
        _list_thresholds(as_json)
        return
    if run is None:
        raise RunError("doctor needs a run directory, as in: agentrl doctor runs/NAME")
    history = read_history(run)
    more = [DETECTORS.find(target) for target in own or ()]
    verdicts = diagnose(history, _overrides(history, changed or ()), more=more)
    findings = [verdict for verdict in verdicts if verdict.status in ("fail", "warn")]
    if as_json:
        typer.echo(json.dumps(_report(run, history, verdicts), indent=1))
    else:
        console = Console(soft_wrap=True, highlight=False)
        for line in _lines(run, history, verdicts):
            console.print(line)
    raise typer.Exit(1 if findings else 0)


def _overrides(history: History, words: Sequence[str]) -> dict[str, float] | None:
    """The run's own thresholds with those of the command line; None where that adds nothing."""
    from agentrl.health import own_thresholds

    if not words:
        return None
    found = own_thresholds(history)
    for word in words:
        name, equals, value = word.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise ConfigError(
                f"--set {word!r}: expected NAME=NUMBER, as in --set kl_too_large/bound=5; "
                "agentrl doctor --thresholds lists the names"
            ) from None
        if not equals:
            raise ConfigError(f"--set {word!r}: expected NAME=NUMBER")
    return found


def _list_thresholds(as_json: bool) -> None:
    from agentrl.health import THRESHOLDS

    if as_json:
        typer.echo(json.dumps([asdict(item) for item in THRESHOLDS], indent=1))
        return
    table = Table("threshold", "value", "what is compared", "source", box=None, pad_edge=False)
    for item in THRESHOLDS:
        table.add_row(item.name, f"{item.value:g}", item.what, item.source)
    console = Console(soft_wrap=True)
    console.print(table)
    console.print("\nSet one with health.thresholds in the run file, or --set NAME=VALUE.")


def _report(run: Path, history: History, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What `--json` prints."""
    from agentrl.health import ranked_records, silent_rules

    return {
        "run": str(run),
        "status": _overall(history, verdicts),
        "steps": _steps(history),
        "hacked": _hacked(run, history, verdicts),
        **ranked_records(verdicts, str(run)),
        "verdicts": [verdict.as_dict() for verdict in verdicts],
        "proofs": _proofs(run),
        "notes": [*history.notes, *(silence.text for silence in silent_rules(history))],
    }


def _overall(history: History, verdicts: Sequence[Verdict]) -> str:
    held = {str(verdict.status) for verdict in verdicts}
    if not history.metrics:
        held.discard("ok")  # texts alone say little
    return next((name for name in ("fail", "warn", "ok") if name in held), "unknown")


def _steps(history: History) -> int:
    return max((series.steps[-1] for series in history.metrics.values()), default=0)


def _lines(run: Path, history: History, verdicts: Sequence[Verdict]) -> Iterator[Text]:
    from agentrl.health import causes, merged_levers, silent_rules

    ranked = causes(verdicts)
    kinds = {status: [v for v in verdicts if v.status is status] for status in Status}
    found = len(kinds[Status.FAIL]) + len(kinds[Status.WARN])
    counts = f"{_counted(len(ranked), 'cause')}"
    if found > len(ranked):
        counts += f" with {_counted(found - len(ranked), 'consequence')}"
    verdict = (counts, "bold")
    if not kinds[Status.FAIL] and not kinds[Status.WARN]:
        verdict = ("not enough data yet", "bold")
        if kinds[Status.OK] and _steps(history):
            most = len(kinds[Status.OK]) >= len(kinds[Status.UNKNOWN])
            verdict = ("healthy", "bold green") if most else ("nothing wrong seen", "bold")
            if _unseen(verdicts) is not None:
                verdict = ("nothing wrong seen, hacking cannot be told", "bold")
    yield Text.assemble(
        visible(str(run)),
        f": {_counted(_steps(history), 'step')}, ",
        verdict,
        f"; {_judged(kinds)}",
    )
    for note in (*history.notes, *(silence.text for silence in silent_rules(history))):
        yield Text.assemble(("note ", "dim"), visible(note))
    steps = {fact.rollout_id: (fact.kind, fact.step) for fact in history.rollouts}
    for cause in ranked:
        yield Text()
        yield from _cause(run, cause, steps)
    levers = merged_levers(ranked)
    if levers:
        yield Text()
        yield Text("change the run file, the first cause first:", style="bold")
        for lever, name in levers:
            yield _lever(lever, history.config, name if len(ranked) > 1 else "")
    yield Text()
    if kinds[Status.OK]:
        yield Text("ok          " + ", ".join(v.name for v in kinds[Status.OK]), style="dim")
    for line in _proofs(run):
        yield Text("computed    ", style="dim").append(visible(line))
    for verdict in kinds[Status.UNKNOWN]:
        yield Text(f"not judged  {verdict.name}: ", style="dim").append(visible(verdict.detail))
    if (hacked := _hacked(run, history, verdicts)) is not None:
        yield Text("hacked?     ").append(visible(f"{hacked['word']}: {hacked['headline']}"))
        yield Text.assemble(
            ("read them   agentrl traj hacking ", "dim"), visible(shlex.quote(str(run)))
        )
    elif (unseen := _unseen(verdicts)) is not None:
        yield Text("hacked?     cannot be told, since no score stands beside the reward: ").append(
            visible(unseen.detail)
        )
    yield Text.assemble(("look at it  agentrl inspect ", "dim"), visible(shlex.quote(str(run))))


def _hacked(run: Path, history: History, verdicts: Sequence[Verdict]) -> dict[str, Any] | None:
    """The inspector's answer to whether the reward is hacked; None where no rollout is stored."""
    from agentrl.inspect.pages.hacking.answer import answer_of
    from agentrl.inspect.pages.scores import eval_answers
    from agentrl.inspect.read.reader import RunReader
    from agentrl.inspect.read.runs import FoundRun

    if not history.rollouts:
        return None
    reader = RunReader(FoundRun(id=run.name, path=run.resolve()))
    reader.rows.refresh()
    answer = answer_of(reader, history, verdicts, eval_answers(reader, history))
    return {name: answer[name] for name in ("level", "word", "headline", "more")}


def _proofs(run: Path) -> list[str]:
    """How each model of the run compared with its own forward pass when it started."""
    from agentrl.disk.proof_lines import proof_lines
    from agentrl.inspect.read.reader import RunReader
    from agentrl.inspect.read.runs import FoundRun

    return proof_lines(RunReader(FoundRun(id=run.name, path=run.resolve())).identity())


def _unseen(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict of a run where only the reward judges: that no detector speaks is no answer."""
    quiet = (v for v in verdicts if v.name == "unscored_pay" and v.status is Status.OK)
    return next(quiet, None)


def _judged(kinds: Mapping[Status, Sequence[Verdict]]) -> str:
    """How many detectors had enough to judge by, and what the others lack."""
    unknown = kinds[Status.UNKNOWN]
    total = sum(map(len, kinds.values()))
    text = f"{total - len(unknown)} of {total} detectors judged it"
    if not unknown:
        return text
    few = sum(bool(_TOO_LITTLE.search(verdict.detail)) for verdict in unknown)
    reasons = ((few, "too few steps or missing metrics"), (len(unknown) - few, "no such part"))
    why = ", ".join(f"{count}: {reason}" for count, reason in reasons if count)
    return f"{text}, {len(unknown)} did not ({why})"


def _cause(run: Path, cause: RankedCause, steps: Mapping[str, tuple[str, int]]) -> Iterator[Text]:
    """A cause with its evidence, what follows from it, and the command that shows more."""
    from agentrl.health import next_command

    yield _headline(cause.verdict)
    for item in cause.verdict.evidence:
        yield from _evidence(run, item, steps)
    for verdict in cause.follows:
        yield Text.assemble("  so     ", _headline(verdict))
        for item in verdict.evidence:
            yield from (Text.assemble("       ", line) for line in _evidence(run, item, steps))
    command = next_command(cause.verdict, str(run))
    if command is not None:
        line, purpose = command
        yield Text.assemble("  next   ", visible(line, "cyan"), (f"  {purpose}", "dim"))


def _headline(verdict: Verdict) -> Text:
    since = "" if verdict.first_step is None else f"  (since step {verdict.first_step})"
    return Text.assemble(
        (verdict.status.upper(), STYLES[verdict.status]),
        (f" {verdict.name}: ", "bold"),
        visible(verdict.detail),
        (since, "dim"),
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _evidence(run: Path, item: Evidence, steps: Mapping[str, tuple[str, int]]) -> Iterator[Text]:
    yield Text.assemble("  saw    ", visible(item.text))
    for rollout in item.rollout_ids[:2]:
        kind, step = steps.get(rollout, ("train", item.last_step))
        words = ["agentrl", "traj", "show", str(run), "--kind", kind, "--step", str(step)]
        line = shlex.join([*words, "--rollout", rollout])
        yield Text.assemble("         ", visible(line, "dim"))


def _lever(lever: Lever, config: Mapping[str, Any], cause: str) -> Text:
    before = config.get(lever.key)
    was = "" if before is None else f" (is {_value(before)})"
    line = Text.assemble("  ", (f"{lever.key}: {_value(lever.value)}", "cyan"))
    line.append(visible(was)).append("  ").append(visible(lever.why, "dim"))
    return line.append(f" [{cause}]", style="dim") if cause else line


def _value(value: Any) -> str:
    text = json.dumps(value, default=str) if not isinstance(value, str) else value
    return text if len(text) <= 80 else text[:77] + "..."
