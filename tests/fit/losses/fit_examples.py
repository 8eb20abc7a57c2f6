"""Examples for fits of the tiny model, and the objectives written down without packing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from agentrl.batch.examples import (
    AnswerTokens,
    Example,
    likelihood_update,
    pair_update,
    score_update,
)
from agentrl.batch.records import PackedBatch, RowKey
from agentrl.config.fit import DpoObjective, RewardObjective
from agentrl.config.training import FitTrainSection
from agentrl.fit.losses.fitter import FitLoss, Fitter
from agentrl.fit.losses.objectives import LikelihoodLoss, PreferenceLoss
from agentrl.fit.losses.pair_registry import find_pair_loss
from agentrl.fit.losses.reward_objective import RewardLoss
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.model.value_head import ValueModel
from tests.train.tiny_llama import VOCABULARY, tiny_model

TRAIN = FitTrainSection(learning_rate=1e-2, max_grad_norm=1e9, steps=8)


def examples(count: int = 5, *, pairs: bool, seed: int = 0) -> list[Example]:
    """Prompts of different lengths; answers with a span of the environment inside."""
    rng = random.Random(seed)
    made: list[Example] = []
    for number in range(count):
        prompt = tuple(rng.choices(range(3, VOCABULARY), k=rng.randint(2, 6)))
        made.append(
            Example(
                id=f"e{number}",
                prompt_ids=prompt,
                answers=tuple(answer(rng) for _ in range(1 + pairs)),
                weight=rng.choice([1.0, 0.5]),
                margin=rng.random(),
                label_probability=rng.uniform(0.6, 1.0),
            )
        )
    return made


def answer(rng: random.Random) -> AnswerTokens:
    length = rng.randint(1, 9)
    mask = [1] * length
    if length > 4:
        mask[2] = 0
        mask[-1] = rng.randint(0, 1)
    return AnswerTokens(ids=tuple(rng.choices(range(3, VOCABULARY), k=length)), mask=tuple(mask))


def token_log_probs(model: Any, example: Example, number: int) -> Tensor:
    """[trained tokens] By the plain model on one row."""
    chosen = example.answers[number]
    ids = torch.tensor([[*example.prompt_ids, *chosen.ids]])
    logits = model(ids).logits[0].log_softmax(-1)
    at = [len(example.prompt_ids) + t for t, m in enumerate(chosen.mask) if m]
    return torch.stack([logits[place - 1, ids[0, place]] for place in at])


@torch.no_grad()
def summed(model: Any, found: Sequence[Example]) -> dict[RowKey, float]:
    sums: dict[RowKey, float] = {}
    for e in found:
        for n in range(len(e.answers)):
            key = RowKey(group_id=e.id, rollout_id=e.id, row_index=n)
            sums[key] = float(token_log_probs(model, e, n).sum())
    return sums


def scores(model: ValueModel, example: Example) -> list[Tensor]:
    """Head of the hidden state at the last token of each answer."""
    out = []
    for chosen in example.answers:
        ids = torch.tensor([[*example.prompt_ids, *chosen.ids]])
        out.append(model.value_head(model.body(ids).last_hidden_state[0, -1:])[0, 0])
    return out


def value_model(seed: int = 0) -> ValueModel:
    """A head that is not zero, and no bias to train."""
    body = tiny_model(seed=seed)
    made = ValueModel(body.model)
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        made.value_head.weight.normal_()
    made.value_head.bias.requires_grad_(False)
    return made


def sft(found: Sequence[Example], *, budget: int = 64, sharing: bool = True) -> PackedBatch:
    return likelihood_update(
        found, mode="seq-mean-token-mean", horizon=40, micro_batch_tokens=budget,
        prefix_sharing=sharing,
    )  # fmt: skip


def pairs(found: Sequence[Example], *, budget: int = 64, sharing: bool = True) -> PackedBatch:
    return pair_update(found, micro_batch_tokens=budget, prefix_sharing=sharing)


def whole(found: Sequence[Example], *, budget: int = 64, sharing: bool = True) -> PackedBatch:
    return score_update(found, micro_batch_tokens=budget, prefix_sharing=sharing)


def preference_loss(
    objective: DpoObjective,
    reference: dict[RowKey, float] | None,
    found: Sequence[Example] | None = None,
) -> FitLoss:
    """With the label probabilities of examples, where they are given."""
    spec = find_pair_loss(objective.loss)
    known = None if found is None else {example.id: example for example in found}
    return PreferenceLoss(objective, spec, reference=reference, examples=known)


def reward_loss(objective: RewardObjective, found: Sequence[Example]) -> FitLoss:
    return RewardLoss(objective, {example.id: example for example in found})


def fitter(model: Any, loss: FitLoss | None = None, *, ranks: Any = None) -> Fitter:
    from agentrl.train.backends.choose import make_backend

    backend = make_backend(model, train=TRAIN, gradient_checkpointing=False, ranks=ranks)
    return Fitter(backend, loss or LikelihoodLoss(), train=TRAIN, prefix="x")


def gradient(made: Fitter, update: PackedBatch) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradient of a step before clipping."""
    backend = made.backend
    assert isinstance(backend, TorchBackend)
    kept: dict[str, Tensor] = {}
    step: Callable[..., None] = backend.step

    def keeping(**arguments: Any) -> None:
        kept.update((name, grad.detach().clone()) for name, grad in backend.gradients())
        step(**arguments)

    backend.step = keeping  # type: ignore[method-assign]
    metrics = made.step(update).result()
    return metrics["x/loss"], kept


def plain_gradient(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
