"""The trainer: it learns, it refuses what is not finite, it resumes to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl.config.schema import TrainSection
from agentrl.disk.checkpoint import PARTS_FOLDER
from agentrl.errors import RunError, TrainError
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.checkpoint import HEAD_FILE, save_checkpoint
from agentrl.train.optim.optimizer import MasterAdamW
from agentrl.train.trainer import Trainer
from agentrl.types import TrajectoryGroup
from tests.train.tiny_llama import (
    algorithm,
    make_groups,
    make_step,
    replaced,
    tiny_model,
    with_model_log_probs,
)

TRAIN = TrainSection(learning_rate=1e-2)


def weights(model):
    return {name: param.detach().clone() for name, param in model.named_parameters()}


def same(ours, theirs):
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def bandit(model):
    """One state, two answers of one token: 7 pays, 8 does not."""
    (group,) = make_groups(sizes=(2,))
    rows = [
        replaced(row, rollout_id=str(arm), response_ids=(arm,), response_mask=(1,),
                 rollout_log_probs=(0.0,), policy_versions=(0,), reward=float(arm == 7))
        for arm, row in zip((7, 8), group.trajectories, strict=False)
    ]  # fmt: skip
    group = TrajectoryGroup(group_id=group.group_id, task_id="t", trajectories=tuple(rows))
    return with_model_log_probs(model, [group])


def probability(model, group):
    row = group.trajectories[0]
    with torch.no_grad():
        return torch.softmax(model(torch.tensor([row.prompt_ids])).logits[0, -1].float(), -1)[7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_steps_raise_the_probability_of_what_paid(dtype):
    # Fails with the sign of the loss turned, and if bfloat16 masters are never written back.
    model = tiny_model(dtype)
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm(horizon=1))
    before = probability(model, bandit(model)[0])
    for _ in range(2):
        metrics = trainer.step(make_step(bandit(model), algorithm=algorithm(horizon=1))).result()
    assert probability(model, bandit(model)[0]) > before * 1.05
    assert trainer.version == 2
    assert metrics["train/updates"] == 1
    assert metrics["train/learning_rate"] == 1e-2
    # bfloat16 forward passes of different shapes differ by rounding.
    assert metrics["sampling/sampling_logp_difference/max"] < (1e-5 if dtype.itemsize > 2 else 0.1)


def test_masters_keep_what_bfloat16_would_lose():
    # Steps of 1e-5 on a weight near 1 vanish in bfloat16. Fails if AdamW works on the parameters.
    model = tiny_model(torch.bfloat16)
    before = weights(model)
    trainer = Trainer(model, train=TrainSection(learning_rate=1e-5), algorithm=algorithm())
    for _ in range(3):
        trainer.step(make_step(make_groups()))
    norm = "model.norm.weight"
    assert torch.equal(model.state_dict()[norm], before[norm])
    moved = trainer.backend.state_dict()["masters"][norm] - before[norm].float()
    assert 1e-5 < moved.abs().max() < 4e-5


def test_gradients_of_micro_batches_are_summed_in_float32():
    # 1 + 1/512 is 1 in bfloat16. Fails if the sum is kept in .grad, or if the last one wins.
    model = torch.nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    optimizer = MasterAdamW(model, betas=(0.9, 0.95), weight_decay=0.0)
    for value in (1.0, 1 / 512):
        model(torch.tensor([[value]], dtype=torch.bfloat16)).sum().backward()
        assert model.weight.grad is None
    ((_, total),) = optimizer.gradients()
    assert total.dtype == torch.float32
    assert total.item() == 1 + 1 / 512
    optimizer.clear()
    model(torch.tensor([[2.0]], dtype=torch.bfloat16)).sum().backward()
    ((_, total),) = optimizer.gradients()
    assert total.item() == 2.0


def test_parameters_are_the_same_tensors_after_a_step():
    # The engine reads them: they are changed in place, never replaced, and no gradient is left.
    model = tiny_model(torch.bfloat16)
    places = {name: param.data_ptr() for name, param in model.named_parameters()}
    Trainer(model, train=TRAIN, algorithm=algorithm()).step(make_step(make_groups()))
    assert places == {name: param.data_ptr() for name, param in model.named_parameters()}
    assert all(param.grad is None for param in model.parameters())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not model.training


def test_gradient_norm_is_reported_before_clipping():
    # The update of AdamW hides the size of a gradient, so the moments are looked at.
    model = tiny_model(torch.float32)
    train = TrainSection(learning_rate=1e-3, max_grad_norm=1e-3, betas=(0.0, 0.0))
    trainer = Trainer(model, train=train, algorithm=algorithm())
    metrics = trainer.step(make_step(make_groups())).result()
    assert metrics["train/grad_norm"] > 0.1
    moments = trainer.backend.state_dict()["moments"]
    clipped = sum(m["exp_avg"].pow(2).sum() for m in moments.values() if m) ** 0.5
    assert float(clipped) == pytest.approx(1e-3, rel=1e-2)


def test_weight_decay_touches_matrices_only():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    optimizer = MasterAdamW(model, betas=(0.9, 0.95), weight_decay=0.5)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    before = weights(model)
    optimizer.step(learning_rate=0.1, max_grad_norm=1.0, grad_norm=1.0)
    after = weights(model)
    assert torch.allclose(after["0.weight"], before["0.weight"] * 0.95)
    assert all(torch.equal(after[n], before[n]) for n in ("0.bias", "1.weight", "1.bias"))


def test_a_step_without_any_gradient_moves_nothing():
    # Moments of earlier steps would move the weights if the optimizer ran on zeros.
    model = tiny_model(torch.bfloat16)
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm())
    trainer.step(make_step(make_groups()))
    before = weights(model)
    flat = [
        TrajectoryGroup(
            group_id=g.group_id,
            task_id=g.task_id,
            trajectories=tuple(replaced(r, reward=1.0) for r in g.trajectories if r.reward),
        )
        for g in make_groups()
    ]
    metrics = trainer.step(make_step(flat)).result()
    assert metrics["train/updates_skipped"] == 1
    assert "train/loss" not in metrics
    assert same(weights(model), before)
    assert trainer.version == 2


def test_progress_counts_micro_batches():
    seen = []
    step = make_step(make_groups(), micro_batch_tokens=32)
    trainer = Trainer(tiny_model(torch.float32), train=TRAIN, algorithm=algorithm())
    trainer.step(step, lambda done, total: seen.append((done, total)))
    total = len(trainer.backend.share(step.updates[0]).micro_batches)
    assert seen == [(done, total) for done in range(1, total + 1)]
    assert total > 1


def spoiled(step):
    """The step with an infinite advantage in one row, and this row."""
    (update,) = step.updates
    first, *others = update.micro_batches
    bad = first.advantages_R.copy()
    bad[first.row_R == 1] = float("inf")
    broken = replace(update, micro_batches=(replace(first, advantages_R=bad), *others))
    return replace(step, updates=(broken,)), first.rows[1]


def test_a_row_that_spoils_the_gradient_is_named_and_nothing_moves():
    model = tiny_model(torch.float32)
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm())
    step = make_step(make_groups())
    broken, row = spoiled(step)
    before = weights(model)
    with pytest.raises(TrainError) as caught:
        trainer.step(broken)
    assert str(row) in str(caught.value)
    assert str(step.updates[0].micro_batches[0].rows[0]) not in str(caught.value)
    assert same(weights(model), before)
    assert trainer.version == 0
    trainer.step(step)  # and the trainer goes on with good rows
    assert not same(weights(model), before)


def test_a_policy_that_gives_nan_is_refused_before_any_gradient():
    model = tiny_model(torch.float32)
    step = make_step(make_groups())
    row = step.updates[0].micro_batches[0].rows[0]
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm())
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(TrainError, match=r"log-probability of nan") as caught:
        trainer.step(step)
    assert str(row) in str(caught.value)


def test_rows_of_another_temperature_are_refused():
    trainer = Trainer(
        tiny_model(torch.float32), train=TRAIN, algorithm=algorithm(), temperature=0.7
    )
    with pytest.raises(TrainError, match=r"temperature 1\.0, the trainer expects 0\.7"):
        trainer.step(make_step(make_groups()))


class KeepRates(TorchBackend):
    """Remembers the learning rate of every optimizer step."""

    def __init__(self, model, train):
        super().__init__(model, train=train, gradient_checkpointing=False)
        self.rates = []

    def step(self, *, learning_rate, grad_norm):
        self.rates.append(learning_rate)
        super().step(learning_rate=learning_rate, grad_norm=grad_norm)


def test_every_optimizer_step_has_its_rate_also_after_a_resume(tmp_path):
    """Fails if all updates of a step share a rate, or a resume begins elsewhere."""
    # Peak after one step of four; half of the way down after one more, zero after the last.
    rates = [1 / 3, 2 / 3, 1.0, 5 / 6, 2 / 3, 1 / 2, 1 / 3, 1 / 6]
    train = TrainSection(learning_rate=1.0, schedule="linear", warmup_steps=1, steps=4)
    tiny = TrainSection(**{**train.model_dump(exclude_unset=True), "learning_rate": 1e-4})
    cut = {"minibatches": 2, "micro_batch_tokens": 64}
    steps = [make_step(make_groups(seed), **cut) for seed in range(4)]
    assert {len(step.updates) for step in steps} == {2}
    found, logged = [], []

    def go_on(part, checkpoint=None):
        model = tiny_model(torch.float32)
        backend = KeepRates(model, tiny)
        trainer = Trainer(model, train=tiny, algorithm=algorithm(), backend=backend)
        if checkpoint is not None:
            trainer.load(checkpoint)
        logged.extend(trainer.step(step).result()["train/learning_rate"] for step in part)
        found.extend(backend.rates)
        return trainer

    go_on(steps[:1]).save(tmp_path)
    go_on(steps[1:], tmp_path)
    assert found == pytest.approx([1e-4 * rate for rate in rates])
    means = [(a + b) / 2 for a, b in zip(rates[::2], rates[1::2], strict=True)]
    assert logged == pytest.approx([1e-4 * rate for rate in means])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resuming_continues_to_the_bit(tmp_path, dtype):
    train = TrainSection(learning_rate=1e-2, schedule="cosine", warmup_steps=1, steps=4)
    steps = [make_step(make_groups(seed)) for seed in range(4)]

    def run(model, trainer, part):
        return [trainer.step(step).result()["train/loss"] for step in part]

    straight = tiny_model(dtype)
    trainer = Trainer(straight, train=train, algorithm=algorithm())
    losses = run(straight, trainer, steps)

    stopped = tiny_model(dtype)
    trainer = Trainer(stopped, train=train, algorithm=algorithm())
    run(stopped, trainer, steps[:2])
    torch.manual_seed(123)
    trainer.save(tmp_path)
    drawn = torch.rand(3)

    # Another seed: everything must come from the file.
    resumed = tiny_model(dtype, seed=9)
    trainer = Trainer(resumed, train=train, algorithm=algorithm())
    trainer.load(tmp_path)
    assert torch.equal(torch.rand(3), drawn)
    assert trainer.version == 2
    assert same(weights(resumed), weights(stopped))
    # What was loaded must not live in the file: reading a mapped page past its end is a SIGBUS.
    for part in (tmp_path / PARTS_FOLDER).iterdir():
        part.write_bytes(b"")
    assert run(resumed, trainer, steps[2:]) == losses[2:]
    assert same(weights(resumed), weights(straight))


def test_saving_leaves_one_file_and_loading_says_what_is_wrong(tmp_path):
    trainer = Trainer(tiny_model(torch.float32), train=TRAIN, algorithm=algorithm())
    with pytest.raises(RunError, match="holds no trainer state"):
        trainer.load(tmp_path)
    trainer.save(tmp_path)
    trainer.save(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "part-00001-of-00001.safetensors",
        PARTS_FOLDER,
        HEAD_FILE,
    ]
    other = Trainer(tiny_model(torch.float32, tied=False), train=TRAIN, algorithm=algorithm())
    with pytest.raises(RunError, match=r"lacks \[lm_head.weight\]"):
        other.load(tmp_path)
    (part,) = (tmp_path / PARTS_FOLDER).iterdir()
    whole = part.read_bytes()
    for torn in (b"torn", whole[:-1]):
        part.write_bytes(torn)
        with pytest.raises(RunError, match=r"cannot be read.*is not whole"):
            trainer.load(tmp_path)
    part.unlink()
    with pytest.raises(RunError, match="was saved in 1 parts, and 0 are there"):
        trainer.load(tmp_path)
    (tmp_path / HEAD_FILE).write_bytes(b"torn")
    with pytest.raises(RunError, match="cannot be read"):
        trainer.load(tmp_path)


def test_a_saved_checkpoint_loads_as_an_ordinary_model(tmp_path):
    model = tiny_model(torch.bfloat16)
    Trainer(model, train=TRAIN, algorithm=algorithm()).step(make_step(make_groups()))
    save_checkpoint(model, None, tmp_path)
    save_checkpoint(model, None, tmp_path)
    assert not list(tmp_path.glob(".writing*"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert loaded.config._attn_implementation != "agentrl_packed_rows"
    assert same(weights(loaded), weights(model))


@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_to_send_are_those_of_a_checkpoint_by_name(tmp_path, tied):
    """Fails if the tied head comes along under a second name, or if values lag behind the step."""
    model = tiny_model(torch.bfloat16, tied=tied)
    trainer = Trainer(model, train=TRAIN, algorithm=algorithm())
    names = [name for name, _ in trainer.weights()]
    trainer.step(make_step(make_groups()))
    sent = dict(trainer.weights())
    assert list(sent) == names
    save_checkpoint(model, None, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert sent.keys() == saved.keys()
    assert same(sent, saved)
    assert ("lm_head.weight" in sent) == (not tied)
    assert not any(tensor.requires_grad for tensor in sent.values())
