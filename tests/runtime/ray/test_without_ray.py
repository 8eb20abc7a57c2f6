"""What Ray's part of the runtime decides without Ray: cutting, joining, routing, placing."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import RunConfig, parse_config
from agentrl.config.fleet import (
    EmbeddedServing,
    ExternalServing,
    RayRuntime,
    ServingSection,
    VllmServing,
)
from agentrl.errors import ConfigError, RunError
from agentrl.fit.reward_models.versions import UsedRewardModel
from agentrl.metrics import MetricBag
from agentrl.runtime.assembly.layout import missing, plan
from agentrl.runtime.assembly.rollout_host import PolicyCopy
from agentrl.runtime.ray.actor import run_identity
from agentrl.runtime.ray.cluster import check_cluster
from agentrl.runtime.ray.rollout_workers import RESTARTS, Workers
from agentrl.runtime.ray.worker_group import (
    ActorLost,
    Mode,
    WorkerGroup,
    dispatch,
    join,
    least_loaded,
    partition,
)


@given(st.lists(st.integers()), st.integers(1, 9))
def test_a_partitioned_batch_joins_to_itself(items: list[int], parts: int) -> None:
    """Fails if a part is lost or out of order, or if one rank gets two items more than another."""
    pieces = partition(items, parts)
    assert len(pieces) == parts
    assert join(pieces) == items
    sizes = [len(piece) for piece in pieces]
    assert max(sizes) - min(sizes) <= 1


def test_bags_of_a_split_call_merge() -> None:
    """Fails if the mean over a batch becomes the mean of the means of its parts."""
    a, b = MetricBag(), MetricBag()
    a.mean("reward", 1.0, count=1)
    b.mean("reward", 0.0, count=3)
    assert join([a, b]).result() == {"reward": 0.25}
    assert join([None, None]) is None
    with pytest.raises(TypeError, match="list, str"):
        join([[1], "x"])


def test_the_least_loaded_is_the_first_of_equals_among_the_usable() -> None:
    assert least_loaded([2, 1, 1], [True, True, True]) == 1
    assert least_loaded([2, 1, 1], [True, False, True]) == 2
    assert least_loaded([0, 0], [False, False]) is None


class Handle:
    """What a group needs of Ray's handle: a method with `remote` that can be awaited."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.gate = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return _Remote(self, name)


class _Remote:
    def __init__(self, handle: Handle, name: str) -> None:
        self.handle, self.name = handle, name

    async def remote(self, *args: Any, **kwargs: Any) -> Any:
        if self.name == "hold":
            await self.handle.gate.wait()
        if self.name == "words":
            return [f"{self.handle.index}{word}" for word in args[0]]
        return (self.handle.index, self.name, args, kwargs)


class Actor:
    """Methods of an actor, by mode."""

    @dispatch(Mode.BROADCAST)
    async def everybody(self, x: int) -> Any: ...

    @dispatch(Mode.RANK_ZERO)
    async def first(self) -> Any: ...

    @dispatch(Mode.SPLIT)
    async def words(self, words: list[str]) -> Any: ...

    @dispatch(Mode.LEAST_LOADED)
    async def hold(self) -> Any: ...

    async def private(self) -> Any: ...


async def test_one_line_of_the_driver_is_one_distributed_call() -> None:
    """Fails if a mode calls the wrong actors, or brings results back out of order."""
    group = WorkerGroup(Actor, [Handle(0), Handle(1), Handle(2)], name="actor")
    assert [r[0] for r in await group.everybody(7)] == [0, 1, 2]
    assert (await group.first())[0] == 0
    assert await group.words(["a", "b", "c", "d"]) == ["0a", "0b", "1c", "2d"]
    with pytest.raises(AttributeError, match="@dispatch"):
        group.private()


async def test_calls_go_to_who_has_least_to_do_and_never_to_the_retired() -> None:
    """Fails if calls in flight are not counted, not given back, or a dead actor is called."""
    handles = [Handle(0), Handle(1)]
    group = WorkerGroup(Actor, handles, name="actor")
    calls = [asyncio.ensure_future(group.hold()) for _ in range(4)]
    await asyncio.sleep(0)
    handles[1].gate.set()
    await asyncio.sleep(0.01)
    assert [call.done() for call in calls] == [False, True, False, True]
    assert (await asyncio.wait_for(group.hold(), 120))[0] == 1
    group.retire(1)
    more = asyncio.ensure_future(group.hold())
    handles[0].gate.set()
    assert [(await call)[0] for call in (*calls, more)] == [0, 1, 0, 1, 0]
    group.retire(0)
    with pytest.raises(ActorLost, match="no actor is left"):
        await group.hold()
    group.replace(1, handles[1])
    assert (await group.hold())[0] == 1


class Plain:
    """An actor that opens where there is an engine to ask, as a worker does."""

    @dispatch(Mode.BROADCAST)
    async def open(self, engines: list[Any], policy_copy: PolicyCopy | None) -> None: ...

    @dispatch(Mode.BROADCAST)
    async def serve_from(self, engines: list[Any]) -> None: ...

    @dispatch(Mode.BROADCAST)
    async def hold_turns(self, held: bool) -> None: ...

    @dispatch(Mode.BROADCAST)
    async def use_reward_model(self, used: UsedRewardModel) -> None: ...


class Opening:
    """Its handle."""

    def __init__(self, opened: list[int]) -> None:
        self.opened = opened
        self.copies: list[PolicyCopy | None] = []
        self.held: list[bool] = []
        self.open, self.serve_from = Remote(self._open), Remote(self._ignore)
        self.hold_turns = Remote(self._hold)
        self.used: list[UsedRewardModel] = []
        self.refuses: Exception | None = None
        self.use_reward_model = Remote(self._use)

    async def _open(self, engines: list[Any], policy_copy: PolicyCopy | None) -> None:
        self.opened.append(len(engines))
        self.copies.append(policy_copy)
        if not engines:
            raise ValueError("a client needs at least one engine")

    async def _ignore(self, engines: list[Any]) -> None: ...

    async def _hold(self, held: bool) -> None:
        self.held.append(held)

    async def _use(self, used: UsedRewardModel) -> None:
        self.used.append(used)
        if self.refuses is not None:
            raise self.refuses


class Remote:
    """A method of a handle."""

    def __init__(self, method: Callable[..., Awaitable[None]]) -> None:
        self.remote = method


@pytest.mark.parametrize(("comes_back", "opened"), [(True, [1]), (False, [0] * RESTARTS)])
async def test_a_worker_is_replaced_when_an_engine_serves_again(
    comes_back: bool, opened: list[int]
) -> None:
    """Fails if an outage of all engines uses up the restarts of a worker, or is waited for
    without end."""
    tries: list[int] = []
    serving: list[Any] = []
    group = WorkerGroup(Plain, [Opening(tries)], name="worker")
    limit_s = 10.0 if comes_back else 0.01
    workers = Workers(group, lambda _: Opening(tries), open_limit_s=limit_s, back_off_s=0.001)
    workers.engines, workers.held = lambda: list(serving), lambda: False
    assert workers.lost(0)
    if comes_back:
        asyncio.get_running_loop().call_later(0.05, serving.append, object())
        await asyncio.wait_for(workers.usable(), 120)
    else:
        with pytest.raises(RunError, match="workers died"):
            await asyncio.wait_for(workers.usable(), 120)
    assert tries == opened
    await workers.close()


@pytest.mark.parametrize("held", [True, False])
async def test_a_worker_that_opens_during_a_pause_begins_with_clocks_that_stand_still(
    held: bool,
) -> None:
    """Fails if only workers that live when a pause begins hear of it."""
    fresh = Opening([])
    group = WorkerGroup(Plain, [Opening([])], name="worker")
    workers = Workers(group, lambda _: fresh, open_limit_s=120.0, back_off_s=0.001)
    serving: list[Any] = [object()]
    workers.engines, workers.held = lambda: serving, lambda: held
    workers.policy_copy = PolicyCopy(tokenizer=b"the policy's")
    assert workers.lost(0)
    await asyncio.wait_for(workers.usable(), 120)
    assert group.handle(0) is fresh
    assert fresh.held == [True] * held
    assert fresh.copies == [PolicyCopy(tokenizer=b"the policy's")]
    await workers.close()


async def test_every_worker_scores_with_the_reward_model_in_use() -> None:
    """Fails if a worker that opens in place of a dead one pays by the model of the run file."""
    handles, fresh = [Opening([]), Opening([])], Opening([])
    group = WorkerGroup(Plain, handles, name="worker")
    workers = Workers(group, lambda _: fresh, open_limit_s=120.0, back_off_s=0.001)
    serving: list[Any] = [object()]
    workers.engines, workers.held = lambda: serving, lambda: False
    used = UsedRewardModel(name="rm", version=1, path="v1")
    await workers.use_reward_model(used)
    assert [handle.used for handle in handles] == [[used], [used]]
    assert workers.lost(0)
    while group.handle(0) is not fresh:
        await asyncio.sleep(0.001)
    assert fresh.used == [used]
    handles[1].refuses = ConfigError("no memory")
    with pytest.raises(ConfigError, match="no memory"):
        await workers.use_reward_model(used)
    await workers.close()


def test_engines_have_bundles_of_their_own_or_share_those_of_the_ranks() -> None:
    vllm = VllmServing(replicas=2)
    apart = plan(RayRuntime(trainer_ranks=2, gpus={"trainer": 1, "engine": 2}), vllm)
    assert dict(apart.total) == {"CPU": 6.0, "GPU": 6.0}
    assert not {slot.bundle for slot in apart.engines} & {slot.bundle for slot in apart.ranks}
    together = plan(
        RayRuntime(trainer_ranks=2, gpus=1, placement="colocated"),
        vllm,
    )
    assert dict(together.total) == {"CPU": 6.0, "GPU": 2.0}
    assert [s.bundle for s in together.engines] == [s.bundle for s in together.ranks]
    assert {slot.gpus for slot in (*together.engines, *together.ranks)} == {0.5}


def test_servers_that_already_run_and_embedded_engines_need_no_bundle() -> None:
    for serving in (EmbeddedServing(), ExternalServing(urls=("http://a:1",))):
        layout = plan(RayRuntime(), serving)
        assert layout.engines == ()
        assert dict(layout.total) == {"CPU": 3.0}


def test_colocated_engines_that_cannot_share_a_device_are_refused() -> None:
    vllm = VllmServing(replicas=2)
    with pytest.raises(ConfigError, match=r"2 engines .* 1 trainer ranks"):
        plan(RayRuntime(placement="colocated"), vllm)
    with pytest.raises(ConfigError, match=r"runtime\.gpus: 2"):
        plan(RayRuntime(trainer_ranks=2, placement="colocated", gpus={"engine": 2}), vllm)


def test_what_is_missing_is_named() -> None:
    """Fails if resources that are spread over machines are taken for those of one machine."""
    assert missing([{"CPU": 1}] * 3, [{"CPU": 2}, {"CPU": 1}]) == ""
    assert missing([{"CPU": 1, "GPU": 2}], [{"CPU": 8, "GPU": 1}]) == "needs 2 GPU, found 1"
    spread = missing([{"CPU": 1, "GPU": 2}], [{"CPU": 8, "GPU": 1}, {"CPU": 8, "GPU": 1}])
    assert "2 GPU on one machine" in spread
    assert "8 CPU + 1 GPU, 8 CPU + 1 GPU" in spread


def sections(config: RunConfig) -> tuple[RayRuntime, ServingSection]:
    return config.ray, config.serving


def config_with(tmp_path: Path, **ray: Any) -> Any:
    return parse_config(
        {
            "run": {"dir": str(tmp_path)},
            "env": {"target": "x:Y"},
            "dataset": {"source": "x.jsonl"},
            "runtime": {"kind": "ray", **ray},
        }
    )


async def test_a_head_that_is_not_there_is_said_at_once(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    for address, words in (
        (f"127.0.0.1:{unused_tcp_port}", r"no Ray head answers .*ray start --head"),
        ("ray://somewhere:10001", "HOST:PORT"),
        ("nowhere", "HOST:PORT"),
    ):
        with pytest.raises(ConfigError, match=words):
            await check_cluster(*sections(config_with(tmp_path, address=address)))


async def test_too_few_devices_are_said_with_what_is_there(tmp_path: Path) -> None:
    assert "3 CPU on this machine" in await check_cluster(*sections(config_with(tmp_path)))
    with pytest.raises(ConfigError, match=r"needs 4096 GPU, found \d+; .*trainer_ranks \(64\)"):
        await check_cluster(*sections(config_with(tmp_path, trainer_ranks=64, gpus=64)))


def test_a_folder_that_is_not_the_run_s_is_told_by_its_content(tmp_path: Path) -> None:
    """Fails if any folder under the same path will do, as every machine has one."""
    (tmp_path / "run.json").write_text('{"began": 1}')
    seen = run_identity(tmp_path)
    (tmp_path / "run.json").write_text('{"began": 2}')
    assert run_identity(tmp_path) not in ("", seen)
    # Ranks add what they found of their models while workers are still being started.
    seen = run_identity(tmp_path)
    (tmp_path / "run.json").write_text('{"began": 2, "proofs": {"model.path": {}}}')
    assert run_identity(tmp_path) == seen
    assert run_identity(tmp_path / "nowhere") == ""
