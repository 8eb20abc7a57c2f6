"""What a worker that takes the place of a dead one begins with; its process is a fake."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import parse_config
from agentrl.config.plan import plan_run
from agentrl.errors import AgentrlError, ConfigError
from agentrl.fit.reward_models.versions import UsedRewardModel
from agentrl.runtime.assembly.engine_addresses import EngineAddress
from agentrl.runtime.children.stages import EngineNews
from agentrl.runtime.children.worker_child import WorkerLost
from agentrl.runtime.children.worker_main import WorkerSetup
from agentrl.runtime.children.workers import RESTARTS, ChildWorkers

A, B = (EngineAddress(name=name, address=f"http://{name}:1") for name in "ab")


class Child:
    """A worker process that keeps what it was told."""

    opened: list[Child]
    """All of them, in order."""
    answer: AgentrlError | None
    """Error of `serve_from`."""

    def __init__(self, setup: WorkerSetup) -> None:
        self.index, self.pid, self.in_flight = setup.index, 1, 0
        self.held, self.left, self.lost = False, [set[str]()], False
        self.served, self.used = 0, None
        self.refuses: AgentrlError | None = None
        self.opened.append(self)

    async def open(self, engines: tuple[EngineAddress, ...]) -> str:
        await asyncio.sleep(0.02)
        if not engines:
            raise ValueError("a client needs at least one engine")
        return "open"

    async def ask(self, method: str, *arguments: Any) -> Any:
        if method == "hold_turns":
            (self.held,) = arguments
        elif method == "use_reward_model":
            (self.used,) = arguments
            if self.refuses is not None:
                raise self.refuses
        elif method == "serve_from":
            self.served += 1
            self.left.append(*arguments[1:] or [set()])
            if self.answer is not None:
                raise self.answer
        return {}

    async def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> type[Child]:
    Child.opened, Child.answer = [], None
    monkeypatch.setattr("agentrl.runtime.children.workers.WorkerChild", Child)
    monkeypatch.setattr("agentrl.runtime.children.stages.LOOK_S", 0.01)
    return Child


def workers_of(
    serving: list[EngineAddress],
    tmp_path: Path,
    *,
    wait_s: float = 120,
    open_limit_s: float = 120.0,
    count: int = 1,
) -> ChildWorkers:
    config = parse_config({"env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl"}})
    setups = [
        WorkerSetup(
            plan=plan_run(config, tmp_path).rollouts,
            wait_s=0.0,
            index=index,
            sharers=count,
            log=tmp_path / "log",
            policy_copy=None,
        )
        for index in range(count)
    ]
    return ChildWorkers(
        setups,
        lambda: list(serving),
        wait_s=wait_s,
        open_limit_s=open_limit_s,
        back_off_s=0.001,
    )


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_worker_that_dies_in_an_outage_is_replaced_after_it(
    tmp_path: Path, comes_back: bool
) -> None:
    """Fails if an outage uses up the restarts of a worker, or is waited for without end."""
    serving = [A]
    workers = workers_of(serving, tmp_path, wait_s=120 if comes_back else 0.01)
    await workers.open()
    dead = await workers.take()
    serving.clear()
    workers.note_lost(dead)
    if comes_back:
        asyncio.get_running_loop().call_later(0.3, serving.append, A)
        assert await asyncio.wait_for(workers.take(), 120) is Child.opened[1]  # pyright: ignore[reportUnnecessaryComparison]
    else:
        with pytest.raises(AgentrlError, match="all 1 rollout workers died"):
            await asyncio.wait_for(workers.take(), 120)
    assert len(Child.opened) == (2 if comes_back else 1 + RESTARTS)
    await workers.close()


async def test_no_group_is_given_to_a_worker_that_is_dead_already(tmp_path: Path) -> None:
    """Fails if workers that died together cost one group all of its attempts."""
    workers = workers_of([A], tmp_path, count=3)
    await workers.open()
    for child in Child.opened[:2]:
        child.lost = True
    assert await workers.take() is Child.opened[2]  # pyright: ignore[reportUnnecessaryComparison]
    assert workers.take_lost() == 2
    assert workers.take_lost() == 0
    await workers.close()


async def test_opening_has_an_end(tmp_path: Path) -> None:
    """Fails if a worker that hangs while it opens is waited for without a limit."""
    workers = workers_of([A], tmp_path, open_limit_s=0.005)
    with pytest.raises(WorkerLost, match=r"not open within 0\.005 s .*start_timeout_s"):
        await workers.open()
    await workers.close()


class _Silent(Child):
    """Answers the second question late, as one whose parent was stopped for a while."""

    async def ask(self, method: str, *arguments: Any) -> Any:
        if method == "stats":
            await asyncio.sleep(0.6)
        return {}


async def test_a_worker_is_not_replaced_for_a_stop_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if an answer that came while this process was stopped is taken for none."""
    monkeypatch.setattr("agentrl.runtime.children.workers.WorkerChild", _Silent)
    monkeypatch.setattr("agentrl.runtime.children.workers.HANG_S", 1.0)
    workers = workers_of([A], tmp_path)
    await workers.open()
    asking = asyncio.create_task(workers.ask_all("stats"))
    await asyncio.sleep(0.01)
    time.sleep(1.5)  # the whole process stands still
    assert await asking == [{}]
    assert workers.take_lost() == 0
    await workers.close()


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_worker_that_opens_during_a_pause_begins_with_clocks_that_stand_still(
    tmp_path: Path, goes_on: bool
) -> None:
    """Fails if only workers that live when the pause begins hear of it, or of its end."""
    workers = workers_of([A], tmp_path)
    await workers.open()
    await workers.hold_turns(True)
    assert Child.opened[0].held
    workers.note_lost(await workers.take())
    while len(Child.opened) < 2:
        await asyncio.sleep(0)
    if goes_on:
        await workers.hold_turns(False)
    await asyncio.wait_for(workers.take(), 120)
    assert Child.opened[1].held is not goes_on
    await workers.close()


async def test_what_a_worker_does_not_reach_is_announced_again(tmp_path: Path) -> None:
    """Fails if a worker whose secret is missing is taken for one that is gone."""
    serving = [A]
    workers = workers_of(serving, tmp_path)
    await workers.open()
    news = EngineNews(workers, lambda: "ab")
    watching = asyncio.create_task(news.watch())
    (child,) = Child.opened
    for error, again in ((ConfigError("no secret"), True), (WorkerLost("gone"), False)):
        Child.answer, child.served = error, 0
        serving[:] = [B] if serving == [A] else [A]
        while child.served < 1 + again:
            await asyncio.sleep(0.01)
        if not again:
            await asyncio.sleep(0.3)
            assert child.served == 1, error
        Child.answer = None
        while again and child.left[-1:] != [set()]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
    watching.cancel()
    await workers.close()


async def test_workers_hear_which_engines_left_and_did_not_fail(tmp_path: Path) -> None:
    """Fails if the turns of an engine that failed count as those of one that was let go."""
    serving, names = [A, B], ["a", "b"]
    workers = workers_of(serving, tmp_path)
    await workers.open()
    news = EngineNews(workers, lambda: names)
    (child,) = Child.opened
    serving.remove(A)  # quarantined
    await news.announce()
    assert child.left[-1] == set()
    serving.append(A)
    await news.announce()
    names.remove("b")
    serving.remove(B)
    await news.announce()
    assert child.left[-1] == {"b"}
    await workers.close()


async def test_every_worker_scores_with_the_reward_model_in_use(tmp_path: Path) -> None:
    """Fails if one that opens later, in place of a dead one, pays by the model of the run file."""
    workers = workers_of([A], tmp_path, count=2)
    await workers.open()
    assert [child.used for child in Child.opened] == [None, None]
    first = UsedRewardModel(name="rm", version=1, path="v1")
    await workers.use_reward_model(first)
    assert [child.used for child in Child.opened] == [first, first]
    workers.note_lost(await workers.take())
    while len(Child.opened) < 3:
        await asyncio.sleep(0)
    # Also where the next one comes while it opens.
    second = UsedRewardModel(name="rm", version=2, path="v2")
    await workers.use_reward_model(second)
    while len(workers.pids) < 2:
        await asyncio.sleep(0.01)
    assert [child.used for child in Child.opened[1:]] == [second, second]
    Child.opened[1].refuses = ConfigError("no memory")
    with pytest.raises(ConfigError, match="no memory"):
        await workers.use_reward_model(first)
    Child.opened[1].refuses = WorkerLost("gone")
    await workers.use_reward_model(first)
    await workers.close()
