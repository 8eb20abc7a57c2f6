"""Rollouts that wait for their scores: what waits is scored in packed batches of one pass each.

Rollouts of a step end at about the same time, and one pass over many rows costs little more than
one over the longest. So the first row starts a batch in the next turn of the event loop, with what
came until then and fits into a pass; rows that come while it is computed are for the next ones. No
timer, and no row waits for others to come.

The wait for a batch counts in no time limit of a rollout, but the batch does: so it is one pass,
however many rows wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agentrl.batch.examples import ScoredTokens
from agentrl.machine.compute_threads import run_computing
from agentrl.served.waiting import in_line

Scores = TypeVar("Scores")


@dataclass(slots=True, kw_only=True)
class _WaitingRow(Generic[Scores]):
    row: ScoredTokens
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once its batch is being computed."""
    scores: asyncio.Future[Scores]


class ScoreQueue(Generic[Scores]):
    """Scores rows of one event loop together, a batch at a time, in a compute thread."""

    def __init__(
        self, compute: Callable[[Sequence[ScoredTokens]], Sequence[Scores]], *, batch_tokens: int
    ) -> None:
        """Take what scores.

        Args:
            compute: one result for each row, in their order; called in a thread of its own, never
                twice at once.
            batch_tokens: most packed tokens of a batch; a row with more is a batch alone.
        """
        self._compute = compute
        self.batch_tokens = batch_tokens
        """Most packed tokens of a batch."""
        self._waiting: dict[int, deque[_WaitingRow[Scores]]] = {}
        """By hash of the prompt, the one whose first row came first at the front."""
        self._running: asyncio.Task[None] | None = None
        self.batches = 0
        """Batches that were begun."""

    async def score(self, row: ScoredTokens) -> Scores:
        """The scores of one row. Waiting for its batch to begin is a wait in line.

        Raises:
            Exception: as `compute` raised for the batch.
        """
        mine = _WaitingRow[Scores](row=row, scores=asyncio.get_running_loop().create_future())
        # Hashed once: a tuple does not keep its hash.
        self._waiting.setdefault(hash(row.prompt_ids), deque()).append(mine)
        if self._running is None:
            self._running = asyncio.create_task(self._drain())
        try:
            with in_line():
                await mine.begun.wait()
            return await mine.scores
        finally:
            # A rollout that is cancelled, or out of time, is not scored if it can be helped.
            mine.scores.cancel()

    async def close(self) -> None:
        """Wait for the batch that is being computed; nothing waits any more."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _drain(self) -> None:
        try:
            while batch := self._next_batch():
                await self._score(batch)
        finally:
            # No row can have come since the loop ended: nothing is awaited in between.
            self._waiting.clear()
            self._running = None

    def _next_batch(self) -> list[_WaitingRow[Scores]]:
        """Take as many rows as fit into a pass, in their order, those of one prompt together.

        The row that came first is always among them.
        """
        batch: list[_WaitingRow[Scores]] = []
        tokens = 0
        while self._waiting:
            prompt, rows = next(iter(self._waiting.items()))
            shared = False
            while rows:
                each = rows[0]
                if not each.scores.done():
                    # A prompt is packed once, and a row takes one token more than it has.
                    more = len(each.row.ids) + 1 + (0 if shared else len(each.row.prompt_ids))
                    if batch and tokens + more > self.batch_tokens:
                        return batch
                    batch.append(each)
                    tokens, shared = tokens + more, True
                rows.popleft()
            del self._waiting[prompt]
        return batch

    async def _score(self, batch: Sequence[_WaitingRow[Scores]]) -> None:
        self.batches += 1
        for each in batch:
            each.begun.set()
        try:
            found = await run_computing(self._compute, [each.row for each in batch])
            answered = list(zip(batch, found, strict=True))
        except Exception as error:  # passed on to every row of the batch, any error of a model
            for each in batch:
                if not each.scores.done():
                    each.scores.set_exception(_copied(error))
            return
        for each, scores in answered:
            if not each.scores.done():
                each.scores.set_result(scores)


def _copied(error: Exception) -> Exception:
    """An error for one row: a single one, raised in many tasks, would gather all tracebacks."""
    copied = RuntimeError(f"{type(error).__name__}: {error}")
    copied.__cause__ = error
    return copied
