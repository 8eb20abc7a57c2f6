"""A reference that follows the policy: by how much, when, and in place."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl.config.schema import TrainSection
from agentrl.errors import RunError, TrainError
from agentrl.train.frozen_policy import FrozenPolicy
from agentrl.train.logprob_worker import LogProbWorker
from agentrl.train.reference import Reference
from agentrl.train.trainer import Trainer
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model

TRAIN = TrainSection(learning_rate=1e-2)


def following(model, *, reference=None, **changes):
    section = algorithm(kl_coef=0.1, **changes)
    reference = reference or Reference(tiny_model())
    return Trainer(model, train=TRAIN, algorithm=section, reference=reference), section


def kl_of_steps(trainer, section, count):
    return [
        trainer.step(make_step(make_groups(), algorithm=section)).result() for _ in range(count)
    ]


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_polyak_by_hand_and_in_place(share):
    """Fails with policy and reference exchanged, or with new tensors."""
    old, new = tiny_model(seed=1), tiny_model(seed=2)
    want = {
        name: share * param.detach() + (1 - share) * dict(old.named_parameters())[name].detach()
        for name, param in new.named_parameters()
    }
    places = {name: param.data_ptr() for name, param in old.named_parameters()}
    Reference(old).follow(((n, p.detach()) for n, p in new.named_parameters()), share=share)
    for name, param in old.named_parameters():
        assert torch.allclose(param, want[name], rtol=1e-14, atol=0)
        assert param.data_ptr() == places[name]


def test_the_mean_is_formed_in_float32():
    """Fails with products and sum rounded to bfloat16 one by one."""
    old, new = tiny_model(torch.bfloat16), tiny_model(torch.bfloat16)
    with torch.no_grad():
        old.model.norm.weight.fill_(1.5)
        new.model.norm.weight.fill_(3.0)
    Reference(old).follow(new.named_parameters(), share=0.3)
    assert (old.model.norm.weight == torch.tensor(1.95).to(torch.bfloat16)).all()


def test_a_slow_mean_in_bfloat16_goes_as_far_as_one_in_float32():
    """Fails with a mean that is rounded each time: it stands still, and loses it on a resume."""
    ways = []
    for dtype in (torch.float32, torch.bfloat16):
        old, new = tiny_model(dtype, seed=1), tiny_model(dtype, seed=1)
        with torch.no_grad():
            for param in (began := old.model.norm.weight, new.model.norm.weight):
                param.fill_(1.0)
            new.model.norm.weight.fill_(1.25)
        moving = Reference(old)
        for step in range(200):
            moving.follow(new.named_parameters(), share=0.01)
            if step == 99:  # a resume in between
                state = {name: tensor.clone() for name, tensor in moving.state_dict().items()}
                began.data.fill_(7.0)
                moving = Reference(old)
                moving.load_state_dict(state)
        ways.append(float(began.float().mean()) - 1.0)
    assert ways[0] == pytest.approx(0.25 * (1 - 0.99**200), rel=1e-4)
    assert ways[1] == pytest.approx(ways[0], abs=2**-8)


def test_a_copy_of_the_policy_is_at_distance_zero():
    """Every second step: the KL of steps 3 and 5 is 0 to the bit, that of 2 and 4 is not.

    Fails if it follows one step late, or is asked by other code than the policy.
    """
    trainer, section = following(tiny_model(), reference_update=2)
    found = kl_of_steps(trainer, section, 5)
    assert [m["kl"] == 0.0 for m in found] == [True, False, True, False, True]
    assert [m.get("train/reference_updates", 0) for m in found] == [0, 1, 0, 1, 0]


def test_polyak_holds_the_reference_between_both():
    apart = {}
    for share in (0.0, 0.5, 1.0):
        update = {"every_steps": 1, "polyak": share}
        changes = {"reference_update": update} if share else {}
        trainer, section = following(tiny_model(), **changes)
        apart[share] = kl_of_steps(trainer, section, 4)[-1]["kl"]
    assert apart[1.0] == 0.0 < apart[0.5] < apart[0.0]


def test_a_reference_of_its_own_is_needed_to_follow():
    fixed = LogProbWorker(FrozenPolicy(tiny_model()), name="reference policy")
    with pytest.raises(TrainError, match="LogProbWorker cannot follow the policy"):
        following(tiny_model(), reference=fixed, reference_update=1)


def test_weights_of_another_model_are_refused():
    other = Reference(tiny_model(tied=False))
    with pytest.raises(TrainError, match=r"1 of its weights have no counterpart, lm_head\.weight"):
        other.follow(tiny_model().named_parameters(), share=1.0)
    with pytest.raises(TrainError, match=r"for lm_head\.weight .* it has no such weight"):
        Reference(tiny_model()).follow(tiny_model(tied=False).named_parameters(), share=1.0)
    with pytest.raises(RunError, match=r"another model: lm_head\.weight"):
        other.load_state_dict(Reference(tiny_model()).state_dict())


def test_what_was_saved_without_a_moving_reference_cannot_move_it(tmp_path):
    trainer, _ = following(tiny_model())
    trainer.save(tmp_path)
    moving, _ = following(tiny_model(), reference_update=1)
    with pytest.raises(RunError, match=r"holds no reference policy, .*reference_update is set"):
        moving.load(tmp_path)


def test_the_controller_moves_the_weight_that_the_loss_is_made_with():
    """Fails if the loss is made with the weight of the config: it would not fall by 1.5 a step."""
    section = algorithm(kl_coef=0.3, kl_target=(1e3, 1e4))
    trainer = Trainer(
        tiny_model(), train=TrainSection(learning_rate=1e-12), algorithm=section,
        reference=Reference(tiny_model(seed=1)),
    )  # fmt: skip
    found = kl_of_steps(trainer, section, 3)
    for step, metrics in enumerate(found):
        assert metrics["train/kl_coef"] == pytest.approx(0.3 / 1.5**step)
        assert metrics["train/kl_loss"] == pytest.approx(
            found[0]["train/kl_loss"] / 1.5**step, rel=1e-6
        )
    assert trainer.kl_coef == pytest.approx(0.3 / 1.5**3)


def test_kl_in_the_reward_is_measured_and_steers_too():
    """With one row and one token k1 = d, so the reward falls by kl_coef d."""
    section = algorithm(
        preset="reinforce++", advantage_estimator=None, loss_agg_mode=None, kl_coef=0.2,
        old_log_probs="recompute", kl_target=(0.0, 1e-9),
    )  # fmt: skip
    trainer = Trainer(
        tiny_model(), train=TRAIN, algorithm=section, reference=Reference(tiny_model(seed=1))
    )
    metrics = trainer.step(make_step(make_groups(3), algorithm=section)).result()
    assert metrics["kl"] > 1e-3
    assert "train/kl_loss" not in metrics
    assert math.isclose(trainer.kl_coef, 0.3)
