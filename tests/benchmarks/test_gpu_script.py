"""`benchmarks/gpu/run.py`: children, limits, results, and what README.md may say of them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

import run as script
from child import measured
from children import run_child
from parts.readings import Reading
from report import NOT_RUN, REPORT, Results, claim, claim_of, markdown
from wheels import distribution, is_here

ROOT = Path(__file__).parents[2]
FACTS = {"device": "NVIDIA H200, 139 GiB", "torch": "2.11.0", "cuda": "13.0"}


def part(state: str, **more: object) -> dict[str, object]:
    return {"state": state, "seconds": 1.0, "reason": "", "readings": [], **more}


def results(**parts: dict[str, object]) -> Results:
    return Results(commit="abc1234", date="2030-01-02", facts=FACTS, parts=parts)


def test_readme_says_no_more_of_gpus_than_the_results():
    """Fails where README.md has another sentence than the one that the results allow."""
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert claim_of(REPORT.read_text()) in readme
    assert "benchmarks/results/gpu.md" in readme


def test_a_claim_names_what_passed_and_what_did_not():
    found = results(attention=part("passed"), ipc=part("crashed"), trl=part("skipped"))
    said = claim(found)
    assert said == (
        "Run on one NVIDIA H200 on 2030-01-02 at commit abc1234: attention passed; ipc did not."
    )
    assert claim_of(markdown(found)) == said
    assert not found.passed


@pytest.mark.parametrize(
    "change", [{"facts": {"device": "CPU (x86_64)"}}, {"small": True}, {"parts": {}}], ids=str
)
def test_nothing_is_claimed_without_a_gpu_at_full_size(change):
    found = results(attention=part("passed"))
    for name, value in change.items():
        setattr(found, name, value)
    assert claim(found) == NOT_RUN == claim_of(markdown(found))


def test_results_survive_their_file(tmp_path: Path):
    reading = Reading(name="error", value=0.5, bound=0.1)
    row = {**reading.to_json(), "text": reading.text()}
    found = results(attention=part("failed", readings=[row]))
    (tmp_path / "gpu.json").write_text(json.dumps(found.to_json()))
    again = Results.load(tmp_path / "gpu.json")
    assert markdown(again) == markdown(found)
    assert "| error | 0.5 |  | 0.1 |" in markdown(again)


def test_runs_of_single_parts_become_one_page(tmp_path: Path):
    """A machine that is lent for minutes runs some parts at a time."""
    first, second = results(attention=part("passed")), results(ipc=part("passed"))
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, one in zip(files, (first, second), strict=True):
        file.write_text(json.dumps(one.to_json()))
    page = tmp_path / "gpu.md"
    assert script.main(["--report", *map(str, files), "--to", str(page)]) == 0
    assert claim_of(page.read_text()).endswith("attention, ipc passed.")
    second.commit = "other"
    with pytest.raises(ValueError, match="abc1234"):
        Results.merged([first, second])


@pytest.mark.parametrize(("value", "holds"), [(0.1, True), (0.2, False), (float("nan"), False)])
def test_a_reading_holds_up_to_its_bound(value: float, holds: bool):
    assert Reading(name="error", value=value, bound=0.1).holds is holds


def test_a_part_runs_in_a_process_of_its_own(tmp_path: Path, capsys):
    """The whole way on a CPU: facts, a part with readings, one that is skipped, the JSON."""
    out = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--small", "--parts", "memory,ipc", "--out", str(out)]
    assert script.main(words) == 0, capsys.readouterr().out
    found = Results.load(out)
    assert {name: one["state"] for name, one in found.parts.items()} == {
        "ipc": "passed", "memory": "skipped",
    }  # fmt: skip
    assert not found.on_gpu
    assert "wrote" not in capsys.readouterr().out


def test_a_part_that_takes_too_long_is_killed(tmp_path: Path):
    options = script.arguments(["--device", "cpu", "--small"])
    began = time.monotonic()
    row = {"name": "error", "value": 0.5}
    (tmp_path / "lm_head.json").write_text(json.dumps({"state": "running", "readings": [row]}))
    found = run_child("lm_head", options, limit_s=0.2, folder=tmp_path, path=None)
    assert found["state"] == "timed out"
    assert found["readings"] == [row]
    assert "longer than 0 s" in found["reason"]
    assert time.monotonic() - began < 30


def test_every_reading_is_written_as_it_comes(tmp_path: Path):
    """Fails if a part that is killed halfway loses what it has measured."""
    options = script.arguments(["--device", "cpu", "--small", "--child", "ipc"])
    records = list(measured(options))
    assert [len(one["readings"]) for one in records[:3]] == [1, 2, 3]
    assert {one["state"] for one in records[:-1]} == {"running"}
    assert records[-1]["state"] == "passed"


def test_a_part_that_crashes_leaves_its_reason(tmp_path: Path):
    options = script.arguments(["--device", "nonsense"])
    found = run_child("ipc", options, limit_s=120, folder=tmp_path, path=None)
    assert found["state"] == "crashed"
    assert "nonsense" in found["reason"]


def test_without_a_gpu_nothing_is_measured_and_the_reason_is_given(
    tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    out = tmp_path / "gpu.json"
    assert script.main(["--out", str(out)]) == 1
    assert "torch sees no CUDA device" in capsys.readouterr().err
    assert not out.exists()


def test_a_wheel_of_what_is_here_is_left_out():
    wheel = Path("pydantic_core-2.50.4-cp312-cp312-manylinux2014_x86_64.whl")
    assert distribution(wheel) == "pydantic_core"
    assert is_here(wheel)
    assert not is_here(Path("no_such_thing-1.0-py3-none-any.whl"))
