"""Keys of what watches a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentrl.config.base import Section


class HealthSection(Section):
    """Detectors and rules that watch a run, and the actions they may take."""

    rules: tuple[str, ...] = ()
    """What ends or holds a run: `METRIC OP NUMBER for N steps -> ACTION`, as in
    `kl > 2 for 20 steps -> stop`. Actions: `warn`, `pause`, `stop`, `rollback`."""
    thresholds: dict[str, float] | Literal[False] = Field(default_factory=dict)
    """Bounds of detectors in place of the default ones, by name; `agentrl doctor --thresholds`
    lists them with their sources. Detectors run after every step, log what they find and never end
    a run; false runs none."""
    max_rollbacks: int = Field(default=3, ge=0)
    """So often the run may be rolled back in all; then such a rule stops it, and names which
    checkpoint is good. `--resume` with a larger number goes on from that one."""

    @property
    def watch(self) -> bool:
        """True if detectors run."""
        return self.thresholds is not False

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds in place of default ones."""
        return self.thresholds or {}
