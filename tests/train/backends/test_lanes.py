"""Micro-batches side by side: the gradient of one after the other, and the same bits every time."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.batch.records import MicroBatch, StepBatch
from agentrl.config.schema import CriticSection, TrainSection
from agentrl.errors import TrainError
from agentrl.train.backends.lanes import (
    LANE_BYTES,
    MOST_LANES,
    default_lanes,
    in_lanes,
    lane_count,
)
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.critic import Critic
from agentrl.train.frozen_policy import FrozenPolicy
from agentrl.train.logprob_worker import LogProbWorker
from agentrl.train.model import reading
from agentrl.train.model.lora import add_adapters
from agentrl.train.model.value_head import ValueModel
from agentrl.train.trainer import Trainer
from tests.train.test_trainer import spoiled
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model

TRAIN = TrainSection(learning_rate=1e-3)


def step_of(seed: int = 0) -> StepBatch:
    """Several micro-batches, of several groups."""
    return make_step(make_groups(seed, sizes=(4, 5, 6)), micro_batch_tokens=48)


def trained(model: Any, *, lanes: int, steps: int = 2, checkpointing: bool = False) -> Any:
    """The trainer after some steps, and their metrics."""
    backend = TorchBackend(model, train=TRAIN, gradient_checkpointing=checkpointing, lanes=lanes)
    trainer = Trainer(None, train=TRAIN, algorithm=algorithm(), backend=backend)
    return trainer, [trainer.step(step_of(seed)).result() for seed in range(steps)]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_lanes_change_rounding_and_nothing_else(dtype: torch.dtype, checkpointing: bool) -> None:
    """Fails if a gradient is lost, added twice, or added to that of another step."""
    one, three = (tiny_model(dtype) for _ in range(2))
    _, want = trained(one, lanes=1, checkpointing=checkpointing)
    _, got = trained(three, lanes=3, checkpointing=checkpointing)
    close = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    for (name, ours), theirs in zip(three.named_parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=close, atol=close, msg=name)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ("train/grad_norm", "train/loss", "entropy"):
            assert ours[name] == pytest.approx(theirs[name], rel=max(close, 1e-9), abs=1e-9)


def test_the_same_batch_gives_the_same_bits() -> None:
    """Fails if sums depend on which thread is faster."""
    first, *others = (tiny_model(torch.bfloat16) for _ in range(4))
    _, want = trained(first, lanes=3)
    for model in others:
        _, got = trained(model, lanes=3)
        assert [m["train/grad_norm"] for m in got] == [m["train/grad_norm"] for m in want]
        for ours, theirs in zip(model.parameters(), first.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_old_log_probs_and_reference_have_the_bits_of_the_trainer() -> None:
    """Fails if lanes compute rows in other pieces, or under other weights, than the update does."""
    step, model = step_of(), tiny_model(torch.float32)
    backend = TorchBackend(model, train=TRAIN, gradient_checkpointing=False, lanes=3)
    trainer = Trainer(None, train=TRAIN, algorithm=algorithm(), backend=backend)
    trainer.step(step)
    shares = [micro for update in step.updates for micro in backend.share(update).micro_batches]
    assert len(shares) >= 3
    own = LogProbWorker(backend, name="policy").row_log_probs(shares)
    copied = tiny_model(torch.float32)
    copied.load_state_dict(model.state_dict())
    frozen = LogProbWorker(FrozenPolicy(copied, lanes=3), name="reference").row_log_probs(shares)
    assert own.keys() == frozen.keys() == {row for micro in shares for row in micro.rows}
    assert all((own[key] == frozen[key]).all() for key in own)


def test_no_lane_tries_how_it_reads_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial switches the config, which lanes share, while others compute."""
    tried: list[str] = []
    trial = reading._tried

    def noted(*arguments: Any) -> Any:
        tried.append(threading.current_thread().name)
        return trial(*arguments)

    monkeypatch.setattr(reading, "_tried", noted)
    trained(tiny_model(), lanes=3, steps=1)
    assert tried == [threading.current_thread().name]


def test_adapters_and_tied_weights_are_shared() -> None:
    """Fails if a copy holds weights of its own, which the optimizer would not move."""
    models = []
    for lanes in (1, 2):
        torch.manual_seed(1)
        model = tiny_model(torch.float32)
        lora = TrainSection.model_validate({"lora": 4}).lora
        assert lora is not None
        add_adapters(model, lora, base="tiny")
        trained(model, lanes=lanes)
        models.append({name: param for name, param in model.named_parameters()})
    moved = [name for name in models[0] if "lora_B" in name and bool(models[0][name].any())]
    assert moved
    for name, want in models[0].items():
        torch.testing.assert_close(models[1][name], want, rtol=1e-4, atol=1e-5, msg=name)


def test_weights_that_are_given_other_memory_are_found_there() -> None:
    """Fails if copies go on with the memory that the model was made with."""
    model, plain = tiny_model(torch.float32), tiny_model(torch.float32)
    for each in (model, plain):
        trainer, _ = trained(each, lanes=2 if each is model else 1, steps=0)
        with torch.no_grad():
            for param in each.parameters():
                param.data = param.data * 1.5
        norm = trainer.step(step_of()).result()["train/grad_norm"]
        each.norm = norm
    assert model.norm == pytest.approx(plain.norm, rel=1e-4)


def test_a_failure_in_a_lane_is_that_of_the_step() -> None:
    """Fails if it is lost in its thread, or its gradients reach the next step."""
    model, plain = tiny_model(torch.float64), tiny_model(torch.float64)
    backend = TorchBackend(model, train=TRAIN, gradient_checkpointing=False, lanes=3)
    trainer = Trainer(None, train=TRAIN, algorithm=algorithm(), backend=backend, temperature=1.0)
    bad = make_step(make_groups(0, sizes=(4, 5, 6)), micro_batch_tokens=48)
    bad.updates[0].micro_batches[-1].temperature_N[:] = 0.5
    with pytest.raises(TrainError, match=r"sampled at temperature 0\.5"):
        trainer.step(bad)
    trainer.step(step_of())
    trained(plain, lanes=1, steps=1)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_lanes_work_at_once_and_keep_gradients_off() -> None:
    """Fails if one lane does all the work, or a thread forgets `no_grad`."""
    micros = step_of().updates[0].micro_batches
    meeting = threading.Barrier(2, timeout=120)

    def work(lane: str, micro: MicroBatch) -> tuple[str, int, bool]:
        if micro in (micros[0], micros[1]):
            meeting.wait()
        return lane, micro.num_tokens, torch.is_grad_enabled()

    assert len(micros) >= 2
    with torch.no_grad():
        found = in_lanes(["a", "b"], micros, work, cores=2)
    assert [tokens for _, tokens, _ in found] == [micro.num_tokens for micro in micros]
    assert {lane for lane, _, _ in found} == {"a", "b"}
    assert not any(enabled for _, _, enabled in found)
    assert in_lanes(["a", "b"], [], work, cores=2) == []


def test_the_failure_of_the_first_micro_batch_is_raised_whichever_lane_is_faster() -> None:
    """Fails if the lane that fails first decides, which would name other rows every time."""
    micros = step_of().updates[0].micro_batches
    late = threading.Event()

    def work(lane: str, micro: MicroBatch) -> None:
        index = micros.index(micro)
        if index == 0:
            # The others fail meanwhile; this one must not be given up for them.
            assert late.wait(120)
            raise TrainError("the first")
        late.set()
        raise TrainError(f"number {index}")

    with pytest.raises(TrainError, match="the first"):
        in_lanes(["a", "b"], micros, work, cores=2)


def test_an_interrupt_ends_all_lanes_before_it_is_raised() -> None:
    """Fails if a lane goes on computing over weights that the end of the run is saving."""
    micros = step_of().updates[0].micro_batches * 20
    main, begun, ended = threading.main_thread(), [], []

    def work(lane: str, micro: MicroBatch) -> None:
        begun.append(lane)
        if len(begun) == 2:
            assert main.ident is not None
            signal.pthread_kill(main.ident, signal.SIGINT)
        # The signal is taken while the main thread waits for the lanes.
        time.sleep(0.2)
        ended.append(lane)

    with pytest.raises(KeyboardInterrupt):
        in_lanes(["a", "b"], micros, work, cores=2)
    assert 2 <= len(begun) == len(ended) < len(micros)


def test_a_row_without_a_finite_gradient_is_named_in_lanes_too() -> None:
    """Fails if the gradient of a single row is left in a copy of the model."""
    model = tiny_model(torch.float32)
    trainer, _ = trained(model, lanes=3, steps=0)
    broken, row = spoiled(step_of())
    with pytest.raises(TrainError, match="gradient norm of the policy is nan") as caught:
        trainer.step(broken)
    assert f"not finite: {row};" in str(caught.value)


def test_saved_weights_and_moments_are_those_of_all_lanes(tmp_path: Path) -> None:
    """Fails if copies keep weights of their own after a state was loaded."""
    whole, parted = tiny_model(torch.bfloat16), tiny_model(torch.bfloat16)
    trained(whole, lanes=2, steps=2)
    first, _ = trained(parted, lanes=2, steps=1)
    first.save(tmp_path)
    again = tiny_model(torch.bfloat16, seed=9)
    second, _ = trained(again, lanes=2, steps=0)
    second.load(tmp_path)
    second.step(step_of(1))
    for ours, theirs in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_critic_has_lanes_too() -> None:
    """Fails if its gradient lacks what other lanes have computed."""
    section = algorithm(preset="ppo", advantage_estimator="gae", loss_agg_mode="token-mean")
    found = []
    for lanes in (1, 3):
        train = TrainSection.model_validate(
            {"learning_rate": 1e-3, "backend": {"kind": "torch", "lanes": lanes}}
        )
        torch.manual_seed(0)
        value_model = ValueModel(tiny_model(seed=5).base_model)
        torch.nn.init.normal_(value_model.value_head.weight)
        critic = Critic(value_model, section=CriticSection(learning_rate=1e-3), train=train)
        policy = tiny_model()
        trainer = Trainer(policy, train=train, algorithm=section, critic=critic)
        step = make_step(make_groups(0, sizes=(4, 5, 6)), algorithm=section, micro_batch_tokens=48)
        norm = trainer.step(step).result()["critic/grad_norm"]
        found.append([norm, *policy.parameters(), *value_model.parameters()])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


def test_a_model_whose_positions_depend_on_length_has_one_lane() -> None:
    """Fails if lanes change each other's rotary embedding."""
    model = tiny_model(torch.float32)
    assert lane_count(model, 2) == 2
    model.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert lane_count(model, 2) == 1


@pytest.mark.parametrize(
    ("cores", "parameters", "lanes"),
    [
        (1, 10, 1),
        (2, 10, 2),
        (64, 10, MOST_LANES),
        (3, 10, 3),
        (5, 10, 4),
        (7, 10, 3),
        (6, 10, 3),  # of two cores each, not four of one
        (4, LANE_BYTES // 4, 2),
        (4, LANE_BYTES, 1),
    ],
)
def test_lanes_are_as_many_as_cores_and_memory_allow(
    cores: int, parameters: int, lanes: int
) -> None:
    assert default_lanes(cores, parameters) == lanes
