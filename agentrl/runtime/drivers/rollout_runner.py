"""Rollouts as a driver asks for them: shown while they run, interrupted by a signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrl.config.schema import RolloutSection
from agentrl.data.tasks.cursor import Claim
from agentrl.machine.processes.stop import StopSwitch
from agentrl.runtime.drivers.concurrency import RolloutLimit
from agentrl.runtime.drivers.groups import run_groups, sampling_of, stable_seed
from agentrl.runtime.drivers.position import group_name
from agentrl.runtime.progress import Progress
from agentrl.runtime.stages import GroupHandle, RolloutStage
from agentrl.types import SamplingParams, Task


class RolloutRunner:
    """Runs groups on the rollout stage with the limits of the config."""

    def __init__(
        self,
        stage: RolloutStage,
        section: RolloutSection,
        *,
        stop_token_ids: tuple[int, ...],
        limit: RolloutLimit,
        seed: int,
        stop: StopSwitch,
        progress: Progress,
    ) -> None:
        """Keep the settings that all groups share.

        Args:
            stage: makes groups.
            section: limits of a turn, rollouts per task and the temperature of training.
            stop_token_ids: end an assistant turn.
            limit: bounds the rollouts at once.
            seed: of training rollouts.
            stop: interrupts `collect`.
            progress: notified of rollouts that are done.
        """
        self._stage, self._section, self._seed = stage, section, seed
        self._stop_token_ids, self._limit = stop_token_ids, limit
        self._stop, self._progress = stop, progress

    async def collect(
        self,
        phase: str,
        tasks: Sequence[Task],
        *,
        name: str,
        n: int,
        temperature: float,
        seed: Callable[[Task], int],
        on_group: Callable[[GroupHandle], None] = lambda handle: None,
        on_position: Callable[[int, GroupHandle], None] = lambda position, handle: None,
        order: Sequence[int] | None = None,
        beside: bool = False,
    ) -> list[GroupHandle]:
        """Run every task `n` times and wait for all of them; see `run_groups`.

        With `beside`, training goes on: it is what the live view shows, and the caller cancels
        these rollouts when it has ended. A signal would cancel them while a step is trained, whose
        ledger would then hold their tokens.

        Raises:
            Interrupted: a signal; all groups have cleaned up.
        """

        def ended(handle: GroupHandle) -> None:
            if not beside:
                self._progress.advance(n, handle.report.tokens)
            on_group(handle)

        if not beside:
            self._progress.phase(phase, len(tasks) * n)
        work = run_groups(
            self._stage,
            tasks,
            name=name,
            n=n,
            sampling=self._sampling(temperature),
            seed=seed,
            limit=self._limit,
            on_group=ended,
            on_position=on_position,
            order=order,
        )
        return await (work if beside else self._stop.guard(work))

    async def run_claim(self, claim: Claim) -> GroupHandle:
        """Run the training group of one claimed task, named after its position in the stream."""
        return await self._stage.run_group(
            claim.task,
            group_id=group_name(claim),
            n=self._section.n_samples_per_prompt,
            sampling=self._sampling(self._section.temperature),
            seed=stable_seed(self._seed, "train", claim.index, claim.task.id),
        )

    def _sampling(self, temperature: float) -> SamplingParams:
        return sampling_of(self._section, temperature, self._stop_token_ids)
