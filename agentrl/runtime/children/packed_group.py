"""A finished group as few bytes: made by a worker, passed on unread, unpacked where it is trained.

A token of a group takes about 70 bytes as the tuples of a `Trajectory`, 19 pickled, and about 3
compressed where most come from tools: those have one mask, log-probability and version.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from agentrl.runtime.stages import GroupReport
from agentrl.types import TrajectoryGroup

PROTOCOL = pickle.HIGHEST_PROTOCOL
"""Of everything that a worker and its driver, one program on one machine, send to each other."""
_CODEC = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedGroup:
    """A finished group as bytes, for a driver that does not read them."""

    report: GroupReport
    """Report of the group."""
    data: bytes
    """The group, pickled and compressed."""
    pickled_bytes: int
    """Size of it before it was compressed."""

    @classmethod
    def of(cls, report: GroupReport, group: TrajectoryGroup) -> PackedGroup:
        """Pack a group that was reported on."""
        import pyarrow

        pickled = pickle.dumps(group, PROTOCOL)
        data = pyarrow.compress(pickled, codec=_CODEC, asbytes=True)
        return cls(report=report, data=data, pickled_bytes=len(pickled))

    @property
    def group(self) -> TrajectoryGroup:
        """The group; unpacks it at each call."""
        import pyarrow

        return pickle.loads(
            pyarrow.decompress(self.data, self.pickled_bytes, codec=_CODEC, asbytes=True)
        )
