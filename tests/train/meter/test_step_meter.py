"""Speed and memory of a step in its metrics."""

from types import SimpleNamespace

import pytest
import torch

from agentrl.config.schema import TrainSection
from agentrl.metrics.bag import MetricBag
from agentrl.metrics.names import find_metric
from agentrl.train.meter.device import DeviceMeter
from agentrl.train.meter.flops import ModelFlops
from agentrl.train.meter.step_meter import StepMeter
from agentrl.train.trainer import Trainer
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model

STEP = make_step(make_groups(), minibatches=2)


def test_a_step_tells_its_operations_and_their_speed() -> None:
    model = tiny_model(torch.float32)
    found = Trainer(model, train=TrainSection(), algorithm=algorithm()).step(STEP).result()
    flops = ModelFlops.of(model)
    assert flops is not None
    operations = sum(flops.of_update(update) for update in STEP.updates)
    assert found["perf/tflop"] == pytest.approx(operations / 1e12)
    seconds = sum(update.num_tokens for update in STEP.updates) / found["train/tokens_per_second"]
    assert found["perf/tflops_per_device"] == pytest.approx(operations / 1e12 / seconds)
    assert 0.05 < found["perf/host_peak_gb"] < 100
    assert "perf/mfu" not in found  # nothing is known of this processor


def test_the_peak_of_a_gpu_and_the_ranks_divide_the_speed() -> None:
    """Fails if ranks are counted as one device, or the time as that of one of them."""
    meter, bag = StepMeter([tiny_model(torch.bfloat16)]), MetricBag()
    meter._device.peak_flops = lambda dtype: 2e12  # type: ignore[method-assign]
    for _ in range(4):
        rank = MetricBag()
        meter.end(STEP.updates, rank)
        bag.merge(rank)
    meter.note_speed(bag, tokens=100, seconds=0.5, ranks=4)
    found = bag.result()
    assert found["perf/train_tokens_per_second_per_device"] == 50
    assert found["perf/tflops_per_device"] == pytest.approx(found["perf/tflop"] / 2)
    assert found["perf/mfu"] == pytest.approx(found["perf/tflop"] / 2 / 2)


def test_memory_of_a_gpu_is_that_of_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a phase is given the peak of the one before it."""
    gpu = SimpleNamespace(peak=3e9, now=1e9, load=50)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: gpu.peak)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: gpu.peak + 1e9)

    def reset(device: torch.device) -> None:
        gpu.peak = gpu.now

    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset)
    meter, bag = DeviceMeter(torch.device("cuda", 0)), MetricBag()
    meter.take("rest", bag)
    gpu.peak = 2e9
    meter.take("train", bag)
    meter.take("rest", bag)
    assert bag.result() == {
        "perf/memory_peak_gb/rest": 3.0,
        "perf/memory_reserved_gb/rest": 4.0,
        "perf/memory_peak_gb/train": 2.0,
        "perf/memory_reserved_gb/train": 3.0,
    }
    assert all(find_metric(name) is not None for name in bag.result())
