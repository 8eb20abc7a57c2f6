"""Which checkpoints stay: the last, and the best by their evaluations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import parse_config
from agentrl.config.plan import plan_run
from agentrl.config.schema import CheckpointSection
from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import (
    CheckpointState,
    best_checkpoint,
    latest_checkpoint,
    list_checkpoints,
    save_checkpoint,
    score_checkpoint,
    would_be_kept,
)
from agentrl.errors import ConfigError, RunError
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.preflight.memory.estimate import SavedBytes
from agentrl.runtime.progress import Progress
from agentrl.runtime.scoring.score_book import ScoreBook
from agentrl.runtime.stages import HeldGroup
from agentrl.types import SamplingParams, Task, Trajectory
from tests.runtime.driver_fakes import FakeWorker, Fuse, drive, fake_config


def state(step: int, **scores: float) -> CheckpointState:
    named = {f"eval/{name}/score": value for name, value in scores.items()}
    return CheckpointState(step=step, version=step, cursor={}, elapsed_s=0.0, scores=named)


def fill(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(b"w")


def steps(root: Path) -> list[int]:
    return [item.state.step for item in list_checkpoints(root)]


def test_the_best_stay_beside_the_last(tmp_path: Path) -> None:
    # Fails if the best are taken from among the last, or the last from among the scored.
    section = CheckpointSection(keep_last=1, keep_best=2)
    for step, score in enumerate((0.5, 0.9, 0.1, 0.8, 0.2, 0.3), start=1):
        save_checkpoint(tmp_path, state(step, held=score), fill, section)
    save_checkpoint(tmp_path, state(7), fill, section)
    assert steps(tmp_path) == [2, 4, 7]
    assert best_checkpoint(tmp_path, "").state.step == 2
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.state.step == 7


def test_scores_survive_the_disk(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1, held=0.25), fill, CheckpointSection())
    (found,) = list_checkpoints(tmp_path)
    assert found.state == state(1, held=0.25)


def test_a_checkpoint_without_the_key_is_still_read(tmp_path: Path) -> None:
    # Fails if `scores` must be there: runs begun before it could not be resumed.
    path = save_checkpoint(tmp_path, state(1), fill, CheckpointSection())
    text = (path / "state.json").read_text()
    assert '"scores": {},' in text
    (path / "state.json").write_text(text.replace('"scores": {},', ""))
    assert steps(tmp_path) == [1]


def test_several_datasets_count_alike_and_one_may_be_named(tmp_path: Path) -> None:
    section = CheckpointSection(keep_last=9)
    save_checkpoint(tmp_path, state(1, easy=1.0, hard=0.0), fill, section)
    save_checkpoint(tmp_path, state(2, easy=0.6, hard=0.6), fill, section)
    save_checkpoint(tmp_path, state(3, easy=0.0, hard=0.9), fill, section)
    assert best_checkpoint(tmp_path, "").state.step == 2
    assert best_checkpoint(tmp_path, "eval/easy/score").state.step == 1
    assert best_checkpoint(tmp_path, "eval/hard/score").state.step == 3


def test_of_equal_scores_the_later_step_is_the_best(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, state(step, held=0.5), fill, CheckpointSection())
    assert best_checkpoint(tmp_path, "").state.step == 2


def test_without_scores_there_is_no_best(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1, held=0.5), fill, CheckpointSection())
    with pytest.raises(
        RunError, match=r"has eval/other/score; 1 are .*: eval/held/score\. .*every"
    ):
        best_checkpoint(tmp_path, "eval/other/score")


def test_a_step_is_saved_for_its_score_alone(tmp_path: Path) -> None:
    section = CheckpointSection(keep_last=1, keep_best=2)
    assert not would_be_kept(tmp_path, state(1), section)
    assert would_be_kept(tmp_path, state(1, held=0.1), section)
    for step, score in ((1, 0.5), (2, 0.7)):
        save_checkpoint(tmp_path, state(step, held=score), fill, section)
    assert would_be_kept(tmp_path, state(3, held=0.6), section)
    assert would_be_kept(tmp_path, state(3, held=0.5), section)
    assert not would_be_kept(tmp_path, state(3, held=0.4), section)
    assert not would_be_kept(tmp_path, state(3, held=0.6), CheckpointSection(keep_best=0))


class BestInTheMiddle(FakeWorker):
    """Evaluations score 0.9 at step 3 and less and less after it."""

    def make_row(self, task: Task, group_id: str, index: int, seed: int) -> Trajectory:
        row = super().make_row(task, group_id, index, seed)
        if not group_id.startswith("eval-held-"):
            return row
        step = int(group_id.removeprefix("eval-held-").split("/")[0])
        return replace(row, reward=0.9 - 0.1 * abs(step - 3))


async def test_a_run_keeps_its_best_step_though_no_save_was_due(tmp_path: Path) -> None:
    """Every step is evaluated, and no save is due before the last. Fails if scores do not reach
    the checkpoints, or if only every_steps saves."""
    settings = {"every_steps": 99, "keep_last": 1, "keep_best": 1}
    config = changed(fake_config(tmp_path), checkpoint=settings, eval={"every_steps": 1})
    await drive(config, worker=BestInTheMiddle(Fuse()))
    found = list_checkpoints(tmp_path / "fake" / "checkpoints")
    scores = {item.state.step: item.state.score("") for item in found}
    assert scores == {3: pytest.approx(0.9), 7: pytest.approx(0.5)}


class StopInEvaluation(Progress):
    """Presses Ctrl-C when the evaluation of a step begins."""

    def __init__(self, stop: StopSwitch, step: int) -> None:
        self.stop, self.step, self.done = stop, step, 0

    def phase(self, name: str, total: int = 0) -> None:
        if name == "eval held" and self.done == self.step:
            self.stop.request()

    def step_done(self, step: int, metrics: object) -> None:
        self.done = step


@pytest.mark.parametrize("step", [3, 7])
async def test_a_step_whose_evaluation_was_cut_short_is_scored_later(
    tmp_path: Path, step: int
) -> None:
    """Step 3 is the best, 7 the last. Fails if what the resume finds out stays out of the
    checkpoint that was saved without a score."""
    settings = {"every_steps": 99, "keep_last": 1, "keep_best": 1}
    config = changed(fake_config(tmp_path), checkpoint=settings, eval={"every_steps": 1})
    stop = StopSwitch()
    with pytest.raises(Interrupted):
        await drive(
            config,
            worker=BestInTheMiddle(Fuse()),
            stop=stop,
            progress=StopInEvaluation(stop, step),
        )
    root = tmp_path / "fake" / "checkpoints"
    saved = latest_checkpoint(root)
    assert saved is not None
    assert (saved.state.step, saved.state.score("")) == (step, None)
    await drive(config, worker=BestInTheMiddle(Fuse()))
    scores = {item.state.step: item.state.score("") for item in list_checkpoints(root)}
    assert scores == {3: pytest.approx(0.9), 7: pytest.approx(0.5)}


def test_a_score_that_comes_later_changes_which_are_kept(tmp_path: Path) -> None:
    """Fails if a former best stays, or if anything but the scores of a checkpoint changes."""
    section = CheckpointSection(keep_last=1, keep_best=1)
    save_checkpoint(tmp_path, state(1, held=0.5), fill, section)
    save_checkpoint(tmp_path, state(2), fill, section)
    score_checkpoint(tmp_path, state(2), section)
    score_checkpoint(tmp_path, state(3, held=1.0), section)
    assert steps(tmp_path) == [1, 2]
    score_checkpoint(tmp_path, replace(state(2, held=0.6), elapsed_s=9.0), section)
    (found,) = list_checkpoints(tmp_path)
    assert found.state == state(2, held=0.6)


async def test_half_an_evaluation_is_no_score(tmp_path: Path) -> None:
    """Fails (0.5 of the easy one alone) if what a signal cut short is compared with whole ones."""
    tasks = {name: [Task(id="0", prompt="")] for name in ("easy", "hard")}
    book = ScoreBook(tasks, TrajectoryStore(tmp_path), n_samples=1, logged={})
    worker = FakeWorker(Fuse())

    async def roll_out(name: str, of: Sequence[Task]) -> list[HeldGroup]:
        if name == "hard" and stopped:
            raise KeyboardInterrupt
        made = worker.run_group(of[0], group_id=name, n=1, sampling=SamplingParams(), seed=0)
        return [HeldGroup.of(await made)]

    stopped = True
    with pytest.raises(KeyboardInterrupt):
        await book.evaluate(1, roll_out, on_score=lambda summary: None)
    assert book.metrics(1) == {}
    stopped = False
    await book.evaluate(1, roll_out, on_score=lambda summary: None)
    assert {"eval/easy/score", "eval/hard/score"} <= book.metrics(1).keys()


def changed(config: Any, **sections: dict[str, Any]) -> Any:
    data = config.model_dump(mode="json")
    for name, values in sections.items():
        data[name].update(values)
    return parse_config(data)


def test_keeping_the_best_needs_a_score(tmp_path: Path) -> None:
    config = fake_config(tmp_path)
    with pytest.raises(ConfigError, match=r"keep_best is 2, but eval\.datasets is empty"):
        changed(config, checkpoint={"keep_best": 2}, eval={"datasets": {}})
    wrong = r"keep_best names 'eval/hold/score', .*eval\.datasets: held"
    with pytest.raises(ConfigError, match=wrong):
        changed(config, checkpoint={"keep_best": {"eval/hold/score": 0}})


async def test_preflight_counts_what_is_kept(tmp_path: Path) -> None:
    """Fails if a state is counted in each checkpoint, though the newest alone keeps one."""
    from agentrl.preflight.checks.machine import disk

    config = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32768,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
    }  # fmt: skip
    count = 2 * 32768 * 1024 + 8 * (4 * 1024**2 + 3 * 4096 * 1024 + 2 * 1024) + 1024
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    model = {"path": str(tmp_path / "model"), "dtype": "float32"}
    rank = 2 * 8 * (4 * 2 * 1024 + 3 * 5 * 1024)

    async def needed(**sections: Any) -> str:
        run = plan_run(changed(fake_config(tmp_path), model=model, **sections), tmp_path)
        return str(await disk(run.schedule, run.trainer)).partition(" for")[0]

    def gib(size: float) -> str:
        return f"{size / 2**30:.1f} GiB"

    # The two that are kept and the one being written; masters and two moments in two of them.
    assert await needed() == gib((3 * 4 + 2 * 12) * count)
    assert await needed(checkpoint={"save": "all"}) == gib(3 * 16 * count)
    assert await needed(checkpoint={"keep_best": 1}) == gib((4 * 4 + 2 * 12) * count)
    assert await needed(train={"lora": {"rank": 2}}) == gib(3 * (4 * count + 12 * rank))


@pytest.mark.parametrize("save", ["model", "all"])
@pytest.mark.parametrize("state_size", [10, 3000])
def test_no_disk_holds_more_than_preflight_counts(
    tmp_path: Path, save: Any, state_size: int
) -> None:
    """Bytes of real saves while each is written, beside the count; the small state is that of
    adapters."""
    section, most = CheckpointSection(save=save, keep_last=2, keep_best=1), 0

    def look() -> int:
        names = ("weights.bin", "part-00001-of-00001")
        return sum(file.stat().st_size for file in tmp_path.rglob("*") if file.name in names)

    def write(folder: Path) -> None:
        nonlocal most
        (folder / "weights.bin").write_bytes(bytes(1000))
        (folder / "trainer").mkdir()
        (folder / "trainer" / "part-00001-of-00001").write_bytes(bytes(state_size))
        most = max(most, look())

    for step in range(1, 7):
        save_checkpoint(tmp_path, state(step, held=1.0 / step), write, section)
    assert most == SavedBytes(weights=1000, state=state_size).on_disk(section)


@pytest.mark.parametrize("by", ["", "eval/a/score"])
@pytest.mark.parametrize("order", [(1, 2, 3, 4), (4, 3, 2, 1)])
def test_what_an_evaluation_lacks_counts_as_failed(
    tmp_path: Path, by: str, order: Sequence[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if a lost dataset, or lost tasks of one, raise the mean that decides what is kept, or
    if one lost task of many lets a worse checkpoint win."""
    whole = {
        "eval/a/score": 0.5,
        "eval/a/missing": 0.0,
        "eval/b/score": 0.25,
        "eval/b/missing": 0.0,
    }
    found = {
        1: whole,
        2: {**whole, "eval/a/score": 1.0, "eval/a/missing": 0.75},  # three tasks of four
        3: {"eval/a/score": 1.0, "eval/a/missing": 0.0, "eval/b/missing": 1.0},
        4: {**whole, "eval/a/score": 0.8, "eval/a/missing": 0.002},
    }
    section = CheckpointSection(keep_last=1, keep_best={by: 1} if by else 1)

    def kept(folder: str, *steps: int, sign: float = 1.0) -> Path:
        for step in steps:
            scores = {n: v * sign if "score" in n else v for n, v in found[step].items()}
            # By name of one dataset, what another lacks does not matter.
            if not (by and step == 3):
                made = replace(state(step), scores=scores)
                save_checkpoint(tmp_path / folder, made, fill, section)
        return tmp_path / folder

    worse = kept("worse", *(step for step in order if step != 4))
    assert best_checkpoint(worse, by).state.step == 1
    assert "lacks" not in caplog.text
    assert not would_be_kept(worse, replace(state(9), scores=found[2]), section)
    assert best_checkpoint(kept("better", *order), by).state.step == 4
    assert "of step 4, lacks 0.2% of the tasks of a, which count as 0" in caplog.text
    # 0 is more than a score below it: there a whole evaluation wins.
    assert best_checkpoint(kept("below", *order, sign=-1.0), by).state.step == 1
