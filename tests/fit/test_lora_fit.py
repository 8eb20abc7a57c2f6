"""Adapters in every objective of a fit: only they learn, and what is saved is the merged model."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from agentrl.config.load import FIT_FILE
from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.fit.launch import load_fit_sets
from agentrl.metrics.sinks import read_metrics
from agentrl.train.checkpoint import load_trainer_state
from agentrl.train.model.lora import ADAPTER_FOLDER
from tests.fit.fit_project import (
    assert_same_fit,
    kill_at,
    trained_steps,
    weights,
    write_fit,
)
from tests.fit.losses.fit_examples import summed
from tests.runtime.tiny_project import agentrl
from tests.train.tiny_llama import relative_error

WEIGHTS = "adapter_model.safetensors"
KINDS = ("sft", "dpo", "rm")
LORA = {"train__lora": {"rank": 2}, "train__learning_rate": 1e-2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run directories of fits with adapters that nothing interrupted."""
    root, found = tmp_path_factory.mktemp("lora"), {}
    for kind in KINDS:
        path = write_fit(root / kind, kind, **LORA)
        status, text = agentrl(root / f"{kind}.txt", "fit", path)
        assert status == 0, text
        found[kind] = path.parent / "runs" / "fit"
    return found


def checkpoint_of(run: Path) -> Path:
    found = latest_checkpoint(run / "checkpoints")
    assert found is not None
    return found.path


@pytest.mark.parametrize("kind", KINDS)
def test_only_adapters_and_the_score_head_learn(finished: dict[str, Path], kind: str) -> None:
    run = finished[kind]
    proofs = json.loads((run / "run.json").read_bytes())["proofs"]
    assert set(proofs) == {"model.path"} | ({"objective.reference"} if kind == "dpo" else set())
    masters = load_trainer_state(checkpoint_of(run)).optimizer["masters"]
    heads = [name for name in masters if name.startswith("value_head.")]
    assert heads == (["value_head.weight"] if kind == "rm" else [])
    assert all(".lora_" in name for name in masters if name not in heads)
    base = load_file(run.parents[1] / "model" / "model.safetensors")
    merged = weights(run)
    moved = {name for name in base if name in merged and not torch.equal(base[name], merged[name])}
    assert len(moved) == 14  # all linear layers of two, where nothing else is linear
    assert all(".mlp." in name or ".self_attn." in name for name in moved)
    if kind == "rm":
        assert merged["score.weight"].any()


def eval_losses(run: Path, kind: str) -> list[float]:
    lines = read_metrics(run / "metrics.jsonl")
    return [line[key] for line in lines if (key := f"eval/held/{kind}/loss") in line]


@pytest.mark.parametrize("kind", ["dpo", "rm"])
def test_the_merged_checkpoint_is_the_model_that_was_trained(
    finished: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """Fails if a checkpoint lacks what the adapters add, or adds it twice."""
    run, out = finished[kind], tmp_path / "merged"
    status, text = agentrl(tmp_path / "export.txt", "export", run, out)
    assert status == 0, text
    before, after = eval_losses(run, kind)
    assert after < before - 1e-3
    changes: dict[str, Any] = {"model__path": str(out), "train__steps": 1}
    if kind == "dpo":
        changes["objective__reference"] = str(run.parents[1] / "model")
    path = write_fit(tmp_path / "p", kind, **changes)
    status, text = agentrl(tmp_path / "out.txt", "fit", path)
    assert status == 0, text
    assert eval_losses(path.parent / "runs" / "fit", kind)[0] == pytest.approx(after, rel=1e-4)


def test_the_reference_is_the_model_without_adapters(finished: dict[str, Path]) -> None:
    from transformers import AutoModelForCausalLM

    run = finished["dpo"]
    path = run.parents[1] / "fit.yaml"
    sets = load_fit_sets(FIT_FILE.load(path, ()), base=path.parent)
    base = AutoModelForCausalLM.from_pretrained(run.parents[1] / "model")
    wanted = {(k.rollout_id, k.row_index): v for k, v in summed(base, sets.every).items()}
    table = pq.read_table(run / "reference.parquet")
    columns = [table.column(name).to_pylist() for name in ("id", "answer", "log_prob")]
    found = {(name, answer): value for name, answer, value in zip(*columns, strict=True)}
    assert found == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("kind", ["dpo", "rm"])
def test_adapters_go_on_where_they_were(
    finished: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """Fails if a resumed fit begins with fresh adapters, or puts them on the merged model."""
    path = write_fit(tmp_path / "p", kind, **LORA)
    out = tmp_path / "killed.txt"
    status = kill_at(out, "os.rename", ".making-step-4", 1, "fit", path)
    assert status == -signal.SIGKILL, out.read_text()
    run = path.parent / "runs" / "fit"
    status, text = agentrl(tmp_path / "last.txt", "fit", run, "--resume")
    assert status == 0, text
    assert "resumed after step 2" in text
    assert_same_fit(run, finished[kind])


ZERO3 = {"kind": "deepspeed", "zero_stage": 3}


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("sft", {"kind": "torch"}),
        ("dpo", {"kind": "fsdp2"}),
        ("rm", {"kind": "fsdp2"}),
        ("rm", ZERO3),
    ],
)
def test_ranks_train_the_adapters_of_one(
    finished: dict[str, Path], tmp_path: Path, kind: str, backend: dict[str, Any]
) -> None:
    """Fails if ranks draw adapters of their own, or what is saved lacks those of other ranks."""
    if backend is ZERO3:
        pytest.importorskip("deepspeed")
    path = write_fit(tmp_path / "p", kind, train__backend=backend, ranks=2, **LORA)
    status, text = agentrl(tmp_path / "out.txt", "fit", path)
    assert status == 0, text
    run = path.parent / "runs" / "fit"
    base = load_file(path.parent / "model" / "model.safetensors")
    one, other = weights(finished[kind]), weights(run)
    assert one.keys() == other.keys()
    moved = [{n: w - base[n] for n, w in each.items() if n in base} for each in (other, one)]
    assert relative_error(*moved) < 1e-3
    losses = [[loss for _, loss, _ in trained_steps(each)] for each in (run, finished[kind])]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    own = checkpoint_of(run) / ADAPTER_FOLDER
    assert own.exists() is (kind != "rm")
    if own.exists():
        known = load_file(checkpoint_of(finished[kind]) / ADAPTER_FOLDER / WEIGHTS)
        assert {name: part.shape for name, part in load_file(own / WEIGHTS).items()} == {
            name: part.shape for name, part in known.items()
        }


def test_divided_adapters_go_on_where_they_were(tmp_path: Path) -> None:
    """Fails if the state of a rank is looked for in weights that are not trained."""
    runs = []
    for name in ("whole", "killed"):
        path = write_fit(tmp_path / name, "rm", train__backend={"kind": "fsdp2"}, **LORA)
        out = tmp_path / f"{name}.txt"
        if name == "killed":
            status = kill_at(out, "os.rename", ".making-step-4", 1, "fit", path)
            assert status == -signal.SIGKILL, out.read_text()
        status, text = agentrl(out, "fit", path, "--resume")
        assert status == 0, text
        assert ("resumed after step 2" in text) is (name == "killed")
        runs.append(path.parent / "runs" / "fit")
    assert_same_fit(*runs)
