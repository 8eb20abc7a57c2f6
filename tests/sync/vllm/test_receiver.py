"""New weights into a real vLLM server on the CPU, through its own API and our plugin."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from agentrl.errors import EngineError, SyncError
from agentrl.serving.client import TokenClient
from agentrl.serving.vllm import VllmEngine
from agentrl.sync.coordinator import WeightSync
from agentrl.sync.disk.disk import DiskSender
from agentrl.sync.relay.sender import RelaySender
from agentrl.sync.shm.shm import ShmSender
from agentrl.sync.wire.checksum import weight_digests
from agentrl.types import SamplingParams
from tests.serving.tiny_vllm import log_probs, weights_of, write_model

pytestmark = pytest.mark.slow

PROMPT = tuple(range(40, 72))
SHORT = SamplingParams(max_tokens=16, temperature=0.8, seed=3)
LONG = SamplingParams(max_tokens=1500, seed=1)


@pytest.fixture(scope="module")
def models(
    vllm_model_dir: Path, other_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    third = write_model(tmp_path_factory.mktemp("third-model"), seed=2)
    return [vllm_model_dir, other_model_dir, third]


@pytest.fixture
def engine(updated_engine: VllmEngine) -> VllmEngine:
    return updated_engine


async def assert_samples_from(engine: VllmEngine, folder: Path, version: int) -> None:
    answer = await engine.generate(PROMPT, SHORT, f"s{version}")
    assert set(answer.policy_versions) == {version}
    expected = log_probs(folder, PROMPT, answer.ids, temperature=0.8)
    assert answer.log_probs == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("backend", ["shm", "disk", "collective"])
async def test_log_probs_after_a_sync_are_those_of_the_new_weights(
    engine: VllmEngine, models: list[Path], tmp_path: Path, backend: str
) -> None:
    """Fails if a layer keeps its packed old weights, or the prefix cache its old keys."""
    senders = {
        "shm": ShmSender,
        "disk": lambda: DiskSender(tmp_path, dense_every=3),
        "collective": lambda: RelaySender(bucket_bytes=20_000, timeout_s=60),
    }
    client = TokenClient([engine])
    sync = WeightSync(client, senders[backend]())
    await sync.connect()
    start = engine.version
    for step, model in enumerate((1, 2, 0), start=1):
        metrics = await sync.push(lambda m=models[model]: weights_of(m), start + step)
        assert metrics.result()["sync/replicas"] == 1
        await assert_samples_from(engine, models[model], start + step)
    held, sent = await engine.weight_digests(), weight_digests(weights_of(models[0]))
    norm = "model.layers.9.input_layernorm.weight"
    assert held[norm] == sent[norm], "what it holds cannot be compared with what was sent"
    await sync.close()


async def test_a_turn_paused_in_mid_generation_reports_both_versions(
    engine: VllmEngine, models: list[Path]
) -> None:
    client = TokenClient([engine])
    sync = WeightSync(client, ShmSender())
    await sync.connect()
    for attempt in range(5):
        # How far a turn is cannot be asked: on a busy machine it may be over before the answer.
        old = engine.version
        turn = asyncio.create_task(client.generate(PROMPT, LONG, f"long{attempt}"))
        await asyncio.sleep(0.3 + 0.3 * attempt)
        await sync.push(lambda: weights_of(models[1]), old + 1, mode="keep")
        answer = await turn
        versions = answer.policy_versions
        assert set(versions) <= {old, old + 1}
        if len(set(versions)) == 2:
            break
        await sync.push(lambda: weights_of(models[0]), old + 2)
    else:
        pytest.fail("no turn was interrupted")
    assert list(versions) == sorted(versions)
    # Those of the second part are what the new weights say of the whole sequence before them.
    expected = log_probs(models[1], PROMPT, answer.ids, temperature=1.0)
    first = versions.index(old + 1)
    assert answer.log_probs[first:] == pytest.approx(expected[first:], abs=5e-4)
    assert answer.log_probs[:first] != pytest.approx(expected[:first], abs=5e-4)
    await sync.close()


async def test_weights_that_do_not_fit_are_named_and_the_next_sync_mends_it(
    engine: VllmEngine, models: list[Path]
) -> None:
    """Fails if a half-loaded layer takes old parts for new ones, or a missing name is ignored."""
    good = weights_of(models[1])
    gate = "model.layers.1.mlp.gate_proj.weight"
    shaped = [(n, torch.zeros(5, 7) if n == gate else t) for n, t in good]
    missing = [(n, t) for n, t in good if n != gate]
    unknown = [*good, ("model.layers.0.mlp.extra_proj.weight", torch.zeros(3))]
    version = engine.version + 1
    for bad, said in (
        (shaped, rf"{gate}.*\(5, 7\).*does not fit"),
        (missing, r"layers\.1\.mlp\.gate_up_proj \(8192 of 16384 elements\)"),
        (unknown, r"1 weights have no place in LlamaForCausalLM: .*extra_proj|extra_proj"),
    ):
        sender = ShmSender()
        await engine.prepare_weights("shm", sender.connect(1)[0])
        await engine.pause()
        ticket = sender.send(bad, version)
        with pytest.raises(EngineError, match=said):
            await engine.load_weights(ticket)
        with pytest.raises(EngineError):
            await engine.resume()
        sender.close()
    sender = ShmSender()
    await engine.prepare_weights("shm", sender.connect(1)[0])
    torn = sender.send(good, version)
    sender._segments[0].data[4096 + 777] ^= 1
    with pytest.raises(SyncError, match="arrived damaged"):
        await engine.load_weights(torn)
    await engine.load_weights(sender.send(good, version))
    await engine.resume()
    await assert_samples_from(engine, models[1], version)
    sender.close()


async def test_staged_weights_are_only_swapped_in_while_the_server_is_paused(
    engine: VllmEngine, models: list[Path]
) -> None:
    """Fails if an update reads again what was staged, or samples from it before it is loaded."""
    sender = ShmSender()
    await engine.prepare_weights("shm", sender.connect(1)[0])
    await assert_samples_from(engine, models[0], engine.version)
    ticket = sender.send(weights_of(models[1]), engine.version + 1)
    await engine.stage_weights(ticket)
    await assert_samples_from(engine, models[0], engine.version)
    sender._segments[0].data[4096 + 777] ^= 1  # seen by whoever reads the weights from now on
    await engine.pause()
    await engine.load_weights(ticket)
    await engine.resume()
    await assert_samples_from(engine, models[1], ticket.version)
    torn = sender.send(weights_of(models[2]), ticket.version + 1)
    sender._segments[1].data[4096 + 777] ^= 1
    await engine.stage_weights(torn)  # the load is what fails
    await engine.pause()
    with pytest.raises(SyncError, match="arrived damaged"):
        await engine.load_weights(torn)
    await engine.load_weights(sender.send(weights_of(models[2]), ticket.version + 1))
    await engine.resume()
    await assert_samples_from(engine, models[2], ticket.version + 1)
    sender.close()
