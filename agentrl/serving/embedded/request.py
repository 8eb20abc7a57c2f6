"""One turn that is asked of the embedded engine, and how its answer gets back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass, field

import numpy as np

from agentrl.engine import TurnClock
from agentrl.errors import EngineError
from agentrl.serving.embedded.pictures import PromptImages
from agentrl.types import Generation, SamplingParams

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Request:
    """Made on the event loop; after that only `cancelled` is written there."""

    prompt: np.ndarray
    sampling: SamplingParams
    session_id: str
    limit: int
    """Most tokens of the answer."""
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Generation]
    random: random.Random
    stops: frozenset[int]
    cached: int = 0
    """Tokens of the prompt that a row held already."""
    cancelled: bool = False
    clock: TurnClock | None = None
    """Clock of the turn, which stands still while the request waits for a row; None once it has
    ended. Used on the event loop only."""
    held: bool = False
    """Whether the request holds it."""
    images: PromptImages | None = None
    """Images of the prompt; `prompt` then holds their keys. None for text alone."""
    waits: bool = False
    """Whether it was seen to wait for a row; belongs to the thread of the lane."""
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def rotary_offset(self) -> int:
        """Rotary position of a sampled token, less its position in the row."""
        return 0 if self.images is None else self.images.offset

    def note_wait(self, waits: bool) -> None:
        """Hold the clock of the turn, or release it; called in the thread of the lane."""
        self.waits = waits
        with contextlib.suppress(RuntimeError):  # the caller's event loop is gone
            self.loop.call_soon_threadsafe(self.hold, waits)

    def hold(self, held: bool) -> None:
        """Hold the clock of the turn, or release it; called on the event loop."""
        if self.clock is None or self.held == held:
            return
        self.held = held
        if held:
            self.clock.hold()
        else:
            self.clock.release()

    def end(self) -> None:
        """Release the clock for good: the caller waits no more."""
        self.hold(False)
        self.clock = None


def deliver(request: Request, outcome: Generation | EngineError) -> None:
    """Set the outcome of the request's future, from any thread."""

    def resolve() -> None:
        if request.future.done():
            return
        if isinstance(outcome, EngineError):
            request.future.set_exception(outcome)
        else:
            request.future.set_result(outcome)

    try:
        request.loop.call_soon_threadsafe(resolve)
    except RuntimeError:
        # The caller's event loop is gone, and with it every wait for the answer.
        logger.debug("session %s: nobody waits for its turn any more", request.session_id)
