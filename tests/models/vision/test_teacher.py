"""Teachers that read the images of the rows that they are asked about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.batch.records import RowKey
from agentrl.config import RunConfig
from agentrl.config.plan import plan_run
from agentrl.config.schema import ModelSection, TrainSection
from agentrl.errors import ConfigError, TrainError
from agentrl.models.source import load_tokenizer
from agentrl.runtime.assembly.teacher import check_teacher
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.distill import RowTeacher, TeacherModel, load_teacher
from agentrl.types import Trajectory, TrajectoryGroup
from tests.models.vision.seeing_rows import seeing_groups
from tests.models.vision.test_run import settings
from tests.models.vision.tiny_seeing import checkpoint, picture, reader_for, seeing_model
from tests.train.tiny_llama import make_step, tiny_model

HINT = (21, 22, 23)


def micros_of(groups: list[TrajectoryGroup]) -> Any:
    (update,) = make_step(groups, micro_batch_tokens=512, prefix_sharing=True).updates
    return update.micro_batches


def numbers(found: RowTeacher) -> dict[RowKey, np.ndarray]:
    return {key: row.sampled_R for key, row in found.items()}


def changed(groups: list[TrajectoryGroup], change: Any) -> list[TrajectoryGroup]:
    return [
        replace(group, trajectories=tuple(change(row) for row in group.trajectories))
        for group in groups
    ]


def hinted(row: Trajectory) -> Trajectory:
    """The row under a prompt with a hint before its last two tokens."""
    ids = row.prompt_ids
    images = tuple(
        replace(span, start=span.start + len(HINT) * (span.start >= len(ids)))
        for span in row.images
    )
    return replace(row, prompt_ids=(*ids[:-2], *HINT, *ids[-2:]), images=images)


def test_a_checkpoint_sees_the_pixels_of_the_policy(tmp_path: Path) -> None:
    """Fails if a teacher of the same weights disagrees, or if it does not depend on the picture."""
    path = str(checkpoint("smolvlm", tmp_path / "model"))
    groups = seeing_groups("smolvlm", tmp_path / "images")
    reader = reader_for("smolvlm", tmp_path / "images")
    section = ModelSection(path=path, dtype="float32", device="cpu")
    teacher = load_teacher(section, top_k=0, vocabulary=60, images=reader)
    policy = TeacherModel(
        TorchBackend(
            seeing_model("smolvlm", tmp_path / "images"),
            train=TrainSection(learning_rate=1e-3),
            gradient_checkpointing=False,
        ),
        top_k=0,
        vocabulary=60,
    )
    micros = micros_of(groups)
    ours, theirs = (numbers(model.ask(micros, prompts=None)) for model in (policy, teacher))
    for key, row in theirs.items():
        assert np.array_equal(row, ours[key])
    other = picture(9)
    reader.expand(other)

    def shown(row: Trajectory) -> Trajectory:
        if row.group_id != "both":
            return row
        return replace(row, images=(replace(row.images[0], digest=other.digest), row.images[1]))

    seen = numbers(teacher.ask(micros_of(changed(groups, shown)), prompts=None))
    for key, row in seen.items():
        assert np.array_equal(row, theirs[key]) is not (key.group_id == "both")


def test_a_hint_moves_the_images_behind_it_and_no_other(tmp_path: Path) -> None:
    """Against rows that were sampled under the prompt with the hint."""
    groups = seeing_groups("qwen2_vl", tmp_path)
    backend = TorchBackend(
        seeing_model("qwen2_vl", tmp_path),
        train=TrainSection(learning_rate=1e-3),
        gradient_checkpointing=False,
    )
    plain = TeacherModel(backend, top_k=0, vocabulary=60)
    teacher = TeacherModel(backend, top_k=0, vocabulary=60, hinted=True)
    prompts = {
        RowKey.of(row): np.array(hinted(row).prompt_ids)
        for group in groups
        for row in group.trajectories
    }
    micros = micros_of(groups)
    found = numbers(teacher.ask(micros, prompts=prompts))
    wanted = numbers(plain.ask(micros_of(changed(groups, hinted)), prompts=None))
    without = numbers(plain.ask(micros, prompts=None))
    for key, row in found.items():
        assert np.allclose(row, wanted[key], rtol=0, atol=1e-5)
        assert not np.allclose(row, without[key], rtol=0, atol=1e-2)
    before = {key: np.concatenate([HINT, ids]) for key, ids in prompts.items()}
    with pytest.raises(TrainError, match=r"has other tokens before the end of its last image"):
        teacher.ask(micros, prompts=before)


@pytest.mark.parametrize(
    ("teacher", "words"),
    [
        ("text", r"is a 'llama', which reads no images as the policy does; give a model of"),
        ("qwen3_vl", r"reads images in patch_size 16, not 14 as the policy does"),
    ],
)
def test_a_teacher_that_cannot_see_is_refused_before_it_is_loaded(
    teacher: str, words: str, tmp_path: Path
) -> None:
    checkpoint("qwen2_vl", tmp_path / "model")
    if teacher == "text":
        tiny_model().save_pretrained(tmp_path / "teacher")
    else:
        checkpoint(teacher, tmp_path / "teacher")
    sections = settings(tmp_path)
    sections["algorithm"] = {"distill": {"teacher": {"path": "teacher"}}}
    plan = plan_run(RunConfig.model_validate(sections), tmp_path).trainer
    with pytest.raises(ConfigError, match=rf"teacher\.path '\S+/teacher' {words}"):
        check_teacher(plan, tokenizer=load_tokenizer(plan.model))
