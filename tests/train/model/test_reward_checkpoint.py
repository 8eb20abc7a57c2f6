"""A reward model on disk is the library's own class, with the very same scores."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

from agentrl.config.schema import CriticSection, ModelSection
from agentrl.errors import ConfigError
from agentrl.reward.scale import RewardScale, save_scales
from agentrl.train.model.reward_checkpoint import save_value_model
from agentrl.train.model.value_head import ValueModel, load_critic, load_value_model
from tests.fit.losses.fit_examples import examples, scores
from tests.train.tiny_llama import VOCABULARY


def tokenizer(**special: str) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models

    words = {f"w{index}": index for index in range(VOCABULARY - 4)}
    words |= {"<pad>": 57, "<unk>": 58, "<s>": 59, "</s>": 60}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")), **special
    )


def float32_model() -> ValueModel:
    from tests.train.tiny_llama import tiny_model

    made = ValueModel(tiny_model(torch.float32).model)
    torch.manual_seed(1)
    with torch.no_grad():
        made.value_head.weight.normal_()
    return made


def test_the_library_reads_the_score_where_we_do(tmp_path):
    """Fails if the score is that of the token before the last, padding included: the tokenizer
    pads with the token that ends a turn, which its class would take for padding."""
    ours = float32_model()
    save_value_model(
        ours, tokenizer(pad_token="</s>", eos_token="</s>", unk_token="<unk>"), tmp_path
    )
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert theirs.config.pad_token_id != 60
    data = examples(4, pairs=True)
    rows = [[*e.prompt_ids, *a.ids, 60] for e in data for a in e.answers]
    longest = max(map(len, rows))
    pad = theirs.config.pad_token_id
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        found = theirs(input_ids=ids, attention_mask=mask).logits[:, 0]
        wanted = torch.stack(
            [
                ours.value_head(ours.body(torch.tensor([row])).last_hidden_state[0, -1:])[0, 0]
                for row in rows
            ]
        )
    assert torch.allclose(found, wanted, atol=1e-5)


def test_our_loader_reads_the_same_model(tmp_path):
    ours = float32_model()
    save_value_model(ours, tokenizer(eos_token="</s>", pad_token="<pad>"), tmp_path)
    section = ModelSection(path=str(tmp_path), dtype="float32", device="cpu")
    again = load_value_model(CriticSection(path=str(tmp_path)), section)
    (example,) = examples(1, pairs=True)
    with torch.no_grad():
        assert torch.equal(torch.stack(scores(again, example)), torch.stack(scores(ours, example)))


def test_a_tokenizer_without_a_token_to_pad_with_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no special token besides its end of text"):
        save_value_model(float32_model(), tokenizer(eos_token="</s>"), tmp_path)


def test_a_critic_begins_with_the_reward_that_rl_uses(tmp_path):
    """Fails if the scale is left out, or if it changes the reward model as fits and scorers load
    it."""
    save_value_model(float32_model(), tokenizer(eos_token="</s>", pad_token="<pad>"), tmp_path)
    section = ModelSection(path="elsewhere", dtype="float32", device="cpu")
    critic = CriticSection(path=str(tmp_path))
    scale = RewardScale(temperature=2.5, mean=0.75, std=1.5)
    plain = load_critic(critic, section)
    scale.save(tmp_path)
    data = examples(5, pairs=True)

    def read(model):
        with torch.no_grad():
            return torch.stack([score for e in data for score in scores(model, e)]).double()

    raw = read(load_value_model(critic, section))
    assert torch.equal(raw, read(plain))
    wanted = torch.from_numpy(scale.normalised(raw.numpy()))
    assert (wanted - raw).abs().mean() > 0.1
    assert torch.allclose(read(load_critic(critic, section)), wanted, rtol=0, atol=1e-6)


def test_a_critic_begins_with_the_mean_of_whitened_heads(tmp_path):
    """Fails if raw heads are averaged, or if the critic keeps them all."""
    model = ValueModel(float32_model().body, outputs=2, heads=2)
    torch.manual_seed(3)
    with torch.no_grad():
        model.value_head.weight.normal_()
    save_value_model(model, tokenizer(eos_token="</s>", pad_token="<pad>"), tmp_path)
    scales = (RewardScale(temperature=2.5, mean=0.75, std=1.5), RewardScale(mean=-3.0, std=0.25))
    save_scales(scales, tmp_path)
    section = ModelSection(path="elsewhere", dtype="float32", device="cpu")
    found = load_critic(CriticSection(path=str(tmp_path)), section)
    assert found.value_head.out_features == found.heads == 1
    (e,) = examples(1, pairs=True)
    ids = torch.tensor([[*e.prompt_ids, *e.answers[0].ids]])
    with torch.no_grad():
        hidden = model.body(ids).last_hidden_state[0, -1:]
        raw_K = model.value_head(hidden)[0].tolist()
        value = float(found.value_head(found.body(ids).last_hidden_state[0, -1:]))
    white = [float(s.normalised(raw)) for s, raw in zip(scales, raw_K, strict=True)]
    assert value == pytest.approx(sum(white) / 2, abs=1e-5)
