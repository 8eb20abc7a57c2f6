"""Ranks that store a step together leave what one rank alone leaves, and train the same batch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.data import TrajectoryStore
from agentrl.metrics import MetricBag
from agentrl.runtime.disk.stored_groups import stored_groups
from agentrl.runtime.ray.actor import ActorSpec
from agentrl.runtime.ray.rank import Rank, RankSpec
from agentrl.runtime.ray.stages import RayLearner, RemoteGroup
from agentrl.runtime.ray.trainer_actor import TrainerActor
from agentrl.runtime.ray.worker_group import WorkerGroup, partition
from agentrl.runtime.stages import report_of
from agentrl.types import SamplingParams, Task, TrajectoryGroup
from tests.runtime.driver_fakes import FakeWorker, Fuse, chain, fake_config


def rank_of(folder: Path, rank: int, ranks: int) -> Rank:
    """A rank without a model, which storing and preparing do not need."""
    spec = ActorSpec(
        name=f"rank-{rank}",
        config=fake_config(folder),
        base=folder,
        run_dir=folder,
        host=None,
        identity="",
    )
    rank_spec = RankSpec(
        rank=rank,
        world_size=ranks,
        threads=1,
        trajectories=folder / "trajectories",
        checkpoint=None,
    )
    trainer = SimpleNamespace(weights=lambda: (), step=lambda batch, on_progress: MetricBag())
    return Rank(spec, rank_spec, None, trainer, None, [])  # type: ignore[arg-type]


async def groups_of(count: int) -> list[TrajectoryGroup]:
    worker = FakeWorker(Fuse())
    return [
        await worker.run_group(
            Task(id=f"t{index}", prompt="?"),
            group_id=f"step-1/{index}",
            n=3,
            sampling=SamplingParams(),
            seed=index,
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("ranks", [2, 3, 5])
async def test_parts_of_all_ranks_are_the_step_of_one(tmp_path: Path, ranks: int) -> None:
    groups = await groups_of(4)
    alone = rank_of(tmp_path / "alone", 0, 1)
    bag, batch = alone.prepare(1, groups, stored=False)
    alone.keep(1, "eval/held", groups)
    for rank in range(ranks):
        assert TrajectoryStore(tmp_path / "many" / "trajectories").steps() == []
        own = rank_of(tmp_path / "many", rank, ranks)
        own_bag, own_batch = own.prepare(1, groups, stored=False)
        assert chain("", own_batch) == chain("", batch)
        assert own_bag.result() == bag.result()
        own.keep(1, "eval/held", partition(groups, ranks)[rank])
    one, many = (TrajectoryStore(tmp_path / name / "trajectories") for name in ("alone", "many"))
    assert list(many.read()) == list(one.read())
    assert stored_groups(many, "train", 1) == groups
    assert many.steps("eval/held") == [1]


async def test_a_replayed_step_is_not_stored_again(tmp_path: Path) -> None:
    rank_of(tmp_path, 1, 2).prepare(1, await groups_of(4), stored=True)
    assert not (tmp_path / "trajectories").exists()


class Here:
    """A Ray handle of an actor that lives in this process; notes the references it was given."""

    def __init__(self, rank: Rank) -> None:
        self.actor = TrainerActor(None, None)  # type: ignore[arg-type]
        self.actor._own = rank
        self.given: dict[str, int] = {}

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any) -> Any:
            refs = [arg for arg in args if isinstance(arg, list)]
            self.given[method] = sum(map(len, refs))
            return getattr(self.actor, method)(*args)

        return SimpleNamespace(remote=call)


class NoFailure:
    """A `RankFailure` of ranks that live."""

    async def guard(self, work: Any) -> Any:
        return await work


@pytest.mark.ray  # its errors are looked for
async def test_the_learner_asks_each_rank_for_its_part(tmp_path: Path) -> None:
    """Fails if a rank fetches all of an evaluation, or if parts of an earlier try stay."""
    groups = await groups_of(4)
    handles = [Here(rank_of(tmp_path, rank, 3)) for rank in range(3)]
    ranks = WorkerGroup(TrainerActor, handles, name="trainer rank")
    learner = RayLearner(ranks, NoFailure(), version=0)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    remote = []
    for group in groups:
        ref = loop.create_future()
        ref.set_result(group)
        remote.append(RemoteGroup(report=report_of(group), ref=ref))
    store = TrajectoryStore(tmp_path / "trajectories")
    store.write_part(1, "train", groups[:1], part=0, parts=2)
    store.write_part(1, "eval/held", groups[:1], part=1, parts=2)
    await learner.keep(1, "eval/held", remote)
    await learner.learn(1, remote, stored=False, on_progress=lambda done, total: None)
    assert [handle.given["keep"] for handle in handles] == [2, 1, 1]
    for kind in ("train", "eval/held"):
        assert stored_groups(store, kind, 1) == groups
        assert len(list(store.path(1, kind).parent.iterdir())) == 3
    assert learner.version == 1
