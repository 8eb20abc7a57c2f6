"""Pairs as files for a person, and the answers that come back."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from agentrl.data import TrajectoryStore
from agentrl.fit.refresh.candidates import NewestPairs
from agentrl.fit.refresh.human_queue import HumanQueue
from agentrl.fit.refresh.labels import PairLabels
from tests.fit.refresh.refresh_runs import TASKS, groups_of

BY_ID = {task.id: task for task in TASKS}


async def label(
    folder: Path, *, most: int = 6, used: Collection[str] = (), step: int = 1
) -> PairLabels:
    store = TrajectoryStore(folder / "trajectories")
    if step not in store.steps("train"):
        store.write(step, "train", groups_of(step), None)
    newest = NewestPairs(store, [step], BY_ID, seed=0)
    return await HumanQueue(folder / "queue", used).label(newest, most)


def files(folder: Path) -> list[Path]:
    return sorted((folder / "queue").glob("*.json"))


def answer(file: Path, better: object) -> None:
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "better": better}))


async def test_a_round_trip(tmp_path: Path) -> None:
    """Fails if a or b are mixed up, or if answers are taken for tokens of another pair."""
    asked = await label(tmp_path)
    assert (asked.waiting, asked.pairs, len(files(tmp_path))) == (6, [], 6)
    first, second, third, fourth = files(tmp_path)[:4]
    shown = json.loads(first.read_text())
    assert shown["task"] == BY_ID[shown["task_id"]].prompt
    assert shown["a"].startswith("[assistant]\nanswer ")
    assert "a, b or tie" in shown["question"]
    answer(first, "a")
    answer(second, "b")
    answer(third, "tie")
    answer(fourth, "the first")
    found = await label(tmp_path)
    assert (found.ties, found.failures, found.answers) == (
        1, 1, [first.stem, second.stem, third.stem],
    )  # fmt: skip
    assert "better is 'the first', expected one of a, b, tie" in found.error
    assert str(fourth) in found.error
    for pair, file, chosen, rejected in zip(found.pairs, (first, second), "ab", "ba", strict=True):
        document = json.loads(file.read_text())
        assert list(pair.chosen.ids) == document["tokens"][chosen]["ids"]
        assert list(pair.rejected.ids) == document["tokens"][rejected]["ids"]
        assert (pair.prompt_ids, pair.task_id) == (
            tuple(document["prompt_ids"]), document["task_id"],
        )  # fmt: skip
        assert pair.chosen.mask == (1, 1, 1)


async def test_an_answer_is_used_once_and_no_more_wait_than_are_wanted(tmp_path: Path) -> None:
    await label(tmp_path, most=3)
    one, *_ = files(tmp_path)
    answer(one, "a")
    found = await label(tmp_path, most=3, used=[one.stem])
    assert (found.pairs, found.answers, found.waiting) == ([], [], 3)
    # The file of the answer stays, and its pair is not asked about again.
    assert len(files(tmp_path)) == 4
    assert json.loads(one.read_text())["better"] == "a"
    later = await label(tmp_path, most=5, step=2)
    assert later.waiting == 5


async def test_a_file_that_is_half_written_is_a_failure(tmp_path: Path) -> None:
    await label(tmp_path, most=3)
    one, other, third = files(tmp_path)
    one.write_text(one.read_text()[:50])
    other.write_text("[]")
    document = json.loads(third.read_text())
    third.write_text(json.dumps({"better": "a", "tokens": document["tokens"]}))
    found = await label(tmp_path, most=3)
    assert (found.failures, found.pairs) == (3, [])
    assert str(one) in found.error
    document["tokens"]["b"]["ids"][0] = "12"
    for file in (one, other, third):
        file.write_text(json.dumps({**document, "better": "a"}))
    found = await label(tmp_path, most=3)
    assert (found.failures, found.pairs) == (3, [])
    assert "tokens hold '12', expected whole numbers" in found.error
