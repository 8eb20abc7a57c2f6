"""New weights into a real vLLM server, and what its requests do with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.engine import WeightTicket
from agentrl.errors import EngineError, EngineRefused, SyncError
from agentrl.serving.vllm import VllmEngine
from agentrl.types import SamplingParams
from tests.serving.tiny_vllm import log_probs, weights_of
from tests.serving.vllm.test_engine import long_turn, sampled, until_sampled

PROMPT = tuple(token % 250 for token in range(3, 303))


def stage(sender: object, folder: Path, version: int) -> WeightTicket:
    return sender.send(weights_of(folder), version)  # type: ignore[attr-defined]


@pytest.fixture
def engine(updated_engine: VllmEngine) -> VllmEngine:
    return updated_engine


async def test_a_frozen_turn_goes_on_with_new_weights_exactly(
    engine: VllmEngine, vllm_model_dir: Path, other_model_dir: Path, tmp_path: Path
) -> None:
    """Fails if tokens after the update are sampled over keys and values of the weights before, or
    if a prompt that comes later finds those in the prefix cache."""
    from agentrl.sync.disk.disk import DiskSender

    sender = DiskSender(tmp_path / "weights")
    await engine.prepare_weights("disk", {"directory": str(tmp_path / "weights")})
    ticket = stage(sender, other_model_dir, 3)
    sampling = SamplingParams(max_tokens=7500, temperature=0.9, seed=8)
    turn = await long_turn(engine, PROMPT, sampling)
    await engine.pause()
    await engine.load_weights(ticket)
    assert engine.version == 3
    before = await sampled(engine)
    await engine.resume()
    await until_sampled(engine, turn, before + 200)
    await engine.abort_all()
    answer = await turn
    sender.close()

    versions = answer.policy_versions
    switch = versions.index(3)
    assert 0 < switch <= len(versions) - 200
    assert set(versions[:switch]) == {0}
    assert set(versions[switch:]) == {3}
    old = log_probs(vllm_model_dir, PROMPT, answer.ids[:switch], temperature=0.9)
    assert answer.log_probs[:switch] == pytest.approx(old, abs=1e-4)
    context = (*PROMPT, *answer.ids[:switch])
    new = log_probs(other_model_dir, context, answer.ids[switch:], temperature=0.9)
    assert answer.log_probs[switch:] == pytest.approx(new, abs=1e-4)

    later = await engine.generate(PROMPT, SamplingParams(max_tokens=20, seed=1), "t")
    assert later.policy_versions == (3,) * 20
    expected = log_probs(other_model_dir, PROMPT, later.ids, temperature=1.0)
    assert later.log_probs == pytest.approx(expected, abs=1e-4)


async def test_a_failed_update_takes_the_engine_out_until_one_succeeds(
    engine: VllmEngine, vllm_model_dir: Path, tmp_path: Path
) -> None:
    """Fails if a server with torn weights samples, or lets frozen turns wait for ever."""
    from agentrl.sync.disk.disk import DiskSender

    sender = DiskSender(tmp_path / "weights")
    good = stage(sender, vllm_model_dir, 5)
    info = {**good.info, "folder": "version-00000099"}
    bad = WeightTicket(backend="disk", version=4, info=info, checksum=good.checksum)
    turn = await long_turn(engine)
    await engine.pause()
    with pytest.raises(SyncError):
        await engine.load_weights(bad)
    with pytest.raises(EngineError, match=r"was lost: .* failed to take version 4"):
        await turn
    with pytest.raises(EngineError, match="stays paused until an update succeeds"):
        await engine.resume()
    with pytest.raises(EngineRefused, match="failed to take version 4"):
        await engine.generate(PROMPT, SamplingParams(), "s")
    health = await engine.health()
    assert not health.ready
    assert "failed to take version 4" in health.detail

    await engine.load_weights(good)
    await engine.resume()
    assert (await engine.health()).ready
    answer = await engine.generate(PROMPT, SamplingParams(max_tokens=2), "s")
    assert answer.policy_versions == (5, 5)
    sender.close()
