"""A real vLLM server that is shown images: ids and numbers of the trainer, also after a sync.

Runs have their agent loops in one process, in child processes and on Ray.

One server for everything here: it takes most of a minute to start.
"""

from __future__ import annotations

import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.chat import build_chat
from agentrl.config import RunConfig
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.data import TrajectoryStore
from agentrl.errors import EngineRefused
from agentrl.images import ImageFolder, message
from agentrl.metrics.sinks import read_metrics
from agentrl.models.vision.reader import VisionReader, attach_reader, load_reader
from agentrl.rollout import RolloutWorker
from agentrl.runtime.launch import train
from agentrl.runtime.progress import Progress
from agentrl.serving.connect import connect_engine
from agentrl.serving.vllm import VllmEngine
from agentrl.serving.vllm.launcher import VllmServer
from agentrl.sync.disk.disk import DiskSender
from agentrl.train.model.lora import merged_weights
from agentrl.types import ImageSpan, SamplingParams, Trajectory
from tests.chat.chat_models import seeing_tokenizer
from tests.models.vision.test_run import REWARD, settings
from tests.models.vision.test_seeing import TASK, ThreePictures, log_probs, sampled
from tests.models.vision.tiny_seeing import checkpoint, model_of, picture
from tests.runtime.tiny_project import BACKEND
from tests.serving.tiny_vllm import SECRET, require_vllm, tiny_command

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.ray,
    pytest.mark.slow,
]

NAME = "idefics3"
"""The one family here that the vLLM of the tests can load: others import torchvision there."""

RUNTIMES: dict[str, dict[str, Any]] = {
    "one": {"kind": "local"},
    "children": {"kind": "local", "worker_processes": 1},
    "ray": {"kind": "ray", "rollout_workers": 1},
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[VllmServer]:
    require_vllm()
    command = tiny_command(checkpoint(NAME, tmp_path / "model"), context=1024)
    server = VllmServer(command, name="seeing", log=tmp_path / "server.log", start_limit_s=240)
    await server.start()
    yield server
    await server.stop()


async def test_a_server_is_shown_images_as_the_trainer_is(
    server: VllmServer, tmp_path: Path
) -> None:
    tokenizer = seeing_tokenizer(NAME)
    reader = load_reader(str(tmp_path / "model"), tokenizer)
    assert reader is not None
    reader.folder = ImageFolder(tmp_path / "images")
    model = model_of(NAME)
    attach_reader(model, reader)
    engine = await connect_engine(
        server.url, name="seeing", secret=SECRET, probe_limit_s=30, pictures=reader
    )
    assert isinstance(engine, VllmEngine)
    before = await rollouts(engine, reader)
    agree(model, before)
    health = await engine.health()
    assert (health.metrics or {})["prefix_hits"] > len(before[0].prompt_ids)

    await refusals(engine, reader)

    # A server that has dropped its images is given them again.
    with urllib.request.urlopen(
        urllib.request.Request(server.url + "/reset_mm_cache", method="POST"), timeout=30
    ) as answer:
        assert answer.status == 200
    again = await rollouts(engine, reader)
    assert [row.response_ids for row in again] == [row.response_ids for row in before]

    # Only the tower changes: features that the server keeps of older weights would show.
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "vision_model" in name and weight.ndim > 1:
                weight.mul_(-1.5)
    sender = DiskSender(tmp_path / "weights")
    await engine.pause()
    await engine.load_weights(sender.send(merged_weights(model), 1))
    await engine.resume()
    after = await rollouts(engine, reader)
    agree(model, after)
    assert [row.response_ids for row in after] != [row.response_ids for row in before]
    assert {version for row in after for version in row.policy_versions} == {-1, 1}
    sender.close()
    await engine.close()

    for name, runtime in RUNTIMES.items():
        await whole_run(server, tmp_path, name, runtime)


async def rollouts(engine: VllmEngine, reader: VisionReader) -> list[Trajectory]:
    """Three turns with images each, sampled by the server."""
    chat = build_chat(seeing_tokenizer(NAME), ChatSection(), images=reader)
    worker = RolloutWorker(
        generator=engine,
        chat=chat,
        parser=None,
        make_env=ThreePictures,
        section=RolloutSection(
            max_turn_tokens=5, max_response_tokens=400, max_context_tokens=512, retries=0
        ),
    )
    sampling = SamplingParams(max_tokens=5, stop_token_ids=chat.stop_token_ids)
    group = await worker.run_group(TASK, group_id="g", n=2, sampling=sampling, seed=3)
    rows = list(group.trajectories)
    assert all(row.rule.reward_trusted for row in rows), rows[0].termination_detail
    assert all(len(row.images) == 4 for row in rows)
    return [replace(row, reward=float(index + 1)) for index, row in enumerate(rows)]


def agree(model: Any, rows: list[Trajectory]) -> None:
    for row, ours in zip(rows, log_probs(model, rows), strict=True):
        torch.testing.assert_close(ours, sampled(row), rtol=0, atol=2e-5)


async def refusals(engine: VllmEngine, reader: VisionReader) -> None:
    """Images that are not those of the ids are named, here or by what the server made of them."""
    chat = build_chat(seeing_tokenizer(NAME), ChatSection(), images=reader)
    messages = [message("user", [picture(1), " and ", picture(2)])]
    ids = chat.render_prompt(messages)
    one, two = chat.image_spans(ids, messages)
    sampling = SamplingParams(max_tokens=2, stop_token_ids=chat.stop_token_ids, seed=1)

    async def ask(*images: ImageSpan, prompt: tuple[int, ...] = ids) -> None:
        await engine.generate(prompt, sampling, "s", images)

    await ask(one, two)
    with pytest.raises(EngineRefused, match=r"image 1 .* has \d+ placeholders .*, expected 8"):
        await ask(one, replace(two, grid=(2, 2, 2)))
    small = picture(9, width=80, height=20)
    reader.expand(small)
    with pytest.raises(EngineRefused, match=r"they differ from token \d+, in image 0"):
        await ask(replace(one, digest=small.digest), two)
    with pytest.raises(EngineRefused, match=r"1 placeholders of images .* belong to none"):
        await ask(one, two, prompt=(*ids, reader.placeholder_id))
    await ask(one, two)


def settings_on(server: VllmServer, folder: Path, runtime: dict[str, Any]) -> dict[str, Any]:
    (folder / "long.py").write_text(REWARD)
    (folder / "nothing.py").write_text(BACKEND)
    serving = {"engine": "external", "urls": [server.url], "max_batch_size": 8}
    return settings(folder) | {"serving": serving, "runtime": runtime}


async def whole_run(server: VllmServer, folder: Path, name: str, runtime: dict[str, Any]) -> None:
    """Two steps with a sync between them, by our own command."""
    wanted = settings_on(server, folder, runtime)
    wanted["run"] |= {"name": name}
    wanted["train"] |= {"steps": 2, "freeze": []}
    await train(RunConfig.model_validate(wanted), base=folder, progress=Progress())
    run = folder / "runs" / name
    rows = [stored.trajectory for stored in TrajectoryStore(run / "trajectories").read("train")]
    kept = {path.name for path in (run / "images").iterdir()}
    assert kept == {span.digest for row in rows for span in row.images}
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "reward" in line]
    assert len(lines) == 2
    for step in lines:
        assert step["rollout/termination/engine_failed"] == 0
        assert 0 < step["sampling/sampling_logp_difference/max"] < 5e-5
