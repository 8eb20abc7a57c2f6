"""Examples of a fit as the inspector shows them, against what the fit itself logged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from statistics import fmean

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.data.store.example_columns import ShownAnswer
from agentrl.data.store.example_store import ExampleStore
from agentrl.errors import DataError, RunError
from agentrl.inspect.pages.examples import example_answer, examples_answer
from agentrl.inspect.pages.overview import run_overview
from agentrl.inspect.read.safe_json import jsonable
from tests.inspect.conftest import HOSTILE
from tests.inspect.fit_runs import logged, reader_of, train_fit


@pytest.mark.parametrize("step", [0, 2, 4])
def test_the_examples_of_a_dpo_fit_are_those_of_its_metrics(fit_run: Path, step: int) -> None:
    """Fails if the numbers are those of other weights, rows or a wrong reference."""
    answer = examples_answer(reader_of(fit_run), None, step)
    assert (answer["step"], answer["steps"], answer["dataset"]) == (step, [0, 2, 4], "held")
    metrics = logged(fit_run, step)
    found = answer["examples"]
    assert len(found) == metrics["eval/held/fit/examples"] == 5
    chosen = fmean(one["sums"][0]["log_prob"] for one in found)
    rejected = fmean(one["sums"][1]["log_prob"] for one in found)
    assert chosen == pytest.approx(metrics["eval/held/pref/logp_chosen"], rel=1e-5)
    assert rejected == pytest.approx(metrics["eval/held/pref/logp_rejected"], rel=1e-5)
    margin = fmean(one["scaled"] for one in found)
    assert margin == pytest.approx(metrics["eval/held/pref/margin"], abs=1e-5)
    right = fmean((one["h"] > 1e-6) + 0.5 * (abs(one["h"]) <= 1e-6) for one in found)
    assert right == pytest.approx(metrics["eval/held/pref/accuracy"])
    assert (margin == pytest.approx(0, abs=1e-5)) == (step == 0)


def test_every_token_has_its_text_and_its_numbers(fit_run: Path) -> None:
    reader = reader_of(fit_run)
    listed = examples_answer(reader)
    first = listed["examples"][0]
    found = example_answer(reader, "held", 4, first["id"])
    assert first["id"].endswith("<i>odd</i> id")
    assert HOSTILE.replace("\x1b", "\x1b") in "".join(found["prompt_text"])
    assert HOSTILE + "!" in "".join(found["answers"][0]["text"])
    assert "held.jsonl" in found["source"]
    assert 0 <= found["margin"] <= 1
    assert [answer["name"] for answer in found["answers"]] == ["chosen", "rejected"]
    for answer, sums in zip(found["answers"], found["sums"], strict=True):
        count = len(answer["ids"])
        for name in ("text", "trained", "log_prob", "ref_log_prob", "log_ratio"):
            assert len(answer[name]) == count, name
        for i, trained in enumerate(answer["trained"]):
            values = [answer[name][i] for name in ("log_prob", "ref_log_prob", "log_ratio")]
            assert [value is not None for value in values] == [trained] * 3
            assert not trained or values[2] == pytest.approx(values[0] - values[1], abs=1e-6)
        known = [value for value in answer["log_ratio"] if value is not None]
        assert sum(known) == pytest.approx(sums["log_ratio"], abs=1e-4)
        assert any(abs(value) > 1e-4 for value in known)
    assert found["h"] == pytest.approx(
        found["sums"][0]["log_ratio"] - found["sums"][1]["log_ratio"], abs=1e-5
    )
    assert found["course"]["steps"] == [0, 2, 4]
    assert found["course"]["values"][-1] == pytest.approx(found["h"])
    assert found["course"]["values"][0] == pytest.approx(0, abs=1e-5)
    assert found["neighbours"] == [one["id"] for one in listed["examples"]]


def test_a_reward_model_has_two_scores(tmp_path: Path) -> None:
    run = train_fit(tmp_path, "rm")
    found = examples_answer(reader_of(run))["examples"]
    metrics = logged(run, 4)
    assert fmean(one["h"] for one in found) == pytest.approx(
        metrics["eval/held/rm/margin"], abs=1e-5
    )
    scores = [sums["score"] for one in found for sums in one["sums"]]
    assert fmean(scores) == pytest.approx(metrics["eval/held/rm/reward_mean"], abs=1e-5)
    tokens = example_answer(reader_of(run), "held", 4, found[0]["id"])["answers"][0]
    assert tokens["log_prob"] is None
    assert tokens["text"]


def test_conversations_have_the_log_probability_of_what_is_trained(tmp_path: Path) -> None:
    run = train_fit(tmp_path, "sft")
    reader = reader_of(run)
    found = examples_answer(reader)["examples"]
    tokens = sum(one["sums"][0]["tokens"] for one in found)
    total = sum(one["sums"][0]["log_prob"] for one in found)
    assert -total / tokens == pytest.approx(logged(run, 4)["eval/held/sft/nll"], rel=1e-5)
    one = example_answer(reader, "held", 4, found[0]["id"])
    # What a tool said between two turns has no number.
    trained, numbers = one["answers"][0]["trained"], one["answers"][0]["log_prob"]
    assert 0 < sum(trained) < len(trained)
    assert [value is not None for value in numbers] == list(trained)
    assert [answer["name"] for answer in one["answers"]] == ["answer"]
    assert one["h"] is None
    assert one["answers"][0]["ref_log_prob"] is None


def test_mean_log_probabilities_where_a_loss_compares_them(tmp_path: Path) -> None:
    """Fails if sums are compared for a loss that compares means."""
    run = train_fit(tmp_path, "dpo", objective={"kind": "dpo", "loss": "simpo"})
    found = examples_answer(reader_of(run))["examples"]
    margin = fmean(one["scaled"] for one in found)
    assert margin == pytest.approx(logged(run, 4)["eval/held/pref/margin"], abs=1e-5)
    assert found[0]["sums"][0]["ref_log_prob"] is None


def test_ranks_keep_the_examples_of_all_of_them(tmp_path: Path) -> None:
    """Fails if only the rows of rank 0 are kept."""
    run = train_fit(tmp_path, "dpo", ranks=2, train__backend={"kind": "torch", "lanes": 1})
    found = examples_answer(reader_of(run))["examples"]
    assert len(found) == 5
    margin = fmean(one["scaled"] for one in found)
    assert margin == pytest.approx(logged(run, 4)["eval/held/pref/margin"], abs=1e-5)


def test_single_answers_with_a_verdict(tmp_path: Path) -> None:
    run = train_fit(tmp_path, "dpo", objective={"kind": "dpo", "loss": "kto"})
    found = examples_answer(reader_of(run))["examples"]
    metrics = logged(run, 4)
    for desirable, name in ((True, "chosen"), (False, "rejected")):
        rewards = [one["scaled"] for one in found if one["desirable"] is desirable]
        assert len(rewards) == 5
        wanted = metrics[f"eval/held/pref/reward_{name}"]
        assert fmean(rewards) == pytest.approx(wanted, abs=1e-5)
    assert {one["h"] for one in found} == {None}


def test_few_examples_are_kept_and_none_if_that_is_wanted(tmp_path: Path) -> None:
    two = train_fit(tmp_path / "two", "dpo", eval__shown=2)
    assert len(examples_answer(reader_of(two))["examples"]) == 2
    none = train_fit(tmp_path / "none", "dpo", eval__shown=0)
    assert not (none / "examples").exists() or not list((none / "examples").glob("step_*"))
    with pytest.raises(RunError, match=r"kept no examples.*eval\.shown"):
        examples_answer(reader_of(none))
    assert run_overview(reader_of(none))["examples"] == []


def test_a_step_between_evaluations_shows_the_one_before(fit_run: Path) -> None:
    reader = reader_of(fit_run)
    assert examples_answer(reader, "held", 3)["step"] == 2
    assert run_overview(reader)["examples"] == [0, 2, 4]
    for question, words in (
        (lambda: examples_answer(reader, "hold", 4), "did you mean 'held'"),
        (lambda: example_answer(reader, "held", 4, "x"), "valid: "),
        (lambda: example_answer(reader, "held", 3, "x"), "no file of examples"),
    ):
        with pytest.raises(RunError, match=words):
            question()


@pytest.fixture
def fit_copy(fit_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fit_run, tmp_path / "copy"))


def test_what_is_torn_foreign_or_newer_is_a_message(fit_copy: Path) -> None:
    folder = fit_copy / "examples"
    path = folder / "step_000004.parquet"
    table = pq.read_table(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(RunError, match="torn or damaged"):
        examples_answer(reader_of(fit_copy))
    pq.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(RunError, match="no file of examples"):
        examples_answer(reader_of(fit_copy))
    newer = {"agentrl.examples_version": "99", "agentrl.objective": "{}"}
    pq.write_table(table.replace_schema_metadata(newer), path)
    with pytest.raises(RunError, match=r"99.*upgrade"):
        examples_answer(reader_of(fit_copy))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RunError, match="no file of examples"):
        examples_answer(reader_of(fit_copy))
    # The other evaluations are still there.
    found = examples_answer(reader_of(fit_copy), None, 2)
    course = example_answer(reader_of(fit_copy), "held", 2, found["examples"][0]["id"])["course"]
    assert course["steps"] == [0, 2]


def test_numbers_that_are_none_and_an_objective_of_nonsense_are_shown(fit_copy: Path) -> None:
    path = fit_copy / "examples" / "step_000004.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0]["log_probs"] = [float("nan")] * len(rows[0]["ids"])
    rows[0]["example_id"] = "a\U0010ffffd800b"
    rows[0]["margin"] = float("inf")
    rows[1]["example_id"] = rows[0]["example_id"]
    odd = {
        "agentrl.examples_version": "1",
        "agentrl.objective": '{"beta": "x", "kind": "dpo", "loss": [1]}',
    }
    pq.write_table(
        pa.Table.from_pylist(rows, schema=table.schema).replace_schema_metadata(odd), path
    )
    reader = reader_of(fit_copy)
    listed = examples_answer(reader)
    name = next(one["id"] for one in listed["examples"] if "\ufffd" in one["id"])
    assert b"NaN" not in jsonable(example_answer(reader, "held", 4, name))


def answer(**changes: object) -> ShownAnswer:
    values: dict[str, object] = {
        "dataset": "d", "index": 0, "example_id": "e\ud800", "answer": 0, "source": "",
        "margin": None, "label_probability": 0.5, "desirable": True, "weight": 1.0,
        "prompt_ids": (1,), "ids": (2, 3), "trained": (True, False), "log_probs": (-0.5, None),
        "ref_log_probs": None, "score": None,
    }  # fmt: skip
    return ShownAnswer(**{**values, **changes})  # type: ignore[arg-type]


def test_the_store_gives_back_what_was_written_and_forgets_later_steps(tmp_path: Path) -> None:
    store = ExampleStore(tmp_path / "examples")
    assert store.steps() == []
    for step in (0, 3, 12):
        store.write(step, [answer(index=step)], objective={"kind": "dpo"})
    assert store.read(3) == ({"kind": "dpo"}, [answer(index=3)])
    store.remove_after(3)
    assert store.steps() == [0, 3]
    with pytest.raises(DataError, match="unequal lengths"):
        answer(log_probs=(-0.5,))
    with pytest.raises(DataError, match="do not fit"):
        store.write(1, [answer(prompt_ids=(2**40,))], objective={})
    assert [path.name for path in store.directory.glob(".*")] == []
