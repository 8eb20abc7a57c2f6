"""`benchmarks/learning/reward_models.py` at its smallest: real fits, real reports, one table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "learning"))

from planted_rewards import (
    PAID_LENGTH,
    Plan,
    auroc,
    mean_overlaps,
    measure,
    train,
    write_model,
)
from reward_models import Figure, figures, page

from agentrl.testing.preferences import planted_pairs

TINY = Plan(
    train=320, calibrate=80, test=80, strange=20, layers=1, width=16, pairs_per_step=16,
    learning_rate=1e-2, warmup_steps=1,
)  # fmt: skip


def test_everything_is_trained_measured_and_shown(tmp_path: Path) -> None:
    """Fails if a fit or a report breaks, a fit sees odds, or a figure is missing from the page."""
    paid = train(tmp_path, TINY, loss="bt", seed=0, weights=PAID_LENGTH)
    bt = measure(paid, TINY, seed=0, weights=PAID_LENGTH)
    purm = measure(train(tmp_path, TINY, loss="purm", seed=0), TINY, seed=0)
    assert 0.02 < bt.latent_r2 < 0.2, "length pays 0.05 a word, quality 1"
    assert purm.latent_r2 < 0.02
    lines = [path.read_text().splitlines() for path in tmp_path.glob("train-*.jsonl")]
    assert [len(each) for each in lines] == [TINY.train] * 2
    assert all(json.loads(each[0]).keys() == {"prompt", "chosen", "rejected"} for each in lines)
    found = figures([bt, bt], [purm, purm], bt)
    text = page(TINY, found, minutes=1.0, cpu_minutes=1.0)
    for figure in found:
        assert np.isfinite(figure.values).all(), figure.name
        assert figure.row() in text
    assert len({figure.name for figure in found}) == len(found)


def test_every_word_of_both_grammars_has_a_token(tmp_path: Path) -> None:
    """Fails if a word would be <unk>, so that grammar B could be told by that alone."""
    write_model(tmp_path, TINY, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for grammar in "AB":
        for pair in planted_pairs(200, grammar=grammar):
            for said in (pair.chosen, pair.rejected):
                ids = tokenizer.apply_chat_template(
                    [
                        {"role": "user", "content": pair.prompt[0].content},
                        {"role": "assistant", "content": said.messages[0].content},
                    ],
                    return_dict=True,
                )["input_ids"]
                assert tokenizer.unk_token_id not in ids, tokenizer.decode(ids)


def test_auroc_counts_pairs_in_order() -> None:
    """Fails if ties do not count 1/2, or the sides are the wrong way round."""
    high, low = np.array([2.0, 3.0]), np.array([1.0, 2.0, 2.0])
    assert auroc(high, low) == pytest.approx((1 + 0.5 + 0.5 + 3) / 6)
    assert auroc(low, high) == pytest.approx(1 - 5 / 6)


def test_overlaps_are_those_of_the_densities() -> None:
    """Against the integral of sqrt(p q). Fails with a wrong factor in the exponent or the root."""
    answers = np.array([[0.0, 1.0], [1.5, 0.4]])
    at = np.linspace(-12.0, 12.0, 20_001)

    def density(mean: float, deviation: float) -> np.ndarray:
        return np.exp(-(((at - mean) / deviation) ** 2) / 2) / (deviation * np.sqrt(2 * np.pi))

    for mean, deviation in answers:
        wanted = [
            np.sqrt(density(mean, deviation) * density(*other)).sum() * (at[1] - at[0])
            for other in answers
        ]
        (found,) = mean_overlaps(np.array([[mean, deviation]]), answers)
        assert found == pytest.approx(np.mean(wanted), rel=1e-9)


def test_a_demand_is_judged_by_the_median_and_every_seed() -> None:
    """Fails if the table calls a demand reached that the median misses."""
    figure = Figure(name="x", values=[0.9, 0.98, 0.96], demand=">= 0.97", holds=lambda x: x >= 0.97)
    assert figure.row() == "| x | 0.960 [0.900, 0.980] | >= 0.97 | **no** (1 of 3) |"
