"""Pools: work prepared once, sandboxes used again, capacity, and leftovers of failures."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from agentrl_sandboxes import PooledBackend

from agentrl.errors import SandboxError, SandboxUnavailable
from agentrl.sandbox import Sandbox, SandboxLimits, SandboxSpec
from tests.sandboxes.pool.pool_backends import (
    Counted,
    InMemory,
    kill_supervisor,
    nothing_left,
    supervisors,
)

LIMITS = SandboxLimits()
SPEC = SandboxSpec()


async def test_siblings_begin_with_work_that_was_prepared_once() -> None:
    """Fails if each sibling prepares, if one gets the sandbox of the preparation itself (with what
    it left in /tmp), or if they share a directory."""
    inner, calls = Counted(), []

    async def prepare(sandbox: Sandbox) -> None:
        calls.append(sandbox)
        await sandbox.write_file("repo/main.py", b"print(1)")
        await sandbox.exec(("sh", "-c", "touch /tmp/left"))

    async def sibling(index: int) -> str:
        sandbox = await pool.take(SandboxSpec(key="task", prepare=prepare), LIMITS, timeout_s=30)
        assert sandbox.origin.forked
        assert await sandbox.read_file("repo/main.py") == b"print(1)"
        await sandbox.write_file(f"mine{index}", b"")
        await asyncio.sleep(0.05)
        return (await sandbox.exec(("sh", "-c", "ls . /tmp"))).stdout.replace("\n", " ")

    pool = PooledBackend(inner)
    try:
        listings = await asyncio.gather(*map(sibling, range(3)))
        late = await pool.take(SandboxSpec(key="task", prepare=prepare), LIMITS, more=True)
        assert "mine" not in (await late.exec(("ls",))).stdout
    finally:
        await pool.close()
    assert len(calls) == 1
    assert inner.made == 5
    for index, listing in enumerate(listings):
        assert f"mine{index}" in listing
        assert listing.count("mine") == 1
        assert "left" not in listing
    assert not supervisors()


async def test_a_preparation_that_fails_is_told_to_all_and_kept_for_none() -> None:
    calls = 0

    async def prepare(sandbox: Sandbox) -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.02)
        if calls == 1:
            raise FileNotFoundError("no such fixture")
        await sandbox.write_file("a", b"")

    inner = InMemory()
    pool = PooledBackend(inner, max_open=4)
    spec = SandboxSpec(key="task", prepare=prepare)
    failed = await asyncio.gather(
        *(pool.take(spec, LIMITS) for _ in range(3)), return_exceptions=True
    )
    assert [type(error) for error in failed] == [FileNotFoundError] * 3
    assert not inner.alive
    assert not pool._prepared._entries
    # Every place is free again, and the next who asks has it prepared anew.
    made = [await pool.take(spec, LIMITS) for _ in range(4)]
    assert calls == 2
    assert await made[3].read_file("a") == b""
    await pool.close()


async def test_a_preparation_outlives_the_one_that_asked_first() -> None:
    """Fails if the work belongs to the first sibling: its cancellation then fails the others."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def prepare(sandbox: Sandbox) -> None:
        started.set()
        await go_on.wait()

    inner = InMemory()
    pool = PooledBackend(inner)
    spec = SandboxSpec(key="task", prepare=prepare)
    first, second = (asyncio.create_task(pool.take(spec, LIMITS)) for _ in range(2))
    await started.wait()
    first.cancel()
    await asyncio.sleep(0.01)
    go_on.set()
    sandbox = await second
    assert sandbox.origin.forked
    await sandbox.close()
    # If nobody is left who wants it, it ends.
    started.clear()
    go_on.clear()
    only = asyncio.create_task(pool.take(SandboxSpec(key="other", prepare=prepare), LIMITS))
    await started.wait()
    only.cancel()
    await nothing_left(pool, inner)


async def test_a_preparation_without_a_key_that_fails_gives_its_place_back_once() -> None:
    """Fails if the place is not given back, or is given back twice: then two are open at once."""

    async def prepare(sandbox: Sandbox) -> None:
        raise ValueError("cannot prepare")

    inner = InMemory()
    pool = PooledBackend(inner, max_open=1)
    for _ in range(3):
        with pytest.raises(ValueError, match="cannot prepare"):
            await pool.take(SandboxSpec(prepare=prepare), LIMITS)
    assert not inner.alive
    only = await pool.take(SPEC, LIMITS)
    second = asyncio.create_task(pool.take(SPEC, LIMITS))
    await asyncio.sleep(0.02)
    assert not second.done()
    await only.close()
    await second
    await pool.close()


async def test_so_many_preparations_at_once_and_so_long() -> None:
    running = most = 0

    async def prepare(sandbox: Sandbox) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    async def never(sandbox: Sandbox) -> None:
        await asyncio.sleep(600)

    pool = PooledBackend(InMemory(), prepares_at_once=3)
    specs = [SandboxSpec(key=str(index), prepare=prepare) for index in range(12)]
    await asyncio.gather(*(pool.take(spec, LIMITS) for spec in specs))
    assert most == 3
    for key in ("", "task"):
        with pytest.raises(SandboxError, match=r"preparing .* took longer than 0\.05 s"):
            await pool.take(SandboxSpec(key=key, prepare=never), LIMITS, timeout_s=0.05)
    await pool.close()


async def test_prepared_work_is_bounded_and_not_taken_from_who_uses_it() -> None:
    calls: list[str] = []

    def spec(name: str) -> SandboxSpec:
        async def prepare(sandbox: Sandbox) -> None:
            calls.append(name)
            await sandbox.write_file(name, bytes(100))

        return SandboxSpec(key=name, prepare=prepare)

    pool = PooledBackend(InMemory(), prepared=2, prepared_bytes=10_000)
    for name in "abab":
        await (await pool.take(spec(name), LIMITS)).close()
    assert calls == ["a", "b"]
    await (await pool.take(spec("c"), LIMITS)).close()
    await (await pool.take(spec("b"), LIMITS)).close()
    await (await pool.take(spec("a"), LIMITS)).close()
    assert calls == ["a", "b", "c", "a"]
    await pool.close()
    # By size: nothing fits, so everything goes as soon as nobody uses it, and not before.
    pool = PooledBackend(InMemory(), prepared=2, prepared_bytes=99)
    both = await asyncio.gather(*(pool.take(spec("d"), LIMITS) for _ in range(3)))
    assert [await sandbox.read_file("d") for sandbox in both] == [bytes(100)] * 3
    await pool.take(spec("d"), LIMITS)
    assert calls[4:] == ["d", "d"]
    await pool.close()


async def test_a_wipe_that_raises_anything_ends_the_sandbox() -> None:
    """Fails if only the errors of the contract are foreseen: the sandbox is in nobody's hands."""
    inner = InMemory()
    pool = PooledBackend(inner, max_uses=2)
    lease = await pool.take(SPEC, LIMITS)
    (made,) = inner.alive

    async def reset() -> None:
        raise RuntimeError("nobody foresaw this")

    made.reset = reset
    await lease.close()
    assert not inner.alive
    await pool.close()


async def test_a_used_sandbox_is_wiped_and_one_in_trouble_is_never_used_again() -> None:
    """Fails if `reset` is left out (the file is still there), if a broken sandbox comes back, or
    if who gave one back can still write into the next one's."""
    inner = Counted()
    pool = PooledBackend(inner, max_uses=3)
    try:
        first = await pool.take(SPEC, LIMITS)
        await first.write_file("secret", b"x")
        await first.exec(("sh", "-c", "echo x > /tmp/secret; sleep 100 & sleep 100 &"))
        await first.close()
        second = await pool.take(SPEC, LIMITS)
        assert second.origin.reused
        assert inner.made == 1
        assert (await second.exec(("sh", "-c", "ls -A . /tmp; ps aux"))).stdout.count("sleep") == 0
        assert "secret" not in (await second.exec(("sh", "-c", "ls -A . /tmp"))).stdout
        with pytest.raises(SandboxError, match="closed"):
            await first.write_file("late", b"")
        with pytest.raises(SandboxError, match="closed"):
            await first.exec(("true",))
        await first.close()
        assert (await second.exec(("ls",))).stdout == ""
        # A command that was cancelled leaves the sandbox in nobody knows what state.
        running = asyncio.create_task(second.exec(("sleep", "5")))
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait([running])
        await second.close()
        third = await pool.take(SPEC, LIMITS)
        assert not third.origin.reused
        assert inner.made == 2
        await kill_supervisor(supervisors()[-1])
        with pytest.raises(SandboxError):
            await third.exec(("true",))
        await third.close()
        assert not (await pool.take(SPEC, LIMITS)).origin.reused
    finally:
        await pool.close()
    assert not supervisors()


async def test_sandboxes_that_cannot_be_wiped_are_used_once_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fails if every rollout writes a line about what is documented."""
    inner = InMemory()
    pool = PooledBackend(inner, max_uses=64)
    with caplog.at_level("INFO"):
        for _ in range(3):
            await (await pool.take(SPEC, LIMITS)).close()
    assert (inner.made, len(inner.alive)) == (3, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "sandboxes are used once: NoPrograms serves once"
    ]
    await pool.close()


class Wiped(InMemory):
    """Sandboxes that can be wiped until a test says otherwise."""

    failure: Exception | None = None

    async def create(self, *args: Any, **options: Any) -> Sandbox:
        sandbox = await super().create(*args, **options)

        async def reset() -> None:
            if self.failure is not None:
                raise self.failure

        sandbox.reset = reset
        return sandbox


async def test_no_more_are_idle_than_may_be_open() -> None:
    """Fails if those that graded in a second sandbox leave two idle ones each."""
    inner = Wiped()
    pool = PooledBackend(inner, max_open=2, max_uses=9)
    for _ in range(3):
        both = [await pool.take(SPEC, LIMITS, more=bool(n)) for n in (0, 1)]
        third = await pool.take(SPEC, LIMITS, more=True)
        for lease in (*both, third):
            await lease.close()
        assert len(inner.alive) <= 2
    await pool.close()


@pytest.mark.parametrize("failure", [SandboxError("gone"), RuntimeError("nobody foresaw this")])
async def test_an_idle_sandbox_that_fails_in_any_way_is_not_handed_out(
    failure: Exception,
) -> None:
    inner = Wiped()
    pool = PooledBackend(inner, max_uses=9)
    await (await pool.take(SPEC, LIMITS)).close()
    assert len(inner.alive) == 1
    inner.failure = failure
    second = await pool.take(SPEC, LIMITS)
    assert not second.origin.reused
    inner.failure = None
    await second.close()
    await asyncio.sleep(0.01)
    assert len(inner.alive) == 1
    await pool.close()


async def test_warm_sandboxes_are_ready_and_a_dead_one_is_not_handed_out() -> None:
    pool = PooledBackend(Counted(), warm=2)

    async def until_ready(count: int) -> None:
        # Those under way count as idle; none is, once nobody has a turn.
        while len(supervisors()) < count or pool._starts.running:
            await asyncio.sleep(0.02)

    try:
        first = await pool.take(SPEC, LIMITS)
        assert not first.origin.warm
        await asyncio.wait_for(until_ready(3), 120)
        await kill_supervisor(supervisors()[1])
        taken = [await pool.take(SPEC, LIMITS) for _ in range(2)]
        assert taken[0].origin.warm
        for sandbox in taken:
            assert (await sandbox.exec(("echo", "hi"))).stdout == "hi\n"
        await asyncio.wait_for(until_ready(5), 120)
        # Another kind is another sandbox.
        small = await pool.take(SandboxSpec(limits=SandboxLimits(processes=16)), LIMITS)
        assert not small.origin.warm
        assert small.limits.processes == 16
    finally:
        await pool.close()
    assert not supervisors()


async def test_a_place_that_was_left_while_another_started_is_filled_afterwards() -> None:
    """Fails if a kind has no warm sandbox until somebody asks for it again."""
    go_on = asyncio.Event()

    async def start(number: int) -> None:
        if number == 4:
            await go_on.wait()

    inner = InMemory(start)
    pool = PooledBackend(inner, warm=1, starts_at_once=1)
    other = SandboxSpec(limits=SandboxLimits(processes=16))

    async def until_made(count: int) -> None:
        while inner.made < count or inner.starting > (count == 4):
            await asyncio.sleep(0.01)

    try:
        await pool.take(SPEC, LIMITS)
        await asyncio.wait_for(until_made(2), 60)
        await pool.take(other, LIMITS)
        await asyncio.wait_for(until_made(4), 60)
        assert (await pool.take(SPEC, LIMITS)).origin.warm
        go_on.set()
        await asyncio.wait_for(until_made(5), 60)
        assert (await pool.take(SPEC, LIMITS)).origin.warm
    finally:
        go_on.set()
        await pool.close()


async def test_an_old_sandbox_is_not_handed_out() -> None:
    """Fails if age is ignored: it would end itself in the middle of a rollout."""
    inner = InMemory()
    pool = PooledBackend(inner, warm=1)
    brief = SandboxLimits(lifetime_s=0.3)
    await pool.take(SPEC, brief)
    await asyncio.sleep(0.05)
    assert inner.made == 2
    await asyncio.sleep(0.2)
    assert not (await pool.take(SPEC, brief)).origin.warm
    await pool.close()


async def test_places_are_a_line_that_graders_pass() -> None:
    """Fails if a second sandbox of one rollout waits for a place: these two would wait for ever."""
    inner = InMemory()
    pool = PooledBackend(inner, max_open=2)
    order: list[int] = []

    async def rollout(index: int) -> float:
        own = await pool.take(SPEC, LIMITS)
        order.append(index)
        await own.exec(["0.05"])
        grader = await pool.take(SPEC, LIMITS, more=True)
        assert len(inner.alive) <= 4
        await grader.close()
        await own.close()
        return own.origin.waited_s

    async with asyncio.timeout(120):
        waits = await asyncio.gather(*map(rollout, range(6)))
    assert order == list(range(6))
    assert waits[0] < waits[5]
    assert waits[5] > 0.08
    assert not inner.alive
    await pool.close()


async def test_so_many_starts_at_once() -> None:
    async def slow(number: int) -> None:
        await asyncio.sleep(0.01)

    inner = InMemory(slow)
    pool = PooledBackend(inner, starts_at_once=3)
    await asyncio.gather(*(pool.take(SPEC, LIMITS) for _ in range(12)))
    assert inner.most_starting == 3
    # Who is cancelled keeps the turn until its start is over.
    takers = [asyncio.create_task(pool.take(SPEC, LIMITS)) for _ in range(12)]
    await asyncio.sleep(0.005)
    for taker in takers[:3]:
        taker.cancel()
    await asyncio.gather(*takers, return_exceptions=True)
    assert inner.most_starting == 3
    assert len(inner.alive) == 12 + 9
    await pool.close()


async def test_a_start_is_bounded_and_the_wait_for_it_is_not() -> None:
    async def slow(number: int) -> None:
        await asyncio.sleep(600 if number == 9 else 0.1)

    pool = PooledBackend(InMemory(slow), starts_at_once=1)
    async with asyncio.timeout(120):
        took = await asyncio.gather(*(pool.take(SPEC, LIMITS, timeout_s=0.65) for _ in range(8)))
    assert max(sandbox.origin.waited_s for sandbox in took) > 0.65
    with pytest.raises(SandboxError, match=r"'in-memory' did not open a sandbox in 0\.\d+ s"):
        await pool.take(SPEC, LIMITS, timeout_s=0.3)
    await pool.close()


async def test_nothing_is_left_wherever_it_is_cancelled() -> None:
    """Takes that are cancelled in any state, then a pool that is closed with the rest under way.
    Fails if a place, a sandbox or a task is lost on any of the ways out."""
    draw = random.Random(0)

    async def start(number: int) -> None:
        await asyncio.sleep(draw.uniform(0, 0.004))
        if number % 7 == 0:
            raise SandboxError("no room")

    async def prepare(sandbox: Sandbox) -> None:
        await asyncio.sleep(draw.uniform(0, 0.004))
        if draw.random() < 0.2:
            raise ValueError("cannot prepare")

    inner = InMemory(start)
    pool = PooledBackend(inner, max_open=6, starts_at_once=2, warm=1)

    async def rollout(index: int) -> None:
        spec = [
            SPEC,
            SandboxSpec(prepare=prepare),
            SandboxSpec(key=f"{index % 9}", prepare=prepare),
        ]
        sandbox = await pool.take(spec[index % 3], LIMITS, timeout_s=1)
        try:
            await sandbox.exec(["0.002"])
        finally:
            await sandbox.close()

    for _ in range(4):
        running = [asyncio.create_task(rollout(index)) for index in range(60)]
        for task in draw.sample(running, 40):
            await asyncio.sleep(draw.uniform(0, 0.002))
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def others() -> set[asyncio.Task[object]]:
        return asyncio.all_tasks() - {asyncio.current_task()}

    async with asyncio.timeout(120):  # a busy machine may take a second for what is under way
        while others() or len(inner.alive) > 2:  # beside idle ones of one kind
            await asyncio.sleep(0.01)
        await asyncio.gather(*(pool.take(SPEC, LIMITS) for _ in range(6)))
    running = [asyncio.create_task(rollout(index)) for index in range(30)]
    await asyncio.sleep(0.01)
    inner.close = _do_nothing  # type: ignore[method-assign]
    await pool.close()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert {type(end) for end in ends} <= {SandboxError, ValueError, type(None)}
    await nothing_left(pool, inner)
    with pytest.raises(SandboxError, match="closed"):
        await pool.take(SPEC, LIMITS)


async def test_what_there_is_not_is_not_tried_again() -> None:
    inner = InMemory()
    pool = PooledBackend(inner)
    for _ in range(8):
        with pytest.raises(SandboxUnavailable, match="no such image"):
            await pool.take(SandboxSpec(image="missing"), LIMITS)
    assert inner.made == 8
    assert await pool.take(SPEC, LIMITS)
    await pool.close()


async def _do_nothing() -> None: ...
