"""Tasks chosen by the outcomes of earlier groups."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from agentrl.config import parse_config
from agentrl.config.schema import SelectionSection
from agentrl.data import TaskCursor
from agentrl.data.tasks import selection as choosing
from agentrl.data.tasks.selection import TaskSelection, tasks_by_key
from agentrl.errors import ConfigError, DataError
from agentrl.types import Task

TASKS = [
    Task(id=f"t{n}", prompt="?", metadata={"family": ("a", "b", "c")[n % 3]}) for n in range(12)
]
BY_FAMILY = SelectionSection(by="family")


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


def test_a_draw_is_of_the_posterior() -> None:
    """One open group against nothing: Beta(2, 1) is above Beta(1, 1) with probability 2/3."""
    two = TASKS[:2]
    selection = TaskSelection(two, BY_FAMILY, seed=3)
    selection.observe({"t0": [True]})
    drawn = Counter(selection.draw(index, ()) for index in range(4000))
    assert drawn["t0"] / 4000 == pytest.approx(2 / 3, abs=0.03)
    selection.observe({"t0": [False] * 8})  # the open one is forgotten: Beta(1, 9), P = 1/10
    drawn = Counter(selection.draw(index, ()) for index in range(4000))
    assert drawn["t0"] / 4000 == pytest.approx(1 / 10, abs=0.03)


def test_families_and_tasks_that_are_flat_come_less() -> None:
    selection = TaskSelection(TASKS, BY_FAMILY, seed=0)
    known = [task.id for task in TASKS if task.metadata["family"] != "c"]
    selection.observe({name: [name != "t0"] * 4 for name in known})
    drawn = Counter(selection.draw(index, ()) for index in range(1000))
    families = Counter[str]()
    for name, count in drawn.items():
        families["abc"[int(name[1:]) % 3]] += count
    assert families["b"] > families["c"]  # all open, against one known group
    assert drawn["t0"] < min(drawn[name] for name in ("t3", "t6", "t9")) / 3


def test_draws_are_the_same_on_every_machine() -> None:
    cursor = TaskCursor(TASKS, seed=5, selection=BY_FAMILY)
    cursor.take(4)
    cursor.observe({"t1": [True], "t2": [False, False], "t3": [False]})
    assert ids(cursor.take(8)) == ["t4", "t1", "t10", "t4", "t6", "t7", "t5", "t7"]


def test_the_uniform_share_takes_every_task_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the outcomes say, its places hold the order of a cursor without selection."""
    order = ids(TaskCursor(TASKS, seed=1).take(24))
    for share in (0.25, 0.3, 1.0):
        monkeypatch.setattr(choosing, "UNIFORM_SHARE", share)
        cursor = TaskCursor(TASKS, seed=1, selection=BY_FAMILY)
        uniform: list[str] = []
        for index in range(round(24 / share)):
            (task,) = cursor.take(1)
            if cursor.is_uniform(index):
                uniform.append(task.id)
            cursor.observe({task.id: [index % 2 == 0]})
        assert uniform == order[: len(uniform)]
        assert len(uniform) in (23, 24)


def test_tasks_under_way_come_only_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "UNIFORM_SHARE", 0.01)
    cursor = TaskCursor(TASKS, seed=0, selection=SelectionSection())
    assert sorted(ids(cursor.take(12))) == sorted(ids(TASKS))
    assert len(cursor.take(5)) == 5  # a step may be larger than the dataset
    cursor.observe({})
    assert len(set(ids(cursor.take(12)))) == 12


def test_a_task_keeps_the_place_that_it_was_drawn_for() -> None:
    """Fails if a deferred place is drawn anew: long tasks would be replaced by short ones."""
    cursor = TaskCursor(TASKS, seed=0, selection=BY_FAMILY)
    claims = [cursor.claim() for _ in range(6)]
    cursor.commit(claim.index for claim in claims[3:])
    cursor.observe({claim.task.id: [True] for claim in claims[3:]})
    for claim in claims[:3]:
        cursor.release(claim.index)
    restored = TaskCursor.restore(
        TASKS, json.loads(json.dumps(cursor.state())), selection=BY_FAMILY
    )
    for other in (cursor, restored):
        assert [other.claim() for _ in range(3)] == claims[:3]
    assert [restored.claim() for _ in range(9)] == [cursor.claim() for _ in range(9)]


def test_a_selection_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match=r"'t0' has no such metadata; got 'famly'; did you mean 'f"):
        tasks_by_key(TASKS, "famly")
    state = TaskCursor(TASKS, seed=0, selection=BY_FAMILY).state()
    with pytest.raises(DataError, match=r"begun with dataset.selection and would go on without"):
        TaskCursor.restore(TASKS, state)
    with pytest.raises(DataError, match=r"begun without .* go on with it"):
        TaskCursor.restore(TASKS, TaskCursor(TASKS, seed=0).state(), selection=BY_FAMILY)
    with pytest.raises(DataError, match=r"by is None, but this run learned of its tasks by 'fam"):
        TaskCursor.restore(TASKS, state, selection=SelectionSection())
    claimed = {**state["selection"], "claimed": {}}
    for wrong in ([1], {"x": "t0"}, {"0": "gone"}, {"0": ["t0"]}):
        claimed["claimed"] = wrong
        with pytest.raises(DataError, match=r"'claimed' must be task ids of the dataset"):
            TaskCursor.restore(TASKS, {**state, "selection": claimed}, selection=BY_FAMILY)
    state["selection"]["keys"] = {"a": "012"}
    with pytest.raises(DataError, match=r"outcomes of known keys"):
        TaskCursor.restore(TASKS, state, selection=BY_FAMILY)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"difficulty": {"source": "profile", "weight_by": "variance"}}, "selection: variance"),
        ({"selection": "variance"}, "no pass rates are known; set difficulty.source"),
        ({"selection": {"for": "family"}}, "or a metadata key, as {by: family}"),
        ({"selection": "often"}, "selection is 'often'; expected 'variance'"),
    ],
)
def test_a_selection_that_decides_nothing_is_refused(dataset: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl", **dataset}})


def test_a_selection_of_its_own_groups_may_name_a_key() -> None:
    for given, by in (({}, None), ({"by": "family"}, "family")):
        data = {"source": "x.jsonl", "selection": given}
        chosen = parse_config({"env": {"target": "x:Y"}, "dataset": data}).dataset.chosen
        assert chosen == SelectionSection(by=by)
