"""The refreshes of a run: what is accepted, what fails, and what a process that resumes takes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import signal
from pathlib import Path

import pytest

from agentrl.config.schema import CheckpointSection
from agentrl.disk.checkpoint import CheckpointState, latest_checkpoint, save_checkpoint
from agentrl.disk.rollback import RollbackPlan, begin_rollback, finish_rollbacks
from agentrl.errors import RunError
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.refresh.failures import RefreshFailed
from agentrl.fit.refresh.fit_process import train_apart
from agentrl.fit.refresh.jobs import RefreshJob
from agentrl.fit.refresh.records import RefreshRecord
from agentrl.machine.processes.stop import Interrupted, StopSwitch
from agentrl.metrics import MetricBag
from tests.fit.refresh.refresh_runs import (
    FAKE_FIT,
    RefreshRun,
    refresh_run,
    refresh_section,
)


@pytest.mark.parametrize(
    ("after", "outcome", "version"),
    [(0.70, "accepted", 1), (0.68, "accepted", 1), (0.679, "rejected", 0)],
)
async def test_a_fall_of_more_than_the_guard_is_rejected(
    tmp_path: Path, after: float, outcome: str, version: int
) -> None:
    """Fails if the guard is not looked at, or if a rejected model is used or kept."""
    run = refresh_run(tmp_path)
    run.behave(before=0.7, after=after)
    refresh, bag = run.refresh(), MetricBag()
    await refresh.before_step(2, bag)
    assert bag.result() == {}
    assert run.book.records() == []
    await refresh.before_step(3, bag)
    record = run.book.read(2)
    assert record is not None
    assert (record.outcome, record.version, refresh.version) == (outcome, version, version)
    assert run.users.versions == [1] * version
    assert (latest_checkpoint(run.book.model(1) / "checkpoints") is not None) == bool(version)
    found = bag.result()
    assert found == record.metrics
    assert (found["refresh/accuracy_before"], found["refresh/accuracy_after"]) == (0.7, after)
    assert found["refresh/accepted"] == float(version)
    assert found["refresh/rm_version"] == float(version)
    assert found["refresh/pairs"] == 36.0
    assert f"after step 2: {outcome}: " in run.notes.text


async def test_no_task_is_trained_on_and_held_out_in_any_refresh(tmp_path: Path) -> None:
    run = refresh_run(tmp_path)
    refresh = run.refresh()
    parts: dict[str, set[str]] = {"new": set(), "heldout": set()}
    for step in (3, 5, 7):
        await refresh.before_step(step, MetricBag())
        for name, tasks in parts.items():
            found = load_pairs(str(run.book.folder(step - 1) / f"{name}.parquet"))
            assert {pair.label_probability for pair in found} == {0.9}
            assert all(pair.chosen.ids[0] > pair.rejected.ids[0] for pair in found)
            tasks |= {pair.task_id for pair in found}
        run.roll_out(step, step + 1)
    assert parts["new"]
    assert parts["heldout"]
    assert not parts["new"] & parts["heldout"]
    # Each refresh learns from what came since the last, and knows the pairs of those before.
    jobs = run.asked()
    assert [len(job["earlier"]) for job in jobs] == [0, 1, 2]
    assert [Path(job["current"]).parent.parent.name for job in jobs[1:]] == ["v1", "v2"]
    assert [each.version for each in run.users.used] == [1, 2, 3]


@pytest.mark.parametrize(
    ("do", "said"), [("die", "the fit died: .*status -?9"), ("error", "the loss is not finite")]
)
async def test_a_fit_that_fails_leaves_the_present_model(
    tmp_path: Path, do: str, said: str
) -> None:
    run = refresh_run(tmp_path)
    run.behave(do=do)
    refresh, bag = run.refresh(), MetricBag()
    await refresh.before_step(3, bag)
    record = run.book.read(2)
    assert record is not None
    assert (record.outcome, refresh.version, run.users.used) == ("skipped", 0, [])
    assert re.search(rf"{said}; see {run.book.folder(2)}/refresh\.log", run.notes.text)
    assert bag.result()["refresh/skipped"] == 1.0
    # The next one begins anew, in place of what is left of it, with the pairs of all four steps.
    run.behave()
    run.roll_out(3, 4)
    await refresh.before_step(5, MetricBag())
    assert refresh.version == 1
    assert run.asked()[1]["version"] == 1
    assert len(load_pairs(str(run.book.folder(4) / "new.parquet"))) > 20


async def test_a_fit_that_hangs_is_ended(tmp_path: Path) -> None:
    refresh_run(tmp_path).behave(do="hang")
    job = RefreshJob(
        folder=str(tmp_path), step=2, current="rm", origin="rm", base=str(tmp_path),
        models=str(tmp_path / "made"), version=1, old=None, earlier=(), held_out=0.4, seed=0,
        steps=1, learning_rate=1e-3, device="cpu", longest=128, needs_scale=True,
    )  # fmt: skip
    with pytest.raises(RefreshFailed, match=r"no word of the fit within 3 s; see .*the\.log"):
        await train_apart(
            job, log=tmp_path / "the.log", say=lambda text: None, target=FAKE_FIT, silence_s=3.0
        )


async def test_a_signal_ends_the_fit_and_the_refresh_is_made_again(tmp_path: Path) -> None:
    """Fails if the wait is not guarded, or if an interrupted refresh leaves a record."""
    run = refresh_run(tmp_path)
    run.behave(do="hang")
    stop = StopSwitch()
    refresh = run.refresh()
    refresh._stop = stop  # pyright: ignore[reportPrivateUsage]
    waiting = asyncio.create_task(refresh.before_step(3, MetricBag()))
    while not run.asked():
        await asyncio.sleep(0.05)
    stop.request(signal.SIGINT)
    with pytest.raises(Interrupted):
        await asyncio.wait_for(waiting, 120)
    assert run.book.records() == []
    assert run.book.model(1).exists()
    run.behave()
    again = run.refresh()
    await again.before_step(3, MetricBag())
    assert again.version == 1


async def test_where_one_process_cannot_load_it_all_go_back(tmp_path: Path) -> None:
    """Fails if some processes would pay by another model than the rest, if the run ends where it
    can go on, or if it goes on where they cannot go back."""
    run = refresh_run(tmp_path)
    run.users.refused = (1,)
    refresh = run.refresh()
    await refresh.before_step(3, MetricBag())
    assert run.users.versions == [1, 0]
    assert Path(run.users.used[-1].path) == tmp_path / "rm"
    assert refresh.version == 0
    said = "skipped: the new model cannot be used: RuntimeError: it does not fit"
    assert said in run.notes.text
    assert not run.book.model(1).exists()
    run.roll_out(3, 4)
    run.users.refused = (0, 1)
    with pytest.raises(RunError, match=r"version 1 .* could not be loaded .* version 0 could not"):
        await refresh.before_step(5, MetricBag())
    assert run.book.read(4) is None


async def test_a_disk_that_takes_no_pairs_costs_the_refresh_alone(tmp_path: Path) -> None:
    run = refresh_run(tmp_path, refresh=refresh_section(labeller="human"))
    run.book.queue.parent.mkdir()
    run.book.queue.write_text("no folder")
    await run.refresh().before_step(3, MetricBag())
    record = run.book.read(2)
    assert record is not None
    assert (record.outcome, record.version) == ("skipped", 0)
    assert record.why.startswith("FileExistsError: ")


async def test_a_process_that_resumes_takes_what_is_recorded(tmp_path: Path) -> None:
    """Fails if a recorded refresh is made again, or its metrics are lost."""
    run = refresh_run(tmp_path)
    first = MetricBag()
    await run.refresh().before_step(3, first)
    run.roll_out(3, 4)
    again, bag = run.refresh(), MetricBag()
    await again.restore(0)
    for step in (2, 3, 4):
        await again.before_step(step, bag)
    assert again.version == 1
    assert len(run.asked()) == 1
    assert run.users.versions == [1, 1]
    assert bag.result() == first.result()
    # From a checkpoint after it.
    later = run.refresh()
    await later.restore(1)
    await later.before_step(4, MetricBag())
    assert (later.version, len(run.users.used)) == (1, 3)


async def test_a_stored_step_was_paid_by_the_model_before_where_no_refresh_is_recorded(
    tmp_path: Path,
) -> None:
    run = refresh_run(tmp_path)
    run.roll_out(3)
    refresh = run.refresh()
    await refresh.before_step(3, MetricBag())
    assert (refresh.version, run.asked(), run.book.records()) == (0, [], [])


async def test_a_checkpoint_whose_model_is_gone_is_refused(tmp_path: Path) -> None:
    run = refresh_run(tmp_path)
    await run.refresh().before_step(3, MetricBag())
    shutil.rmtree(run.book.model(1) / "checkpoints")
    with pytest.raises(RunError, match=r"version 1 of reward\.models\.rm is not in .*v1, or not"):
        await run.refresh().restore(1)
    (run.path / "refresh" / "step_000002.json").write_text("{")
    with pytest.raises(RunError, match=r"step_000002\.json cannot be read.*put it back"):
        await run.refresh().before_step(3, MetricBag())


async def test_a_rollback_takes_refreshes_back_and_no_version_has_two_models(
    tmp_path: Path,
) -> None:
    """Fails if records stay behind, or if version 2 is another model after a rollback."""
    run = refresh_run(tmp_path)
    refresh = run.refresh()
    await refresh.before_step(3, MetricBag())
    run.roll_out(3, 4)
    await refresh.before_step(5, MetricBag())
    begin_rollback(run.path, RollbackPlan(step=4, to=3, why="", cursor={}, elapsed_s=0.0))
    finish_rollbacks(run.path)
    assert [record.step for record in run.book.records()] == [2]
    again = run.refresh()
    await again.restore(1)
    run.roll_out(4)
    await again.before_step(5, MetricBag())
    assert again.version == 3
    assert [job["version"] for job in run.asked()] == [1, 2, 3]
    assert len(run.asked()[2]["earlier"]) == 1


async def test_versions_that_nothing_names_are_deleted(tmp_path: Path) -> None:
    """Fails if one stays or one too many goes, if what a kill left stays, or if a run
    that replays over deleted versions stops, or pays by an old one after it."""
    run = refresh_run(tmp_path)

    def save(root: Path, step: int, rm_version: int = 0) -> None:
        state = CheckpointState(
            step=step, version=step, cursor={}, elapsed_s=0.0, rm_version=rm_version
        )
        save_checkpoint(root, state, lambda _: None, CheckpointSection())

    for version in (1, 2, 3):
        save(run.book.model(version) / "checkpoints", 1)
        record = RefreshRecord(step=2 * version, outcome="accepted", version=version, why="")
        run.book.write(record)
    save(run.path / "checkpoints", 3, rm_version=1)
    run.roll_out(*range(3, 9))
    (run.book.models / ".deleting-v9").mkdir()
    refresh = run.refresh()
    await refresh.restore(3)
    await refresh.before_step(9, MetricBag())
    run.roll_out(9, 10)
    assert refresh.version == 4
    assert sorted(path.name for path in run.book.models.iterdir()) == ["v1", "v3", "v4"]
    # A process that goes on from the checkpoint passes version 2, which has no part in it.
    again = run.refresh()
    await again.restore(1)
    run.users.used.clear()
    for step in range(4, 11):
        await again.before_step(step, MetricBag())
    assert run.users.versions == [3, 4]
    # What is not stored is never paid by another version than the last one recorded.
    shutil.rmtree(run.book.model(4))
    late = run.refresh()
    await late.restore(3)
    await late.before_step(9, MetricBag())
    await late.before_step(10, MetricBag())
    with pytest.raises(RunError, match=r"version 4 of reward\.models\.rm is not in"):
        await late.before_step(12, MetricBag())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("ties", "no two rollouts of one task can be compared"),
        ("labeller", "the labeller failed for all 8 pairs: .*ValueError: no opinion at all"),
        ("fit", r"the loss is not finite; see .*refresh\.log"),
        ("load", r"cannot be used: RuntimeError: it does not fit into memory at .*\.py:\d+"),
        ("disk", r"FileExistsError: .* at .*:\d+"),
    ],
)
async def test_a_skipped_refresh_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str, why: str
) -> None:
    """Fails if a traceback is logged, or if the line does not name why it was skipped."""
    labeller = {"labeller": "labels.py:broken", "disk": "human"}.get(change, "labels.py:first_id")
    run = refresh_run(tmp_path, refresh=refresh_section(labeller=labeller, pairs=8))
    run.behave(do="error" if change == "fit" else "")
    run.users.refused = (1,) if change == "load" else ()
    if change == "disk":
        run.book.queue.parent.mkdir()
        run.book.queue.write_text("no folder")
    if change == "ties":
        shutil.rmtree(run.path / "trajectories")
    with caplog.at_level(logging.INFO):
        await run.refresh().before_step(3, MetricBag())
    skipped = [each for each in caplog.records if "is skipped" in each.getMessage()]
    assert [each.exc_info for each in caplog.records if each.exc_info] == []
    assert len(skipped) == 1, caplog.text
    assert re.fullmatch(rf"the refresh after step 2 is skipped: .*{why}", skipped[0].getMessage())


async def test_a_labeller_that_fails_for_all_pairs_skips_the_refresh(tmp_path: Path) -> None:
    run = refresh_run(tmp_path, refresh=refresh_section(labeller="labels.py:broken", pairs=8))
    bag = MetricBag()
    await run.refresh().before_step(3, bag)
    assert bag.result()["refresh/label_failures"] == 8.0
    assert "skipped: the labeller failed for all 8 pairs" in run.notes.text
    assert "ValueError: no opinion at all" in run.notes.text
    assert run.asked() == []


async def test_answers_of_a_person_are_used_by_the_next_refresh(tmp_path: Path) -> None:
    """Fails if a refresh waits for answers, or uses one twice."""
    run = refresh_run(tmp_path, refresh=refresh_section(labeller="human", pairs=20))
    refresh = run.refresh()
    await refresh.before_step(3, MetricBag())
    assert f"no pair of the queue has a new answer; 20 wait in {run.book.queue}" in run.notes.text
    answered = answer(run, 15)
    run.roll_out(3, 4)
    bag = MetricBag()
    await refresh.before_step(5, bag)
    assert refresh.version == 1
    record = run.book.read(4)
    assert record is not None
    assert set(record.answers) == set(answered)
    assert bag.result()["refresh/pairs"] == 15.0
    assert bag.result()["refresh/waiting"] == 20.0
    run.roll_out(5, 6)
    await refresh.before_step(7, MetricBag())
    assert "after step 6: skipped: no pair of the queue has a new answer; 20 wait" in run.notes.text


def answer(run: RefreshRun, count: int) -> list[str]:
    """Answer as a person would who likes large first ids."""
    done = []
    for file in sorted(run.book.queue.glob("*.json"))[:count]:
        document = json.loads(file.read_text())
        first = [document["tokens"][name]["ids"][0] for name in "ab"]
        document["better"] = "a" if first[0] > first[1] else "b"
        file.write_text(json.dumps(document))
        done.append(file.stem)
    return done
