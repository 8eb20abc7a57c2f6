"""Rows that wait together are scored together; errors, limits and cancellations of single rows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from agentrl.batch.examples import ScoredTokens
from agentrl.fit.reward_models.score_queue import ScoreQueue
from agentrl.served.waiting import limited


def row(number: int) -> ScoredTokens:
    return ScoredTokens(prompt_ids=(number,), ids=(number,))


class Recorder:
    """Doubles the first token, and remembers the batches; waits while it is held."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, rows: Sequence[ScoredTokens]) -> list[int]:
        self.batches.append([each.ids[0] for each in rows])
        assert self.go_on.wait(120)
        if self.batches[-1] == [13]:
            raise ValueError("thirteen")
        return [2 * each.ids[0] for each in rows]


async def until(condition) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


async def test_what_waits_is_one_batch_and_what_comes_meanwhile_the_next() -> None:
    """Fails if rows are scored one by one, or get the scores of others."""
    record = Recorder()
    queue = ScoreQueue(record, batch_tokens=100)
    assert await asyncio.gather(*(queue.score(row(n)) for n in (1, 2, 3))) == [2, 4, 6]
    record.go_on.clear()
    first = asyncio.create_task(queue.score(row(4)))
    await until(lambda: len(record.batches) == 2)
    later = [asyncio.create_task(queue.score(row(n))) for n in (5, 6)]
    await asyncio.sleep(0)
    record.go_on.set()
    assert [await first, *await asyncio.gather(*later)] == [8, 10, 12]
    assert record.batches == [[1, 2, 3], [4], [5, 6]]
    assert queue.batches == 3
    await queue.close()


async def test_an_error_ends_its_batch_alone() -> None:
    record = Recorder()
    queue = ScoreQueue(record, batch_tokens=100)
    with pytest.raises(RuntimeError, match="ValueError: thirteen"):
        await queue.score(row(13))
    assert await queue.score(row(1)) == 2


async def test_too_few_scores_are_an_error_and_no_wait_without_end() -> None:
    queue = ScoreQueue(lambda rows: [1.0], batch_tokens=100)
    async with asyncio.timeout(120):
        found = await asyncio.gather(
            queue.score(row(1)), queue.score(row(2)), return_exceptions=True
        )
    assert all(isinstance(each, RuntimeError) for each in found)
    assert found[0] is not found[1]


async def test_a_row_that_is_cancelled_while_it_waits_is_not_scored() -> None:
    record = Recorder()
    record.go_on.clear()
    queue = ScoreQueue(record, batch_tokens=100)
    first = asyncio.create_task(queue.score(row(1)))
    await until(lambda: record.batches)
    gone, stays = (asyncio.create_task(queue.score(row(n))) for n in (2, 3))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    record.go_on.set()
    assert await asyncio.gather(first, stays) == [2, 6]
    assert record.batches == [[1], [3]]


async def test_the_wait_in_line_does_not_count_but_the_batch_does() -> None:
    """Fails if a rollout is out of time because others are scored before it."""
    record = Recorder()
    record.go_on.clear()
    queue = ScoreQueue(record, batch_tokens=100)

    async def score(number: int, seconds: float) -> int:
        async with limited(seconds):
            return await queue.score(row(number))

    first = asyncio.create_task(score(1, 60))
    await until(lambda: record.batches)
    second = asyncio.create_task(score(2, 0.05))
    await asyncio.sleep(0.2)
    assert not second.done()
    record.go_on.set()
    assert await first == 2
    assert await second == 4

    record.go_on.clear()
    with pytest.raises(TimeoutError):
        await score(3, 0.05)
    record.go_on.set()
    await queue.close()


async def test_a_batch_is_one_pass_however_many_rows_wait() -> None:
    """Fails if all that waits is one batch, whose time a rollout may not have; if rows of one
    prompt are parted although it is packed once; or if a row that is longer waits for ever."""
    record = Recorder()
    queue = ScoreQueue(record, batch_tokens=10)
    prompts = {"a": (1, 2, 3), "b": (4, 5, 6)}

    def made(prompt: str, number: int, length: int = 1) -> ScoredTokens:
        return ScoredTokens(prompt_ids=prompts[prompt], ids=(number,) * length)

    rows = [made("a", 1), made("b", 2), made("a", 3), made("b", 4, 9), made("a", 5), made("b", 6)]
    assert await asyncio.gather(*map(queue.score, rows)) == [2, 4, 6, 8, 10, 12]
    # 3 + 3 * 2 of prompt a, and 3 + 2 more of b would not fit; 3 + 10 do not either.
    assert record.batches == [[1, 3, 5], [2], [4], [6]]


async def test_close_waits_for_the_batch_that_is_computed() -> None:
    record = Recorder()
    record.go_on.clear()
    queue = ScoreQueue(record, batch_tokens=100)
    task = asyncio.create_task(queue.score(row(1)))
    await until(lambda: record.batches)
    task.cancel()
    closing = asyncio.create_task(queue.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    record.go_on.set()
    async with asyncio.timeout(120):
        await closing
