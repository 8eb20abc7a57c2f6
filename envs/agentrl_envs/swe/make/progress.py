"""Progress of a maker, reported to its caller while it works."""

from __future__ import annotations

from typing import Protocol

from agentrl_envs.swe.make.index import Release
from agentrl_envs.swe.make.verdict import Baseline


class MakeProgress(Protocol):
    """Called with what happens; the command line draws it."""

    def phase(self, release: Release, what: str) -> None:
        """Something that may take a while begins."""

    def baseline(self, release: Release, license: str, baseline: Baseline) -> None:
        """A library is fit to make tasks of."""

    def tried(self, release: Release, reason: str, made: int, wanted: int) -> None:
        """A change was judged; `reason` is empty for one that makes a task."""

    def refused(self, library: str, why: str) -> None:
        """A library, or a pair of its releases, makes no tasks."""
