"""Proofs of `run.json` in words, for `agentrl doctor` and the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.cli.doctor import _proofs
from agentrl.disk.proof_lines import proof_lines, proof_rows
from agentrl.disk.proofs import keep_proofs
from agentrl.inspect.pages.overview import run_overview
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun
from agentrl.models.proof import ModelProof


def of(dtype: str, **changes) -> ModelProof:
    return ModelProof(
        model="LlamaForCausalLM", dtype=dtype, forms={"packed": 0.004}, worst={"packed": 0.02},
        tolerance=0.3, worst_tolerance=4.8, tokens=60, seconds=0.5, **changes,
    )  # fmt: skip


def test_a_proof_is_told_with_its_numbers_by_doctor_and_by_the_page(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("")
    keep_proofs(tmp_path, {"model.path": of("bfloat16", widened=of("float32"))})
    (line,) = _proofs(tmp_path)
    assert line == (
        "model.path: LlamaForCausalLM gives the numbers of its own forward pass: "
        "in bfloat16 packed off by 0.004 on average, 0.02 at most "
        "(rounding explains 0.3 on average and 4.8 at most); "
        "in float32 packed off by 0.004 on average, 0.02 at most "
        "(rounding explains 0.3 on average and 4.8 at most)"
    )
    page = run_overview(RunReader(FoundRun(id="r", path=tmp_path)))
    narrow, wide = page["proofs"]
    assert narrow | {"dtype": "float32"} == wide
    assert [narrow[key] for key in ("name", "model", "form", "mean", "worst", "mean_allowed")] == [
        *("model.path", "LlamaForCausalLM", "packed", "0.004", "0.02", "0.3")
    ]
    assert narrow["worst_allowed"] == "4.8"


def test_a_proof_of_before_that_names_no_limit_of_one_token_is_told_without() -> None:
    kept = {"model": "M", "dtype": "float32", "forms": {"packed": 0.1}, "tolerance": 0.3}
    (line,) = proof_lines({"proofs": {"model.path": kept}})
    assert line.endswith("packed off by 0.1 on average (rounding explains 0.3 on average)")
    (row,) = proof_rows({"proofs": {"model.path": kept}})
    assert (row["worst"], row["worst_allowed"]) == ("", "")


@pytest.mark.parametrize(
    "kept", [None, 3, [1], {}, {"model.path": 3}, {"model.path": {"model": "M", "forms": [1]}},
             {"model.path": {"model": "M", "forms": {"a": "x"}, "tolerance": 1, "dtype": "f"}}]
)  # fmt: skip
def test_what_is_no_proof_is_no_error(kept) -> None:
    lines = proof_lines(json.loads(json.dumps({"proofs": kept})))
    assert lines == (["model.path: its proof in run.json cannot be read"] if kept else []) or (
        not isinstance(kept, dict) and lines == []
    )
    assert [row.get("error") for row in proof_rows({"proofs": kept})] == [
        line.partition(": ")[2] for line in lines
    ]


def test_a_proof_of_an_earlier_version_is_read() -> None:
    old = of("float32").as_dict()
    del old["worst"], old["widened"]
    assert "packed off by 0.004 on average (rounding" in proof_lines({"proofs": {"x": old}})[0]
    (row,) = proof_rows({"proofs": {"x": old}})
    assert (row["worst"], row["by"]) == ("", "")
