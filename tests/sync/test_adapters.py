"""Only adapters on the wire: the engine ends up with what whole weights would have brought."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from agentrl.config.schema import TrainSection
from agentrl.config.training import LoraSection
from agentrl.errors import ConfigError, SyncError
from agentrl.runtime.assembly.weight_stream import sent_weights
from agentrl.sync.adapters import HEADER, AdapterWeights, Merger, with_delta
from agentrl.sync.disk.disk import DiskReceiver, DiskSender
from agentrl.sync.shm.shm import ShmReceiver, ShmSender
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.model.lora import adapters, add_adapters, base_weights, merged_weights


def write_model(folder: Path, *, seed: int = 0, tied: bool = True, shard: str = "5GB") -> Path:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size=shard)
    return folder


def adapted(folder: Path, dtype: torch.dtype = torch.bfloat16, *, seed: int = 9) -> Any:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
    add_adapters(model, LoraSection(rank=3, alpha=7.0), base=str(folder))
    redraw(model, seed)
    return model


def redraw(model: Any, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for adapter in adapters(model):
            adapter.up.normal_(std=0.1)


def sent_by(model: Any) -> AdapterWeights:
    return AdapterWeights(lambda: base_weights(model), lambda: adapters(model))


def same(ours: Any, theirs: Any) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(a == b and x.dtype == y.dtype and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tied", [True, False])
def test_an_engine_gets_the_bits_that_whole_weights_would_have_brought(
    tmp_path: Path, dtype: torch.dtype, tied: bool
) -> None:
    """The checkpoint is float32 in several files. Fails if the folder's dtype is merged instead of
    the trainer's, or if a weight without adapters is left out."""
    folder = write_model(tmp_path, tied=tied, shard="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    model = adapted(folder, dtype)
    assert same(Merger(str(folder)).whole(sent_by(model)()), merged_weights(model))


def test_only_adapters_and_a_header_are_sent_and_they_follow_the_trainer(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    model = adapted(folder)
    sent, merger = sent_by(model), Merger(str(folder))
    names = [name for name, _ in sent()]
    assert names[0] == HEADER
    assert len(names) == 1 + 2 * 14
    assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in names[1:])
    first = list(merger.whole(sent()))
    redraw(model, seed=3)
    second = list(merger.whole(sent()))
    # Fails if the engine merges onto what it merged before.
    assert same(second, merged_weights(model))
    assert not same(first, second)


@pytest.mark.parametrize("kind", ["shm", "disk"])
def test_a_backend_carries_them_as_it_carries_weights(tmp_path: Path, kind: str) -> None:
    folder = write_model(tmp_path / "model")
    model = adapted(folder)
    sender = ShmSender() if kind == "shm" else DiskSender(tmp_path / "sync", dense_every=3)
    receiver = ShmReceiver() if kind == "shm" else DiskReceiver()
    sent, merger = sent_by(model), Merger(str(folder))
    receiver.connect(sender.connect(1)[0])
    for version in (1, 2, 3):
        redraw(model, seed=version)
        ticket = sender.send(sent(), version)
        assert same(merger.whole(receiver.receive(ticket)), merged_weights(model))
    receiver.close()
    sender.close()


def test_a_tensor_is_copied_before_the_next_one_comes(tmp_path: Path) -> None:
    """A receiver may hand out one buffer again and again. Fails if what it gave is kept."""
    folder = write_model(tmp_path)
    model = adapted(folder)

    def from_one_buffer() -> Any:
        for name, tensor in sent_by(model)():
            buffer = tensor.clone()
            yield name, buffer
            buffer.zero_()

    assert same(Merger(str(folder)).whole(from_one_buffer()), merged_weights(model))


def test_whole_weights_pass_through(tmp_path: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(write_model(tmp_path))
    pairs: list[tuple[str, Tensor]] = list(model.named_parameters())
    out = list(Merger("nowhere").whole(iter(pairs)))
    assert [id(tensor) for _, tensor in out] == [id(tensor) for _, tensor in pairs]
    assert list(Merger("nowhere").whole(iter([]))) == []


def test_an_engine_with_another_model_refuses(tmp_path: Path) -> None:
    """Fails without the digest: names and shapes fit, and the policy would be another one."""
    right, wrong = write_model(tmp_path / "a"), write_model(tmp_path / "b", seed=1)
    sent = sent_by(adapted(right))
    with pytest.raises(SyncError, match=r"trained on other .*/b; .*train\.lora\.sync: merged"):
        list(Merger(str(wrong)).whole(sent()))
    merger = Merger(str(right))
    list(merger.whole(sent()))
    # Also once another trainer sends to an engine that has agreed before.
    with pytest.raises(SyncError, match="trained on other weights"):
        list(merger.whole(sent_by(adapted(wrong))()))


def test_a_folder_without_these_weights_is_named(tmp_path: Path) -> None:
    sent = sent_by(adapted(write_model(tmp_path / "a")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SyncError, match=r"empty has no weight 'model\.embed_tokens\.weight'; set"):
        list(Merger(str(tmp_path / "empty")).whole(sent()))


def test_a_damaged_adapter_never_reaches_the_model(tmp_path: Path) -> None:
    """Digests are compared as the stream goes on. Fails if weights are merged before its end."""
    folder = write_model(tmp_path)

    def cut_short() -> Any:
        yield from list(sent_by(adapted(folder))())[:-1]
        raise SyncError("arrived damaged")

    with pytest.raises(SyncError, match="arrived damaged"):
        next(Merger(str(folder)).whole(cut_short()))


def test_a_weight_that_lies_the_other_way_round_by_hand() -> None:
    # W is [in, out]; W + 2 (B A)' with A = [1 2], B = [3].
    down, up = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])
    weight = torch.tensor([[10.0], [20.0]])
    merged = with_delta(weight, down, up, scale=2.0, transposed=True)
    assert merged.tolist() == [[16.0], [32.0]]
    assert with_delta(weight.T, down, up, scale=2.0, transposed=False).tolist() == [[16.0, 32.0]]


def test_the_stream_keeps_its_layout(tmp_path: Path) -> None:
    # Backends refuse a second version of other names or shapes.
    sent = sent_by(adapted(write_model(tmp_path)))
    first, second = ([(n, t.shape, t.dtype) for n, t in sent()] for _ in range(2))
    assert first == second


def test_adapters_beside_experts_that_files_hold_apart_end_as_whole_weights(tmp_path: Path) -> None:
    """Fails if experts are looked up in the folder as the one tensor that the model makes of them,
    or if weights go to an engine under names that only the model has."""
    torch.manual_seed(0)
    section = MixtralConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
    )  # fmt: skip
    MixtralForCausalLM(section).save_pretrained(tmp_path)
    attention = ("q_proj", "o_proj")
    train = TrainSection(lora=LoraSection(rank=2, sync="adapters", targets=attention))
    assert train.lora is not None
    model: Any = MixtralForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    add_adapters(model, train.lora, base=str(tmp_path))
    redraw(model, seed=3)
    backend = TorchBackend(model, train=train, gradient_checkpointing=False)
    trainer: Any = SimpleNamespace(backend=backend, weights=backend.weights)
    alone, whole = (
        sent_weights(lora, model, trainer, backend="shm")
        for lora in (train.lora, LoraSection(rank=2, sync="merged"))
    )
    assert isinstance(alone, AdapterWeights)
    assert same(Merger(str(tmp_path)).whole(alone()), whole())
    assert "model.layers.0.block_sparse_moe.experts.3.w1.weight" in dict(whole())


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
def test_adapters_on_experts_are_refused_with_what_can_have_some() -> None:
    """Fails if they are trained and then left out of every weight that is saved or sent: peft
    puts them on the parameters of experts where all linear layers are asked for."""
    section = MixtralConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
    )  # fmt: skip
    wanted = r"experts of Mixtral.*train.lora.targets: \[k_proj, o_proj, q_proj, v_proj\]"
    with pytest.raises(ConfigError, match=wanted):
        add_adapters(MixtralForCausalLM(section), LoraSection(rank=2), base="anywhere")
