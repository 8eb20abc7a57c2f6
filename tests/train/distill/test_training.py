"""Distillation through the trainer: dense references, divisions, poison, and that it learns."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.batch.records import MicroBatch, StepBatch
from agentrl.config.schema import TrainSection
from agentrl.errors import TrainError
from agentrl.train.distill.records import RowTeacher, tokens_of_teacher
from agentrl.train.distill.teacher_model import TRAINED
from agentrl.train.frozen_policy import FrozenPolicy
from agentrl.train.losses import needs_of
from agentrl.train.model.logprobs import hidden_states
from agentrl.train.trainer import Trainer
from agentrl.types import Termination, Trajectory, TrajectoryGroup
from tests.train.distill.distill_parts import (
    at_temperature,
    dense_gradient,
    dense_log_probs,
    distilled_gradient,
    exact_kl,
    section_of,
    step_of,
    teacher_of,
)
from tests.train.tiny_llama import (
    MODES,
    VOCABULARY,
    make_groups,
    relative_error,
    replaced,
    tiny_model,
    with_model_log_probs,
)

pytestmark = pytest.mark.slow

TEACHER = 5
"""Seed of the teacher's weights."""


def groups_of(model: Any, *, temperature: float = 0.7) -> list[TrajectoryGroup]:
    return with_model_log_probs(model, at_temperature(make_groups(), temperature))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("top_k", [0, 1, 7])
def test_the_gradient_is_that_of_a_dense_loop(mode: str, top_k: int) -> None:
    """In every aggregation, at a temperature that is not 1. Fails with a denominator of its own,
    without the temperature on either side, or with a reward in it."""
    model = tiny_model()
    groups = groups_of(model)
    section = section_of(top_k=top_k, coef=0.6, loss_agg_mode=mode)
    found = distilled_gradient(
        model, step_of(groups, section), section, teacher_of(tiny_model(seed=TEACHER), top_k=top_k)
    )
    want = dense_gradient(model, tiny_model(seed=TEACHER), groups, section)
    assert relative_error(found, want) < 1e-10


def test_a_teacher_that_cannot_sample_some_tokens_teaches_the_others() -> None:
    """It has 5 tokens left, so 2 of its 7 likeliest have -inf, and so have most that were sampled.
    Fails if that stops the step, or if the 2 count beside the tail."""
    model, teacher = tiny_model(), tiny_model(seed=TEACHER)
    bias_V = torch.full((VOCABULARY,), -torch.inf, dtype=torch.float64)
    bias_V[10:15] = 0.0
    teacher.lm_head.bias = torch.nn.Parameter(bias_V)
    groups = groups_of(model)
    gradients = []
    for top_k in (5, 7):
        section = section_of(top_k=top_k)
        batch = step_of(groups, section)
        taught = teacher_of(teacher, top_k=top_k)
        gradients.append(distilled_gradient(model, batch, section, taught))
    assert all(grad.isfinite().all() for grad in gradients[1].values())
    assert relative_error(gradients[1], gradients[0]) < 1e-12
    section = section_of(top_k=0)
    with pytest.raises(TrainError, match="the teacher gives a log-probability of -inf"):
        distilled_gradient(model, step_of(groups, section), section, teacher_of(teacher, top_k=0))


def test_the_sampled_form_has_the_gradient_of_the_kl_on_average() -> None:
    """Over all 61 tokens that may follow a prompt, each as often as it is sampled. Fails with the
    KL of the other direction, or without the policy's own log-probability in the advantage."""
    model, other = tiny_model(), tiny_model(seed=TEACHER)
    section = section_of(top_k=0, loss_agg_mode="token-mean")
    prompt = (7, 8, 9)
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1], -1)
    mean: dict[str, torch.Tensor] = {}
    for token in range(VOCABULARY):
        rows = (_one_token(prompt, token, float(table[token]), index) for index in range(2))
        group = TrajectoryGroup(group_id="g", task_id="g", trajectories=tuple(rows))
        found = distilled_gradient(
            model, step_of([group], section), section, teacher_of(other, top_k=0)
        )
        for name, grad in found.items():
            mean[name] = mean.get(name, 0.0) + float(table[token].exp()) * grad
    row = _one_token(prompt, 3, -1.0, 0)
    ours = dense_log_probs(model, row)
    theirs = dense_log_probs(tiny_model(seed=TEACHER), row).detach()
    model.zero_grad()
    (ours.exp() * (ours - theirs)).sum().backward()
    want = {name: param.grad for name, param in model.named_parameters()}
    assert relative_error(mean, want) < 1e-10


def _one_token(prompt: tuple[int, ...], token: int, log_prob: float, index: int) -> Trajectory:
    return Trajectory(
        task_id="g", group_id="g", rollout_id=f"g/{index}", prompt_ids=prompt,
        response_ids=(token,), response_mask=(1,), rollout_log_probs=(log_prob,),
        policy_versions=(0,), reward=1.0, termination=Termination.ENV_DONE,
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("top_k", [0, 7])
def test_any_division_gives_the_same_gradient(mode: str, top_k: int) -> None:
    model = tiny_model()
    groups = groups_of(model)
    section = section_of(top_k=top_k, loss_agg_mode=mode, with_reward=True)
    ways: list[dict[str, Any]] = [
        {"micro_batch_tokens": 1 << 20}, {"micro_batch_tokens": 21}, {"micro_batch_tokens": 37},
        {"micro_batch_tokens": 64, "prefix_sharing": True},
    ]  # fmt: skip
    whole, *others = (
        distilled_gradient(
            model,
            step_of(groups, section, **way),
            section,
            teacher_of(tiny_model(seed=TEACHER), top_k=top_k),
        )
        for way in ways
    )
    for other in others:
        assert relative_error(other, whole) < 1e-12


@pytest.mark.parametrize("top_k", [0, 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_teacher_that_is_the_student_teaches_nothing(top_k: int, dtype: torch.dtype) -> None:
    """To the bit, also where the sampler's numbers are off. Fails if the advantage is taken to the
    sampler's log-probability."""
    model = tiny_model(dtype)
    groups = with_model_log_probs(model, make_groups(), noise=0.05)
    section = section_of(top_k=top_k)
    teacher = teacher_of(copy.deepcopy(model), top_k=top_k)
    found = distilled_gradient(model, step_of(groups, section), section, teacher)
    assert found
    for name, grad in found.items():
        assert not grad.any(), name


def poisoned(micro: MicroBatch, value: float) -> MicroBatch:
    def put(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.where(micro.mask_R, numbers, value)

    return replace(
        micro,
        rollout_log_probs_R=put(micro.rollout_log_probs_R),
        advantages_R=put(micro.advantages_R),
        weights_R=put(micro.weights_R),
    )


class PoisonedTeacher:
    """Says something else where nothing is trained."""

    def __init__(self, inner: Any, value: float) -> None:
        self._inner, self._value = inner, value

    def ask(self, micro_batches: Any, *, prompts: Any) -> RowTeacher:
        masks = {
            key: micro.mask_R[micro.row_R == index]
            for micro in micro_batches
            for index, key in enumerate(micro.rows)
        }
        return {
            key: replace(
                row,
                sampled_R=np.where(masks[key], row.sampled_R, self._value),
                ids_RK=np.where(masks[key][:, None], row.ids_RK, 10**9),
                log_probs_RK=np.where(masks[key][:, None], row.log_probs_RK, self._value),
            )
            for key, row in self._inner.ask(micro_batches, prompts=prompts).items()
        }


@pytest.mark.parametrize("top_k", [0, 7])
@pytest.mark.parametrize("value", [float("nan"), 1e4])
def test_masked_positions_change_no_bit(top_k: int, value: float) -> None:
    """Rubbish in the batch and in what the teacher says, ids that no head has among it."""
    model = tiny_model()
    section = section_of(top_k=top_k, with_reward=True)
    batch = step_of(groups_of(model), section)
    (update,) = batch.updates
    micros = tuple(poisoned(micro, value) for micro in update.micro_batches)
    dirty: StepBatch = replace(batch, updates=(replace(update, micro_batches=micros),))
    teacher = teacher_of(tiny_model(seed=TEACHER), top_k=top_k)
    clean = distilled_gradient(model, batch, section, teacher)
    found = distilled_gradient(model, dirty, section, PoisonedTeacher(teacher, value))
    assert all(torch.equal(found[name], grad) for name, grad in clean.items())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_the_teacher_is_asked_at_the_sampling_temperature(temperature: float) -> None:
    """In float32 to 1e-6 of log softmax(logits / T), formed of the same hidden states in float64
    and over the whole vocabulary. Fails if T is left out."""
    groups = at_temperature(make_groups(), temperature)
    (update,) = step_of(groups, section_of(top_k=5)).updates
    model = tiny_model(torch.float32, seed=TEACHER)
    found = teacher_of(model, top_k=5).ask(update.micro_batches, prompts=None)
    frozen = FrozenPolicy(model, mask_keys=TRAINED)
    asked = 0
    for micro in update.micro_batches:
        tensors = frozen.to_tensors(micro)
        with frozen.running(), torch.no_grad():
            hidden_AE = hidden_states(model, tensors)[tensors.source_A]
        weight_VE = model.get_output_embeddings().weight.detach().double()
        table_AV = torch.log_softmax(hidden_AE.double() @ weight_VE.T / temperature, -1)
        for place, table in zip(tensors.index_A.tolist(), table_AV, strict=True):
            row = int(micro.row_R[place])
            said, own = found[micro.rows[row]], place - int(np.argmax(micro.row_R == row))
            want = float(table[int(micro.target_R[place])])
            assert said.sampled_R[own] == pytest.approx(want, abs=1e-6)
            best = table.topk(5)
            assert said.ids_RK[own].tolist() == best.indices.tolist()
            assert np.allclose(said.log_probs_RK[own], best.values, rtol=0, atol=1e-6)
            asked += 1
    assert asked == sum(micro.num_action_tokens for micro in update.micro_batches)


def sampled(model: Any, seed: int) -> list[TrajectoryGroup]:
    """Groups that the model itself samples, with what the environment says in between."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    groups = []
    for number in range(4):
        prompt = tuple(rng.randrange(3, VOCABULARY) for _ in range(3))
        rows = []
        for index in range(4):
            ids, mask, log_probs = list(prompt), list[int](), list[float]()
            for place in range(8):
                own = place not in (3, 4)
                with torch.no_grad():
                    logits = model(torch.tensor([ids])).logits[0, -1]
                table = torch.log_softmax(logits.double(), -1)
                token = int(torch.multinomial(table.exp(), 1, generator=generator)) if own else 5
                ids.append(token)
                mask.append(int(own))
                log_probs.append(float(table[token]) if own else 0.0)
            rows.append(
                replaced(
                    _one_token(prompt, 3, -1.0, index),
                    group_id=f"s{seed}/{number}",
                    rollout_id=f"s{seed}/{number}/{index}",
                    response_ids=tuple(ids[3:]),
                    response_mask=tuple(mask),
                    rollout_log_probs=tuple(log_probs),
                    policy_versions=tuple(0 if m else -1 for m in mask),
                )
            )
        groups.append(
            TrajectoryGroup(group_id=f"s{seed}/{number}", task_id="g", trajectories=tuple(rows))
        )
    return groups


@pytest.mark.parametrize("top_k", [0, 20])
def test_a_student_comes_to_its_teacher(top_k: int) -> None:
    """On its own samples, rewards all equal. Fails with the sign of the advantage, or if rows
    without an advantage of rewards are not computed."""
    student, other = tiny_model(torch.float32), tiny_model(torch.float32, seed=TEACHER)
    section = section_of(top_k=top_k, loss_agg_mode="token-mean")
    trainer = Trainer(
        student,
        train=TrainSection(learning_rate=3e-3),
        algorithm=section,
        teacher=teacher_of(copy.deepcopy(other), top_k=top_k),
    )
    before = after = 0.0
    measured = []
    for step in range(40):
        groups = sampled(student, step)
        rows = [row for group in groups for row in group.trajectories]
        after = exact_kl(student, other, rows)
        before = before or after
        measured.append(trainer.step(step_of(groups, section)).result()["distill/reverse_kl"])
    assert after < (0.7 if top_k == 0 else 0.35) * before
    assert measured[0] == pytest.approx(before, rel=0.6 if top_k == 0 else 0.9)
    assert measured[-1] < measured[0]


def test_metrics_say_what_was_measured() -> None:
    model = tiny_model()
    groups = groups_of(model)
    for top_k in (0, 7):
        section = section_of(top_k=top_k)
        trainer = Trainer(
            model,
            train=TrainSection(learning_rate=1e-12),
            algorithm=section,
            teacher=teacher_of(tiny_model(seed=TEACHER), top_k=top_k),
        )
        found = trainer.step(step_of(groups, section)).result()
        rows = [row for group in groups for row in group.trajectories if row.rule.in_loss]
        apart: list[float] = []
        for row in rows:
            ours = dense_log_probs(tiny_model(), row).detach()
            theirs = dense_log_probs(tiny_model(seed=TEACHER), row).detach()
            for place in np.flatnonzero(row.response_mask).tolist():
                if top_k == 0:
                    token = row.response_ids[place]
                    apart.append(float(ours[place, token] - theirs[place, token]))
                else:
                    ids = theirs[place].topk(top_k).indices
                    apart.append(1.0 - float(ours[place, ids].exp().sum()))
        name = "distill/tail_mass" if top_k else "distill/reverse_kl"
        assert found[name] == pytest.approx(float(np.mean(apart)), rel=1e-9)
        assert found["timing_s/teacher"] > 0


def test_ids_of_masked_tokens_are_never_asked_for() -> None:
    """A loss that looks at untrained tokens has the policy asked there, too. Fails if rubbish of a
    teacher becomes an index into the vocabulary."""
    (update,) = step_of(groups_of(tiny_model()), section_of(top_k=2)).updates
    teacher = PoisonedTeacher(teacher_of(tiny_model(seed=TEACHER), top_k=2), float("nan"))
    known = teacher.ask(update.micro_batches, prompts=None)
    for micro in update.micro_batches:
        found = tokens_of_teacher(known, micro, like=torch.zeros(1), top_k=2)
        masked = found.ids_RK[~torch.as_tensor(micro.mask_R)]
        assert len(masked)
        assert not masked.any()


def test_rows_without_an_advantage_are_computed() -> None:
    """Fails if the batch stage leaves rows out that have a gradient from the teacher alone."""
    for top_k in (0, 2):
        section = section_of(top_k=top_k)
        assert needs_of(section).zero_advantage_rows
        groups = groups_of(tiny_model())
        (update,) = step_of(groups, section).updates
        rows = sum(len(micro.rows) for micro in update.micro_batches)
        assert rows == sum(row.rule.in_loss for group in groups for row in group.trajectories)


def test_without_a_teacher_the_trainer_says_so() -> None:
    with pytest.raises(
        TrainError, match=r"a teacher of kind checkpoint, but the trainer was given"
    ):
        Trainer(tiny_model(), train=TrainSection(), algorithm=section_of(top_k=0))


def test_a_teacher_that_leaves_out_a_row_ends_the_step() -> None:
    """Fails if a row without numbers counts as one on which both agree."""

    class Forgetful:
        def ask(self, micro_batches: Any, *, prompts: Any) -> RowTeacher:
            found = dict(
                teacher_of(tiny_model(seed=TEACHER), top_k=0).ask(micro_batches, prompts=prompts)
            )
            found.popitem()
            return found

    model = tiny_model()
    section = section_of(top_k=0)
    with pytest.raises(TrainError, match=r"the teacher gave nothing for row"):
        distilled_gradient(model, step_of(groups_of(model), section), section, Forgetful())


@pytest.mark.parametrize("loss", ["ppo_clip", "cispo", "gspo", "tis_reinforce"])
def test_every_policy_loss_takes_the_advantages(loss: str) -> None:
    """At ratio 1 all of them have the gradient of the sampled form. Fails if `gspo` takes one
    ratio for tokens of different advantages."""
    model = tiny_model()
    groups = groups_of(model)
    plain = section_of(top_k=0, loss_agg_mode="token-mean")
    want = dense_gradient(model, tiny_model(seed=TEACHER), groups, plain)
    section = section_of(top_k=0, loss_agg_mode="token-mean", policy_loss=loss)
    found = distilled_gradient(
        model, step_of(groups, section), section, teacher_of(tiny_model(seed=TEACHER), top_k=0)
    )
    assert relative_error(found, want) < 1e-9


def test_a_failed_step_with_hints_is_kept_and_replayed(tmp_path: Any) -> None:
    """The prompts of the teacher are part of the batch on disk."""
    from agentrl.train.failed_step import load_failed_step, save_failed_step

    model = tiny_model()
    batch = step_of(groups_of(model), section_of(top_k=0))
    keys = [key for micro in batch.updates[0].micro_batches for key in micro.rows]
    hinted = replace(batch, teacher_prompts={key: np.array([3, 4, 5]) for key in keys})
    path = save_failed_step(tmp_path, hinted, version=0, error="x")
    found = load_failed_step(path).batch.teacher_prompts
    assert found is not None
    assert {key: ids.tolist() for key, ids in found.items()} == {key: [3, 4, 5] for key in keys}
