"""The threads of user code: few compute at a time, and an environment lives in one of them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import EnvSection, RolloutSection
from agentrl.plugins import own_threads
from agentrl.plugins.own_threads import OwnThread, own_thread
from agentrl.rollout.adapters.adapt import load_env_class
from agentrl.runtime.assembly.parts import make_env_factory
from agentrl.types import Termination
from tests.rollout.rollout_fakes import Bench

HERE = f"{__name__}:"


class OfOneThread:
    """Has what belongs to the thread that made it, as a connection of sqlite."""

    def __init__(self) -> None:
        self.made_in = threading.get_ident()

    def reset(self, states: Any) -> Any:
        assert threading.get_ident() == self.made_in
        return {"observation": states["observation"]}

    def step(self, states: Any) -> Any:
        assert threading.get_ident() == self.made_in
        return {"rewards": 1.0, "done": True}

    def close(self) -> None:
        assert threading.get_ident() == self.made_in


class OfTheLoop(OfOneThread):
    async def reset(self, states: Any) -> Any:
        return super().reset(states)


TRIED: list[int] = []


class Indexes(OfOneThread):
    def __init__(self) -> None:
        time.sleep(0.6)
        TRIED.append(1)


@pytest.mark.parametrize("name", ["OfOneThread", "OfTheLoop"])
async def test_an_environment_lives_in_one_thread(
    bench: Callable[..., Bench], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if its constructor runs in another thread than its methods, or these in two."""
    row = await bench(["a"], load_env_class(HERE + name)).one()
    assert row.termination is Termination.ENV_DONE, row.termination_detail
    assert "close" not in caplog.text


def test_the_constructor_of_a_launch_has_more_time() -> None:
    """Fails if a first constructor that indexes is refused at the limit of a rollout's."""
    section = RolloutSection(env_timeout_s=0.2)
    make_env_factory(EnvSection(target=HERE + "Indexes"), base=Path(), rollout=section)
    assert TRIED == [1]


async def test_few_calls_compute_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a call that computes gives its slot away: all then share one interpreter."""
    monkeypatch.setattr(own_threads, "_AT_ONCE", 2)
    under_way: set[int] = set()
    most: list[int] = []

    def compute() -> None:
        under_way.add(threading.get_ident())
        most.append(len(under_way))
        began = time.thread_time()
        while time.thread_time() < began + 0.25:
            pass
        under_way.discard(threading.get_ident())

    await asyncio.gather(*(own_thread(compute) for _ in range(6)))
    assert max(most) < 5  # 2, and one more where the machine stood still


def _threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == own_threads.THREAD_NAME}


async def test_a_call_has_no_thread_before_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if many calls at once start as many threads, among which the event loop stands in
    line, or if one that is cancelled before its turn keeps a slot."""
    monkeypatch.setattr(own_threads, "_AT_ONCE", 2)
    go_on, began, before = threading.Event(), threading.Semaphore(0), _threads()

    def compute() -> None:
        began.release()
        while not go_on.is_set():
            pass

    calls = [asyncio.create_task(own_thread(compute)) for _ in range(20)]
    while not began.acquire(blocking=False):
        await asyncio.sleep(0.01)
    threads = _threads() - before
    for call in calls[4:]:
        call.cancel()
    go_on.set()
    await asyncio.gather(*calls[:4])
    assert await asyncio.wait_for(own_thread(lambda: 1), 60) == 1
    assert len(threads) < 10


async def test_a_call_that_never_begins_keeps_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a slot is lost with a call that is cancelled behind another one of its thread, or
    for which the system has no thread."""
    monkeypatch.setattr(own_threads, "_AT_ONCE", 1)
    go_on, shared = threading.Event(), OwnThread()
    first = asyncio.create_task(shared.call(go_on.wait))
    assert await asyncio.wait_for(own_thread(lambda: 1), 60) == 1  # the first one waits
    second = asyncio.create_task(shared.call(lambda: 2))
    while not own_threads._slots:
        await asyncio.sleep(0.01)
    second.cancel()
    assert await asyncio.wait_for(own_thread(lambda: 3), 60) == 3
    usual = threading.stack_size(2**46)
    try:
        for call in (own_thread, OwnThread().call):
            with pytest.raises(RuntimeError, match="start new thread"):
                await asyncio.wait_for(call(lambda: 4), 60)
    finally:
        threading.stack_size(usual)
    assert await asyncio.wait_for(own_thread(lambda: 5), 60) == 5
    go_on.set()
    await first


async def test_a_thread_is_closed_while_a_call_comes() -> None:
    """Fails if a call lands in a line that has ended, or a closed thread goes on."""
    before, interval = _threads(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            shared = OwnThread()
            calls = [asyncio.create_task(shared.call(int)) for _ in range(3)]
            await asyncio.sleep(0)
            shared.close()
            assert await asyncio.wait_for(asyncio.gather(*calls), 60) == [0] * 3
            assert await asyncio.wait_for(shared.call(int), 60) == 0
            shared.close()
    finally:
        sys.setswitchinterval(interval)
    for thread in _threads() - before:
        thread.join(60)
        assert not thread.is_alive()


async def test_calls_that_wait_or_go_round_take_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_threads, "_AT_ONCE", 1)
    monkeypatch.setattr(own_threads, "_COMPUTES_S", 0.2)
    monkeypatch.setattr(own_threads, "_POLLS_S", 0.5)
    go_on = threading.Event()

    def in_circles() -> None:
        while not go_on.is_set():
            pass

    def looks() -> None:
        while not go_on.is_set():
            time.sleep(0.01)

    calls = [asyncio.create_task(own_thread(work)) for work in (in_circles, go_on.wait, looks)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(own_thread(lambda: 1), 60) == 1
    go_on.set()
    await asyncio.gather(*calls)


def test_the_end_of_a_loop_waits_for_what_is_written(tmp_path: Path) -> None:
    """Fails if Ctrl-C loses a file that a thread was writing."""
    written, began = tmp_path / "written", threading.Event()

    def write() -> None:
        began.set()
        time.sleep(0.3)
        written.touch()

    async def interrupted() -> None:
        own_threads.keep_pool_free()
        writing = asyncio.create_task(asyncio.to_thread(write))
        while not began.is_set():
            await asyncio.sleep(0.01)
        assert not writing.done()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    assert written.exists()


ENDS = """
import asyncio, atexit, sys, time
from agentrl.plugins.leaving import end_in_time
from agentrl.plugins.own_threads import own_thread

class Last:
    def __del__(self):
        print("the interpreter ended", flush=True)

async def main():
    work = asyncio.ensure_future(own_thread(time.sleep, 600))
    await asyncio.sleep(0.1)

last = Last()
asyncio.run(main())
atexit.register(print, "others ran")
end_in_time(3)
print("complete")
sys.exit(3)
"""


def test_the_interpreter_does_not_end_below_a_thread() -> None:
    """Fails with status 134 where the thread is in torch, though the run was complete."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (3, "complete\nothers ran\n"), done.stderr
