"""Images of a rollout in the answers of the server, in the terminal, and in exported pages."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image as pil

from agentrl.data import StoredTrajectory, TrajectoryStore
from agentrl.errors import RunError
from agentrl.images import ImageFolder, read_image
from agentrl.inspect.export.files import export_pieces
from agentrl.inspect.export.formats import ExportFormat
from agentrl.inspect.pages.groups import group_answer
from agentrl.inspect.pages.images import image_file, numbered, prompt_with_images
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.terminal.rollout_text import stored_rollout_lines
from agentrl.types import Image, ImageSpan, Trajectory
from tests.inspect.synthetic import make_rollout, write_step
from tests.inspect.test_explanations import reader_of


def png(shade: int) -> Image:
    buffer = io.BytesIO()
    pil.new("RGB", (60, 40), (shade, 0, 0)).save(buffer, format="PNG")
    return read_image(buffer.getvalue())


def seen_run(folder: Path) -> tuple[Path, list[Image]]:
    """A rollout with an image in its prompt, and two in its feedback, of which one file is gone."""
    run, images = folder / "run", [png(1), png(2), png(3)]
    labels = [f"[image 60x40 {image.digest[:8]}]" for image in images]
    feedback = f"{labels[1]} or {labels[2]}?"
    row = make_rollout("g/0", [("assistant", "a"), ("user", feedback), ("assistant", "b")])
    starts = (1, len(row.prompt_ids) + 2, len(row.prompt_ids) + 20)
    spans = [
        ImageSpan(digest=image.digest, start=start, tokens=2, grid=(1, 1, 2))
        for image, start in zip(images, starts, strict=True)
    ]
    row = replace(row, prompt_text=f"Look: {labels[0]} What?", images=tuple(spans))
    write_step(run, [row, make_rollout("g/1", [("assistant", "c")])])
    for image in images[:2]:
        ImageFolder(run / "images").keep(image)
    return run, images


def lines(stored: list[StoredTrajectory], images: Path | None = None) -> list[str]:
    return [line.plain for line in stored_rollout_lines(stored, images=images)]


def test_they_are_stored_named_and_exported(tmp_path: Path) -> None:
    run, images = seen_run(tmp_path)
    stored = list(TrajectoryStore(run / "trajectories").read())
    assert [len(one.trajectory.images) for one in stored] == [3, 0]
    reader = reader_of(run)
    (row,) = rollout_answer(reader, "train", 1, "g/0")["rows"]
    assert [one["digest"] for one in row["images"]] == [image.digest for image in images]
    assert row["images"][0] == {
        "number": 1, "digest": images[0].digest, "kept": True, "start": 1, "tokens": 2,
        "features": 2,
    }  # fmt: skip
    assert [one["kept"] for one in row["images"]] == [True, True, False]
    assert rollout_answer(reader, "train", 1, "g/1")["rows"][0]["images"] == []

    said = lines(stored[:1], run / "images")
    named = [at for at, line in enumerate(said) if line.startswith("image ")]
    assert [said[at].split()[1] for at in named] == [
        str(run / "images" / image.digest) for image in images
    ]
    turns = [at for at, line in enumerate(said) if line.startswith("-- ")]
    assert named[0] < turns[1] < turns[2] < named[1] < turns[3]
    assert not [line for line in lines(stored[:1]) if line.startswith("image ")]

    assert "Look: [image 1: 60x40, 2 tokens] What?" in said
    assert "[image 2: 60x40, 2 tokens] or [image 3: 60x40, 2 tokens]?" in said
    assert group_answer(reader, "train", 1, "g")["prompt_text"] == (
        "Look: [image 1: 60x40, 2 tokens] What?"
    )
    (atif, _) = map(json.loads, export_pieces(ExportFormat.ATIF, iter(stored), reader))
    assert atif["steps"][0]["message"] == "Look: [image 1: 60x40, 2 tokens] What?"
    page = b"".join(export_pieces(ExportFormat.HTML, iter(stored), reader)).decode()
    assert page.count("data:image/png;base64,") == 2  # each file once


def test_placeholders_give_way_to_labels_where_the_text_has_none() -> None:
    images = [{"digest": "ab" * 16, "start": 1, "tokens": 3}, {"digest": "cd" * 16, "start": 9}]
    decode = lambda ids: "".join(map(chr, ids))  # noqa: E731
    ids = list(map(ord, "a###b"))
    assert prompt_with_images("a###b", ids, images, decode) == "a[image abababab]b"
    assert prompt_with_images("", ids, images, decode) == "a[image abababab]b"
    assert prompt_with_images("a###b", ids, images, None) == "a###b"
    labelled = "a[image 8x8 abababab]b"
    assert prompt_with_images(labelled, ids, images, decode) == labelled
    assert numbered("a[image abababab]b", images[:1]) == "a[image 1: 3 tokens]b"


@pytest.mark.parametrize("digest", ["0" * 32, "../config.yaml", "", "F" * 32])
def test_nothing_but_images_is_given_away(digest: str, tmp_path: Path) -> None:
    run, images = seen_run(tmp_path)
    (run / "images" / ("0" * 32)).write_text("<script>alert(1)</script>")
    reader = reader_of(run)
    assert image_file(reader, images[0].digest) == (images[0].data, "image/png")
    with pytest.raises(RunError, match="the run has no image"):
        image_file(reader, digest)


def test_a_digest_of_a_hostile_file_leads_nowhere(tmp_path: Path) -> None:
    run = tmp_path / "run"
    row: Trajectory = make_rollout("g/0", [("assistant", "a")])
    hostile = ImageSpan(digest="../../config.yaml", start=0, tokens=1, grid=(1, 1, 1))
    write_step(run, [replace(row, images=(hostile,))])
    (answer,) = rollout_answer(reader_of(run), "train", 1, "g/0")["rows"]
    assert (answer["images"][0]["digest"], answer["images"][0]["kept"]) == ("", False)
