"""Rules and detectors of a run: shown every step, they pause it or end it."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl.config.health import HealthSection
from agentrl.disk.pause import PauseState, clear_pause, wait_for_answer
from agentrl.disk.rollback import RollBack, RollbackPlan
from agentrl.health.rules import RuleAction
from agentrl.machine.processes.stop import StopSwitch
from agentrl.runtime.health.detectors import StepWatch
from agentrl.runtime.health.rules import RunRules
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import Ruling, RunHistory
from agentrl.runtime.scores import after_step

if TYPE_CHECKING:
    from agentrl.disk.run_directory import RunDir

logger = logging.getLogger(__name__)


class RunHealth:
    """The rules and the detectors of one run, as a driver calls them."""

    def __init__(
        self,
        section: HealthSection,
        run_dir: RunDir,
        history: RunHistory,
        *,
        settings: Mapping[str, Any],
        progress: Progress,
        stop: StopSwitch,
    ) -> None:
        """Go on where earlier processes of the run have stopped.

        Args:
            section: the rules, and which rollbacks and detectors are allowed.
            run_dir: of the run.
            history: metrics and rollbacks of earlier processes.
            settings: the config as dotted keys, for the advice of the detectors.
            progress: receives lines for the user.
            stop: ends a pause.
        """
        self._run_dir, self._progress, self._stop = run_dir, progress, stop
        self._rules = RunRules(
            section,
            run_dir,
            rollbacks=history.rollbacks,
            logged=history.logged,
            note=progress.note,
        )
        self._detectors = StepWatch(
            settings,
            run_dir,
            on=section.watch,
            rollbacks=history.rollbacks.count,
            logged=history.logged,
            progress=progress,
        )
        self._rollbacks, self._most = history.rollbacks.count, section.max_rollbacks
        self._halted: Ruling | None = None  # a pause that was answered with `stop`

    @property
    def rules_of_scores(self) -> bool:
        """A rule decides by the metric of an evaluation."""
        return self._rules.of_scores

    def add_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Add the metrics of a step."""
        self._rules.add_metrics(step, values)
        self._detectors.add_metrics(step, values)

    def ruling(self, step: int) -> Ruling | None:
        """The rule that ends the run, or rolls it back, after `step`."""
        return self._halted or self._rules.ending(step)

    def rolls_back(self, step: int) -> bool:
        """A rule rolls `step` back, so that nothing of it needs to be scored or saved."""
        ruling = self.ruling(step)
        return ruling is not None and ruling.action is RuleAction.ROLLBACK

    def protected(self, step: int) -> Collection[int]:
        """Steps of checkpoints that a rollback may need."""
        return self._rules.protected(step)

    async def apply_rules(self, step: int, rest: Callable[[], Awaitable[None]]) -> float:
        """After a step, logged and stored: warn, and pause until the user answers.

        Args:
            step: training steps done.
            rest: brings the engines to rest and saves the step.

        Returns:
            Seconds of pauses.

        Raises:
            Interrupted: a signal ended the pause.
        """
        self._detectors.look_after(step)
        self._rules.warn(step)
        waited_s = 0.0
        while self.ruling(step) is None and (ruling := self._rules.pausing(step)):
            if self._rules.answered_stop(ruling):  # and killed before it had ended
                self._halt(ruling)
                break
            await rest()
            self._rules.record(step, ruling, ruling.action, ruling.text)
            waited_s += await self._pause(step, ruling)
        clear_pause(self._run_dir.control_file)
        return waited_s

    async def _pause(self, step: int, ruling: Ruling) -> float:
        self._progress.phase("paused")
        self._notify(f"paused {after_step(step)} by {ruling.text}")
        began = time.monotonic()
        path, how = self._run_dir.control_file, f"agentrl control {self._run_dir.path}"
        answer = await self._stop.guard(
            wait_for_answer(
                path,
                step,
                ruling.text,
                asked=lambda: self._notify(f"answer it: {how} continue (or stop)"),
            )
        )
        if answer is PauseState.STOP:
            self._halt(ruling)
        self._rules.record(step, ruling, answer, f"told to {answer} at {ruling.text}")
        clear_pause(path)  # another rule may pause the same step, and has an answer of its own
        self._notify(f"told to {answer}")
        return time.monotonic() - began

    def _halt(self, pause: Ruling) -> None:
        self._halted = replace(pause, action=RuleAction.STOP, instead="stopped by hand")

    def end_training(self, step: int, *, cursor: dict[str, Any], elapsed_s: float) -> None:
        """After the last step: record the rule that ends the run, if one does.

        Args:
            step: training steps done.
            cursor: `TaskCursor.state()` after it.
            elapsed_s: wall time of the run in seconds.

        Raises:
            RollBack: where that is what the rule says; nothing is rolled back yet.
        """
        ruling = self.ruling(step)
        if ruling is None:
            return
        self._rules.record(step, ruling, ruling.action, ruling.text)
        if ruling.back_to is None:
            self._notify(f"stopping {after_step(step)}: {ruling.text}")
            return
        self._notify(
            f"going back from step {step} to step {ruling.back_to}, rollback "
            f"{self._rollbacks + 1} of at most {self._most}: {ruling.text}"
        )
        plan = RollbackPlan(
            step=step, to=ruling.back_to, why=ruling.text, cursor=cursor, elapsed_s=elapsed_s
        )
        raise RollBack(plan)

    async def close(self, step: int, *, look: bool) -> None:
        """End the detectors; with `look` after one more look at steps that were passed over."""
        await self._detectors.close(step, look=look)

    def _notify(self, text: str) -> None:
        logger.info("%s", text)  # for run.log; what is noted is on the terminal already
        self._progress.note(text)
