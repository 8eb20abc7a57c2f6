"""KTO as real processes: finished, killed, on several ranks, and refused."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agentrl.config.fit import DpoObjective
from agentrl.config.load import FIT_FILE
from agentrl.errors import AgentrlError, DataError
from agentrl.fit.launch import FitSets, fit_doubts, load_fit_sets
from agentrl.fit.updates import FitUpdates
from agentrl.metrics.sinks import read_metrics
from tests.fit.fit_project import (
    assert_same_fit,
    kill_at,
    trained_steps,
    verdicts,
    weights,
    write_kto_fit,
    write_rows,
)
from tests.runtime.tiny_project import agentrl
from tests.train.tiny_llama import relative_error


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directory of a fit that nothing interrupted."""
    folder = tmp_path_factory.mktemp("kto")
    path = write_kto_fit(folder / "p")
    status, text = agentrl(folder / "out.txt", "fit", path)
    assert status == 0, text
    return path.parent / "runs" / "fit"


def test_a_finished_kto_fit(finished: Path) -> None:
    assert [count for _, _, count in trained_steps(finished)] == [4] * 4
    name = "eval/held/dpo/loss"
    lines = [line for line in read_metrics(finished / "metrics.jsonl") if name in line]
    lines = [line for line in lines if line["step"] in (0, 4)]
    assert [line["step"] for line in lines] == [0, 4]
    assert lines[-1][name] < lines[0][name]
    assert all("pref/z0" in line for line in lines[1:])
    table = pq.read_table(finished / "reference.parquet")
    # An answer and a mismatched one for each row of two epochs, and of what is evaluated.
    asked = table.column("answer").to_pylist()
    assert asked.count(0) == 12
    assert 4 + 8 < asked.count(3) <= 4 + 16


PLACES = [
    ("os.rename", "reference.parquet", 1),
    ("open", ".making-step-2", 1),
    ("os.rename", ".making-step-4", 1),
]


def test_a_kto_fit_that_is_killed_ends_with_the_same_bits(finished: Path, tmp_path: Path) -> None:
    path = write_kto_fit(tmp_path / "p")
    for number, (event, part, times) in enumerate(PLACES):
        out = tmp_path / f"{number}.txt"
        status = kill_at(out, event, part, times, "fit", path, "--resume")
        assert status == -signal.SIGKILL, (event, part, out.read_text())
    run = path.parent / "runs" / "fit"
    status, text = agentrl(tmp_path / "last.txt", "fit", run, "--resume")
    assert status == 0, text
    assert_same_fit(run, finished)


def test_ranks_make_the_fit_of_one(finished: Path, tmp_path: Path) -> None:
    """Fails if z0 stays with a rank, or ranks look for other mismatched answers."""
    path = write_kto_fit(tmp_path / "p", train__backend={"kind": "fsdp2"}, ranks=2)
    status, text = agentrl(tmp_path / "out.txt", "fit", path)
    assert status == 0, text
    run = path.parent / "runs" / "fit"
    assert relative_error(weights(run), weights(finished)) < 1e-4
    losses = [[loss for _, loss, _ in trained_steps(one)] for one in (run, finished)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def loaded(path: Path, *overrides: str) -> FitSets:
    return load_fit_sets(FIT_FILE.load(path, overrides), base=path.parent)


def test_verdicts_of_one_kind_are_refused(tmp_path: Path) -> None:
    path = write_kto_fit(tmp_path / "p")
    for label, kind in ((True, "desirable"), (False, "undesirable")):
        write_rows(tmp_path / "p" / "train.jsonl", [{**v, "label": label} for v in verdicts()])
        with pytest.raises(DataError, match=rf"all 7 answers are {kind}"):
            loaded(path)


def test_a_step_of_one_row_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    path = write_kto_fit(tmp_path / "p", data__examples_per_step=7)
    status, text = agentrl(tmp_path / "out.txt", "fit", path)
    said = " ".join(text.split())
    assert status == 2
    assert "step 2: an update of 1 rows has one prompt" in said
    assert "data.examples_per_step" in said
    assert not (path.parent / "runs" / "fit" / "reference.parquet").exists()


def test_an_evaluation_of_one_row_is_named(tmp_path: Path) -> None:
    path = write_kto_fit(tmp_path / "p")
    write_rows(tmp_path / "p" / "held.jsonl", verdicts(1))
    sets, config = loaded(path), FIT_FILE.load(path, ())
    with pytest.raises(DataError, match=r"eval\.datasets\.held: an update of 1 rows"):
        FitUpdates(config, sets).mismatches(2)


def test_kinds_that_outweigh_each_other_are_noted(tmp_path: Path) -> None:
    path = write_kto_fit(tmp_path / "p")
    rows = [{**row, "label": number < 6} for number, row in enumerate(verdicts(8))]
    write_rows(tmp_path / "p" / "train.jsonl", rows)
    write_rows(tmp_path / "p" / "held.jsonl", verdicts(4, prompt="ask"))
    (said,) = fit_doubts(FIT_FILE.load(path, ()), loaded(path))
    assert "6 answers are desirable and 2 are not" in said
    assert "3 times as much" in said
    config = FIT_FILE.load(path, ("objective.undesirable_weight=3",))
    assert fit_doubts(config, loaded(path)) == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective.reference=none", "loss kto compares with one"),
        ("objective.nll_coef=0.1", "loss kto does not look at it"),
        ("objective.length_normalized=true", "loss kto does not look at it"),
        ("objective.loss=kt0", "did you mean 'kto'"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, override: str, message: str) -> None:
    path = write_kto_fit(tmp_path / "p")
    with pytest.raises(AgentrlError, match=message):
        loaded(path, override)


def test_weights_of_verdicts_belong_to_kto() -> None:
    with pytest.raises(ValueError, match=r"desirable_weight is 2\.0, but loss sigmoid does not"):
        DpoObjective(desirable_weight=2.0)
