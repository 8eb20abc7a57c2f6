"""Rules that may hold or end a run: `METRIC OP NUMBER for N steps -> ACTION`.

Pure: what a rule says is a function of the metric's values, step by step, and of nothing else. So a
run that was killed and goes on decides as it would have decided, from `metrics.jsonl`.

A streak is a row of steps that have the metric and break the bound, up to the latest that has it.
Steps without the metric (an evaluation every tenth step) neither break a streak nor count in it; a
metric that was never there, or is gone for longer than ever before, is a silence, and is named. A
value that is NaN or infinite breaks every bound: a run whose KL is no number is not a healthy one.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from agentrl.errors import ConfigError
from agentrl.health.records import History
from agentrl.metrics.catalog import CATALOG, FIT
from agentrl.metrics.names import find_metric


class RuleAction(StrEnum):
    """Action of a rule, in order from the mildest."""

    WARN = "warn"
    """Log it, once a streak."""
    PAUSE = "pause"
    """Save, and wait for a person."""
    ROLLBACK = "rollback"
    """Go back to weights from before the streak, and on from there with other rollouts."""
    STOP = "stop"
    """Save, score and end."""


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = "METRIC OP NUMBER for N steps -> ACTION, as in 'kl > 2 for 20 steps -> stop'"
_OPERATOR = re.compile(r"[<>=!]+")
_BOUND = re.compile(r"^(?P<number>\S+)(?:\s+for\s+(?P<steps>\S+)\s+steps?)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule over one metric."""

    metric: str
    """Name as logged."""
    op: str
    """`>`, `>=`, `<` or `<=`."""
    bound: float
    """Value that the metric is compared with."""
    steps: int
    """Steps in a row that must break the bound."""
    action: RuleAction
    """Action when the condition holds."""

    @property
    def text(self) -> str:
        """The rule as it is written."""
        unit = "step" if self.steps == 1 else "steps"
        return f"{self.metric} {self.op} {self.bound:g} for {self.steps} {unit} -> {self.action}"

    @property
    def of_evaluation(self) -> bool:
        """True if the metric of a step is measured on the weights after it, not before it."""
        return self.metric.startswith("eval/")

    def broken_by(self, value: float) -> bool:
        """True if the value counts towards a streak."""
        return not math.isfinite(value) or _COMPARE[self.op](value, self.bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streak:
    """The latest steps that break a rule's bound, without one between that keeps it."""

    rule: Rule
    """Whose."""
    steps: tuple[int, ...]
    """Ascending; empty where the latest value keeps the bound."""
    values: tuple[float, ...]
    """One for each step."""
    last_good: int | None
    """The last step that kept the bound; None if none did."""

    @property
    def due(self) -> bool:
        """True if the streak is long enough for the rule to act."""
        return len(self.steps) >= self.rule.steps

    @property
    def good_weights(self) -> int | None:
        """Newest step after which the weights are known to keep the bound; None without one.

        Training measures the weights that step n begins with, those after step n - 1.
        """
        if self.last_good is None:
            return None
        return self.last_good if self.rule.of_evaluation else max(0, self.last_good - 1)

    @property
    def evidence(self) -> str:
        """The evidence of the streak in words.

        Example:
            >>> rule = parse_rule("kl > 2 for 3 steps -> stop")
            >>> streak_of(rule, {1: 0.1, 2: 2.5, 3: 3.0, 4: 2.25}, until=4).evidence
            'kl was 2.5, 3, 2.25 at steps 2-4'
        """
        if not self.steps:
            return f"{self.rule.metric} keeps the bound"
        shown = [f"{value:.4g}" for value in self.values]
        if len(shown) > _SHOWN:
            shown = [*shown[:2], "...", *shown[-2:]]
        first, last = self.steps[0], self.steps[-1]
        where = f"step {first}" if first == last else f"steps {first}-{last}"
        if len(self.steps) > _SHOWN:
            where += f", {len(self.steps)} in a row"
        return f"{self.rule.metric} was {', '.join(shown)} at {where}"


_SHOWN = 5


def parse_rules(
    texts: Sequence[str], *, datasets: Collection[str] | None = None, where: str = "health.rules"
) -> tuple[Rule, ...]:
    """Parse every rule of a config.

    Args:
        texts: as in `parse_rule`.
        datasets: names of the evaluations that there are; None allows any.
        where: names the rules in errors.

    Raises:
        ConfigError: the first that cannot be read, with its key, or one that occurs twice.
    """
    rules = tuple(
        parse_rule(text, datasets=datasets, where=f"{where}[{index}]")
        for index, text in enumerate(texts)
    )
    for index, rule in enumerate(rules):
        if rule in rules[:index]:
            raise ConfigError(
                f"{where}[{index}]: {texts[index]!r} says the same as "
                f"{where}[{rules.index(rule)}]; remove one"
            )
    return rules


def parse_rule(text: str, *, datasets: Collection[str] | None = None, where: str = "rule") -> Rule:
    """Parse one rule; `for 1 step` may be left out.

    An unknown metric is refused only if its name is close to a known one: losses and
    environments of others log names of their own.

    Args:
        text: as in `entropy < 0.05 for 10 steps -> rollback`.
        datasets: names of the evaluations that there are; None allows any.
        where: names the rule in errors.

    Raises:
        ConfigError: what is wrong, and what would be right.
    """
    label = f"{where}: {text!r}"
    condition, arrow, action = (part.strip() for part in text.partition("->"))
    if not arrow:
        raise ConfigError(f"{label} has no '-> ACTION'; expected {_FORM}")
    found = _OPERATOR.search(condition)
    if found is None or not condition[: found.start()].strip():
        missing = "names no metric" if found else "compares nothing"
        raise ConfigError(f"{label} {missing}; expected {_FORM}")
    if found[0] not in _COMPARE:
        raise ConfigError(f"{label}: operator {found[0]!r} is none of {_list(_COMPARE)}")
    metric = condition[: found.start()].strip()
    _check_metric(metric, datasets, label)
    bound, steps = _bound(condition[found.end() :].strip(), label)
    if action not in list(RuleAction):
        near = _near(action, [item.value for item in RuleAction])
        raise ConfigError(f"{label}: action {action!r} is none of {_list(RuleAction)}{near}")
    return Rule(metric=metric, op=found[0], bound=bound, steps=steps, action=RuleAction(action))


def streak_of(rule: Rule, values: Mapping[int, float], *, until: int) -> Streak:
    """The streak of a rule at a step.

    Args:
        rule: whose.
        values: step to value of its metric; steps without the metric are not in it.
        until: later steps are not looked at.
    """
    steps: list[int] = []
    last_good: int | None = None
    for step in sorted((step for step in values if step <= until), reverse=True):
        if not rule.broken_by(values[step]):
            last_good = step
            break
        steps.append(step)
    steps.reverse()
    return Streak(
        rule=rule,
        steps=tuple(steps),
        values=tuple(values[step] for step in steps),
        last_good=last_good,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Training steps without the metric of a rule."""

    rule: Rule
    """Whose."""
    first_step: int
    """First step of them."""
    steps: int
    """Number of them."""
    seen_before: bool
    """Whether the metric was there before."""
    near: str
    """As in `; did you mean 'kl'?`, from what the run logs."""

    @property
    def text(self) -> str:
        """The silence in words."""
        metric, since = self.rule.metric, "so far"
        if self.seen_before:
            since = f"since step {self.first_step - 1}"
        unit = "step" if self.steps == 1 else "steps"
        return (
            f"health.rules: '{self.rule.text}' has seen no {metric} {since} ({self.steps} {unit}), "
            "so it watches over nothing; some metrics are there only with the setting that makes "
            f"them (kl with a reference model, say){self.near}"
        )


def silence_of(
    rule: Rule, values: Mapping[int, float], *, trained: Sequence[int], names: Collection[str]
) -> Silence | None:
    """The silence of a rule, None while its metric comes as it used to.

    A metric that never came is missed after three steps, one of an evaluation at the first
    evaluation of that name. One that came is missed when it stays away for more than twice as many
    steps as ever before, and for more than three.

    Args:
        rule: whose.
        values: step to value of its metric.
        trained: training steps done, ascending.
        names: every metric that the run has logged.

    Example:
        >>> rule = parse_rule("entropy < 0.05 for 10 steps -> stop")
        >>> silence_of(rule, {1: 0.9, 2: 0.8}, trained=[1, 2, 3, 4, 5], names=[]) is None
        True
        >>> silence_of(rule, {1: 0.9, 2: 0.8}, trained=[*range(1, 7)], names=[]).first_step
        3
    """
    if not trained:
        return None
    seen = sorted(values)
    if not seen and rule.of_evaluation:
        dataset = rule.metric.rpartition("/")[0] + "/"
        if not any(name.startswith(dataset) for name in names):
            return None
    elif not seen and len(trained) < _SILENT_STEPS:
        return None
    last = seen[-1] if seen else None
    absent = [step for step in trained if last is None or step > last]
    if last is not None:
        marks = [min(trained[0] - 1, seen[0]), *seen]
        usual = max(
            sum(before < step < after for step in trained) for before, after in pairwise(marks)
        )
        if len(absent) <= max(_SILENT_STEPS, 2 * usual):
            return None
    near = _near(rule.metric, names) if last is None else ""
    return Silence(
        rule=rule,
        first_step=absent[0] if absent else trained[-1],
        steps=len(absent),
        seen_before=last is not None,
        near=near,
    )


_SILENT_STEPS = 3


def silent_rules(history: History) -> list[Silence]:
    """Rules of a run's config whose metric it does not log, or no longer."""
    trained = history.metrics.get("timing_s/step")
    found: list[Silence] = []
    for text in history.config.get("health.rules") or ():
        try:
            rule = parse_rule(str(text))
        except ConfigError:  # of another version; runs are read leniently
            continue
        series = history.metrics.get(rule.metric)
        values = dict(zip(series.steps, series.values, strict=True)) if series else {}
        values |= dict.fromkeys(history.not_finite.get(rule.metric, ()), math.nan)
        silence = silence_of(
            rule, values, trained=trained.steps if trained else (), names=history.metrics
        )
        if silence is not None:
            found.append(silence)
    return found


def _check_metric(metric: str, datasets: Collection[str] | None, label: str) -> None:
    if metric.startswith("eval/") and datasets is not None:
        if any(metric.startswith(f"eval/{name}/") for name in datasets):
            _check_score(metric, label)
            return
        raise ConfigError(
            f"{label}: no evaluation gives {metric!r}; expected as in eval/NAME/score with a NAME "
            f"of eval.datasets: {_list(sorted(datasets)) or 'none'}"
        )
    if find_metric(metric) is None:
        known = [entry.name for entry in CATALOG if entry not in FIT]
        near = _renamed(metric) or _near(metric, known, cutoff=0.75)
        if near:
            raise ConfigError(f"{label}: no metric is called {metric!r}{near}")


def _check_score(metric: str, label: str) -> None:
    """Refuse a name below `eval/NAME/` that no evaluation gives."""
    if find_metric(metric) is not None:
        return
    known = [entry.name.split("/")[-1] for entry in CATALOG if entry.name.startswith("eval/")]
    near = _near(metric.split("/")[-1], known)
    raise ConfigError(
        f"{label}: no evaluation gives {metric!r}; below eval/NAME/ there are {_list(known)}{near}"
    )


def _renamed(metric: str) -> str:
    """Hint where the name is verl's, or one of ours below a prefix of ours that it has not."""
    ours = [entry.name for entry in CATALOG]
    found = [entry.name for entry in CATALOG if entry.verl == metric]
    if metric.split("/")[0] in {name.split("/")[0] for name in ours if "/" in name}:
        found += [name for name in ours if name == metric.split("/")[-1]]
    return f"; did you mean {' or '.join(map(repr, found[:3]))}?" if found else ""


def _bound(text: str, label: str) -> tuple[float, int]:
    """The number and the steps behind the operator."""
    found = _BOUND.match(text)
    if found is None:
        raise ConfigError(
            f"{label}: after the operator stands {text!r}; expected NUMBER, or NUMBER for N steps"
        )
    try:
        bound = float(found["number"])
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise ConfigError(f"{label}: {found['number']!r} is no finite number to compare with")
    steps = found["steps"] or "1"
    # 400 digits are digits too, and no number of steps; the limit keeps int() from raising.
    if not (steps.isascii() and steps.isdigit() and len(steps) < 10 and int(steps) >= 1):
        raise ConfigError(f"{label}: {steps!r} is no number of steps; expected 1 or more")
    return bound, int(steps)


def _near(name: str, choices: Collection[str], *, cutoff: float = 0.6) -> str:
    """As in `; did you mean 'kl'?`; also where the last part of a name is all that was given."""
    close = difflib.get_close_matches(name, list(choices), n=3, cutoff=cutoff)
    close += [item for item in choices if name in item.split("/")]
    unique = list(dict.fromkeys(close))[:3]
    return f"; did you mean {' or '.join(map(repr, unique))}?" if unique else ""


def _list(choices: Collection[str]) -> str:
    return ", ".join(str(choice) for choice in choices)
