"""Recorded steps of real runs, replayed: nothing differs, until something is changed."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentrl.cli.replay.recorded_run import open_recorded
from agentrl.cli.replay.step import ReplayReport, replay_failed, replay_step
from agentrl.data import TokenStore
from agentrl.errors import RunError
from tests.runtime.tiny_project import agentrl, write_project


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The recorded run computes with one (`tests.warm_processes`), and sums depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs and minibatches, a reference policy, running reward statistics; checkpoint 2 of 4
    and 4 of 4 are kept."""
    project = write_project(
        tmp_path_factory.mktemp("replay"),
        train__epochs_per_batch=2,
        train__minibatches=2,
        algorithm__kl_coef=0.05,
        algorithm__old_log_probs="recompute",
        reward__normalize=True,
        eval__datasets={},
        checkpoint__save="all",
    )
    status, text = agentrl(project.parent / "out", "train", project)
    assert status == 0, text
    return project.parent / "runs" / "tiny"


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "copy"))


def report_of(run: Path, step: int, **options: object) -> ReplayReport:
    return replay_step(open_recorded(run), step, **options)  # type: ignore[arg-type]


def by_name(report: ReplayReport) -> dict[str, object]:
    return {item.what: item for item in report.agreements}


@pytest.mark.parametrize(("step", "retrain"), [(1, False), (3, False), (4, True)])
def test_a_step_is_what_it_was_to_the_last_bit(recorded: Path, step: int, retrain: bool) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in recorded.rglob("*"))
    report = report_of(recorded, step, retrain=retrain)
    assert report.same
    assert not any(item.skipped for item in report.agreements)
    assert {item.largest for item in report.agreements} == {0.0}
    known = by_name(report)
    assert {"tokens: log_probs", "tokens: ref_log_probs", "tokens: loss"} <= known.keys()
    assert known["metrics of training"].compared > 20  # type: ignore[attr-defined]
    # A replay only reads.
    assert before == sorted((path, path.stat().st_mtime_ns) for path in recorded.rglob("*"))


def test_without_the_weights_it_says_which_there_are_and_replays_the_rest(recorded: Path) -> None:
    report = report_of(recorded, 4)
    assert report.same
    assert "the run keeps those of steps 0 (the model), 2, 4; --retrain" in report.weights
    known = by_name(report)
    assert known["tokens: trained"].compared > 0  # type: ignore[attr-defined]
    assert known["log-probabilities and loss"].skipped  # type: ignore[attr-defined]
    assert "metrics of training" not in known
    assert not report.trained
    assert "--retrain trains step 3 again first" in report.weights


def test_the_last_line_says_what_was_not_compared(recorded: Path, tmp_path: Path) -> None:
    status, text = agentrl(tmp_path / "text", "replay", recorded, "--step", 4)
    assert status == 3, text
    assert "step 4, not trained: step 4 was trained from the weights of step 3" in text
    last = text.rstrip().splitlines()[-1]
    assert last == "nothing differs; not compared: log-probabilities and loss"
    status, text = agentrl(tmp_path / "json", "replay", recorded, "--step", 4, "--json")
    found = json.loads(text.splitlines()[-1])
    assert (status, found["same"], found["trained"]) == (3, True, False)
    assert found["not_compared"] == ["log-probabilities and loss"]
    # The newest step that can be trained again is the default.
    status, text = agentrl(tmp_path / "all", "replay", recorded)
    assert status == 0, text
    assert "step 3, trained from: step-2" in text
    assert text.rstrip().splitlines()[-1] == "nothing differs"


def test_one_changed_token_is_the_first_difference(copy: Path) -> None:
    store = TokenStore(copy / "tokens")
    rows = store.read(3)
    victim = rows[1]
    position = list(victim.trained).index(True) + 1
    moved = [value + 0.25 * (at == position) for at, value in enumerate(victim.log_probs)]
    rows[1] = replace(victim, log_probs=moved)
    store.write(3, 0, rows)
    report = report_of(copy, 3)
    wrong = [item for item in report.agreements if item.differing]
    assert [item.what for item in wrong] == ["tokens: log_probs"]
    first = wrong[0].first
    assert first is not None
    assert first.where == f"rollout {victim.rollout_id} row 0 position {position}"
    assert first.recorded == pytest.approx((first.recomputed or 0.0) + 0.25, abs=1e-4)
    assert wrong[0].differing == 1
    assert report_of(copy, 3, tolerance=0.2).same


def test_a_changed_config_shows_where_it_first_counts(copy: Path) -> None:
    # Fails if a part is compared with itself, or if the statistics of earlier steps are left out.
    config = (copy / "config.yaml").read_text()
    assert "kl_coef: 0.05" in config
    (copy / "config.yaml").write_text(config.replace("kl_coef: 0.05", "kl_coef: 2.0"))
    wrong = [item.what for item in report_of(copy, 3).agreements if item.differing]
    assert {"tokens: loss", "metrics of training"} <= set(wrong)
    # What the step begins with is the same, and the first pass over it.
    assert not {"metrics of rollouts and batch", "tokens: old_log_probs"} & set(wrong)
    text = config.replace("normalize: true", "normalize: false")
    (copy / "config.yaml").write_text(text)
    wrong = [item.what for item in report_of(copy, 3).agreements if item.differing]
    assert wrong[0] == "metrics of rollouts and batch"
    assert wrong[1] == "advantages of rollouts"


def test_other_weights_show_in_the_log_probabilities(copy: Path) -> None:
    import torch

    from agentrl.train.checkpoint import load_trainer_state

    folder = copy / "checkpoints" / "step-2"
    held = load_trainer_state(folder)
    state = {
        "format": 2,
        "version": held.version,
        "optimizer": {
            "masters": {name: tensor.clone() for name, tensor in held.optimizer["masters"].items()},
            "moments": {
                name: {key: tensor.clone() for key, tensor in kinds.items()}
                for name, kinds in held.optimizer["moments"].items()
            },
        },
        "critic": None,
        "kl_coef": held.kl_coef,
        "reference": None,
        "cpu_rng": held.cpu_rng,
        "cuda_rng": [],
    }
    path = folder / "trainer.pt"
    shutil.rmtree(folder / "trainer")
    (folder / "trainer.json").unlink()

    def save(content: dict[str, object]) -> None:
        torch.save(content, path)
        document = json.loads((path.parent / "state.json").read_text())
        files = document["files"].items()
        document["files"] = {k: v for k, v in files if not k.startswith("trainer")}
        document["files"]["trainer.pt"] = path.stat().st_size
        (path.parent / "state.json").write_text(json.dumps(document))

    for master in state["optimizer"]["masters"].values():
        master += 0.01
    save(state)
    wrong = [item.what for item in report_of(copy, 3).agreements if item.differing]
    assert wrong[0] == "tokens: old_log_probs"
    save({**state, "version": 3})
    report = report_of(copy, 3)
    assert "holds version 3 of the weights, and step 3 was trained from version 2" in report.weights
    assert report.same


def test_files_of_a_run_that_are_gone_or_torn_cost_their_part(copy: Path) -> None:
    (copy / "metrics.jsonl").unlink()
    token_file = TokenStore(copy / "tokens").path(3, 0)
    token_file.write_bytes(token_file.read_bytes()[:-40])
    report = report_of(copy, 3)
    assert report.same
    skipped = {item.what: item.skipped for item in report.agreements if item.skipped}
    assert skipped["tokens"] == "the run holds no readable tokens of this step"
    assert skipped["metrics of rollouts and batch"] == "the run recorded none"
    (copy / "trajectories" / "train" / "step_000003.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(RunError, match="no readable trajectories of step 3"):
        report_of(copy, 3)
    with pytest.raises(RunError, match=r"--step 9: not stored .* 4 steps from 1 to 4"):
        report_of(copy, 9)
    with pytest.raises(RunError, match=r"--checkpoint .* no complete checkpoint"):
        report_of(copy, 1, checkpoint=copy)


def test_the_command_says_it_and_leaves_with_a_status(copy: Path, tmp_path: Path) -> None:
    status, text = agentrl(tmp_path / "same", "replay", copy, "--step", 3)
    assert status == 0, text
    assert "step 3, trained from: step-2" in text
    assert "nothing differs" in text
    rows = TokenStore(copy / "tokens").read(3)
    rows[0] = replace(rows[0], loss=[7.0, *rows[0].loss[1:]])
    TokenStore(copy / "tokens").write(3, 0, rows)
    copy.chmod(0o555)
    status, text = agentrl(tmp_path / "other", "replay", copy, "--step", 3)
    copy.chmod(0o755)
    assert status == 1
    assert (
        f"first tokens: loss: rollout {rows[0].rollout_id} row 0 position 0: recorded 7.0" in text
    )
    status, text = agentrl(tmp_path / "json", "replay", copy, "--step", 3, "--json")
    found = json.loads(text.splitlines()[-1])
    assert (status, found["same"], found["step"]) == (1, False, 3)
    status, text = agentrl(tmp_path / "none", "replay", copy, "--failed")
    assert status == 2
    assert "keeps no batch of a failed step; there is none" in text


def test_a_failed_step_fails_again_and_a_mended_one_does_not(tmp_path: Path) -> None:
    from agentrl.train import load_failed_step
    from agentrl.train.failed_step import save_failed_step

    project = write_project(tmp_path, eval__datasets={}, train__steps=2)
    status, text = agentrl(tmp_path / "out", "train", project)
    assert status == 0, text
    run = open_recorded(tmp_path / "runs" / "tiny")
    from agentrl.runtime.assembly.step_batch import StepMaker

    maker = StepMaker(run.plan.schedule)
    maker.prepare(1, run.groups(1))
    batch = maker.prepare(2, run.groups(2)).batch
    save_failed_step(run.path, batch, version=1, error="it was the disk")
    report = replay_failed(run)
    assert report.same
    assert "step 1 trained again" in report.weights
    micro = batch.updates[0].micro_batches[0]
    micro.advantages_R[micro.mask_R] = float("inf")
    path = save_failed_step(run.path, batch, version=1, error="not finite")
    assert load_failed_step(path).version == 1
    report = replay_failed(run, 2)
    assert not report.same
    assert "not finite" in report.failure
    with pytest.raises(RunError, match="no batch of a failed step 7; there are those of 2"):
        replay_failed(run, 7)


def test_a_step_is_profiled_with_its_phases_and_rollouts(recorded: Path, tmp_path: Path) -> None:
    trace = tmp_path / "step.json.gz"
    status, text = agentrl(tmp_path / "out", "profile", recorded, "--step", 3, "--out", trace)
    assert status == 0, text
    assert str(trace) in text.replace("\n", "")
    assert "policy backward" in text
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {event["name"] for event in events if event.get("ph") == "X"}
    wanted = ("other policies", "update 1", "update 4", "policy forward", "optimizer")
    assert {f"agentrl: {name}" for name in wanted} <= names
    assert "agentrl: update 5" not in names  # two epochs of two minibatches
    assert any(name.startswith("aten::") for name in names)
    groups = open_recorded(recorded).groups(3)
    turns = [turn for group in groups for row in group.trajectories for turn in row.turns]
    tracks = [event for event in events if event.get("cat") == "rollout"]
    assert sorted(event["dur"] for event in tracks) == sorted(t.duration_s * 1e6 for t in turns)
    # Operators lie inside the phase that ran them.
    (first,) = (event for event in events if event["name"] == "agentrl: update 1")
    inside = [
        event
        for event in events
        if event.get("name") == "agentrl: policy backward"
        and first["ts"] <= event["ts"] <= first["ts"] + first["dur"]
    ]
    assert inside


def test_a_step_whose_weights_are_gone_is_not_profiled(recorded: Path, tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    status, text = agentrl(tmp_path / "out", "profile", recorded, "--step", 4, "--out", trace)
    assert status == 2
    assert "--retrain trains step 3 again" in " ".join(text.split())
    assert not trace.exists()
