"""A step that several ranks store in parts is read as one, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.data import TrajectoryStore
from agentrl.data.store.step_files import part_name, stored_steps
from agentrl.disk.stored_groups import stored_groups, stored_names
from agentrl.inspect.read.run_files import RunFiles
from agentrl.types import TrajectoryGroup
from tests.data.records import group, trajectory


def groups_of(count: int) -> list[TrajectoryGroup]:
    return [
        group(
            *(trajectory(group_id=f"g{g}", rollout_id=f"g{g}/{r}", row_index=0) for r in range(2))
        )
        for g in range(count)
    ]


def files(store: TrajectoryStore) -> list[Path]:
    """Those of the step that `write_parts` writes, in the order of its groups."""
    return stored_steps(store.path(3, "train").parent.iterdir())[3]


def write_parts(
    store: TrajectoryStore, groups: list[TrajectoryGroup], sizes: list[int], step: int = 3
) -> list[Path]:
    store.remove(step, "train")
    paths, begin = [], 0
    for part, size in enumerate(sizes):
        own = groups[begin : begin + size]
        paths.append(
            store.write_part(
                step, "train", own, {"g0/0": 0.5, "g2/1": -0.5}, part=part, parts=len(sizes)
            )
        )
        begin += size
    return paths


@pytest.mark.parametrize("sizes", [[5], [3, 2], [2, 2, 1], [1, 1, 1, 1, 1, 0]])
def test_parts_are_read_as_the_whole_step(tmp_path: Path, sizes: list[int]) -> None:
    """Fails if the order of groups is that of file names (part 10 before part 2) or of writing."""
    groups = groups_of(5)
    whole, parted = TrajectoryStore(tmp_path / "whole"), TrajectoryStore(tmp_path / "parted")
    whole.write(3, "train", groups, {"g0/0": 0.5, "g2/1": -0.5})
    write_parts(parted, groups, sizes)
    assert list(parted.read("train")) == list(whole.read("train"))
    assert parted.steps() == [3]
    assert parted.kinds() == ["train"]
    assert stored_groups(parted, "train", 3) == stored_groups(whole, "train", 3)
    assert stored_names(parted, "train", 3) == stored_names(whole, "train", 3)
    assert [row.trajectory.group_id for row in parted.read(rollout_ids=["g4/1"])] == ["g4"]
    assert len(files(parted)) == len(sizes)


def test_eleven_parts_keep_the_order_of_their_groups(tmp_path: Path) -> None:
    store, groups = TrajectoryStore(tmp_path), groups_of(11)
    write_parts(store, groups, [1] * 11)
    assert [g.group_id for g in stored_groups(store, "train", 3)] == [g.group_id for g in groups]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_step_without_one_of_its_parts_is_not_there(tmp_path: Path, missing: int) -> None:
    """A kill between two writers: the step is made again, and nothing of it is trained."""
    store = TrajectoryStore(tmp_path / "trajectories")
    paths = write_parts(store, groups_of(5), [2, 2, 1])
    paths[missing].unlink()
    assert store.steps() == []
    assert list(store.read("train")) == []
    assert stored_groups(store, "train", 3) == []
    assert stored_names(store, "train", 3) == set()
    files = RunFiles(tmp_path)
    files.refresh()
    assert files.trajectories == ()
    # The next try leaves nothing of this one.
    write_parts(store, groups_of(3)[::-1], [2, 1])
    assert [g.group_id for g in stored_groups(store, "train", 3)] == ["g2", "g1", "g0"]
    assert len(list((tmp_path / "trajectories" / "train").iterdir())) == 2


def test_a_damaged_part_takes_its_step_with_it(tmp_path: Path) -> None:
    """Fails if a resume trains what is left of a step."""
    store = TrajectoryStore(tmp_path)
    paths = write_parts(store, groups_of(5), [3, 2])
    content = paths[1].read_bytes()
    paths[1].write_bytes(content[: len(content) // 2])
    assert list(store.read("train")) == []
    assert stored_groups(store, "train", 3) == []


def test_a_whole_step_replaces_parts_and_parts_replace_it(tmp_path: Path) -> None:
    store, groups = TrajectoryStore(tmp_path), groups_of(4)
    write_parts(store, groups, [2, 2])
    path = store.write(3, "train", groups[:1])
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    assert files(store) == [path]
    write_parts(store, groups, [3, 1])
    assert not path.exists()
    assert len(stored_groups(store, "train", 3)) == 4


def test_other_steps_and_kinds_stay_where_one_is_removed(tmp_path: Path) -> None:
    store, groups = TrajectoryStore(tmp_path), groups_of(2)
    for step in (3, 30):
        write_parts(store, groups, [1, 1], step=step)
    store.write(3, "eval/held", groups)
    store.remove(3, "train")
    assert store.steps() == [30]
    assert store.steps("eval/held") == [3]
    store.remove(4, "train")


def test_names_of_files() -> None:
    names = [part_name(7, part, 2) for part in (1, 0)]
    assert stored_steps(map(Path, [*names, "step_000009.rank-0.parquet"])) == {
        7: [Path(names[1]), Path(names[0])]
    }
    assert stored_steps([Path(part_name(7, 0, 2)), Path(part_name(7, 0, 1))]) == {
        7: [Path(part_name(7, 0, 1))]
    }
    with pytest.raises(ValueError, match="part 2 of a step in 2 parts"):
        part_name(7, 2, 2)
