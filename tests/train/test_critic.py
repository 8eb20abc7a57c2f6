"""The critic: values of packed rows, the gradient of ppo under any cut, warm-up, and resuming."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import LlamaForSequenceClassification

from agentrl.config.schema import CriticSection, ModelSection, TrainSection
from agentrl.errors import ConfigError, RunError, TrainError
from agentrl.metrics.names import is_of_machine
from agentrl.train.critic import Critic
from agentrl.train.model.attention import packed_attention
from agentrl.train.model.value_head import ValueModel, load_value_model
from agentrl.train.reference import Reference
from agentrl.train.trainer import Trainer
from agentrl.types import TrajectoryGroup
from tests.train.test_mask_poison import Poisoned, poisoned
from tests.train.test_same_gradient import row_log_probs, split_rows
from tests.train.tiny_llama import (
    VOCABULARY,
    KeepGradient,
    algorithm,
    make_groups,
    make_step,
    reference,
    relative_error,
    replaced,
    tiny_model,
    with_model_log_probs,
)

TRAIN = TrainSection(learning_rate=1e-2)


def ppo(**changes):
    section = {"preset": "ppo", "advantage_estimator": None, "loss_agg_mode": None, **changes}
    return algorithm(**section)


def value_model(dtype=torch.float64, *, seed=5):
    """A body of its own and a head that is not zero."""
    made = ValueModel(tiny_model(dtype, seed=seed).model)
    torch.manual_seed(seed)
    with torch.no_grad():
        made.value_head.weight.normal_(0.0, 0.5)
        made.value_head.bias.fill_(0.1)
    return made.eval()


def make_critic(model=None, *, train=TRAIN, **changes):
    section = CriticSection(**{"learning_rate": 1e-2, **changes})
    return Critic(model or value_model(), section=section, train=train)


def weights(model):
    return {name: param.detach().clone() for name, param in model.named_parameters()}


def same(ours, theirs):
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def plain_values(model, row):
    """[R] By the library's own forward pass over this row alone: the value before each token."""
    ids = torch.tensor([row.prompt_ids + row.response_ids])
    hidden = model.body(ids).last_hidden_state[0]
    values = hidden @ model.value_head.weight[0] + model.value_head.bias
    return values[len(row.prompt_ids) - 1 : -1]


@pytest.mark.parametrize("tokens", [21, 64, 10_000])
@pytest.mark.parametrize("sharing", [False, True])
def test_values_of_packed_rows_are_those_of_each_row_alone(tokens, sharing):
    """Fails if the value is read after its token (source and target exchanged), or across rows."""
    model, groups = value_model(), make_groups()
    step = make_step(groups, algorithm=ppo(), micro_batch_tokens=tokens, prefix_sharing=sharing)
    found = make_critic(model).row_values(step.updates[0].micro_batches)
    rows = [row for group in groups for row in group.trajectories if row.rule.in_baseline]
    assert {key.rollout_id for key in found} == {row.rollout_id for row in rows}
    for key, values in found.items():
        (row,) = [row for row in rows if row.rollout_id == key.rollout_id]
        mask = np.array(row.response_mask[: len(values)], dtype=bool)
        want = plain_values(model, row).detach().numpy()[: len(values)]
        assert np.allclose(values[mask], want[mask], rtol=1e-12, atol=0)
        assert (values[~mask] == 0).all()


def test_a_value_does_not_know_its_token():
    model, (group, *_) = value_model(), make_groups(sizes=(2,))
    row = replaced(max(group.trajectories, key=lambda row: len(row.response_ids)), group_id="g")
    last = max(i for i, trained in enumerate(row.response_mask) if trained)
    ids = list(row.response_ids)
    ids[last] = 3 + (ids[last] - 2) % (VOCABULARY - 3)
    assert ids[last] != row.response_ids[last]

    def values(changed):
        alone = TrajectoryGroup(group_id="g", task_id="g", trajectories=(changed,))
        step = make_step([alone], algorithm=ppo())
        return next(iter(make_critic(model).row_values(step.updates[0].micro_batches).values()))

    assert np.array_equal(values(row), values(replaced(row, response_ids=tuple(ids))))


def plain_ppo(policy, critic, groups, section):
    """Policy and critic loss of one update on the policy's own samples, token by token.

    Plain Python but for the forward passes: GAE over the trained tokens of a rollout, whitening
    over all of them, ratio 1, values unmoved.
    """
    other, tokens, rewards = tiny_model(seed=1), [], []
    for group in groups:
        for rows in group.rollouts():
            if not rows[0].rule.in_baseline:
                continue
            mine = []
            for row in rows:
                now, values = row_log_probs(policy, row), plain_values(critic, row)
                with torch.no_grad():
                    ref = row_log_probs(other, row)
                for place, token in enumerate(row.response_ids):
                    if row.response_mask[place]:
                        apart = now[place, token].item() - ref[place, token].item()
                        mine.append((now[place, token], values[place], apart))
            tokens.append(mine)
            rewards.append(rows[0].reward)
    advantages, returns = [], []
    for mine, reward in zip(tokens, rewards, strict=True):
        a_next, v_next, found = 0.0, 0.0, []
        for index in reversed(range(len(mine))):
            _, value, apart = mine[index]
            r = -section.kl_coef * apart + (reward if index == len(mine) - 1 else 0.0)
            a_next = r + section.gamma * (v_next + section.lam * a_next) - value.item()
            v_next = value.item()
            found.append(a_next)
        advantages.append(found[::-1])
        returns.append([a + v.item() for a, (_, v, _) in zip(found[::-1], mine, strict=True)])
    flat = [a for part in advantages for a in part]
    mean = math.fsum(flat) / len(flat)
    spread = math.sqrt(math.fsum((a - mean) ** 2 for a in flat) / (len(flat) - 1) + 1e-8)
    policy.zero_grad()
    critic.zero_grad()
    for mine, a_s, g_s in zip(tokens, advantages, returns, strict=True):
        for (now, value, _), a, g in zip(mine, a_s, g_s, strict=True):
            loss = -torch.exp(now - now.detach()) * (a - mean) / spread + 0.5 * (value - g) ** 2
            (loss / len(flat)).backward(retain_graph=True)
    out = [{n: p.grad.clone() for n, p in m.named_parameters()} for m in (policy, critic)]
    policy.zero_grad()
    critic.zero_grad()
    return out


def trained_gradients(policy, critic_model, step, section):
    backend, critic = KeepGradient(policy), make_critic(critic_model)
    critic.backend = KeepGradient(critic_model)
    trainer = Trainer(
        policy, train=TRAIN, algorithm=section, backend=backend, critic=critic,
        reference=reference() if section.kl_coef else None,
    )  # fmt: skip
    metrics = trainer.step(step).result()
    (of_policy,), (of_critic,) = backend.kept, critic.backend.kept
    return of_policy, of_critic, metrics


@pytest.mark.parametrize(
    "changes",
    [
        {"old_log_probs": "recompute"},
        {"old_log_probs": "recompute", "kl_coef": 0.3, "gamma": 0.9, "lam": 0.8},
        {"old_log_probs": "rollout", "kl_coef": 0.3},
    ],
    ids=["gae", "gae-kl-gamma", "sampler"],
)
def test_any_cut_gives_the_gradients_of_the_plain_loop(changes):
    """Policy and critic, every partition against formulas written out anew.

    Fails if V or A stops at environment tokens or at the end of a row (0.1), if the critic's loss
    is divided by the rows of a micro-batch, or if KL is taken of the wrong policy.
    """
    policy, critic = tiny_model(), value_model()
    section = ppo(**changes)
    noise = 0.5 if section.old_log_probs == "recompute" else 0.0
    groups = with_model_log_probs(tiny_model(), make_groups(3), noise=noise)
    want = plain_ppo(policy, critic, groups, section)
    cuts = {
        "one row each": make_step(groups, algorithm=section, micro_batch_tokens=21),
        "all in one": make_step(groups, algorithm=section, micro_batch_tokens=10_000),
        "other order": make_step(groups[::-1], algorithm=section, micro_batch_tokens=48),
        "split": make_step(split_rows(groups, 1), algorithm=section, micro_batch_tokens=48),
        "shared": make_step(
            split_rows(groups, 2), algorithm=section, micro_batch_tokens=96, prefix_sharing=True
        ),
    }
    assert len({len(step.updates[0].micro_batches) for step in cuts.values()}) > 2
    losses = set()
    for name, step in cuts.items():
        *got, metrics = trained_gradients(policy, critic, step, section)
        errors = [relative_error(ours, theirs) for ours, theirs in zip(got, want, strict=True)]
        # With the sampler's numbers the ratio differs from 1 by the rounding of two programs.
        assert max(errors) < 1e-12, (name, errors)
        losses.add(round(metrics["critic/vf_loss"], 10))
    assert len(losses) == 1


@pytest.mark.parametrize("changes", [{}, {"kl_coef": 0.3}, {"kl_coef": 0.3, "use_kl_loss": True}])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1e4])
def test_poison_at_masked_positions_changes_no_bit_of_policy_or_critic(value, changes):
    """Whatever sampler, reference and batch hold there. Fails if a KL is formed before masking."""
    section = ppo(**changes)

    def outcome(spoil, beside):
        policy, model = tiny_model(torch.float32), value_model(torch.float32)
        backend, critic = KeepGradient(policy), make_critic(model)
        critic.backend = KeepGradient(model)
        trainer = Trainer(
            policy, train=TRAIN, algorithm=section, backend=backend, critic=critic,
            reference=Poisoned(beside),
        )  # fmt: skip
        metrics = trainer.step(spoil(make_step(make_groups(), algorithm=section))).result()
        metrics = {k: v for k, v in metrics.items() if not is_of_machine(k)}
        return metrics, backend.kept[0], critic.backend.kept[0]

    metrics, *gradients = outcome(lambda step: step, 0.0)
    spoiled, *same_gradients = outcome(lambda step: poisoned(step, value, seed=1), value)
    assert spoiled == metrics
    assert all(same(ours, theirs) for ours, theirs in zip(same_gradients, gradients, strict=True))


def test_it_learns_what_rollouts_are_worth():
    critic, section = make_critic(value_clip=None), ppo()
    trainer = Trainer(tiny_model(), train=TRAIN, algorithm=section, critic=critic)
    found = [
        trainer.step(make_step(make_groups(3), algorithm=section, epochs=2)).result()
        for _ in range(12)
    ]
    assert found[-1]["critic/vf_loss"] < 0.1 * found[0]["critic/vf_loss"]
    assert found[-1]["critic/vf_explained_var"] > 0.6 > found[0]["critic/vf_explained_var"]
    assert found[0]["critic/lr"] == 1e-2


def test_the_policy_rests_while_the_critic_warms_up():
    policy, model = tiny_model(), value_model()
    trainer = Trainer(
        policy, train=TRAIN, algorithm=ppo(), critic=make_critic(model, warmup_steps=1)
    )
    step, seen = make_step(make_groups(), algorithm=ppo()), []
    before = weights(policy), weights(model)
    metrics = trainer.step(step, lambda done, total: seen.append((done, total))).result()
    assert same(weights(policy), before[0])
    assert not same(weights(model), before[1])
    assert trainer.version == 1
    assert "train/loss" not in metrics
    assert "train/learning_rate" not in metrics
    assert metrics["critic/grad_norm"] > 0
    total = len(step.updates[0].micro_batches)
    assert seen == [(done, total) for done in range(1, total + 1)]
    assert trainer.step(step).result()["train/updates"] == 1
    assert not same(weights(policy), before[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resuming_continues_to_the_bit(tmp_path, dtype):
    """Fails if the critic's moments, the KL weight or the moved reference are left behind."""
    train = TrainSection(learning_rate=1e-2, schedule="linear", steps=4)
    section = ppo(
        kl_coef=0.05, kl_target=(0.0, 1e-4),
        reference_update={"every_steps": 1, "polyak": 0.3}, old_log_probs="recompute",
    )  # fmt: skip
    steps = [make_step(make_groups(seed), algorithm=section, epochs=2) for seed in range(4)]

    def made(seed):
        policy, model = tiny_model(dtype, seed=seed), value_model(dtype, seed=seed + 50)
        return policy, model, Trainer(
            policy, train=train, algorithm=section, reference=Reference(tiny_model(dtype, seed=1)),
            critic=make_critic(model, train=train),
        )  # fmt: skip

    policy, model, trainer = made(0)
    straight = [trainer.step(step).result() for step in steps]
    _, _, stopped = made(0)
    for step in steps[:2]:
        stopped.step(step)
    stopped.save(tmp_path)
    resumed_policy, resumed_model, resumed = made(9)
    resumed.load(tmp_path)
    assert resumed.kl_coef == stopped.kl_coef != 0.05
    for step, want in zip(steps[2:], straight[2:], strict=True):
        got = resumed.step(step).result()
        assert {k: v for k, v in got.items() if not is_of_machine(k)} == {
            k: v for k, v in want.items() if not is_of_machine(k)
        }
    assert same(weights(resumed_policy), weights(policy))
    assert same(weights(resumed_model), weights(model))


def test_a_state_without_a_critic_is_refused(tmp_path):
    Trainer(tiny_model(), train=TRAIN, algorithm=algorithm()).save(tmp_path)
    trainer = Trainer(tiny_model(), train=TRAIN, algorithm=ppo(), critic=make_critic())
    with pytest.raises(RunError, match="saved without a critic"):
        trainer.load(tmp_path)


def test_a_critic_that_gives_nan_stops_the_step_and_names_rows():
    policy, model = tiny_model(), value_model()
    trainer = Trainer(policy, train=TRAIN, algorithm=ppo(), critic=make_critic(model))
    step, before = make_step(make_groups(), algorithm=ppo()), weights(policy)
    with torch.no_grad():
        model.value_head.bias.fill_(math.nan)
    with pytest.raises(TrainError, match="the critic gives a value of nan") as caught:
        trainer.step(step)
    assert str(step.updates[0].micro_batches[0].rows[0]) in str(caught.value)
    assert same(weights(policy), before)


def test_a_gradient_of_the_critic_that_is_not_finite_moves_neither_model():
    """Fails if the policy moves before the critic's gradient was looked at."""
    policy, model = tiny_model(torch.float32), value_model(torch.float32)
    critic = make_critic(model)
    trainer = Trainer(policy, train=TRAIN, algorithm=ppo(), critic=critic)
    step = make_step(make_groups(), algorithm=ppo())
    key = step.updates[0].micro_batches[0].rows[1]
    before = weights(policy), weights(model)
    values = critic.values

    def spoiled(passes, tensors, micro):
        """A value whose gradient overflows: sqrt at 0."""
        found = values(passes, tensors, micro)
        if key in micro.rows:
            place = int(np.flatnonzero(micro.mask_R & (micro.row_R == micro.rows.index(key)))[0])
            at = torch.zeros_like(found)
            at[place] = 1.0
            found = found + torch.sqrt((found - found.detach()).abs() * at)
        return found

    critic.values = spoiled
    with pytest.raises(TrainError, match=r"gradient norm of the critic is nan") as caught:
        trainer.step(step)
    assert f"not finite: {key};" in str(caught.value)
    assert same(weights(policy), before[0])
    assert same(weights(model), before[1])


def test_gae_without_a_critic_is_refused():
    with pytest.raises(TrainError, match="was given no critic"):
        Trainer(tiny_model(), train=TRAIN, algorithm=ppo())


@pytest.fixture
def saved(tmp_path):
    """A language model, and a reward model with `labels` outputs on the same body."""
    policy = tiny_model(torch.float32)
    policy.save_pretrained(tmp_path / "lm")

    def reward_model(labels):
        config = policy.config.__class__(**{**policy.config.to_dict(), "num_labels": labels})
        made = LlamaForSequenceClassification(config)
        made.model.load_state_dict(policy.model.state_dict())
        made.save_pretrained(tmp_path / f"rm{labels}")
        return made

    return tmp_path, policy, reward_model


def section_of(path):
    return CriticSection(), ModelSection(path=str(path), dtype="float32", device="cpu")


def test_a_language_model_brings_its_body_and_values_begin_at_zero(saved):
    folder, policy, _ = saved
    made = load_value_model(*section_of(folder / "lm"))
    assert same(weights(made.body), weights(policy.model))
    step = make_step(make_groups(), algorithm=ppo())
    values = make_critic(made).row_values(step.updates[0].micro_batches)
    assert all((row == 0).all() for row in values.values())


def test_a_reward_model_brings_its_head(saved):
    """Fails if the head is begun anew: every value would be 0."""
    folder, _, reward_model = saved
    scored = reward_model(1)
    critic, model = section_of(folder / "lm")
    made = load_value_model(critic.model_copy(update={"path": str(folder / "rm1")}), model)
    assert torch.equal(made.value_head.weight, scored.score.weight)
    assert same(weights(made.body), weights(scored.model))
    assert (
        load_value_model(
            critic.model_copy(update={"path": str(folder / "rm1")}),
            model.model_copy(update={"dtype": "bfloat16"}),
        ).value_head.weight.dtype
        == torch.float32
    )


def test_heads_and_checkpoints_that_do_not_fit_are_refused(saved):
    folder, policy, reward_model = saved
    reward_model(2)
    critic, model = section_of(folder / "rm2")
    with pytest.raises(ConfigError, match="has 2 outputs, expected 1"):
        load_value_model(critic, model)
    state = policy.state_dict()
    state.pop("model.layers.1.mlp.up_proj.weight")
    policy.save_pretrained(folder / "torn", state_dict=state)
    with pytest.raises(ConfigError, match=r"1 missing: .*up_proj"):
        load_value_model(*section_of(folder / "torn"))
    with pytest.raises(ConfigError, match="does not exist"):
        load_value_model(*section_of(folder / "nothing"))


def test_checkpointing_and_bfloat16_give_values_too():
    model = value_model(torch.bfloat16)
    critic = Critic(model, section=CriticSection(), train=TRAIN, gradient_checkpointing=True)
    step = make_step(make_groups(), algorithm=ppo())
    trainer = Trainer(tiny_model(torch.bfloat16), train=TRAIN, algorithm=ppo(), critic=critic)
    assert trainer.step(step).result()["critic/grad_norm"] > 0
    assert not model.training
    with packed_attention(model):
        tensors = critic.backend.to_tensors(step.updates[0].micro_batches[0])
        assert model(tensors).dtype == torch.float32
