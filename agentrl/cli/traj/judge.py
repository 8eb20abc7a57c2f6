"""`agentrl traj judge`: a judge labels stored rollouts, for reviewers to agree with or not."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl.errors import ConfigError, RunError
from agentrl.types.solved import reaches

if TYPE_CHECKING:
    from agentrl.data import TrajectoryStore
    from agentrl.data.run.labels import RolloutLabel
    from agentrl.preflight.reward.rollout_judge import JudgedRollout
    from agentrl.types import Trajectory

_OWN = ("score", "reward")
"""Verdicts that are stored with a rollout: of the environment, and of all that grades."""


def judge(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    by: Annotated[
        str | None,
        typer.Option(
            "--judge",
            metavar="NAME",
            help="A name in reward.functions, or score or reward as stored; default the only one.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Run file with the judge; default the run's own."),
    ] = None,
    at_least: Annotated[
        float, typer.Option(help="Judge's score from which a rollout gets --label.")
    ] = 0.5,
    label: Annotated[str, typer.Option(help="Word for such rollouts.")] = "good",
    otherwise: Annotated[str, typer.Option(help="Word for the others.")] = "bad",
    kind: Annotated[str | None, typer.Option(help="'train' or 'eval/NAME'.")] = None,
    step: Annotated[
        str | None, typer.Option(metavar="N|first|last", help="Step; default the last one.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Judge only so many groups of the step.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print labels and counts as JSON.")
    ] = False,
) -> None:
    """Label the rollouts of a step with a judge; kept in RUN/labels.jsonl as judge:NAME.

    A judge is a reward function, such as `agentrl.judges:rubric_judge` with a served model, or the
    verdict of the environment. It sees tasks and rollouts as in a run. Labels of people stay as
    they are; `agentrl traj labels` prints how far both agree. Exit status 1: a rollout could not be
    judged.

    Example: agentrl traj judge runs/x --judge helpful --at-least 0.7 --label ok --otherwise hacked
    """
    from agentrl.cli.traj.stored import check_kind, console, open_store, step_number
    from agentrl.data.run.labels import JUDGE, RolloutLabel
    from agentrl.data.run.paths import RunPaths

    if label == otherwise:
        raise RunError(f"--label and --otherwise are both {label!r}; give two different words")
    store = open_store(run)
    kind = kind or store.kinds()[0]
    check_kind(store, kind)
    number = step_number(step, store.steps(kind)) if step else store.steps(kind)[-1]
    groups = _groups(store, kind, number, limit)
    name, judged = _judge(run, config, by, kind, groups)
    given = [
        RolloutLabel(
            kind=kind,
            step=number,
            rollout=one.rows[-1].rollout_id,
            by=f"{JUDGE}{name}",
            label=label if reaches(one.score, at_least) else otherwise,
            comment=_comment(one),
        )
        for one in judged
        if one.score is not None
    ]
    path = RunPaths(run).labels_file
    try:
        _write(path, given)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}; labels are kept there") from error
    counts = Counter(one.label for one in given)
    failed = Counter(one.said for one in judged if one.score is None)
    if as_json:
        document = {
            "judge": name,
            "kind": kind,
            "step": number,
            "file": str(path),
            "labels": [asdict(one) for one in given],
            "counts": dict(counts.most_common()),
            "not_judged": dict(failed.most_common()),
        }
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
        raise typer.Exit(int(bool(failed)))
    words = ", ".join(f"{word} {count}" for word, count in counts.most_common())
    lines = [f"{JUDGE}{name}: {len(given)} labels in {path}" + (f": {words}" if words else "")]
    lines += [f"not judged: {n} x {why}" for why, n in failed.most_common(3)]
    for line in lines:
        console().print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(int(bool(failed)))


def _groups(
    store: TrajectoryStore, kind: str, step: int, limit: int | None
) -> list[list[list[Trajectory]]]:
    """Rows of the rollouts of each group, those that ended as infrastructure does left out."""
    rows: dict[str, dict[str, list[Trajectory]]] = {}
    for stored in store.read(kind, step=step):
        row = stored.trajectory
        if row.rule.reward_trusted:
            rows.setdefault(row.group_id, {}).setdefault(row.rollout_id, []).append(row)
    groups = [
        [sorted(of, key=lambda row: row.row_index) for of in group.values()]
        for group in islice(rows.values(), limit)
    ]
    if not groups:
        raise RunError(f"{kind} step {step} has no rollout that can be judged; name another --step")
    return groups


def _judge(
    run: Path,
    config: Path | None,
    name: str | None,
    kind: str,
    groups: Sequence[Sequence[Sequence[Trajectory]]],
) -> tuple[str, list[JudgedRollout]]:
    from agentrl.cli.console.start import prepare, read_config
    from agentrl.cli.traj.stored import console
    from agentrl.config.plan import plan_run
    from agentrl.preflight.reward.judge_check import chosen_function
    from agentrl.preflight.reward.rollout_judge import JudgedRollout, judge_rollouts, stored_tasks

    if name in _OWN:
        return name, [
            JudgedRollout(rows=tuple(rows), score=getattr(rows[-1], name), said="")
            for group in groups
            for rows in group
        ]
    prepare()
    own = plan_run(*read_config(run, []))
    rewards = (own if config is None else plan_run(*read_config(config, []))).rewards
    try:
        name = chosen_function(rewards.reward, name)
    except ConfigError as error:
        raise ConfigError(f"{error}; or --judge {' or '.join(_OWN)}, as stored") from error
    tasks = stored_tasks(own.tasks, kind)
    with console().status("") as status:

        def done(count: int) -> None:
            status.update(f"{count} rollouts judged")

        found = judge_rollouts(rewards, groups, tasks, function=name, done=done)
        return name, asyncio.run(found)


def _comment(one: JudgedRollout) -> str:
    from agentrl.data.run.labels import LONGEST_COMMENT

    return f"{one.score:.3g}\n{one.said}".strip()[:LONGEST_COMMENT]


def _write(path: Path, given: Sequence[RolloutLabel]) -> None:
    """Append labels; another word of the same judge for the same rollout is taken back."""
    from agentrl.data.run.labels import add_label, labels_by_rollout

    before = labels_by_rollout(path)
    for one in given:
        for old in before.get(one.key, ()):
            if old.by == one.by and old.label != one.label and old.first_token is None:
                add_label(path, old, taken_back=True)
        add_label(path, one)
