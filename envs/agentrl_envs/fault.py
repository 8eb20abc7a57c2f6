"""The side at fault when a grading fails: the model, or what carries the run.

After a model has acted in a sandbox, or its code runs in one, the error of that sandbox says
nothing by itself: a program may end its supervisor, fill what a limit does not count or leave the
tree in a state that cannot be read. Were that taken for infrastructure, the rollout would be
dropped and its reward of 0 with it. So it is decided from outside:

    grade              works: the verdict
    grade, again       works: the verdict; the first failure was not the model's doing
    control            the same grading without anything of the model. Fails: infrastructure, the
                       error is raised. Works: the model's doing, and it earns nothing

What a backend knows to come from outside of every sandbox (`SandboxLost`: a node that was lost, a
daemon that went away) is raised at once: two such failures in a row are not the model's doing.
Each of the three has to run in sandboxes in which nothing of the model has run before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentrl.errors import SandboxError, SandboxLost, SandboxUnavailable
from agentrl.sandbox import Sandbox

T = TypeVar("T")

_FAILURES = (SandboxError, OSError)
"""The second is what a sandbox without space raises, which may be full of what the model left."""
_NOT_OF_THE_MODEL = (SandboxUnavailable, SandboxLost)
"""Failures that no program in a sandbox can cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded(Generic[T]):
    """The verdict of a grading, or whose doing it is that there is none."""

    verdict: T | None
    """None where what the model did keeps the grading from working."""
    repeated: bool = False
    """Whether it failed once for a reason that is not the model's."""

    @property
    def logs(self) -> dict[str, float]:
        """Numbers for `StepResult.extra_logs`: gradings the model broke, and those repeated."""
        return {
            "grading_broken": float(self.verdict is None),
            "grading_repeated": float(self.repeated),
        }


class ReadOnce(Generic[T]):
    """The files that a model left in its sandbox: read once, after which that sandbox is closed.

    Its programs may still run there, and would make the machine slow for the gradings that decide
    whether the machine is too slow.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], sandbox: Sandbox) -> None:
        """Take the parts.

        Args:
            read: reads it.
            sandbox: where it lies.
        """
        self._read = read
        self._sandbox = sandbox
        self.found: list[T] = []
        """What was read; empty before that."""

    async def get(self) -> T:
        """The files, read at the first call.

        Raises:
            SandboxError: it could not be read.
        """
        if not self.found:
            self.found.append(await self._read())
            await self._sandbox.close()
        return self.found[0]


async def graded(
    grade: Callable[[], Awaitable[T]], control: Callable[[], Awaitable[object]]
) -> Graded[T]:
    """Grade, and decide from outside who is at fault if that fails.

    Args:
        grade: grades what the model did, in fresh sandboxes.
        control: the same on what the model was given, in fresh sandboxes.

    Raises:
        SandboxError, OSError: the control fails as well, so it is no doing of the model.
        SandboxUnavailable: at once; what a kind of sandbox does not offer is nobody's doing.
        SandboxLost: at once; its cause is known to lie outside of the sandbox.
    """
    try:
        return Graded(verdict=await grade())
    except _NOT_OF_THE_MODEL:
        raise
    except _FAILURES:
        try:
            return Graded(verdict=await grade(), repeated=True)
        except _NOT_OF_THE_MODEL:
            raise
        except _FAILURES as error:
            try:
                await control()
            except _NOT_OF_THE_MODEL:
                raise
            except _FAILURES:
                raise error from None
    return Graded(verdict=None)
