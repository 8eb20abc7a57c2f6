"""Reward models of planted pairs: trained by `agentrl fit`, measured by the code of `rm report`.

Legend: `_N` answers, both of every pair.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.config.load import FIT_FILE
from agentrl.fit.launch import fit
from agentrl.fit.rating.head_posterior import auroc, measure_posterior, pair_features
from agentrl.fit.rating.reward_model import open_reward_model
from agentrl.fit.rating.reward_report import RewardReport, measure_reward_model
from agentrl.fit.rating.scored_pairs import NamedPairs, ScoredPairs, score_pairs
from agentrl.fit.session import FitProgress
from agentrl.reward.calibration import fit_temperature, length_r2, measure_calibration
from agentrl.reward.scale import RewardScale, ensemble_reward
from agentrl.reward.temperature import win_logits
from agentrl.runtime.progress import Progress
from agentrl.testing.preferences import (
    GRAMMARS,
    answer_features,
    bayes_accuracy,
    latent_reward,
    planted_pairs,
)
from agentrl.types import PreferencePair

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BATCH_TOKENS = 1280
"""A pass of some pairs: attention over more tokens at once takes more time on a CPU."""
PAID_LENGTH = {"quality": 1.0, "length": 0.05}
"""Weights of training pairs that pay for length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of everything, and the settings of the fits."""

    seeds: int = 3
    """Fits of each loss; those with `bt` are also the members of the ensemble."""
    train: int = 12_000
    """Pairs of grammar A with one drawn label each, the same for all models."""
    calibrate: int = 1000
    """Pairs with drawn labels that the temperature is fitted on, others for every seed."""
    test: int = 2500
    """Pairs of grammar A with prompts that are in no training pair, the same for all models."""
    strange: int = 1000
    """Pairs of grammar B, the same for all models."""
    layers: int = 2
    """Layers of the Llama."""
    width: int = 64
    """Width of the Llama."""
    epochs: int = 1
    """Passes over the training pairs."""
    learning_rate: float = 2e-3
    """Peak; falls along a cosine."""
    warmup_steps: int = 20
    """Steps in which it rises."""
    pairs_per_step: int = 64
    """Pairs of an update."""
    split: str = "test"
    """Prompts that the pairs of `calibrate` and `test` have; `train` to choose settings by."""


class Silent(FitProgress):
    """Shows nothing."""

    def note(self, text: str) -> None: ...
    def phase(self, name: str) -> None: ...
    def step_done(self, step: int, steps: int, metrics: Mapping[str, float]) -> None: ...
    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def trained(self, done: int, total: int) -> None: ...
    def rollouts(self) -> Progress:
        raise AssertionError("a reward model is not rolled out")


def hide_odds(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    """The pairs as people would give them: with their labels alone."""
    return [replace(pair, label_probability=None, margin=None) for pair in pairs]


def write_pairs(path: Path, pairs: Sequence[PreferencePair]) -> None:
    """One line a pair, without its odds."""
    rows = (
        {
            "prompt": pair.prompt[0].content,
            "chosen": pair.chosen.messages[0].content,
            "rejected": pair.rejected.messages[0].content,
        }
        for pair in pairs
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_model(folder: Path, plan: Plan, *, seed: int) -> None:
    """A random Llama with a token for every word of both grammars."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<|im_start|>", "<|im_end|>", "<unk>"]
    words = {token: index for index, token in enumerate([*special, *all_words()])}
    inner = Tokenizer(models.WordLevel(vocab=words, unk_token="<unk>"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(".", "isolated")]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="<|im_end|>", pad_token="<|im_end|>",
        additional_special_tokens=special[:2],
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=plan.width, intermediate_size=2 * plan.width,
        num_hidden_layers=plan.layers, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=256, tie_word_embeddings=True, initializer_range=plan.width**-0.5,
        eos_token_id=words["<|im_end|>"], pad_token_id=words["<|im_end|>"],
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def all_words() -> list[str]:
    """Every word of both grammars and of the chat template, sorted."""
    found = {"user", "assistant", "."}
    for grammar in GRAMMARS.values():
        lists = (grammar.good, grammar.bad, grammar.filler, *grammar.praise)
        found.update(word for words in lists for word in words)
        found.update((*grammar.kinds, *grammar.things))
        # A prompt ends in a place with the sign that follows it.
        sign = grammar.prompt[-1]
        found.update(place + ("" if sign == "." else sign) for place in grammar.places)
        found.update(word.lower() for word in grammar.prompt.split() if "{" not in word)
    return sorted(found)


def train(
    work: Path, plan: Plan, *, loss: str, seed: int, weights: Mapping[str, float] | None = None
) -> Path:
    """Fit a reward model with `agentrl fit`; returns its run directory.

    Args:
        work: holds the files of all fits.
        plan: sizes and settings.
        loss: `bt` or `purm`.
        seed: of the first weights, and of the order of the pairs.
        weights: of the latent reward that training labels are drawn by.
    """
    data, base = work / f"train-{len(weights or {})}.jsonl", work / f"model-{seed}"
    if not data.exists():
        write_pairs(data, planted_pairs(plan.train, seed=0, weights=weights))
    if not base.exists():
        write_model(base, plan, seed=seed)
    return fit_model(
        work,
        f"{loss}{'-length' if weights else ''}-{seed}",
        base=base,
        data={"source": str(data), "examples_per_step": plan.pairs_per_step, "epochs": plan.epochs},
        objective={"kind": "rm", "loss": loss},
        seed=seed,
        rate=plan.learning_rate,
        warmup=plan.warmup_steps,
    )


def fit_model(
    work: Path,
    name: str,
    *,
    base: Path,
    data: Mapping[str, Any],
    objective: Mapping[str, Any],
    seed: int,
    rate: float,
    warmup: int,
) -> Path:
    """Fit a model with `agentrl fit`; returns its run directory, `runs/NAME` of `work`."""
    document: dict[str, Any] = {
        "run": {"name": name, "dir": str(work / "runs"), "seed": seed},
        "model": {"path": str(base), "dtype": "float32", "device": "cpu"},
        "data": data,
        "objective": objective,
        "train": {
            "learning_rate": rate, "schedule": "cosine", "warmup_steps": warmup,
            "micro_batch_tokens": BATCH_TOKENS, "prefix_sharing": False,
        },
        "checkpoint": {"every_steps": 1_000_000, "keep_last": 1},
        "log": {"tensorboard": False},
    }  # fmt: skip
    return asyncio.run(fit(FIT_FILE.parse(document), base=work, progress=Silent())).path


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Figures of one reward model."""

    report: RewardReport
    """Of `agentrl rm report`, on drawn labels."""
    bayes_share: float
    """Expected accuracy, over the draw of the labels, as a share of Bayes accuracy."""
    ece_true: float
    """Calibration error of `report` after the temperature, against the known odds."""
    nll_true: float
    """Negative log-likelihood after the temperature, expected over the labels, in nats."""
    nll_bayes: float
    """The same of the known odds: no model has less."""
    best_temperature: float
    """Temperature with the least `nll_true` on the test pairs."""
    latent_r2: float
    """Share of the variance of the latent reward that length explains, on the same answers."""
    own: ScoredPairs
    """The test pairs, of grammar A."""
    strange: ScoredPairs
    """Pairs of grammar B."""
    posterior_auroc: float
    """AUROC of the deviation by the posterior of the head, grammar B against A."""

    @property
    def temperature_off(self) -> float:
        """Fitted T / best T - 1."""
        return self.report.calibration.temperature / self.best_temperature - 1

    @property
    def deviation_auroc(self) -> float:
        """AUROC of the deviation that the model gives, grammar B against A."""
        return auroc(both(self.strange, 1), both(self.own, 1))

    @property
    def overlap_aurocs(self) -> tuple[float, float]:
        """The same of the mean overlap with answers of A, and with equally many of A and B."""
        own, strange = gaussians(self.own), gaussians(self.strange)
        some = own[: len(strange)]
        among_own, among_both = (
            auroc(mean_overlaps(strange, others), mean_overlaps(own, others))
            for others in (some, np.concatenate([some, strange]))
        )
        return among_own, among_both


def measure(
    run: Path, plan: Plan, *, seed: int, weights: Mapping[str, float] | None = None
) -> Trust:
    """Measure a reward model on pairs that it has not seen.

    Args:
        run: of `train`.
        plan: sizes.
        seed: of the pairs that the temperature is fitted on.
        weights: of the latent reward that the labels of all pairs are drawn by.
    """
    model = open_reward_model(str(run), device="cpu", batch_tokens=BATCH_TOKENS)
    known = planted_pairs(plan.test, seed=1000, split=plan.split, weights=weights)
    fitted_on = planted_pairs(plan.calibrate, seed=2000 + seed, split=plan.split, weights=weights)
    aside = NamedPairs(name="calibrate", pairs=hide_odds(fitted_on))
    report = measure_reward_model(
        model, NamedPairs(name="test", pairs=hide_odds(known)), calibrate_on=aside,
        whiten_on=aside, probed=0,
    )  # fmt: skip
    own = score_pairs(model, NamedPairs(name="test", pairs=known))
    strange = planted_pairs(plan.strange, seed=3000, split=plan.split, grammar="B")
    apart, spread, odds = own.chosen_NO[:, 0] - own.rejected_NO[:, 0], own.variances_N, own.labels_N
    true = measure_calibration(win_logits(apart, report.calibration.temperature, spread), odds)
    fitted = NamedPairs(name="train", pairs=planted_pairs(plan.train, seed=0, weights=weights))
    posterior = measure_posterior(model, fitted).posterior
    ours, theirs = (
        posterior.deviations(pair_features(model, NamedPairs(name=name, pairs=pairs)))
        for name, pairs in (("test", known), ("B", strange))
    )
    answers = [each.messages[0].content for pair in known for each in (pair.chosen, pair.rejected)]
    return Trust(
        report=report,
        bayes_share=true.accuracy / bayes_accuracy(known),
        ece_true=true.ece,
        nll_true=true.nll,
        nll_bayes=float(np.mean(-odds * np.log(odds) - (1 - odds) * np.log1p(-odds))),
        best_temperature=fit_temperature(apart, variances=spread, label_probability=odds),
        latent_r2=length_r2(
            [latent_reward(text, weights) for text in answers],
            [answer_features(text).length for text in answers],
        )
        or 0.0,
        own=own,
        strange=score_pairs(model, NamedPairs(name="B", pairs=strange)),
        posterior_auroc=auroc(theirs, ours),
    )


def both(scored: ScoredPairs, output: int) -> NDArray[np.float64]:
    """[_N] One output of the model for all answers."""
    return np.concatenate([scored.chosen_NO[:, output], scored.rejected_NO[:, output]])


def gaussians(scored: ScoredPairs) -> NDArray[np.float64]:
    """[_N, 2] Mean and deviation of the reward of every answer."""
    return np.stack([both(scored, 0), both(scored, 1)], axis=1)


def mean_overlaps(
    answers_N2: NDArray[np.float64], others_M2: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[_N] Mean Bhattacharyya coefficient of each answer's reward with those of other answers.

        BC = sqrt(2 s t / (s^2 + t^2)) exp(-(mu - nu)^2 / (4 (s^2 + t^2)))

    The uncertainty of https://arxiv.org/abs/2503.22480: a reward that overlaps many others orders
    few answers. Whose rewards the others are is a choice.

    Example:
        >>> mean_overlaps(np.array([[0.0, 1.0]]), np.array([[0.0, 1.0], [2.0, 1.0]]))
        array([0.80326533])
    """
    mu_N1, s_N1 = answers_N2[:, :1], answers_N2[:, 1:]
    nu_M, t_M = others_M2.T
    spread_NM = s_N1**2 + t_M**2
    apart_NM = np.exp(-((mu_N1 - nu_M) ** 2) / (4 * spread_NM))
    return (np.sqrt(2 * s_N1 * t_M / spread_NM) * apart_NM).mean(axis=1)


def ensemble_auroc(members: Sequence[Trust]) -> float:
    """AUROC of the deviation between members, each whitened as in RL, grammar B against A."""
    scales = [member.report.scale for member in members]
    known = [scale for scale in scales if isinstance(scale, RewardScale)]
    assert len(known) == len(members), "a member has no spread of scores"
    strange, own = (
        ensemble_reward([both(part, 0) for part in parts], 0.0, scales=known)[1]
        for parts in ([m.strange for m in members], [m.own for m in members])
    )
    return auroc(strange, own)
