"""After its first sync each engine is compared with the trainer, token by token."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from agentrl.config.schema import TrainSection
from agentrl.errors import EngineError, WeightsDoNotFit
from agentrl.metrics import MetricBag
from agentrl.runtime.assembly.weight_check import (
    FirstSyncCheck,
    Turn,
    most_apart,
    probe_prompts,
)
from agentrl.runtime.engine_wait import push_or_wait, to_the_end
from agentrl.serving.vllm.check import MAX_DIFFERENCE
from agentrl.sync.wire.checksum import weight_digests
from agentrl.testing.byte_tokenizer import ByteTokenizer
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.logprob_worker import turn_log_probs
from agentrl.types import FinishReason, Generation, SamplingParams
from tests.train.tiny_llama import tiny_model


class ModelEngine:
    """Samples from a model of its own; what a push brings is not looked at."""

    def __init__(self, model: Any) -> None:
        self.model, self.turns, self.broken = model, 0, False

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str
    ) -> Generation:
        if self.broken:
            raise EngineError("it is away")
        self.turns += 1
        ids, found = list(prompt_ids), []
        draw = torch.Generator().manual_seed(sampling.seed or 0)
        with torch.no_grad():
            for _ in range(4):
                table = torch.log_softmax(self.model(torch.tensor([ids])).logits[0, -1].float(), -1)
                ids.append(int(torch.multinomial(table.exp(), 1, generator=draw)))
                found.append(float(table[ids[-1]]))
        return Generation(
            ids=tuple(ids[len(prompt_ids) :]),
            log_probs=tuple(found),
            policy_versions=(Client.version,) * 4,
            finish_reason=FinishReason.LENGTH,
        )

    async def end_session(self, session_id: str) -> None:
        """Nothing is kept."""

    async def weight_digests(self) -> dict[str, list[Any]]:
        """Of all but what a kernel might have packed."""
        named = self.model.named_parameters()
        return weight_digests((name, tensor) for name, tensor in named if "gate_proj" not in name)


class Client:
    """Engines by name, and how often they were paused."""

    version = 0

    def __init__(self, **engines: ModelEngine) -> None:
        self.engines, self.pauses = engines, 0

    def active(self) -> list[str]:
        return list(self.engines)

    def engine(self, name: str) -> ModelEngine:
        return self.engines[name]

    async def pause_all(self) -> None:
        self.pauses += 1

    async def resume_all(self) -> None:
        """Counted when they were paused."""


def checked(client: Any, model: Any, *, shared: bool = False) -> FirstSyncCheck:
    backend = TorchBackend(model, train=TrainSection(), gradient_checkpointing=False)

    async def push(version: int) -> MetricBag:
        Client.version = version
        return MetricBag()

    async def score(turns: Sequence[Turn]) -> list[list[float]]:
        return turn_log_probs(backend, turns)

    prompts = [[i % 60 for i in ids] for ids in probe_prompts(ByteTokenizer())]

    async def sent() -> dict[str, list[Any]]:
        return weight_digests(backend.weights())

    return FirstSyncCheck(push, client, score, sent, prompts, shared=shared)


async def test_an_engine_in_another_number_type_passes_and_is_asked_once() -> None:
    """Fails if bfloat16 beside float32 is an alarm, or if every sync costs turns. One that joins
    later is compared after the first sync that it takes part in."""
    model = tiny_model(torch.float32)
    client = Client(a=ModelEngine(copy.deepcopy(model).to(torch.bfloat16)))
    check = checked(client, model, shared=True)
    found = (await check(1)).result()
    assert 0 < found["sync/first_difference"] < MAX_DIFFERENCE / 4
    asked = client.engines["a"].turns
    assert asked == 8
    assert client.pauses == 1
    client.engines["b"] = ModelEngine(model)
    assert (await check(2)).result()["sync/first_difference"] < 1e-5
    assert client.engines["a"].turns == asked


async def test_a_run_stops_whose_engine_holds_something_else() -> None:
    """Fails if the run goes on, or waits for the engine to come back with the weights that it has:
    `push_or_wait` tries once more after every other failed sync."""
    model, other = tiny_model(torch.float32), tiny_model(torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter))
    client: Any = Client(good=ModelEngine(model), bad=ModelEngine(other))
    check = checked(client, model)
    with pytest.raises(WeightsDoNotFit, match=r"engine bad .* version 1 .* nats from the trainer"):
        await push_or_wait(client, check, 1, wait_s=600.0, guard=to_the_end)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("layers.1.mlp.down_proj", r"these differ: model.layers.1.mlp.down_proj.weight\."),
        ("layers.1.mlp.gate_proj", "and are right; the others are packed or joined there"),
    ],
)
async def test_weights_that_differ_are_named_where_they_can_be_read_back(
    part: str, words: str
) -> None:
    """Fails if the user is left to look for the layer that a kernel has not taken."""
    model = tiny_model(torch.float32)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.get_submodule(part).weight.add_(20.0)
    with pytest.raises(
        WeightsDoNotFit, match=rf"weights can be read back as they were sent.*{words}"
    ):
        await checked(Client(a=ModelEngine(other)), model)(1)


async def test_an_engine_that_is_away_is_compared_later(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(torch.float32)
    client = Client(a=ModelEngine(model))
    check = checked(client, model)
    client.engines["a"].broken = True
    with caplog.at_level(logging.INFO):
        assert "sync/first_difference" not in (await check(1)).result()
    assert "a was not compared with the trainer: it is away; it is asked again" in caplog.text
    client.engines["a"].broken = False
    await asyncio.sleep(0)
    assert "sync/first_difference" in (await check(2)).result()


async def test_engines_too_busy_for_it_cost_one_wait_and_are_let_off(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if each busy engine is waited for in turn, or anew after every sync of a run."""
    monkeypatch.setattr("agentrl.runtime.assembly.weight_check._PROBE_S", 0.2)
    model = tiny_model(torch.float32)
    started: list[str] = []

    class Busy(ModelEngine):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str
        ) -> Generation:
            started.append(session_id)
            await asyncio.Event().wait()
            raise AssertionError

    check = checked(Client(**{name: Busy(model) for name in "abcd"}), model)
    with caplog.at_level(logging.WARNING):
        for version in range(1, 5):
            await check(version)
            if version == 1:
                assert not caplog.text
    assert len(started) == 2 * 4 * 8
    assert sorted(record.getMessage()[0] for record in caplog.records) == list("abcd")
    assert caplog.text.count("not asked again") == 4


def test_servers_whose_options_ask_for_quantised_weights_may_be_further_apart() -> None:
    assert most_apart({"tensor_parallel_size": 2}) == MAX_DIFFERENCE
    for options in ({"quantization": "fp8"}, {"kv-cache-dtype": "fp8"}):
        assert most_apart(options) > MAX_DIFFERENCE
