"""A run that loses a trainer rank goes on by itself, a stated number of times.

Ranks that train together cannot go on without one of them: the optimizer state of a sharded
backend is gone with it, and a sum over the others is another update. So all of them are ended and
started again from the disk, exactly as `--resume` does it in a new process: the last checkpoint,
then the stored steps once more from their trajectories. The numbers are those of a run that lost
nothing.
"""

from __future__ import annotations

import logging

from agentrl.config.fleet import RuntimeSection
from agentrl.data import TrajectoryStore
from agentrl.errors import RunError

logger = logging.getLogger(__name__)


class RankLost(RunError):
    """A trainer rank died, and with it the stages that it was part of."""


class RankLostAtStart(RankLost):
    """A trainer rank died while the stages were opened."""


class RankRestarts:
    """Counts the tries in a row that brought no step.

    A row ends when other steps are stored than at its last loss: a step came, or a rollback took
    some away. A rank that dies before the run has ever lost one while it started ends the run: what
    has never worked is no accident.

    A machine that fails once a day so never ends a run, and a batch that kills its rank each time
    does, after `runtime.rank_restarts` tries.
    """

    def __init__(self, runtime: RuntimeSection, store: TrajectoryStore) -> None:
        """Begin with all tries.

        Args:
            runtime: says how many.
            store: steps that were rolled out.
        """
        self._most = runtime.rank_restarts if runtime.kind == "ray" else 0
        self._store = store
        self._made, self._stored = 0, 0

    def after(self, lost: RankLost) -> str:
        """Use up a try; returns a line for the user.

        Args:
            lost: what ended the stages.

        Raises:
            RankLost: there is no other try; says how to go on by hand.
        """
        if isinstance(lost, RankLostAtStart) and not self._made:
            raise lost
        stored = max(self._store.steps("train"), default=0)
        if stored != self._stored:
            self._made, self._stored = 0, stored
        if self._made >= self._most:
            raise RankLost(
                f"{lost}; tries that brought no further step: {self._made} of {self._most} "
                "(runtime.rank_restarts), so the run ends here. Nothing that was stored is lost: "
                "look into logs/rank-*.log of the run for the reason, then go on with --resume"
            ) from lost
        self._made += 1
        logger.warning("%s; try %d of %d begins", lost, self._made, self._most)
        return (
            f"{lost}; all ranks are started again and the run goes on from its last stored step "
            f"(try {self._made} of {self._most})"
        )
