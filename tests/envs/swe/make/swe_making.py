"""Requests, progress and a failing backend for tests that make tasks."""

from __future__ import annotations

from agentrl_envs.swe.make import MakeRequest, Rules

from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxBackend


class Shaky(SandboxBackend):
    """A backend whose sandboxes fail while a library of `broken` is worked on."""

    def __init__(self, inner, progress, broken):
        self.inner, self.progress, self.broken = inner, progress, broken
        self.failures = 0

    async def probe(self):
        return await self.inner.probe()

    async def close(self): ...

    async def create(self, limits, snapshot=None, *, image=""):
        if self.progress.library in self.broken:
            self.failures += 1
            raise SandboxError(f"supervisor {self.failures} was killed after 0.{self.failures} s")
        return await self.inner.create(limits, snapshot, image=image)


class Quiet:
    """Progress that keeps what was refused."""

    def __init__(self):
        self.refusals = {}
        self.tries = 0
        self.library = ""

    def phase(self, release, what):
        self.library = release.name

    def baseline(self, release, license, baseline): ...

    def tried(self, release, reason, made, wanted):
        self.tries += 1

    def refused(self, library, why):
        self.refusals[library] = why


def request_for(tmp_path, **changed):
    return MakeRequest(
        **{
            "out": tmp_path / "out",
            "packages": ("shapes",),
            "count": 3,
            "index": str(tmp_path / "index"),
            "test_packages": ("pytest",),
            "rules": Rules(min_tests=5, baselines=2),
            **changed,
        }
    )
