"""Applies the rules of a config to a run, from the metrics that it has logged.

A driver shows every step's metrics and asks what to do. The answer depends on nothing but those
metrics, the checkpoints and the rollbacks on the disk, and the answers to pauses in `health.jsonl`:
a run that is killed between a decision and its end decides the same when it is resumed. So a run
that a rule has stopped stops again when it is resumed, until the rule is changed; `health` may be.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from agentrl.config.health import HealthSection
from agentrl.disk.checkpoint import list_checkpoints
from agentrl.disk.rollback import Rollbacks
from agentrl.health.diagnose import limits
from agentrl.health.journal import Event, HealthJournal
from agentrl.health.rules import (
    Rule,
    RuleAction,
    Silence,
    Streak,
    parse_rules,
    silence_of,
    streak_of,
)
from agentrl.runtime.records import Ruling

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl.disk.run_directory import RunDir

logger = logging.getLogger(__name__)

_COUNTS = ("missing", "untrusted")
"""Metrics that count what an evaluation lacks; they hold for one that lacks tasks, too."""


def check_health(section: HealthSection, *, datasets: Collection[str]) -> tuple[Rule, ...]:
    """Parse the rules and the thresholds of a config.

    Args:
        section: of the config.
        datasets: names in `eval.datasets`, which rules may name.

    Raises:
        ConfigError: the first that cannot, with what would be right.
    """
    limits(section.bounds)
    return parse_rules(section.rules, datasets=datasets)


def _good_before(rule: Rule, rollbacks: Rollbacks) -> int | None:
    """The newest step to which a rollback went back, and from which the first step that had the
    rule's metric kept its bound before it was rolled back.

    The metrics that are left measure those weights only with other rollouts.
    """
    if rule.of_evaluation:  # that of the checkpoint itself is left
        return None
    for rollback in reversed(rollbacks.in_effect):
        metrics = rollback.metrics()
        values = [
            metrics[step][rule.metric] for step in sorted(metrics) if rule.metric in metrics[step]
        ]
        if values and not rule.broken_by(values[0]):
            return rollback.plan.to
    return None


class RunRules:
    """Applies the rules of a config to the metrics of its run."""

    def __init__(
        self,
        section: HealthSection,
        run_dir: RunDir,
        *,
        rollbacks: Rollbacks,
        logged: Mapping[int, Mapping[str, float]],
        note: Callable[[str], None],
    ) -> None:
        """Begin where earlier processes of the run have stopped.

        Args:
            section: `health` of the config; its rules can be parsed.
            run_dir: of the run.
            rollbacks: those that the run has had.
            logged: step to its metrics; NaN where one was not finite.
            note: called with each line for the user.
        """
        self._rules = parse_rules(section.rules)
        self._most = section.max_rollbacks
        self._run_dir, self._rollbacks, self._note = run_dir, rollbacks.count, note
        self._again = {rule: _good_before(rule, rollbacks) for rule in self._rules}
        self._values: dict[str, dict[int, float]] = {rule.metric: {} for rule in self._rules}
        self._journal = HealthJournal(run_dir.health_file)
        events = [e for e in self._journal.read() if e.rollbacks == rollbacks.count]
        self._said = {
            (event.rule, event.first_step, event.action)
            for event in events
            if event.what in ("rule", "decision")
        }
        self._silent = {(e.rule, e.first_step) for e in events if e.what == "silent"}
        self._trained: list[int] = []
        self._names: set[str] = set()
        for step in sorted(logged):
            self.add_metrics(step, logged[step])

    @property
    def of_scores(self) -> bool:
        """A rule decides by the metric of an evaluation."""
        return any(rule.of_evaluation for rule in self._rules)

    def add_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Add the metrics of a step; a value that is known already stays as it was logged first.

        A mean over what failures left of an evaluation neither breaks a rule nor keeps it.
        """
        for metric, known in self._values.items():
            dataset, _, what = metric.rpartition("/")
            if what not in _COUNTS and values.get(f"{dataset}/missing", 0.0) > 0:
                continue
            if metric in values:
                known.setdefault(step, float(values[metric]))
        self._names.update(values)
        if "timing_s/step" in values and step not in self._trained:
            self._trained.append(step)
        self._name_silent_rules(step)

    def ending(self, step: int) -> Ruling | None:
        """The rule that ends the run, or rolls it back, after `step`."""
        due = [streak for streak in self._streaks(step) if streak.due]
        for streak in due:
            if streak.rule.action is RuleAction.STOP:
                return Ruling(rule=streak.rule, streak=streak, action=RuleAction.STOP)
        for streak in due:
            if streak.rule.action is RuleAction.ROLLBACK:
                return self._rollback(streak)
        return None

    def pausing(self, step: int) -> Ruling | None:
        """The rule that pauses the run after `step`, unless its streak was answered already."""
        for streak in self._streaks(step):
            if streak.rule.action is RuleAction.PAUSE and streak.due:
                ruling = Ruling(rule=streak.rule, streak=streak, action=RuleAction.PAUSE)
                if not self._was_said(ruling, "continue"):
                    return ruling
        return None

    def answered_stop(self, pause: Ruling) -> bool:
        """The user answered a pause with `stop`, in this process or an earlier one."""
        return self._was_said(pause, "stop")

    def warn(self, step: int) -> None:
        """Note what rules with the action `warn` have found, once a streak."""
        for streak in self._streaks(step):
            if streak.rule.action is RuleAction.WARN and streak.due:
                ruling = Ruling(rule=streak.rule, streak=streak, action=RuleAction.WARN)
                if not self._was_said(ruling, RuleAction.WARN):
                    self.record(step, ruling, RuleAction.WARN, ruling.text)
                    self._notify(f"step {step}: {ruling.text}")

    def protected(self, step: int) -> set[int]:
        """Steps of checkpoints that must stay, because a rollback may go back to them."""
        kept: set[int] = set()
        for streak in self._streaks(step):
            if streak.rule.action is RuleAction.ROLLBACK:
                known = streak.steps or streak.last_good is not None
                found = self._targets(streak) if known else [self._checkpoint(step)]
                kept |= {target for target in found if target is not None}
        return kept

    def record(self, step: int, ruling: Ruling, action: str, text: str) -> None:
        """Note a decision in `health.jsonl`; once for each streak and action."""
        if self._was_said(ruling, action):
            return
        self._said.add((ruling.rule.text, ruling.streak.steps[0], action))
        self._journal.write(
            Event(
                step=step,
                what="rule" if action == RuleAction.WARN else "decision",
                text=text,
                rollbacks=self._rollbacks,
                rule=ruling.rule.text,
                action=action,
                first_step=ruling.streak.steps[0],
            )
        )

    def _was_said(self, ruling: Ruling, action: str) -> bool:
        return (ruling.rule.text, ruling.streak.steps[0], action) in self._said

    def _streaks(self, step: int) -> Sequence[Streak]:
        return [streak_of(rule, self._values[rule.metric], until=step) for rule in self._rules]

    def _rollback(self, streak: Streak) -> Ruling:
        target = next((step for step in self._targets(streak) if step is not None), None)
        instead = ""
        if target is None and streak.last_good is None:
            instead = "it stops, because no step before was better: there is nothing to go back to"
        elif target is None:
            instead = (
                "it stops, because there is no checkpoint of step "
                f"{streak.good_weights} or before, from before the streak"
            )
            if streak.good_weights:  # of step 0 there is none: it is the model of the config
                instead += "; lower checkpoint.every_steps"
        elif self._rollbacks >= self._most:
            times = "once" if self._rollbacks == 1 else f"{self._rollbacks} times"
            instead = (
                f"it stops, because it was rolled back {times} already and health.max_rollbacks is "
                f"{self._most}; the newest checkpoint that is known to be good is step-{target}, "
                "and --resume with a larger health.max_rollbacks goes back to it"
            )
        if instead:
            return Ruling(rule=streak.rule, streak=streak, action=RuleAction.STOP, instead=instead)
        return Ruling(rule=streak.rule, streak=streak, action=RuleAction.ROLLBACK, back_to=target)

    def _targets(self, streak: Streak) -> list[int | None]:
        """Checkpoints whose weights are known to be good, best first.

        A streak that begins right after a rollback goes back further if that is possible, and else
        to the same checkpoint again: what was rolled back has measured it, and it was good.
        """
        known, again = streak.good_weights, self._again[streak.rule]
        targets = [self._checkpoint(known)]
        if again is not None and (known is None or again > known):
            targets.append(self._checkpoint(again))
        return targets

    def _checkpoint(self, newest: int | None) -> int | None:
        """Step of the newest complete checkpoint that is not newer than that."""
        if newest is None:
            return None
        found = (item.state.step for item in list_checkpoints(self._run_dir.checkpoints))
        return max((step for step in found if step <= newest), default=None)

    def _name_silent_rules(self, step: int) -> None:
        """A rule without its metric would watch over nothing; once for each silence."""
        for rule in self._rules:
            silence = silence_of(
                rule, self._values[rule.metric], trained=self._trained, names=self._names
            )
            if silence is not None and (rule.text, silence.first_step) not in self._silent:
                self._silent.add((rule.text, silence.first_step))
                self._name(step, silence)

    def _name(self, step: int, silence: Silence) -> None:
        self._notify(silence.text)
        self._journal.write(
            Event(
                step=step,
                what="silent",
                text=silence.text,
                rollbacks=self._rollbacks,
                rule=silence.rule.text,
                first_step=silence.first_step,
            )
        )

    def _notify(self, text: str) -> None:
        logger.info("%s", text)  # for run.log; what is noted is on the terminal already
        self._note(text)
