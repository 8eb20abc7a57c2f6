"""Images from the environment to the gradient: one set of ids, the same pixels, the same numbers.

Real parts throughout: the rollout loop, the embedded engine, the batch stage and the torch backend,
over tiny models of each family with random weights.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.batch import StepSettings, build_step
from agentrl.batch.packing import unpack
from agentrl.chat import build_chat
from agentrl.config.fleet import EmbeddedServing
from agentrl.config.schema import AlgorithmSection, ChatSection, RolloutSection, TrainSection
from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import EngineRefused
from agentrl.images import decode_image, message
from agentrl.models.vision import embed
from agentrl.models.vision import reader as reading
from agentrl.models.vision.embed import image_features
from agentrl.models.vision.reader import ReadImage, VisionReader, reader_of
from agentrl.rollout import RolloutWorker
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.types import SamplingParams, Task, Trajectory, TrajectoryGroup
from tests.chat.chat_models import seeing_tokenizer
from tests.models.vision.seeing_rows import exact_rotation, exact_seeing_model
from tests.models.vision.tiny_seeing import FAMILIES, picture, seeing_model

TASK = Task(id="t", prompt="unused")


class ThreePictures(AgentInstance):
    """Shows one image, then two in one turn as OpenRLHF does, then one at the end of a text."""

    images_first = False

    async def reset(self, task: Task) -> Observation:
        self.turn = 0
        shown = ["Look: ", picture(1), " What is it?"]
        return Observation(content=(message("user", shown[self.images_first :]),))

    async def step(self, action: Action) -> Any:
        self.turn += 1
        if self.turn == 1:
            url = base64.b64encode(picture(3, width=90, height=90).data).decode()
            images = [picture(2).data, f"data:image/png;base64,{url}"]
            return {
                "rewards": 0.0,
                "environment_feedback": " And these?",
                "images": images,
                "done": False,
            }
        if self.turn == 2:
            last = [f"Turn {self.turn}: ", picture(4, width=40, height=110)]
            if self.images_first:
                last.reverse()
            return StepResult(environment_feedback=(message("user", last),))
        return StepResult(rewards=float(len(action.text) % 2), done=True)


class PicturesFirst(ThreePictures):
    """The same with the images of a message before its text."""

    images_first = True


async def rolled(model: Any, *, n: int = 2) -> list[Trajectory]:
    """Rollouts of `ThreePictures`, sampled by the embedded engine."""
    name = model.config.model_type
    chat = build_chat(seeing_tokenizer(name), ChatSection(), images=reader_of(model))
    engine = EmbeddedEngine(
        model,
        # A prefill in chunks of 16 ends inside images, too.
        section=EmbeddedServing(max_batch_size=4),
        lanes=1,
        max_prefill=16,
        max_context_tokens=512,
    )
    worker = RolloutWorker(
        generator=engine,
        chat=chat,
        parser=None,
        make_env=PicturesFirst if name == "llava_onevision" else ThreePictures,
        section=RolloutSection(
            max_turn_tokens=5, max_response_tokens=400, max_context_tokens=512, retries=0
        ),
    )
    sampling = SamplingParams(max_tokens=5, stop_token_ids=chat.stop_token_ids)
    group = await worker.run_group(TASK, group_id="g", n=n, sampling=sampling, seed=3)
    counts = (await engine.health()).metrics or {}
    await engine.close()
    rows = list(group.trajectories)
    assert all(row.rule.reward_trusted for row in rows), rows[0].termination_detail
    assert counts["cached_tokens"] > len(rows[0].prompt_ids)  # later turns, the sibling's prompt
    return rows


def log_probs(
    model: Any, rows: list[Trajectory], *, packed: bool = True, sharing: bool = False
) -> list[Tensor]:
    """The trainer's log-probabilities of the sampled tokens of each row."""
    backend = trainer(model)
    micros = batch(rows, sharing=sharing)
    if not packed:
        micros = [alone for micro in micros for alone in unpack(micro)]
    found: dict[str, Tensor] = {}
    with backend.running(), torch.no_grad():
        for micro in micros:
            out = backend.log_probs(backend.to_tensors(micro)).log_probs_R
            for index, key in enumerate(micro.rows):
                mine = torch.from_numpy((micro.row_R == index) & micro.sampled_R)
                found[key.rollout_id] = out[mine]
    return [found[row.rollout_id] for row in rows]


def trainer(model: Any) -> TorchBackend:
    return TorchBackend(
        model, train=TrainSection(learning_rate=1e-3), gradient_checkpointing=False, lanes=1
    )


def batch(rows: list[Trajectory], *, sharing: bool = False) -> list[Any]:
    group = TrajectoryGroup(group_id="g", task_id="t", trajectories=tuple(rows))
    algorithm = AlgorithmSection(
        advantage_estimator="reinforce", loss_agg_mode="token-mean"
    ).resolved(horizon=64)
    step = build_step(
        [group],
        StepSettings(algorithm=algorithm, micro_batch_tokens=4096, seed=0, prefix_sharing=sharing),
    )
    (update,) = step.updates
    return list(update.micro_batches)


def sampled(row: Trajectory) -> Tensor:
    pairs = zip(row.rollout_log_probs, row.response_mask, strict=True)
    return torch.tensor([value for value, mask in pairs if mask])


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return seeing_model(request.param, tmp_path / "images")


async def test_engine_trainer_and_transformers_agree(model: Any, tmp_path: Path) -> None:
    rows = [replace(row, reward=float(index + 1)) for index, row in enumerate(await rolled(model))]
    reader = reader_of(model)
    assert reader is not None
    for row in rows:
        assert [span.digest for span in row.images] == [
            picture(1).digest,
            picture(2).digest,
            picture(3, width=90, height=90).digest,
            picture(4, width=40, height=110).digest,
        ]
        assert sum(row.response_mask) >= 3
        ids = row.prompt_ids + row.response_ids
        for span in row.images:
            inside = ids[span.start : span.end]
            assert inside.count(reader.placeholder_id) == span.features
        assert "[image 60x40" in row.turns[1].text
    # Each image is on disk once, as it was given.
    assert {path.name for path in (tmp_path / "images").iterdir()} == {
        span.digest for span in rows[0].images
    }
    together, apart = log_probs(model, rows), log_probs(model, rows, packed=False)
    tree = log_probs(model, rows, sharing=True)
    for row, packed, alone, shared in zip(rows, together, apart, tree, strict=True):
        torch.testing.assert_close(packed, sampled(row), rtol=0, atol=2e-5)
        assert torch.equal(packed, alone)
        torch.testing.assert_close(shared, alone, rtol=0, atol=2e-5)
        torch.testing.assert_close(whole_model(model, reader, row), packed, rtol=0, atol=2e-5)


@torch.no_grad()
def whole_model(model: Any, reader: VisionReader, row: Trajectory) -> Tensor:
    """Log-probabilities by the model's own forward pass, given all images at once."""
    family = reader.family
    pictures = [decode_image(reader.folder.data(span.digest)) for span in row.images]
    nested: Any = [pictures] if model.config.model_type == "smolvlm" else pictures
    made = reader._processor(images=nested, return_tensors="pt", **family.options)
    inputs: dict[str, Tensor] = {name: made[name] for name in family.inputs}
    ids = torch.tensor(row.prompt_ids + row.response_ids)[None]
    kinds = torch.zeros_like(ids)
    for span in row.images:
        kinds[0, span.start : span.end] = 1
    if family.multi_axis_rope:
        inputs["mm_token_type_ids"] = kinds
    if model.config.model_type == "gemma3":
        inputs["token_type_ids"] = kinds
    model.config._attn_implementation = "sdpa"
    logits = model(input_ids=ids, **inputs).logits[0].log_softmax(-1)
    start = len(row.prompt_ids)
    at = [start + index for index, mask in enumerate(row.response_mask) if mask]
    return torch.stack([logits[position - 1, ids[0, position]] for position in at])


async def test_every_image_is_seen_and_none_by_another_row(model: Any) -> None:
    first, second = await rolled(model)
    rows = [replace(first, reward=1.0), replace(second, reward=2.0)]
    before = log_probs(model, rows)
    one, two, *rest = first.images
    assert one.grid == two.grid
    swapped = (
        replace(one, digest=two.digest),
        replace(two, digest=one.digest),
        *rest,
    )
    seen = log_probs(model, [replace(rows[0], images=swapped), rows[1]])
    assert (seen[0] - before[0]).abs().max() > 1e-3
    assert torch.equal(seen[1], before[1])
    # A broken image of one row leaves every bit of the other as it was.
    reader = reader_of(model)
    assert reader is not None
    broken = tuple(replace(span, digest="broken" + span.digest) for span in second.images)

    class OneBroken(VisionReader):
        def __init__(self) -> None:
            self.__dict__.update(reader.__dict__)

        def read(self, digest: str) -> ReadImage:
            found = reader.read(digest.removeprefix("broken"))
            if not digest.startswith("broken"):
                return found
            nothing = torch.full_like(found.pixels["pixel_values"], float("nan"))
            return replace(found, pixels={**found.pixels, "pixel_values": nothing})

    model.agentrl_images = OneBroken()
    poisoned = log_probs(model, [rows[0], replace(rows[1], images=broken)])
    assert torch.equal(poisoned[0], before[0])
    assert poisoned[1].isnan().all()


def test_images_of_one_size_share_a_pass_and_keep_their_bits(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(model)
    assert reader is not None
    assert reader.folder is not None
    images = [picture(seed) for seed in range(5)] + [picture(9, width=90, height=90)]
    for image in images:
        reader.folder.keep(image)
    digests = [image.digest for image in images]
    passes: list[int] = []
    tower = getattr(model.base_model, reader.family.tower)
    tower.register_forward_hook(lambda *_: passes.append(1))
    with torch.no_grad():
        together = image_features(model, reader, [*digests, digests[0]])
        sizes = {reader.read(digest).pixels["pixel_values"].shape for digest in digests}
        assert len(passes) == len(sizes) < len(digests)
        for digest in digests:
            (alone,) = image_features(model, reader, [digest]).values()
            assert all(map(torch.equal, alone, together[digest]))
        passes.clear()
        monkeypatch.setattr(embed, "TOWER_BYTES", 1)
        # Each is read once, also where no two of them are remembered.
        monkeypatch.setattr(reading, "KEPT_BYTES", 1)
        reads: list[str] = []
        data = reader.folder.data
        monkeypatch.setattr(reader.folder, "data", lambda of: reads.append(of) or data(of))
        image_features(model, reader, digests)
        assert len(passes) == len(digests)
        assert len(reads) <= len(digests)


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3", "llava_onevision"])
async def test_packing_and_sharing_change_no_gradient_that_of_the_tower_included(
    name: str, tmp_path: Path
) -> None:
    rows = await rolled(seeing_model(name, tmp_path / "images"))
    rows = [replace(row, reward=float(index + 1)) for index, row in enumerate(rows)]
    model = exact_seeing_model(tmp_path / "images", name=name)
    (packed,), (shared,) = batch(rows), batch(rows, sharing=True)
    # The image of the prompt, and what else the rows begin with alike, is there once.
    assert len(shared.images) < len(packed.images) == 8
    assert shared.num_tokens < packed.num_tokens
    with exact_rotation():
        alone, *others = (
            gradient(model, micros)
            for micros in (unpack(packed), [packed], [shared], unpack(shared))
        )
    reader = reader_of(model)
    assert reader is not None
    pixels = next(grad for of, grad in alone.items() if f".{reader.family.tower}." in of)
    assert pixels.abs().max() > 0
    for found in others:
        for of, grad in found.items():
            if ".vision_tower." in of and of.endswith("k_proj.bias"):
                continue  # adds the same to all scores of a query: 0 but for rounding
            scale = grad.abs().max().clamp(min=1e-6)
            assert ((grad - alone[of]).abs().max() / scale) < 1e-12, of


def gradient(model: Any, micros: Sequence[Any]) -> dict[str, Tensor]:
    model.zero_grad()
    backend = trainer(model)
    with backend.running():
        for micro in micros:
            tensors = backend.to_tensors(micro)
            loss = -(backend.log_probs(tensors).log_probs_R * tensors.weights_R).sum()
            backend.backward(loss)
    return {name: grad.clone() for name, grad in backend.gradients()}


async def test_placeholders_that_do_not_match_are_refused_by_number(tmp_path: Path) -> None:
    model = seeing_model("qwen2_vl", tmp_path / "images")
    chat = build_chat(seeing_tokenizer("qwen2_vl"), ChatSection(), images=reader_of(model))
    shown = [message("user", [picture(1), "a", picture(2)])]
    ids = chat.render_prompt(shown)
    first, second = chat.image_spans(ids, shown)
    engine = EmbeddedEngine(
        model, section=EmbeddedServing(max_batch_size=1), lanes=1, max_context_tokens=128
    )
    late = replace(second, start=second.start + 1)
    with pytest.raises(EngineRefused, match=r"image 1 \(\w+\) has 1 placeholders .* expected 2"):
        await engine.generate(ids, SamplingParams(max_tokens=2), "s", [first, late])
    await engine.close()
