"""What a driver does for rules and detectors: shows them its steps, pauses, ends as they say."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl.config import RunConfig
from agentrl.health.rules import RuleAction
from agentrl.runtime.disk.pause import PauseState, clear_pause, wait_for_answer
from agentrl.runtime.disk.rollback import RollBack, RollbackPlan
from agentrl.runtime.health.detectors import StepWatch
from agentrl.runtime.health.rules import Supervisor
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import History, Ruling
from agentrl.runtime.stop import StopSwitch

if TYPE_CHECKING:
    from agentrl.runtime.disk.run_directory import RunDir

logger = logging.getLogger(__name__)


class Oversight:
    """Rules and detectors of one run."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: RunDir,
        history: History,
        progress: Progress,
        stop: StopSwitch,
    ) -> None:
        """Go on where earlier processes of the run have stopped."""
        self._run_dir, self._progress, self._stop = run_dir, progress, stop
        self._rules = Supervisor(
            config.health,
            run_dir,
            rollbacks=history.rollbacks,
            logged=history.logged,
            note=progress.note,
        )
        self._detectors = StepWatch(
            config,
            run_dir,
            rollbacks=history.rollbacks.count,
            logged=history.logged,
            progress=progress,
        )
        self._rollbacks, self._most = history.rollbacks.count, config.health.max_rollbacks
        self._halted: Ruling | None = None  # a pause that was answered with `stop`

    def see(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of a step."""
        self._rules.see(step, values)
        self._detectors.see(step, values)

    def ruling(self, step: int) -> Ruling | None:
        """The rule that ends the run, or rolls it back, after `step`."""
        return self._halted or self._rules.ending(step)

    def rolls_back(self, step: int) -> bool:
        """Whether it is rolled back, so that nothing of `step` needs to be scored or saved."""
        ruling = self.ruling(step)
        return ruling is not None and ruling.action is RuleAction.ROLLBACK

    def protected(self, step: int) -> Collection[int]:
        """Steps of checkpoints that a rollback may need."""
        return self._rules.protected(step)

    async def obey(self, step: int, rest: Callable[[], Awaitable[None]]) -> float:
        """After a step, logged and stored: warn, and pause until somebody answers.

        Args:
            step: training steps done.
            rest: brings the engines to rest and saves the step.

        Returns:
            Seconds of pauses.

        Raises:
            Interrupted: a signal ended the pause.
        """
        self._detectors.after(step)
        self._rules.warn(step)
        waited_s = 0.0
        while self.ruling(step) is None and (ruling := self._rules.pausing(step)):
            if self._rules.told_to_stop(ruling):  # and killed before it had ended
                self._halt(ruling)
                break
            await rest()
            self._rules.record(step, ruling, ruling.action, ruling.text)
            waited_s += await self._pause(step, ruling)
        clear_pause(self._run_dir.control_file)
        return waited_s

    async def _pause(self, step: int, ruling: Ruling) -> float:
        self._progress.phase("paused")
        self._tell(f"paused after step {step} by {ruling.text}")
        began = time.monotonic()
        path, how = self._run_dir.control_file, f"agentrl control {self._run_dir.path}"
        answer = await self._stop.guard(
            wait_for_answer(
                path,
                step,
                ruling.text,
                asked=lambda: self._tell(f"answer it: {how} continue (or stop)"),
            )
        )
        if answer is PauseState.STOP:
            self._halt(ruling)
        self._rules.record(step, ruling, answer, f"told to {answer} at {ruling.text}")
        clear_pause(path)  # another rule may pause the same step, and has an answer of its own
        self._tell(f"told to {answer}")
        return time.monotonic() - began

    def _halt(self, pause: Ruling) -> None:
        self._halted = replace(pause, action=RuleAction.STOP, instead="stopped by hand")

    def carry_out(self, step: int, *, cursor: dict[str, Any], elapsed_s: float) -> None:
        """No further step follows: note the rule that ends the run, if one does.

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
            self._tell(f"stopping after step {step}: {ruling.text}")
            return
        self._tell(
            f"going back from step {step} to step {ruling.back_to}, rollback "
            f"{self._rollbacks + 1} of at most {self._most}: {ruling.text}"
        )
        plan = RollbackPlan(
            step=step, to=ruling.back_to, why=ruling.text, cursor=cursor, elapsed_s=elapsed_s
        )
        raise RollBack(plan)

    async def close(self, step: int, *, look: bool) -> None:
        """End the watching; with `look` after one more look at what was passed over."""
        await self._detectors.close(step, look=look)

    def _tell(self, text: str) -> None:
        logger.info("%s", text)  # for run.log; what is noted is on the terminal already
        self._progress.note(text)
