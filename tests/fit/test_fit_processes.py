"""Whole fits as real processes on a tiny model: finished, killed, stopped, resumed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.metrics.sinks import read_metrics
from tests.fit.fit_project import (
    LOSS,
    assert_same_fit,
    kill_at,
    trained_steps,
    write_fit,
)
from tests.runtime.tiny_project import Agentrl, agentrl

KINDS = ("sft", "dpo", "rm")
OWN = {"objective__loss": "own_loss.py:loss"}


def project(folder: Path, kind: str, **changes: object) -> Path:
    folder.mkdir()
    (folder / "own_loss.py").write_text(LOSS)
    return write_fit(folder, kind, **(OWN if kind == "dpo" else {}), **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run directories of fits that nothing interrupted."""
    root, found = tmp_path_factory.mktemp("finished"), {}
    for kind in KINDS:
        path = project(root / kind, kind)
        status, text = agentrl(root / f"{kind}.txt", "fit", path)
        assert status == 0, text
        found[kind] = path.parent / "runs" / "fit"
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_fit(finished: dict[str, Path], kind: str) -> None:
    run = finished[kind]
    text = (run.parents[2] / f"{kind}.txt").read_text()
    assert [step for step, _, _ in trained_steps(run)] == [1, 2, 3, 4, 5, 6]
    assert [count for _, _, count in trained_steps(run)] == [3, 3, 1] * 2
    assert "step 6/6" in text
    assert "Traceback" not in text
    assert f"checkpoint: {run}/checkpoints/step-6\n" in text
    name = f"eval/held/{kind}/loss"
    lines = [line for line in read_metrics(run / "metrics.jsonl") if name in line]
    assert (lines[0]["step"], lines[-1]["step"]) == (0, 6)
    assert lines[-1][name] < lines[0][name]


PLACES = {
    "sft": [("open", ".making-step-2", 1), ("os.rename", ".making-step-4", 1)],
    "dpo": [
        ("os.rename", "reference.parquet", 1),  # the reference is known and not yet in its place
        ("test.loss", "called", 3),  # in the second step, before there is a checkpoint
        ("open", ".making-step-2", 3),
        ("test.loss", "called", 4),  # in a step behind the checkpoint
        ("os.rename", ".making-step-4", 1),
        ("os.rename", "step-2", 1),  # when it makes room for the last one
    ],
}


@pytest.mark.parametrize("kind", PLACES)
def test_a_fit_that_is_killed_again_and_again(
    finished: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """Fails if a step is trained twice, or the reference is computed again once it is there."""
    path = project(tmp_path / "p", kind)
    run, made = path.parent / "runs" / "fit", set[int]()
    for number, (event, part, times) in enumerate(PLACES[kind]):
        out = tmp_path / f"{number}.txt"
        status = kill_at(out, event, part, times, "fit", path, "--resume")
        assert status == -signal.SIGKILL, (event, part, out.read_text())
        if (run / "reference.parquet").exists():
            made.add((run / "reference.parquet").stat().st_mtime_ns)
    status, text = agentrl(tmp_path / "last.txt", "fit", run, "--resume")
    assert status == 0, text
    assert_same_fit(run, finished[kind])
    assert len(made) == (kind == "dpo")


def long_project(folder: Path) -> Path:
    return project(folder, "sft", data__epochs=20, checkpoint__every_steps=1000)


@pytest.fixture(scope="module")
def finished_long_fit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a fit of sixty steps that nothing interrupted."""
    path = long_project(tmp_path_factory.mktemp("long") / "p")
    status, text = agentrl(path.parent / "out.txt", "fit", path)
    assert status == 0, text
    return path.parent / "runs" / "fit"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_fit_cleanly(
    finished_long_fit: Path, tmp_path: Path, number: int, status: int
) -> None:
    """Fails if the step that was finished last is trained again."""
    path = long_project(tmp_path / "p")
    process = Agentrl(tmp_path / "out.txt", "fit", path)
    process.wait_for("step 3/60")
    process.send(number)
    assert process.wait() == status, process.text()
    run = path.parent / "runs" / "fit"
    assert f"agentrl fit {run} --resume" in process.text()
    assert "Traceback" not in process.text()
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    assert 3 <= checkpoint.state.step < 60
    assert [step for step, _, _ in trained_steps(run)][-1] == checkpoint.state.step
    status, text = agentrl(tmp_path / "resumed.txt", "fit", run, "--resume")
    assert status == 0, text
    assert f"resumed after step {checkpoint.state.step}" in text
    assert_same_fit(run, finished_long_fit)


def test_ctrl_c_while_data_is_read(tmp_path: Path) -> None:
    path = project(tmp_path / "p", "sft", data__source="slow.py:rows")
    (path.parent / "slow.py").write_text(
        "import sys, time\n\ndef rows(split):\n    print('reads', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n    return []\n"
    )
    process = Agentrl(tmp_path / "out.txt", "fit", path)
    process.wait_for("reads")
    process.send(signal.SIGINT)
    assert process.wait(120) == 130, process.text()
    assert not (path.parent / "runs" / "fit").exists()


def test_one_process_writes_a_fit_and_none_overwrites_it(tmp_path: Path) -> None:
    path = project(tmp_path / "p", "sft", data__epochs=300, checkpoint__every_steps=1)
    first = Agentrl(tmp_path / "first.txt", "fit", path)
    first.wait_for("step 2/")
    status, text = agentrl(tmp_path / "second.txt", "fit", path, "--resume")
    first.send(signal.SIGTERM)
    assert status == 2
    assert "in use by process" in text
    assert first.wait() == 143
    status, text = agentrl(tmp_path / "third.txt", "fit", path)
    assert status == 2
    assert "already holds a run" in text
    assert "run.name=fit-2" in text


def test_a_full_disk(finished: dict[str, Path], tmp_path: Path) -> None:
    """Fails if a checkpoint is half there, if a fit without its last one ends well, or if one that
    could be saved later gives up at once."""
    path = project(tmp_path / "p", "dpo")
    # A file-size limit is the nearest thing to a full disk that needs no root.
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))\n"
    (path.parent / "own_loss.py").write_text(LOSS + limit)
    status, text = agentrl(tmp_path / "out.txt", "fit", path)
    assert status == 2, text
    assert text.count("could not be written") == 3
    assert "Traceback" not in text
    run = path.parent / "runs" / "fit"
    assert list((run / "checkpoints").iterdir()) == []
    assert [step for step, _, _ in trained_steps(run)] == [1, 2, 3, 4, 5, 6]
    (path.parent / "own_loss.py").write_text(LOSS)
    status, text = agentrl(tmp_path / "again.txt", "fit", path, "--resume")
    assert status == 0, text
    assert_same_fit(run, finished["dpo"])


def test_other_data_is_refused_on_resume(finished: dict[str, Path], tmp_path: Path) -> None:
    path = project(tmp_path / "p", "sft", train__steps=2)
    assert agentrl(tmp_path / "out.txt", "fit", path)[0] == 0
    train = path.parent / "train.jsonl"
    lines = train.read_text().splitlines(keepends=True)
    train.write_text("".join(reversed(lines)))
    status, text = agentrl(tmp_path / "other.txt", "fit", path, "train.steps=6", "--resume")
    assert status == 2
    assert "does not hold the examples" in text
    train.write_text("".join(lines))
    status, text = agentrl(tmp_path / "same.txt", "fit", path, "train.steps=6", "--resume")
    assert status == 0, text
    assert_same_fit(path.parent / "runs" / "fit", finished["sft"])


def test_what_comes_last_is_measured_and_its_reference_stays(tmp_path: Path) -> None:
    """Fails if an old evaluation is given for the last step, or a reference follows its run."""
    reference = write_fit(tmp_path / "r", "sft", data__epochs=1).parent
    status, text = agentrl(tmp_path / "r.txt", "fit", reference / "fit.yaml")
    assert status == 0, text
    run_of_reference = reference / "runs" / "fit"
    path = write_fit(
        tmp_path / "p", "dpo", objective={"kind": "dpo", "reference": str(run_of_reference)},
        eval__every_steps=2, train__steps=3,
    )  # fmt: skip
    status, text = agentrl(tmp_path / "p.txt", "fit", path)
    assert status == 0, text
    run = path.parent / "runs" / "fit"
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    last = [line for line in read_metrics(run / "metrics.jsonl") if "eval/held/dpo/loss" in line]
    assert last[-1]["step"] == 3
    assert checkpoint.state.scores["eval/held/dpo/loss"] == last[-1]["eval/held/dpo/loss"]
    pinned = checkpoint.state.cursor["reference"]
    status, text = agentrl(tmp_path / "p2.txt", "fit", run, "--resume", "train.steps=4")
    assert status == 0, text
    again = latest_checkpoint(run / "checkpoints")
    assert again is not None
    assert again.state.step == 4
    assert again.state.cursor["reference"] == pinned
    weights_of_reference = Path(pinned) / "model.safetensors"
    data = bytearray(weights_of_reference.read_bytes())
    data[-1] ^= 1
    weights_of_reference.write_bytes(data)
    status, text = agentrl(tmp_path / "p3.txt", "fit", run, "--resume", "train.steps=5")
    assert status == 2
    assert "are not those that this fit was trained with" in text.replace("\n", " ")
