"""Ranks that read their own parts of a checkpoint hold what ranks that load all of it hold."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from agentrl.batch.packing import padding_micro_batch
from agentrl.config.schema import AlgorithmSection, CriticSection, ModelSection
from agentrl.config.training import LoraSection
from agentrl.disk.model_source import model_source
from agentrl.errors import AgentrlError
from agentrl.models import parts, recipes
from agentrl.models.parts import load_weights
from agentrl.train.backends import lockstep
from agentrl.train.backends.choose import make_backend
from agentrl.train.backends.filling import Filling
from agentrl.train.frozen_policy import SlicedFrozenPolicy
from agentrl.train.model.load import load_trained
from agentrl.train.model.lora import add_adapters
from agentrl.train.model.value_head import load_critic
from agentrl.train.reference import load_reference
from tests.models.test_parts import make
from tests.models.test_whole import SMALL, change, stored
from tests.runtime.tiny_project import write_model
from tests.train.backends.sharded_trainers import KINDS, needs, section
from tests.train.crew import joined

FAMILIES = ("qwen3", "llama", "qwen3_moe", "gemma3_text", "gpt2")
"""Tied weights, a head of its own, experts in one tensor, own buffers for two kinds of layers,
layers that keep their weights transposed."""
NAN = "model.layers.1.mlp.up_proj.weight"


def load(folder: Path, *, in_parts: bool) -> Any:
    return load_weights(
        AutoModelForCausalLM,
        str(folder),
        who=f"model.path {folder.name!r}",
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        in_parts=in_parts,
    )


def contents(model: Any, ranks: Any, kind: str) -> dict[str, torch.Tensor]:
    """Full weights, masters and buffers of a model that the ranks divide."""
    backend = make_backend(
        model, train=section(**KINDS[kind]), gradient_checkpointing=False, ranks=ranks
    )
    found = {name: param.clone() for name, param in backend.parameters()}
    masters = backend.state_dict().get("masters", {})
    buffers = {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
    return {**found, **{f"master {n}": m for n, m in masters.items()}, **buffers}


def expected(model: Any, kind: str) -> dict[str, torch.Tensor]:
    """`contents` of a model that is loaded whole."""
    params = {name: param.detach() for name, param in model.named_parameters()}
    rounded = {name: param.to(torch.bfloat16) for name, param in params.items()}
    # DeepSpeed knows one dtype, also for a head in float32.
    kept = rounded if kind == "zero3" else params
    masters = {
        f"master {name}": kept[name].float()
        for name, param in model.named_parameters()
        if param.requires_grad
    }
    return {**rounded, **masters, **{f"buffer {n}": b for n, b in model.named_buffers()}}


def differing(model: Any, whole: Any, ranks: Any, kind: str) -> list[str]:
    """Names of what a model in parts holds otherwise than one that was loaded whole."""
    ours, theirs = contents(model, ranks, kind), expected(whole, kind)
    if ranks.rank != 0:  # masters are gathered there
        theirs = {name: one for name, one in theirs.items() if not name.startswith("master ")}
    if list(ours) != list(theirs):
        return [f"names: {ours.keys() ^ theirs.keys()}"]
    return [
        name
        for name, one in ours.items()
        if one.dtype != theirs[name].dtype or not torch.equal(one, theirs[name])
    ]


def hold_alike(address: str, rank: int, size: int, folder: Path, kind: str) -> dict[str, Any]:
    """By model what differs from a whole load, and the share of the numbers that was read."""
    read: list[int] = []
    part = recipes.StoredTensor.part

    def counted(self: Any, *args: int) -> torch.Tensor:
        found = part(self, *args)
        read.append(found.numel())
        return found

    recipes.StoredTensor.part = counted  # type: ignore[method-assign]
    ranks, found = joined(address, rank, size), {}
    try:
        for family in FAMILIES:
            model, whole = (load(folder / family, in_parts=way) for way in (True, False))
            assert parts.is_in_parts(model)
            total = sum(param.numel() for param in model.parameters())
            read.clear()
            found[family] = differing(model, whole, ranks, kind), sum(read) / total
        model, whole = (load(folder / "llama", in_parts=way) for way in (True, False))
        for each in (model, whole):
            add_adapters(each, LoraSection(rank=2), base="x")
        found["lora"] = differing(model, whole, ranks, kind), 0.5
        own = ModelSection(path=str(folder / "llama"), dtype="bfloat16", device="cpu")
        for name in ("llama", "scores"):
            critic = CriticSection(path=str(folder / name))
            model, whole = (load_critic(critic, own, in_parts=way) for way in (True, False))
            found[f"critic on {name}"] = differing(model, whole, ranks, kind), 0.5
        model, whole = (load(folder / "qwen3_moe", in_parts=way) for way in (True, False))
        held = SlicedFrozenPolicy(model, ranks=ranks).state_dict({})
        odd = [n for n, one in held.items() if not torch.equal(one, whole.get_parameter(n))]
        found["reference"] = odd, 0.5
        return found
    finally:
        recipes.StoredTensor.part = part  # type: ignore[method-assign]
        ranks.close()


def write_models(folder: Path) -> None:
    for family in FAMILIES:
        make(folder, family, **({"num_experts_per_tok": 2} if "moe" in family else {}))
    config = AutoConfig.for_model("llama", **SMALL, num_labels=1)
    torch.manual_seed(1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder / "scores")


@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_ranks_that_read_their_parts_hold_the_bits_of_whole_loads(kind, crew, tmp_path):
    needs(kind)
    write_models(tmp_path)
    for found in crew.run(2, hold_alike, tmp_path, kind):
        assert len(found) == len(FAMILIES) + 4
        for name, (differs, share) in found.items():
            assert differs == [], name
            # Beside its half a rank looks at a row of each weight, which is much of tiny ones.
            assert share < 0.75, name


def told(address: str, rank: int, size: int, pairs: list[list[Path]], kind: str) -> list[str]:
    """The refusals of some models, of which rank 1 is given the second of a pair."""
    ranks, said = joined(address, rank, size), []
    try:
        for pair in pairs:
            with pytest.raises(AgentrlError) as caught:
                contents(load(pair[min(rank, len(pair) - 1)], in_parts=True), ranks, kind)
            said.append(f"{type(caught.value).__name__}: {caught.value}")
        return said
    finally:
        ranks.close()


@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_a_fault_in_the_part_of_one_rank_is_told_by_all(kind, crew, tmp_path):
    needs(kind)

    def poison(weights: Any) -> Any:
        weights[NAN][-1, -2:] = torch.tensor([float("nan"), float("inf")])
        return weights

    nan = change(stored(tmp_path / "nan"), poison)
    moved = change(stored(tmp_path / "moved"), lambda w: {n: t + 1 for n, t in w.items()})
    more = make(tmp_path, "modernbert-decoder")
    pairs = [[nan], [stored(tmp_path), moved], [more]]
    said = crew.run(2, told, pairs, kind)
    assert said[0] == said[1]
    odd, other, changes = said[0]
    assert re.fullmatch(
        rf"ConfigError: model.path 'llama' holds numbers that are not finite, in 1 of its tensors: "
        rf"{re.escape(NAN)} \(1 NaN and 1 infinite of 256\); take another copy .*",
        odd,
    )
    assert re.match("TrainError: rank 1 holds other weights than rank 0 in 21 of 21", other)
    assert re.match("ConfigError: .* ModernBertDecoderForCausalLM .* as another model", changes)
    assert len(load_file(nan / "model.safetensors")) == 21


def test_a_rank_reads_any_numbers_of_a_weight(tmp_path):
    """Fails if a part that begins in the middle of a row is read from the beginning of it."""
    folder = make(tmp_path, "qwen3_moe")
    models = [load(folder, in_parts=True) for _ in range(3)]
    for name, whole in load(folder, in_parts=False).named_parameters():
        found, each = [], -(-whole.numel() // 3)
        for rank, model in enumerate(models):
            filling, param = Filling(), model.get_parameter(name)
            filling.read(param, rank * each, (rank + 1) * each, dtype=torch.float32)
            assert param.shape == whole.shape
            found.append(param.detach().flatten()[rank * each : (rank + 1) * each])
        assert torch.equal(torch.cat(found), whole.detach().flatten().float()), name


def keeping(address: str, rank: int, size: int, folder: Path) -> tuple[list[str], list[str]]:
    """What glibc was asked about freed blocks: by a start with its checks, and with a pass."""
    asked: list[str] = []
    own = lockstep.keep_freed_memory, lockstep.return_freed_memory
    lockstep.keep_freed_memory = lambda: asked.append("keep")
    lockstep.return_freed_memory = lambda: asked.append("return")
    ranks = joined(address, rank, size)
    try:
        backend = make_backend(
            load(folder / "llama", in_parts=True),
            train=section(**KINDS["fsdp2"]),
            gradient_checkpointing=False,
            ranks=ranks,
        )
        assert backend.proof is not None
        start = list(asked)
        with backend.running():
            found = backend.log_probs(backend.to_tensors(padding_micro_batch()))
            backend.backward(found.log_probs_R.sum())
        return start, asked
    finally:
        lockstep.keep_freed_memory, lockstep.return_freed_memory = own
        ranks.close()


def test_blocks_that_a_start_has_freed_are_given_back(crew, tmp_path):
    """Fails if what its checks gather stays: with it a rank of 850M took 4.06 GiB, not 2.41."""
    make(tmp_path, "llama")
    assert crew.run(2, keeping, tmp_path) == [(["return"], ["return", "keep"])] * 2


LINEAR = {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}


def rotations(
    address: str, rank: int, size: int, folder: Path, cache: Path, kind: str
) -> dict[str, list[float]]:
    """Frequencies of policy, critic and reference, each divided among the ranks."""
    os.environ["AGENTRL_CACHE"] = str(cache)
    ranks = joined(address, rank, size)
    try:
        model = ModelSection(path=str(folder), dtype="float32", device="cpu", overrides=LINEAR)
        train = section(**KINDS[kind])
        began = model.model_copy(update={"path": model_source(model)})
        policy = load_trained(model, train, checkpoint=None).model
        critic = load_critic(CriticSection(), began, in_parts=True)
        reference = load_reference(
            began, AlgorithmSection(kl_coef=0.1), backend=train.backend, ranks=ranks
        )
        held: Any = reference and reference.frozen
        contents(policy, ranks, kind)
        contents(critic, ranks, kind)
        return {
            who: next(b for n, b in part.named_buffers() if n.endswith("inv_freq")).tolist()
            for who, part in {
                "policy": policy,
                "critic": critic,
                "reference": held._model,
            }.items()
        }
    finally:
        ranks.close()


@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_ranks_have_the_config_that_the_run_file_asks_for(kind, crew, tmp_path):
    """Fails if a model whose weights are read in parts keeps the rotation of its folder."""
    needs(kind)
    folder = write_model(tmp_path / "model")
    width = AutoConfig.from_pretrained(folder).head_dim
    wanted = [10000.0 ** (-2 * i / width) / 4 for i in range(width // 2)]
    for found in crew.run(2, rotations, folder, tmp_path / "cache", kind):
        assert found.keys() == {"policy", "critic", "reference"}
        for who, rotation in found.items():
            assert rotation == pytest.approx(wanted), who
