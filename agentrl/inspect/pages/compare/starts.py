"""The starts of two runs: why a comparison of them is not clean, and how far each came itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.inspect.pages.scores import score_metrics
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import shown
from agentrl.inspect.read.safe_terminal import number

_MODEL = "model.path"
_TARGET, _AGENT = "env.target", "env.args.agent"


def not_clean(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Differences before training, in a sentence; empty if model and environment are the same.

    Args:
        first: dotted keys of the config of side A.
        second: the same of side B.
    """
    sides = (first, second)
    found: list[str] = []
    models = [config.get(_MODEL) for config in sides]
    if None not in models and models[0] != models[1]:
        found.append(f"other starting model (A {models[0]}, B {models[1]})")
    environments = [_environment(config) for config in sides]
    if all(environments) and environments[0] != environments[1]:
        found.append(f"other environment (A {environments[0]}, B {environments[1]})")
    return shown(f"Not a clean comparison: {', '.join(found)}.", 1000) if found else ""


def own_changes(readers: Sequence[RunReader], kinds: Sequence[str]) -> str:
    """The first and the last score of each side on the data set that both evaluated; else empty.

    Args:
        readers: runs of both sides.
        kinds: kinds of their rollouts.
    """
    name = kinds[0].removeprefix("eval/")
    if readers[0] is readers[1] or kinds[0] != kinds[1] or name == kinds[0]:
        return ""
    said: list[str] = []
    for letter, reader in zip("AB", readers, strict=True):
        history = reader.curves()
        metric = score_metrics(history.metrics, history.config).get(name)
        curve = history.metrics[metric] if metric else None
        if curve is None or len(curve.values) < 2:
            return ""
        said.append(f"{letter} {number(curve.values[0])} -> {number(curve.values[-1])}")
    return f"Each against its own first evaluation: {', '.join(said)}."


def _environment(config: Mapping[str, Any]) -> str:
    target = str(config.get(_TARGET) or "").rpartition(":")[2]
    agent = config.get(_AGENT)
    return f"{target} with agent {agent}" if target and agent else target
