"""A trainer rank of a Ray run whose model is cut up, without Ray: what it saves and sends."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from agentrl.config import parse_config
from agentrl.config.plan import plan_run
from agentrl.errors import SyncError
from agentrl.runtime.ray.actor import ActorSpec, RankSpec
from agentrl.runtime.ray.rank import Rank
from agentrl.train.backends.ranks import Meeting
from agentrl.train.checkpoint import load_trainer_state
from tests.train.backends.sharded_trainers import KINDS, needs, same_bits
from tests.train.crew import Crew
from tests.train.tiny_llama import tiny_model


def write_model(folder):
    words = {f"<{index}>": index for index in range(61)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<0>")),
        eos_token="<2>",
        pad_token="<0>",
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save_pretrained(folder)
    tiny_model(torch.float32).save_pretrained(folder)


def specs(folder, kind, rank, **sections):
    train = KINDS[kind]
    config = parse_config(
        {
            "env": {"target": "my_env.py:MyEnv"},
            "dataset": {"source": "train.jsonl"},
            "model": {"path": str(folder / "model"), "dtype": "float32"},
            "chat": {"template": "raw"},
            "serving": {"engine": "vllm"},
            "runtime": {"kind": "ray", "trainer_ranks": 2},
            "train": train,
            **sections,
        }
    )
    run = folder / "run"
    actor = ActorSpec(
        name=f"rank-{rank}", plan=plan_run(config, folder), run_dir=run, host=None, identity="x"
    )
    place = RankSpec(
        rank=rank, world_size=2, threads=1, trajectories=run / "trajectories", checkpoint=None
    )
    return actor, place


DOWN = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"


class Broken:
    """A sender that gives up after the first tensor."""

    def send(self, weights, version):
        next(iter(weights))
        raise SyncError("the engine is gone")

    def close(self):
        pass


def save_and_send(meeting, rank, folder, kind, lora):
    own = Rank.load(*specs(folder, kind, rank, train={**KINDS[kind], "lora": lora}), meeting)
    try:
        facts = None
        if rank == 0:
            facts = own.open_sender("disk", address="127.0.0.1", cuda=False)
            whole, own._sender = own._sender, Broken()
            with pytest.raises(SyncError, match="gone"):
                own.ask_sender("send", 1)
            own._sender = whole
            own.ask_sender("connect", 1)
            own.ask_sender("send", 1)
        else:
            own.gather_weights("disk")
            own.gather_weights("disk")
        (folder / "saved").mkdir(exist_ok=True)
        own.hold()
        own.write(folder / "saved")
        return facts
    finally:
        own.close()


@pytest.mark.parametrize(("kind", "lora"), [("fsdp2", None), ("zero3", None), ("zero3", 2)])
def test_all_ranks_give_their_parts_when_one_saves_or_sends(kind, lora, tmp_path):
    """Fails (hangs) if only rank 0 is asked, or stays in the middle of a send that broke;
    with adapters, if a rank looks for another stream, or what is saved lacks the adapters."""
    needs(kind)
    write_model(tmp_path / "model")
    (tmp_path / "run").mkdir()
    ranks = Crew(2)
    try:
        meeting = Meeting()
        for rank in range(2):
            ranks.ask(rank, save_and_send, meeting.address, rank, tmp_path, kind, lora)
        facts, nothing = (ranks.answer(rank) for rank in range(2))
    finally:
        ranks.close()
    assert facts.gathers
    assert nothing is None
    began = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert same_bits(saved.state_dict(), began.state_dict())
    assert load_trainer_state(tmp_path / "saved").version == 0
    assert len(list((tmp_path / "saved" / "trainer").iterdir())) == 2
    alone = tmp_path / "saved" / "adapter"
    assert alone.exists() is (lora is not None)
    if lora is not None:
        adapters = load_file(alone / "adapter_model.safetensors")
        assert len(adapters) == 28  # A and B of seven matrices in two layers
        assert adapters[DOWN].shape == (2, 32)
        assert adapters[DOWN].any()


PPO = {"algorithm": {"preset": "ppo", "kl_coef": 0.1, "reference_update": 1}}


def save_others(meeting, rank, folder, kind):
    own = Rank.load(*specs(folder, kind, rank, **PPO), meeting)
    try:
        own.hold()
        own.write(folder / "saved")
    finally:
        own.close()


@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_critic_and_reference_of_a_run_are_sharded_and_saved_whole(kind, tmp_path):
    """Fails if a config with a critic is refused, and if rank 0 alone is asked for its state."""
    needs(kind)
    write_model(tmp_path / "model")
    for name in ("run", "saved"):
        (tmp_path / name).mkdir()
    ranks = Crew(2)
    try:
        meeting = Meeting()
        for rank in range(2):
            ranks.ask(rank, save_others, meeting.address, rank, tmp_path, kind)
        for rank in range(2):
            ranks.answer(rank)
    finally:
        ranks.close()
    state = load_trainer_state(tmp_path / "saved")
    began = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert state.reference is not None
    assert same_bits(dict(state.reference), dict(began.named_parameters()))
    assert state.critic is not None
    masters = state.critic["masters"]
    body = {f"body.{name}": param for name, param in began.model.named_parameters()}
    assert same_bits({name: masters[name] for name in body}, body)
    assert masters["value_head.weight"].shape == (1, 32)
