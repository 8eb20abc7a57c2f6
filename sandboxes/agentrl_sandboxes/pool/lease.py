"""A sandbox on loan from a pool: it belongs to the borrower until `close`.

The sandbox behind it may serve another rollout afterwards, so a closed lease touches it no more;
and it is only wiped and lent again if nothing went wrong with it that the pool cannot judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agentrl.errors import SandboxError, SandboxUnavailable
from agentrl.sandbox import Origin, Sandbox, SandboxLimits
from agentrl.sandbox.wrapper import Operation, SandboxWrapper


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxKind:
    """The properties by which two empty sandboxes are interchangeable."""

    image: str
    """Empty for the backend's own."""
    limits: SandboxLimits
    """Hard limits."""


@dataclass(slots=True, kw_only=True)
class Held:
    """A real sandbox, lent or idle."""

    sandbox: Sandbox
    """As the backend made it."""
    kind: SandboxKind
    """Kind it may be lent as."""
    started_s: float
    """When it was made, by the loop's clock."""
    uses: int = 0
    """Loans it has served, the present one included."""


class Lease(SandboxWrapper):
    """Passes everything on until it is closed."""

    def __init__(
        self,
        held: Held,
        origin: Origin,
        release: Callable[[Lease], Awaitable[None]],
        *,
        holds_slot: bool,
    ) -> None:
        super().__init__(held.sandbox)
        self.origin = origin
        self.held = held
        """The sandbox on loan."""
        self.holds_slot = holds_slot
        """Whether its release frees a slot of the capacity."""
        self._release = release
        self._running = 0
        self._trouble = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def clean(self) -> bool:
        """True if nothing happened after which a wipe could not be trusted."""
        return not self._trouble and not self._running

    @contextmanager
    def around(self, operation: Operation) -> Iterator[None]:
        """Refuse what comes after `close`, and remember trouble."""
        self._refuse_closed()
        self._running += 1
        try:
            yield
        except (SandboxUnavailable, OSError, ValueError):
            # What the contract lets a healthy sandbox raise; `TimeoutError` is an `OSError`.
            raise
        except BaseException:
            # The sandbox failed, or was left in the middle of something by a cancellation.
            self._trouble = True
            raise
        finally:
            self._running -= 1
        # A wipe kills programs; how they then end is no answer for a caller.
        self._refuse_closed()

    async def close(self) -> None:
        """Release the sandbox; see `Sandbox.close`."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._release(self))
        # Shielded: a cancelled rollout must not leave its sandbox behind.
        await asyncio.shield(self._closing)

    def _refuse_closed(self) -> None:
        if self._closing is not None:
            raise SandboxError("sandbox: closed")
