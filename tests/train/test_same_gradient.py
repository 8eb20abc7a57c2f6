"""The optimizer sees the same gradient however the work was cut (DESIGN section 6, proof 1)."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from agentrl.batch.packing import unpack
from agentrl.config.schema import TrainSection
from agentrl.estimators import STD_DDOF, STD_EPS
from agentrl.train.trainer import Trainer
from agentrl.types import TrajectoryGroup
from tests.batch.group_advantages import group_advantages
from tests.train.tiny_llama import (
    MODES,
    KeepGradient,
    algorithm,
    gradient_of,
    make_groups,
    make_step,
    relative_error,
    replaced,
    tiny_model,
    with_model_log_probs,
)


def row_log_probs(model, row):
    """[R, V] by the library's own forward pass."""
    logits = model(torch.tensor([row.prompt_ids + row.response_ids])).logits[0]
    return torch.log_softmax(logits[len(row.prompt_ids) - 1 : -1] / row.temperature, -1)


def plain_token_loss(now, sampler, ref, advantage, section):
    """One token, in scalars; the old policy is the one at hand, as in a step of one update."""
    old = sampler if section.old_log_probs == "rollout" else now.item()
    ratio = torch.exp(now - old)
    low, high = 1 - section.eps_clip_low, 1 + section.eps_clip_high
    loss = -torch.min(ratio * advantage, ratio.clamp(low, high) * advantage)
    if section.old_log_probs == "decoupled":
        loss = loss * math.exp(old - sampler)
    if section.kl_coef:
        apart = now - ref
        k3 = torch.exp(ref - now) - 1 + apart
        loss = loss + section.kl_coef * (apart**2 / 2 if section.kl_estimator == "k2" else k3)
    return loss


def plain_loop(model, groups, section):
    """Reference: the library's own forward pass, one row at a time, formulas written out anew."""
    other = tiny_model(seed=1)
    rollouts = []
    for group in groups:
        trusted = [rows for rows in group.rollouts() if rows[0].rule.in_baseline]
        values = group_advantages(
            [rows[0].reward for rows in trusted],
            estimator=section.advantage_estimator,
            ddof=STD_DDOF,
            eps=STD_EPS,
        )
        rollouts += list(zip(trusted, values, strict=True))
    tokens = [sum(row.num_action_tokens for row in rows) for rows, _ in rollouts]
    total, count = sum(tokens), len(rollouts)
    divisor = {
        "token-mean": lambda own: total,
        "seq-mean-token-mean": lambda own: count * own,
        "seq-mean-token-sum": lambda own: count,
        "seq-mean-token-sum-norm": lambda own: count * section.horizon,
    }[section.loss_agg_mode]
    model.zero_grad()
    for (rows, advantage), own in zip(rollouts, tokens, strict=True):
        for row in rows:
            logp = row_log_probs(model, row)
            with torch.no_grad():
                ref_logp = row_log_probs(other, row)
            for position, token in enumerate(row.response_ids):
                if row.response_mask[position]:
                    loss = plain_token_loss(
                        logp[position, token],
                        row.rollout_log_probs[position],
                        ref_logp[position, token],
                        advantage,
                        section,
                    )
                    if section.entropy_coef:
                        all_V = logp[position]
                        loss = loss + section.entropy_coef * (all_V.exp() * all_V).sum()
                    (loss / divisor(own)).backward(retain_graph=True)
    gradient = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return gradient


def split_rows(groups, seed):
    """Cut every other rollout into two rows at a random place, as a prefix break would."""
    rng = random.Random(seed)
    out = []
    for group in groups:
        rows = []
        for row in group.trajectories:
            length = len(row.response_ids)
            if length < 2 or rng.random() < 0.5:
                rows.append(row)
                continue
            cut = rng.randrange(1, length)
            for index, (start, end) in enumerate(((0, cut), (cut, length))):
                parts = {
                    name: getattr(row, name)[start:end]
                    for name in (
                        "response_ids", "response_mask", "rollout_log_probs", "policy_versions"
                    )
                }  # fmt: skip
                prompt = row.prompt_ids + row.response_ids[:start]
                rows.append(replaced(row, row_index=index, prompt_ids=prompt, **parts))
        out.append(
            TrajectoryGroup(
                group_id=group.group_id, task_id=group.task_id, trajectories=tuple(rows)
            )
        )
    return out


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("estimator", ["dr_grpo", "group_norm"])
def test_any_cut_gives_the_gradient_of_the_plain_loop(estimator, mode):
    # Fails if attention crosses rows (row_lengths merged: error 1e-1), if a weight is divided by
    # the rows of a micro-batch, or if the source position of a token is off by one.
    model, groups = tiny_model(), make_groups()
    section = algorithm(advantage_estimator=estimator, loss_agg_mode=mode)
    reference = plain_loop(model, groups, section)
    shuffled = groups[::-1]
    cuts = {
        "one row each": make_step(groups, algorithm=section, micro_batch_tokens=21),
        "few": make_step(groups, algorithm=section, micro_batch_tokens=48),
        "all in one": make_step(groups, algorithm=section, micro_batch_tokens=10_000),
        "other order": make_step(shuffled, algorithm=section, micro_batch_tokens=48),
        "split rollouts": make_step(split_rows(groups, 1), algorithm=section),
    }
    assert len({len(step.updates[0].micro_batches) for step in cuts.values()}) > 2
    errors = {n: relative_error(gradient_of(model, s, section), reference) for n, s in cuts.items()}
    assert max(errors.values()) < 1e-12, errors


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "changes",
    [
        {"old_log_probs": "recompute"},
        {"old_log_probs": "decoupled"},
        {"kl_coef": 0.3, "kl_estimator": "k2"},
        {"kl_coef": 0.3, "kl_estimator": "k3"},
        {"old_log_probs": "decoupled", "kl_coef": 0.3},
        {"entropy_coef": 0.3},
        {"old_log_probs": "decoupled", "entropy_coef": 0.3, "kl_coef": 0.3},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
def test_other_policies_change_nothing_about_that(changes, mode):
    # Fails if rows without an advantage are dropped although the penalty gives them a gradient
    # (error 0.1), if w multiplies the penalty, too, or if the penalty has weights of its own. So
    # with an entropy bonus; fails if its gradient leaves out H or the temperature.
    model, groups = tiny_model(), with_model_log_probs(tiny_model(), make_groups(3), noise=0.7)
    section = algorithm(loss_agg_mode=mode, **changes)
    want = plain_loop(model, groups, section)
    for step in (
        make_step(groups, algorithm=section, micro_batch_tokens=21),
        make_step(groups, algorithm=section, micro_batch_tokens=10_000),
        make_step(split_rows(groups[::-1], 1), algorithm=section, micro_batch_tokens=48),
    ):
        assert relative_error(gradient_of(model, step, section), want) < 1e-12


@pytest.mark.parametrize("mode", MODES)
def test_in_float32_the_cuts_agree_to_rounding(mode):
    model = tiny_model(torch.float32)
    groups = with_model_log_probs(model, make_groups(), noise=0.5)
    section = algorithm(loss_agg_mode=mode)

    def gradient(rows, tokens):
        step = make_step(rows, algorithm=section, micro_batch_tokens=tokens)
        return gradient_of(model, step, section)

    one_each = gradient(groups, 21)
    for other in (
        gradient(groups, 10_000),
        gradient(groups, 48),
        gradient(split_rows(groups, 1), 64),
    ):
        assert relative_error(other, one_each) < 1e-6


@pytest.mark.parametrize("mode", MODES[:3])
def test_a_local_denominator_gives_another_gradient(mode):
    # The proof must be able to fail: divide by the counts of each micro-batch, as several peers
    # did, average over micro-batches, and the same comparison is far off.
    model, groups = tiny_model(), make_groups()
    section = algorithm(loss_agg_mode=mode)
    step = make_step(groups, algorithm=section, micro_batch_tokens=48)
    reference = gradient_of(model, step, section)
    (update,) = step.updates
    broken = []
    for micro in update.micro_batches:
        if mode == "token-mean":
            factor = update.global_tokens / micro.num_action_tokens
        else:
            factor = update.global_sequences / len(micro.rows)
        factor /= len(update.micro_batches)
        broken.append(replace(micro, weights_R=micro.weights_R * factor))
    local = replace(step, updates=(replace(update, micro_batches=tuple(broken)),))
    assert relative_error(gradient_of(model, local, section), reference) > 1e-3


def test_rows_without_advantage_change_nothing_but_the_work():
    # Fails if they are left out of the denominators too (error 0.3).
    model, groups = tiny_model(), make_groups(3)
    section = algorithm(loss_agg_mode="token-mean")
    step = make_step(groups, algorithm=section)
    assert step.metrics.result()["batch/rows_zero_advantage"] > 0
    (update,) = step.updates
    assert sum(len(m.rows) for m in update.micro_batches) < update.global_sequences
    assert (
        relative_error(gradient_of(model, step, section), plain_loop(model, groups, section))
        < 1e-12
    )


def test_minibatches_have_denominators_of_their_own_and_any_order():
    # The two updates of a step, each compared with a step made of its rollouts alone.
    model, groups = tiny_model(), make_groups(sizes=(4, 4))
    section = algorithm(loss_agg_mode="token-mean")
    backend = KeepGradient(model)
    step = make_step(groups, algorithm=section, minibatches=2, seed=5)
    Trainer(model, train=TrainSection(), algorithm=section, backend=backend).step(step)
    assert len(backend.kept) == 2
    alone = [gradient_of(model, make_step([g], algorithm=section), section) for g in groups]
    for gradient in backend.kept:
        assert min(relative_error(gradient, other) for other in alone) < 1e-12


def test_on_policy_the_gradient_is_that_of_reinforce():
    # Ratio 1 everywhere: -A grad(log p), weighted. Fails if the ratio is detached or clipped at 1.
    model, groups = tiny_model(), make_groups()
    section = algorithm(old_log_probs="recompute", loss_agg_mode="token-mean")
    step = make_step(groups, algorithm=section)
    got = gradient_of(model, step, section)
    model.zero_grad()
    (update,) = step.updates
    for micro in [row for packed in update.micro_batches for row in unpack(packed)]:
        logits = model(torch.tensor(micro.input_ids_T)[None]).logits[0]
        logp = torch.log_softmax(logits, -1)[micro.source_R, micro.target_R]
        mask = torch.tensor(micro.mask_R)
        (-(torch.tensor(micro.weights_R * micro.advantages_R) * logp)[mask].sum()).backward()
    want = {n: p.grad.clone() for n, p in model.named_parameters()}
    assert relative_error(got, want) < 1e-12


def test_old_log_probs_of_a_pass_of_their_own_are_those_of_the_first_policy():
    # With two updates the second one must see the policy before the first.
    model, groups = tiny_model(), make_groups(sizes=(4, 4))
    section = algorithm(old_log_probs="recompute")
    step = make_step(groups, algorithm=section, epochs=2)
    trainer = Trainer(model, train=TrainSection(learning_rate=1e-2), algorithm=section)
    metrics = trainer.step(step).result()
    assert metrics["train/updates"] == 2
    # Update 1 has ratio 1 everywhere, update 2 has not: fails (stays 1) if the base is taken anew.
    assert metrics["train/ratio_max"] > 1.0 + 1e-6


@pytest.mark.parametrize("base", ["rollout", "decoupled"])
def test_the_policy_before_the_step_is_kept_over_two_passes(base):
    # Fails if the second pass takes the policy at hand for the old one (ratio 1 everywhere), or
    # counts how far the trainer itself has moved as a difference from the sampler.
    model, groups = tiny_model(), with_model_log_probs(tiny_model(), make_groups(), noise=0.5)
    section = algorithm(old_log_probs=base)
    trainer = Trainer(model, train=TrainSection(learning_rate=1e-2), algorithm=section)
    metrics = trainer.step(make_step(groups, algorithm=section, epochs=2)).result()
    assert metrics["train/ratio_max"] > 1.0 + 1e-6
    assert metrics["sampling/sampling_logp_difference/max"] <= 0.5 + 1e-9
    assert metrics["sampling/importance_sampling_ratio/max"] <= math.exp(0.5) + 1e-9


def test_unpack_is_the_inverse_of_packing():
    step = make_step(make_groups())
    for micro in step.updates[0].micro_batches:
        rows = unpack(micro)
        assert [row.rows[0] for row in rows] == list(micro.rows)
        assert sum(row.num_tokens for row in rows) == micro.num_tokens
        assert all(row.source_R.max() < row.num_tokens for row in rows)
