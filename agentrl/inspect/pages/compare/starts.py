"""The starts of two runs: what they did not have in common, and how far each came itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from agentrl.inspect.pages.hacking.moved import reward_line
from agentrl.inspect.pages.scores import (
    eval_change,
    interval_text,
    paired_change,
    score_metrics,
)
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import shown
from agentrl.inspect.read.safe_terminal import number
from agentrl.inspect.read.task_scores import task_scores

MODEL = "model.path"
_TARGET, _AGENT, _PARSER = "env.target", "env.args.agent", "chat.tool_parser"


def start_differences(readers: Sequence[RunReader], kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Differences of two runs at their start, each as `what`, `a`, `b` and the `keys` it tells.

    The starting model and the form of the tasks make a comparison unclean (`unlike`); another
    choice of tasks does not, since only those that both tried are compared.

    Args:
        readers: runs of both sides.
        kinds: kinds of their rollouts.
    """
    configs = [reader.curves().config for reader in readers]
    found: list[dict[str, Any]] = []

    def add(what: str, values: Sequence[str], keys: Sequence[str], *, unlike: bool = True) -> None:
        if values[0] != values[1] and (all(values) or not unlike):
            a, b = (shown(value, 500) for value in values)
            found.append({"what": what, "a": a, "b": b, "keys": list(keys), "unlike": unlike})

    if not same_model(readers):
        add("starting model", [_model(reader) for reader in readers], [MODEL])
    add("form of the tasks", [_form(config) for config in configs], [_TARGET, _AGENT, _PARSER])
    sections = [_data_section(kind) for kind in kinds]
    settings = [
        {
            key.removeprefix(section): value
            for key, value in config.items()
            if key.startswith(section)
        }
        for section, config in zip(sections, configs, strict=True)
    ]
    unlike = [
        key
        for key in {**settings[0], **settings[1]}
        if settings[0].get(key) != settings[1].get(key)
    ]
    values = [
        ", ".join(f"{key.removeprefix('args.')} {of[key]}" for key in unlike if key in of)
        for of in settings
    ]
    add("choice of tasks", values, [f"{sections[0]}{key}" for key in unlike], unlike=False)
    return found


def same_model(readers: Sequence[RunReader]) -> bool:
    """True if two runs began with one model: by the digests of its files, else by its name."""
    files = [
        next((model.get("files") for model in _pinned(reader) if isinstance(model, dict)), None)
        for reader in readers
    ]
    if all(files):
        return files[0] == files[1]
    return _model(readers[0]) == _model(readers[1])


def own_changes(
    readers: Sequence[RunReader], kinds: Sequence[str], shared: Collection[str]
) -> list[str]:
    """The change of each of two runs from its own start to its end, with the interval; before it
    the scores of both starts on the tasks that both tried, which tell a head start from learning.

    Args:
        readers: runs of both sides.
        kinds: kinds of their rollouts.
        shared: ids of the tasks that both sides tried.
    """
    if readers[0] is readers[1]:
        return []
    sides = zip("AB", readers, kinds, strict=True)
    return [
        *_shared_starts(readers, kinds, shared),
        *(
            shown(f"{letter} ({reader.run.name}) by itself: {_own_change(reader, kind)}.", 1000)
            for letter, reader, kind in sides
        ),
    ]


def _shared_starts(
    readers: Sequence[RunReader], kinds: Sequence[str], shared: Collection[str]
) -> list[str]:
    """Both starts, and how far each came; none where one was not evaluated before training."""
    starts: list[dict[str, float]] = []
    gains: list[dict[str, float]] = []
    for reader, kind in zip(readers, kinds, strict=True):
        steps = reader.rows.steps(kind)
        if kind == "train" or len(steps) < 2:
            return []
        first, last = (
            task_scores(reader.paths.trajectories, kind, step) for step in (steps[0], steps[-1])
        )
        starts.append({task: score for task, score in first.items() if task in shared})
        came = {task: last[task] - score for task, score in starts[-1].items() if task in last}
        gains.append(came)
    common = sorted(starts[0].keys() & starts[1].keys())
    if not common:
        return []
    a, b = (number(fmean(of[task] for task in common)) for of in starts)
    change = paired_change(*starts)
    told = f", B - A = {interval_text(change)}" if change else ""
    found = [f"At the start, on {len(common)} shared tasks: A {a}, B {b}{told}."]
    if (apart := paired_change(*gains)) is not None:
        # A head start and what was learned add up to the difference at the end.
        both = sorted(gains[0].keys() & gains[1].keys())
        came = (number(fmean(of[task] for task in both), sign=True) for of in gains)
        found.append("Since then: A {}, B {}, B - A = {}.".format(*came, interval_text(apart)))
    return found


def _own_change(reader: RunReader, kind: str) -> str:
    history = reader.curves()
    if kind == "train":
        line = reward_line(history)
        change = line and line["change"]
        if not change:
            return "too few steps to compare"
        ends = f"{number(change['start'])} -> {number(change['end'])}"
        return f"training reward {ends}, {interval_text({**change, 'mean': change['gain']})}"
    name = kind.removeprefix("eval/")
    metric = score_metrics(history.metrics, history.config).get(name)
    curve = history.metrics[metric] if metric else None
    if curve is None or len(curve.values) < 2:
        return "evaluated only once"
    ends = f"{number(curve.values[0])} -> {number(curve.values[-1])}"
    change = eval_change(reader, name, curve.steps)
    over = f", {interval_text(change)} over its {change['tasks']} tasks" if change else ""
    return f"{ends}{over} (step {curve.steps[0]} -> {curve.steps[-1]})"


def _pinned(reader: RunReader) -> Sequence[Any]:
    models = reader.identity().get("models")
    found = models.get(MODEL) if isinstance(models, dict) else None
    return found if isinstance(found, list) else []


def _model(reader: RunReader) -> str:
    """Full name of the model that a run began with."""
    return str(reader.identity().get("model") or reader.curves().config.get(MODEL) or "")


def _form(config: Mapping[str, Any]) -> str:
    """Environment, agent, and how calls are written, in words; empty where it is not known."""
    target = str(config.get(_TARGET) or "").rpartition(":")[2]
    agent, parser = config.get(_AGENT), config.get(_PARSER)
    found = f"environment {target}" + (f" with agent {agent}" if agent else "")
    return found + (f", calls read as {parser}" if parser else "") if target else ""


def _data_section(kind: str) -> str:
    name = kind.removeprefix("eval/")
    return "dataset." if kind == "train" else f"eval.datasets.{name}."
