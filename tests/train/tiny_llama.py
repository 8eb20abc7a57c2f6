"""A tiny random Llama whose every operation is float64, and rollouts to train it on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.batch import StepSettings, build_step
from agentrl.batch.records import StepBatch
from agentrl.config.schema import AlgorithmSection, TrainSection
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.frozen_policy import FrozenPolicy
from agentrl.train.logprob_worker import LogProbWorker
from agentrl.train.prove.model import TrueRMSNorm, TrueRotary
from agentrl.train.trainer import Trainer
from agentrl.types import Termination, Trajectory, TrajectoryGroup

VOCABULARY = 61
MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


def tiny_model(dtype: torch.dtype = torch.float64, *, seed: int = 0, tied: bool = True) -> Any:
    """Two layers, four query heads over two key heads."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).to(dtype).eval()
    if dtype == torch.float64:
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if type(child).__name__ == "LlamaRMSNorm":
                    setattr(module, name, TrueRMSNorm(child.weight, child.variance_epsilon))
        model.model.rotary_emb = TrueRotary(8, 10000.0)
    return model


def algorithm(**changes: Any) -> AlgorithmSection:
    settings = {
        "advantage_estimator": "dr_grpo",
        "loss_agg_mode": "seq-mean-token-sum-norm",
        "horizon": 40,
    }
    return AlgorithmSection(**{**settings, **changes}).resolved(horizon=40)


def rollout(
    rng: random.Random,
    *,
    group: str,
    index: int,
    prompt: tuple[int, ...],
    length: int,
    reward: float | None,
    termination: Termination = Termination.ENV_DONE,
) -> Trajectory:
    """Random tokens with an environment span in the middle and one at the end."""
    mask = [1] * length
    if length > 4:
        start = length // 2
        for position in range(start, start + rng.randint(1, 2)):
            mask[position] = 0
        mask[-1] = rng.randint(0, 1)
    mask[0] = 1
    return Trajectory(
        task_id=group,
        group_id=group,
        rollout_id=f"{group}/{index}",
        prompt_ids=prompt,
        response_ids=tuple(rng.randrange(3, VOCABULARY) for _ in range(length)),
        response_mask=tuple(mask),
        rollout_log_probs=tuple(-rng.uniform(1.0, 7.0) if m else 0.0 for m in mask),
        policy_versions=tuple(0 if m else -1 for m in mask),
        reward=reward,
        termination=termination,
    )


def make_groups(seed: int = 0, sizes: Sequence[int] = (4, 3, 1, 5)) -> list[TrajectoryGroup]:
    """Uneven groups; one-token responses, a singleton and a dropped rollout among them."""
    rng = random.Random(seed)
    groups = []
    for number, size in enumerate(sizes):
        name = f"g{number}"
        prompt = tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 6)))
        rows = [
            rollout(
                rng,
                group=name,
                index=index,
                prompt=prompt,
                length=1 if index == 1 else rng.randint(2, 14),
                reward=rng.choice([0.0, 0.25, 1.0]) if index != 2 else 1.0,
            )
            for index in range(size)
        ]
        if number == 0:
            rows.append(
                rollout(
                    rng, group=name, index=size, prompt=prompt, length=5,
                    reward=None, termination=Termination.SANDBOX_FAILED,
                )
            )  # fmt: skip
        groups.append(TrajectoryGroup(group_id=name, task_id=name, trajectories=tuple(rows)))
    return groups


def with_model_log_probs(
    model: Any, groups: Sequence[TrajectoryGroup], *, noise: float = 0.0
) -> list[TrajectoryGroup]:
    """The same rollouts as if `model` itself had sampled them, or one that differs by `noise`."""
    rng = random.Random(0)
    out = []
    for group in groups:
        rows = []
        for row in group.trajectories:
            ids = torch.tensor([row.prompt_ids + row.response_ids])
            with torch.no_grad():
                logits = model(ids).logits[0, len(row.prompt_ids) - 1 : -1]
            logp = torch.log_softmax(logits.double() / row.temperature, -1)
            chosen = logp[torch.arange(len(row.response_ids)), torch.tensor(row.response_ids)]
            sampled = [value + rng.uniform(-noise, noise) for value in chosen.tolist()]
            values = zip(sampled, row.response_mask, strict=True)
            rows.append(replaced(row, rollout_log_probs=tuple(v if m else 0.0 for v, m in values)))
        out.append(
            TrajectoryGroup(
                group_id=group.group_id, task_id=group.task_id, trajectories=tuple(rows)
            )
        )
    return out


def replaced(row: Trajectory, **changes: Any) -> Trajectory:
    fields = {name: getattr(row, name) for name in Trajectory.__slots__}
    return Trajectory(**{**fields, **changes})


def make_step(groups: Sequence[TrajectoryGroup], **changes: Any) -> StepBatch:
    settings = {"algorithm": algorithm(), "micro_batch_tokens": 64, "seed": 0}
    skip = changes.pop("skip_groups", None)
    return build_step(groups, StepSettings(**{**settings, **changes}), skip_groups=skip)


class KeepGradient(TorchBackend):
    """A backend that remembers the gradient of every update and leaves the weights alone."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, train=TrainSection(), gradient_checkpointing=False)
        self.kept: list[dict[str, Tensor]] = []

    def step(self, *, learning_rate: float, grad_norm: float) -> None:
        self.kept.append({name: grad.clone() for name, grad in self.gradients()})


def reference(seed: int = 1, dtype: torch.dtype = torch.float64) -> LogProbWorker:
    """Another tiny model, frozen."""
    return LogProbWorker(FrozenPolicy(tiny_model(dtype, seed=seed)), name="reference policy")


def gradient_of(
    model: Any, batch: StepBatch, section: AlgorithmSection | None = None
) -> dict[str, Tensor]:
    """The gradient of the only update of a step; a penalty holds to `reference()`."""
    backend = KeepGradient(model)
    section = section or algorithm()
    trainer = Trainer(
        model,
        train=TrainSection(),
        algorithm=section,
        backend=backend,
        reference=reference() if section.kl_coef else None,
    )
    trainer.step(batch)
    (gradient,) = backend.kept
    return gradient


def relative_error(ours: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """|ours - reference| / |reference| over all parameters together."""
    assert ours.keys() == reference.keys()
    difference = sum((ours[n] - reference[n]).double().pow(2).sum().item() for n in reference)
    size = sum(reference[n].double().pow(2).sum().item() for n in reference)
    return (difference / size) ** 0.5
