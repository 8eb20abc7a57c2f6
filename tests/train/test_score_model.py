"""Scores of a reward model: the same alone, packed and with a shared prompt."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from transformers import AutoModel, LlamaConfig, LlamaForSequenceClassification

from agentrl.batch.examples import ScoredTokens, score_rows
from agentrl.config.schema import CriticSection, ModelSection
from agentrl.errors import ConfigError, DataError
from agentrl.train.model.reward_checkpoint import save_value_model
from agentrl.train.model.value_head import ValueModel, load_value_model
from agentrl.train.score_model import ScoreModel, load_score_model, reward_head
from tests.fit.losses.fit_examples import value_model
from tests.train.model.test_reward_checkpoint import float32_model, tokenizer
from tests.train.tiny_llama import VOCABULARY, tiny_model


def rows(count: int = 9, seed: int = 0) -> list[ScoredTokens]:
    """Three prompts, answers of 1 to 12 tokens, some of which begin as others do."""
    rng = random.Random(seed)
    prompts = [tuple(rng.choices(range(3, VOCABULARY), k=k)) for k in (1, 4, 7)]
    made = []
    for number in range(count):
        ids = tuple(rng.choices(range(3, VOCABULARY), k=rng.randint(1, 12)))
        made.append(ScoredTokens(prompt_ids=prompts[number % 3], ids=ids))
    # One answer is the beginning of another one.
    made.append(ScoredTokens(prompt_ids=made[0].prompt_ids, ids=made[0].ids[:1]))
    return made


@torch.no_grad()
def plain(model: ValueModel, row: ScoredTokens) -> list[float]:
    """The head on the hidden state of the last token, by the model without packing."""
    ids = torch.tensor([[*row.prompt_ids, *row.ids]])
    return model.value_head(model.body(ids).last_hidden_state[0, -1:])[0].tolist()


@pytest.mark.parametrize("tokens", [24, 48, 4096])
def test_a_row_scores_the_same_alone_packed_and_with_a_shared_prompt(tokens: int) -> None:
    """Fails if a row sees another one, or if its score is that of another token or row."""
    model, found = value_model(), rows()
    wanted = [plain(model, row) for row in found]
    scorer = ScoreModel(model, batch_tokens=tokens)
    assert scorer.outputs == 1
    together = scorer.scores(found)
    assert together.dtype == np.float64
    assert together.shape == (len(found), 1)
    assert np.allclose(together, wanted, rtol=0, atol=1e-10)
    alone = np.concatenate([scorer.scores([row]) for row in found])
    assert np.allclose(alone, together, rtol=0, atol=1e-10)
    assert len(set(np.round(together[:, 0], 8))) == len(found)


def test_rows_of_one_prompt_share_its_tokens() -> None:
    (micro,) = score_rows(rows(), micro_batch_tokens=4096)
    assert micro.num_tokens < sum(len(r.prompt_ids) + len(r.ids) + 1 for r in rows())


def test_the_deviation_of_a_gaussian_comes_after_softplus() -> None:
    model = ValueModel(tiny_model().model, outputs=2)
    with torch.no_grad():
        model.value_head.weight.normal_()
    found = ScoreModel(model).scores(rows())
    wanted = np.array([plain(model, row) for row in rows()])
    assert np.allclose(found[:, 0], wanted[:, 0], rtol=0, atol=1e-10)
    assert np.allclose(found[:, 1], np.log1p(np.exp(wanted[:, 1])) + 1e-4, rtol=0, atol=1e-10)


def test_a_broken_row_leaves_the_others_their_scores() -> None:
    """Fails if one number that is not finite costs the batch."""
    model, found = value_model(), rows()
    wanted = ScoreModel(model).scores(found)
    with torch.no_grad():
        model.body.embed_tokens.weight[VOCABULARY - 1] = float("nan")
    odd = ScoredTokens(prompt_ids=(3,), ids=(VOCABULARY - 1,))
    clean = [r for r in found if VOCABULARY - 1 not in (*r.prompt_ids, *r.ids)]
    scores = ScoreModel(model).scores([odd, *clean])
    assert np.isnan(scores[0, 0])
    kept = [found.index(row) for row in clean]
    assert np.allclose(scores[1:], wanted[kept], rtol=0, atol=1e-10)


@pytest.mark.parametrize("length", [0, 8])
def test_rows_that_cannot_be_scored_are_named(length: int) -> None:
    row = ScoredTokens(prompt_ids=(), ids=(5,) * length)
    with pytest.raises(DataError, match=f"row 1 to score has {length} tokens, expected 1 to 7"):
        ScoreModel(value_model(), batch_tokens=8).scores([rows()[9], row])


def test_a_checkpoint_scores_as_the_model_it_was_made_of(tmp_path) -> None:
    model = float32_model()
    save_value_model(model, tokenizer(eos_token="</s>", pad_token="<pad>"), tmp_path)
    head = reward_head(str(tmp_path))
    assert (head.outputs, head.dtype, head.context) == (1, "float32", 512)
    again = load_score_model(str(tmp_path), device="cpu", batch_tokens=64)
    assert again.batch_tokens == 64
    assert np.array_equal(again.scores(rows()), ScoreModel(model, batch_tokens=64).scores(rows()))


def test_a_gaussian_is_known_by_its_labels_and_a_classifier_is_refused(tmp_path) -> None:
    """Fails if the two classes of a classifier are read as mean and deviation."""
    model = ValueModel(tiny_model(torch.float32).model, outputs=2)
    save_value_model(model, tokenizer(eos_token="</s>", pad_token="<pad>"), tmp_path / "purm")
    assert load_score_model(str(tmp_path / "purm"), device="cpu").outputs == 2
    config = LlamaConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1,
    )  # fmt: skip
    config.num_labels = 2
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "classes")
    with pytest.raises(ConfigError, match=r"has 2 outputs \(LABEL_0, LABEL_1\), expected 1"):
        load_score_model(str(tmp_path / "classes"), device="cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_score_as_before_once_they_are_loaded(dtype: torch.dtype, tmp_path) -> None:
    """Fails if two heads pass for a mean and a deviation, if a body in bfloat16 rounds them, or if
    they are loaded as one."""
    body = tiny_model(torch.float32).model
    body.save_pretrained(tmp_path / "body")
    body = AutoModel.from_pretrained(tmp_path / "body", dtype=dtype)
    model = ValueModel(body, outputs=2, heads=2)
    torch.manual_seed(2)
    with torch.no_grad():
        model.value_head.weight.normal_()
    save_value_model(model, tokenizer(eos_token="</s>", pad_token="<pad>"), tmp_path / "rm")
    head = reward_head(str(tmp_path / "rm"))
    assert (head.outputs, head.heads) == (1, 2)
    again = load_score_model(str(tmp_path / "rm"), device="cpu")
    assert (again.outputs, again.heads) == (1, 2)
    found = again.scores(rows())
    assert found.shape == (len(rows()), 2)
    assert np.array_equal(found, ScoreModel(model).scores(rows()))
    assert np.abs(found[:, 0] - found[:, 1]).min() > 1e-3
    if dtype is torch.float32:
        wanted = np.array([plain(model, row) for row in rows()])
        assert np.allclose(found, wanted, rtol=0, atol=1e-4)
    section = ModelSection(path=str(tmp_path / "rm"), dtype="float32", device="cpu")
    for outputs, heads in ((1, 1), (2, 1), (3, 3)):
        with pytest.raises(ConfigError, match=f"of 2 heads, expected {heads}; begin with"):
            load_value_model(
                CriticSection(path=section.path), section, outputs=outputs, heads=heads
            )


def test_a_language_model_is_no_reward_model(tmp_path) -> None:
    tiny_model(torch.float32).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"is a LlamaForCausalLM, expected a \.\.\.ForSequence"):
        load_score_model(str(tmp_path), device="cpu")
