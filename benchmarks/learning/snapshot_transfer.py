"""A `sync.backend` of the embedded engine that saves weights at the marks of a plan.

After every step a run says that its engines may sample with the new weights. That is the moment at
which they are copied. `sync.directory` is the folder of the plan and of the run.
"""

from __future__ import annotations

from pathlib import Path

from snapshots import SnapshotPlan, Snapshots, copy_weights, snapshots_in

from agentrl.data import TrajectoryStore
from agentrl.disk.stored_groups import stored_groups
from agentrl.engine import WeightTicket
from agentrl.errors import ConfigError
from agentrl.sync import SenderSetup, WeightSender
from agentrl.sync.built_in import InProcessTransfer
from agentrl.sync.inprocess import InProcessSender
from agentrl.sync.transfer import Weights

RUN = "run"
"""Name of the run in the folder of the plan."""


class SnapshotTransfer(InProcessTransfer):
    """The embedded engine samples from the trainer's own weights; copies are saved at marks."""

    name = "snapshots"
    reads = ("directory",)

    def preferred(self, route: object) -> bool:
        """`auto` does not choose it."""
        return False

    def sender(self, setup: SenderSetup) -> WeightSender:
        """Do what `WeightTransfer.sender` says."""
        if setup.section.directory is None:
            raise ConfigError("sync.directory is not set, expected the folder of a snapshot plan")
        return SnapshotSender(Path(setup.section.directory))


class SnapshotSender(InProcessSender):
    """Copies the weights of every step, and saves those of a mark."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._plan = folder, SnapshotPlan.read(folder)
        self._store = TrajectoryStore(folder / RUN / "trajectories")
        self._snapshots: Snapshots | None = None
        self._tokens = 0

    def connect(self, receivers: int) -> list[dict]:
        """Begin the clock: everything is loaded, and the first step follows."""
        self._snapshots = self._snapshots or snapshots_in(self._folder)
        return [{}] * receivers

    def send(self, weights: Weights, version: int) -> WeightTicket:
        """Take the weights of step `version`, and leave them where they are."""
        assert self._snapshots is not None, "connect first"
        seconds = self._snapshots.seconds
        if not self._snapshots.finished:
            position = self._sampled(version) if self._plan.unit == "tokens" else seconds
            self._snapshots.add(
                lambda: copy_weights(weights, dtype=self._plan.dtype),
                step=version,
                position=position,
            )
        # The engine takes no other ticket: nothing moves.
        info = {"size_bytes": 0}
        return WeightTicket(backend=InProcessTransfer.name, version=version, info=info)

    def _sampled(self, step: int) -> int:
        """Tokens sampled until the end of a step, whose rollouts are stored before it trains."""
        for group in stored_groups(self._store, "train", step):
            self._tokens += sum(row.num_action_tokens for row in group.trajectories)
        return self._tokens
