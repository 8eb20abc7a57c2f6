"""A whole run with adapters: trained, killed, resumed, exported, scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from agentrl.disk.checkpoint import list_checkpoints
from agentrl.disk.export import export
from tests.runtime.tiny_project import agentrl, write_project

LORA = {
    # Each of the three steps has something to train with this one.
    "run__seed": 5,
    "train__lora": {"rank": 2, "alpha": 8.0},
    "train__learning_rate": 1e-2,
    "checkpoint__every_steps": 1,
    "checkpoint__keep_last": 9,
}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def tokens(run: Path, step: int) -> list[tuple[object, ...]]:
    """Sampled tokens and their log-probabilities, row by row in the order of the trainer."""
    columns = ["rollout_id", "response_ids", "rollout_log_probs", "reward"]
    path = run / "trajectories" / "train" / f"step_{step:06d}.parquet"
    rows = pq.read_table(path, columns=columns).to_pylist()
    return [tuple(map(repr, row.values())) for row in rows]


def proofs(run: Path) -> dict[str, Any]:
    """What rounding was found to explain, by what was proven."""
    found = json.loads((run / "run.json").read_bytes())["proofs"]
    return {name: proof["tolerance"] for name, proof in found.items()}


FEW_BITS = {
    **LORA,
    "train__lora": {"rank": 2, "alpha": 8.0, "base": "nf4", "dropout": 0.1, "rslora": True},
    "train__optimizer": "adamw_8bit",
}


@pytest.mark.parametrize(("settings", "steps"), [(LORA, 3), (FEW_BITS, 2)])
def test_a_run_with_adapters_from_end_to_end(
    tmp_path: Path, settings: dict[str, Any], steps: int
) -> None:
    """Fails if a resumed run puts adapters onto merged weights (its weights differ from those of
    the uninterrupted run), if the base weights are saved in place of the merged ones, or if a bit
    hangs on which rollouts are decoded together: the resumed run decodes three at a time."""
    if settings is FEW_BITS:
        pytest.importorskip("bitsandbytes")
    run_file = write_project(tmp_path / "whole", train__steps=steps, **settings)
    status, text = agentrl(tmp_path / "whole.log", "train", run_file)
    assert status == 0, text
    whole = tmp_path / "whole" / "runs" / "tiny"
    found = list_checkpoints(whole / "checkpoints")
    assert [item.state.step for item in found] == [*range(1, steps + 1)]

    few = {**settings, "serving__max_batch_size": 3}
    other = write_project(tmp_path / "cut", train__steps=steps - 1, **few)
    assert agentrl(tmp_path / "cut.log", "train", other)[0] == 0
    resumed = tmp_path / "cut" / "runs" / "tiny"
    fresh = proofs(resumed)
    other = write_project(tmp_path / "cut", train__steps=steps, **few)
    status, text = agentrl(tmp_path / "cut2.log", "train", other, "--resume")
    assert status == 0, text
    # The adapters that were loaded are proven, and not the fresh ones that they replaced.
    loaded = proofs(resumed)
    assert loaded.keys() == fresh.keys() == {"model.path", "serving.engine"}
    assert all(loaded[name] != fresh[name] for name in loaded)
    for step in range(1, steps + 1):
        assert tokens(resumed, step) == tokens(whole, step), step
    cut = list_checkpoints(resumed / "checkpoints")
    ours, theirs = weights(cut[-1].path), weights(found[-1].path)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    before = weights(found[-2].path)
    assert not all(torch.equal(before[name], theirs[name]) for name in theirs)

    began = weights(tmp_path / "whole" / "model")
    moved = {name for name in began if not torch.equal(began[name], theirs[name])}
    assert moved == {n for n in began if n.endswith("_proj.weight")}
    if settings is FEW_BITS:
        return  # what is exported and scored is that checkpoint, whatever it was trained in

    export(whole, tmp_path / "out")
    assert not (tmp_path / "out" / "adapter").exists()
    out = weights(tmp_path / "out")
    assert all(torch.equal(out[name], theirs[name]) for name in theirs)
    export(whole, tmp_path / "peft", adapter=True)
    names = {path.name for path in (tmp_path / "peft").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names

    status, text = agentrl(tmp_path / "eval.log", "eval", whole)
    assert status == 0, text


def test_a_target_that_is_not_there_ends_the_run_with_one_message(tmp_path: Path) -> None:
    run_file = write_project(tmp_path, train__lora={"rank": 2, "targets": ["query"]})
    status, text = agentrl(tmp_path / "out.log", "train", run_file)
    assert status == 2
    assert "train.lora.targets ['query'] do not fit LlamaForCausalLM" in text
    assert "Traceback" not in text
