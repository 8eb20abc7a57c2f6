"""Ranks that store a step together leave what one rank alone leaves, and train the same batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.batch import StepBatch
from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.disk.stored_groups import stored_groups
from agentrl.errors import DataError
from agentrl.metrics import MetricBag
from agentrl.runtime.ray.actor import ActorSpec, RankSpec
from agentrl.runtime.ray.rank import Rank
from agentrl.runtime.ray.stages import RayLearner, RemoteGroup
from agentrl.runtime.ray.trainer_actor import TrainerActor
from agentrl.runtime.ray.worker_group import WorkerGroup, divide, partition
from agentrl.runtime.stages import report_of
from agentrl.types import SamplingParams, Task, TrajectoryGroup
from tests.batch.random_groups import random_groups
from tests.batch.shares import joined
from tests.runtime.driver_fakes import FakeWorker, Fuse, chain, fake_config


def rank_of(folder: Path, rank: int, ranks: int) -> Rank:
    """A rank without a model, which storing and preparing do not need."""
    spec = ActorSpec(
        name=f"rank-{rank}",
        plan=plan_run(fake_config(folder), folder),
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
    trainer = SimpleNamespace(weights=lambda: (), trained=[])

    def step(batch: StepBatch, on_progress: Any) -> MetricBag:
        trainer.trained.append(batch)
        return MetricBag()

    trainer.step = step
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
    bag, batch = alone.steps.prepare(1, groups, stored=False)
    alone.steps.keep(1, "eval/held", groups)
    for rank in range(ranks):
        assert TrajectoryStore(tmp_path / "many" / "trajectories").steps() == []
        own = rank_of(tmp_path / "many", rank, ranks)
        own_bag, own_batch = own.steps.prepare(1, groups, stored=False)
        assert chain("", own_batch) == chain("", batch)
        assert own_bag.result() == bag.result()
        own.steps.keep(1, "eval/held", partition(groups, ranks)[rank])
    one, many = (TrajectoryStore(tmp_path / name / "trajectories") for name in ("alone", "many"))
    assert list(many.read()) == list(one.read())
    assert stored_groups(many, "train", 1) == groups
    assert many.steps("eval/held") == [1]


async def test_a_replayed_step_is_not_stored_again(tmp_path: Path) -> None:
    rank_of(tmp_path, 1, 2).steps.prepare(1, await groups_of(4), stored=True)
    assert not (tmp_path / "trajectories").exists()


class Here:
    """A Ray handle of an actor that lives in this process; notes the groups that it fetches."""

    def __init__(self, rank: Rank) -> None:
        self.actor = TrainerActor(None, None)  # type: ignore[arg-type]
        self.actor._own = rank
        self.fetched: list[tuple[str, str]] = []

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any) -> Any:
            own = [
                [Fetched(ref, method, self.fetched) if isinstance(ref, Ref) else ref for ref in arg]
                if isinstance(arg, list)
                else arg
                for arg in args
            ]
            return getattr(self.actor, method)(*own)

        return SimpleNamespace(remote=call)


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference of a group."""

    group: TrajectoryGroup


class Fetched:
    """The same in the hands of a rank, which gives the group to whoever awaits it."""

    def __init__(self, ref: Ref, method: str, seen: list[tuple[str, str]]) -> None:
        self._ref, self._note, self._seen = ref, (method, ref.group.group_id), seen

    def __await__(self) -> Iterator[Any]:
        self._seen.append(self._note)
        yield from asyncio.sleep(0).__await__()
        return self._ref.group


class NoFailure:
    """A `RankFailure` of ranks that live."""

    async def guard(self, work: Any) -> Any:
        return await work


def remote(groups: Sequence[TrajectoryGroup]) -> list[RemoteGroup]:
    return [RemoteGroup(report=report_of(group), ref=Ref(group)) for group in groups]


def learner_of(handles: Sequence[Here], *, why_whole: str = "") -> RayLearner:
    ranks = WorkerGroup(TrainerActor, handles, name="trainer rank")
    return RayLearner(ranks, NoFailure(), version=0, why_whole=why_whole)  # type: ignore[arg-type]


def trained(handles: Sequence[Here]) -> list[StepBatch]:
    return [handle.actor._own.trainer.trained[-1] for handle in handles]


@pytest.mark.ray  # its errors are looked for
async def test_the_learner_asks_each_rank_for_its_part(tmp_path: Path) -> None:
    """Fails if a rank fetches all of an evaluation, or if parts of an earlier try stay."""
    groups = await groups_of(4)
    handles = [Here(rank_of(tmp_path, rank, 3)) for rank in range(3)]
    learner = learner_of(handles, why_whole="the test wants it")
    store = TrajectoryStore(tmp_path / "trajectories")
    store.write_part(1, "train", groups[:1], part=0, parts=2)
    store.write_part(1, "eval/held", groups[:1], part=1, parts=2)
    await learner.keep(1, "eval/held", remote(groups))
    await learner.learn(1, remote(groups), stored=False, on_progress=lambda done, total: None)
    assert [sum(m == "keep" for m, _ in handle.fetched) for handle in handles] == [2, 1, 1]
    assert [sum(m == "prepare" for m, _ in handle.fetched) for handle in handles] == [4, 4, 4]
    for kind in ("train", "eval/held"):
        assert stored_groups(store, kind, 1) == groups
        assert len(list(store.path(1, kind).parent.iterdir())) == 3
    assert learner.version == 1


OWN_COUNTS = {"batch/micro_batches", "batch/tokens", "batch/tokens_measured"}


@pytest.mark.ray  # its errors are looked for
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_rank_fetches_prepares_and_stores_its_share_alone(
    tmp_path: Path, ranks: int, stored: bool
) -> None:
    """Fails if a rank fetches a group that is another's, or twice; if the shares are not the whole;
    if metrics of one rank's share stand for all; and if a replayed step is stored again."""
    handles = [Here(rank_of(tmp_path / "split", rank, ranks)) for rank in range(ranks)]
    learner, alone = learner_of(handles), rank_of(tmp_path / "alone", 0, 1)
    store = TrajectoryStore(tmp_path / "split" / "trajectories")
    for step in (1, 2):
        groups = random_groups(step, sizes=(4, 4, 3, 4, 5, 4, 4, 3))
        found = await learner.learn(
            step, remote(groups), stored=stored, on_progress=lambda done, total: None
        )
        bag, whole = alone.steps.prepare(step, groups, stored=stored)
        shared = {k: v for k, v in found.result().items() if k not in OWN_COUNTS}
        assert shared == {k: v for k, v in bag.result().items() if k not in OWN_COUNTS}
        shares = trained(handles)
        for index, update in enumerate(whole.updates):
            assert joined([share.updates[index] for share in shares]) == joined([update])
        assert found.result()["batch/tokens"] == sum(share.num_tokens for share in shares)
        outlined = [
            [name for method, name in handle.fetched if method == "outline"] for handle in handles
        ]
        assert [name for own in outlined for name in own] == [g.group_id for g in groups]
        for handle, own, share in zip(handles, outlined, shares, strict=True):
            more = [name for method, name in handle.fetched if method == "prepare_share"]
            rows = {key.group_id for u in [*share.updates, share.untrained] if u
                    for micro in u.micro_batches for key in micro.rows}  # fmt: skip
            assert len(set(more)) == len(more)
            assert set(more) == rows - set(own)
            handle.fetched.clear()
        if not stored:
            one = TrajectoryStore(tmp_path / "alone" / "trajectories")
            assert list(store.read("train", step=step)) == list(one.read("train", step=step))
    assert store.steps("train") == ([] if stored else [1, 2])


@pytest.mark.ray  # its errors are looked for
async def test_a_broken_row_ends_the_step_with_its_name(tmp_path: Path) -> None:
    """Fails if only the rank that holds the row notices, after others have stored the step."""
    groups = await groups_of(4)
    rows = groups[1].trajectories
    bad = replace(rows[0], rollout_log_probs=(float("nan"),) * len(rows[0].response_ids))
    groups[1] = replace(groups[1], trajectories=(bad, *rows[1:]))
    handles = [Here(rank_of(tmp_path, rank, 2)) for rank in range(2)]
    with pytest.raises(DataError, match=rf"row {bad.rollout_id}\[0\]: rollout_log_probs is nan"):
        await learner_of(handles).learn(
            1, remote(groups), stored=False, on_progress=lambda done, total: None
        )
    assert not (tmp_path / "trajectories").exists()


@pytest.mark.ray  # its errors are looked for
async def test_a_step_that_began_early_is_prepared_whole(tmp_path: Path) -> None:
    """Fails if updates that were made of whole minibatches are compared with shares."""
    groups = await groups_of(4)
    handles = [Here(rank_of(tmp_path, rank, 2)) for rank in range(2)]
    for handle in handles:
        handle.actor._own.trainer.update_early = lambda update: None
    learner = learner_of(handles)
    await learner.learn_early(1, 0, dict(enumerate(remote(groups))))
    for step in (1, 2):
        await learner.learn(step, remote(groups), stored=True, on_progress=lambda done, total: None)
        whole = {update.whole for batch in trained(handles) for update in batch.updates}
        assert (whole == {None}) == (step == 1)


@given(weights=st.lists(st.integers(0, 50), max_size=12), parts=st.integers(1, 5))
def test_parts_follow_one_another_and_are_as_even_as_items_allow(
    weights: list[int], parts: int
) -> None:
    items = list(range(len(weights)))
    found = divide(items, weights, parts)
    assert len(found) == parts
    assert [item for part in found for item in part] == items
    heaviest = max((sum(weights[item] for item in part) for part in found), default=0)
    assert heaviest <= sum(weights) / parts + max(weights, default=0)
