"""Pictures as environments give them, as rows name them, and as files keep them."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as pil

from agentrl.data.store.columns import SCHEMA, StoredTrajectory, schema_of
from agentrl.data.store.trajectory_store import TrajectoryStore
from agentrl.errors import DataError, EnvError
from agentrl.images import (
    ImageFolder,
    decode_image,
    message,
    placed,
    read_image,
    without_images,
    words,
)
from agentrl.rollout.coerce import as_observation, as_step_result
from agentrl.types import (
    IMAGE_MARK,
    ImageSpan,
    Message,
    Termination,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
)

PICTURE = pil.new("RGB", (6, 4), (200, 30, 30))


def file_of(picture: pil.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    # As `read_image` writes a picture; only PNG reads it.
    picture.save(buffer, format=kind, compress_level=1)
    return buffer.getvalue()


def test_every_form_of_an_image_is_one_record(tmp_path: Path) -> None:
    data = file_of(PICTURE)
    path = tmp_path / "one.png"
    path.write_bytes(data)
    encoded = base64.b64encode(data).decode()
    url = f"data:image/png;base64,{encoded}"
    forms = [
        PICTURE,
        data,
        bytearray(data),
        path,
        str(path),
        url,
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "image": PICTURE},
        {"type": "image", "base64": encoded},
    ]
    read = {read_image(form) for form in forms}
    assert len(read) == 1
    (image,) = read
    assert (image.width, image.height, len(image.digest)) == (6, 4, 32)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (17, "given as int, expected a PIL image"),
        (b"GIF89a is no picture", "is no picture"),
        ("nowhere/at/all.png", "nothing is fetched from the network"),
        ("https://example.org/a.png", "nothing is fetched from the network"),
        ("data:image/png,raw", "is not base64"),
        ("data:image/png;base64,!!!", "is damaged"),
        ({"type": "audio"}, "expected 'text', 'image' or 'image_url'"),
        (file_of(pil.new("1", (9000, 9000))), "more than 64,000,000"),
    ],
)
def test_bad_images_are_refused_in_one_sentence(value: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_image(value)


def test_a_file_that_is_cut_off_is_refused_when_it_is_decoded() -> None:
    noise = pil.effect_noise((64, 64), 80)
    with pytest.raises(DataError, match="image x is damaged"):
        decode_image(file_of(noise)[:-900], what="image x")


def test_pictures_are_decoded_upright_on_white() -> None:
    exif = pil.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    buffer = io.BytesIO()
    PICTURE.save(buffer, format="JPEG", exif=exif)
    assert decode_image(buffer.getvalue()).size == (4, 6)
    clear = pil.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert decode_image(file_of(clear)).getpixel((0, 0)) == (255, 255, 255)


def test_greys_of_sixteen_bits_keep_their_place() -> None:
    """Fails if Pillow cuts them off at 255: all but the darkest are white then."""
    greys, want = (0, 100, 20_000, 60_000, 65_535), [0, 0, 78, 233, 255]
    deep = pil.new("I;16", (5, 1))
    for x, grey in enumerate(greys):
        deep.putpixel((x, 0), grey)
    for data in (file_of(deep), read_image(deep).data):
        picture = decode_image(data)
        assert [picture.getpixel((x, 0))[0] for x in range(5)] == pytest.approx(want, abs=1)
    with pytest.raises(DataError, match="scale them to 0 to 255"):
        read_image(pil.new("F", (2, 2), 0.5))
    with pytest.raises(DataError, match="greys from 70000 to 70000"):
        read_image(pil.new("I", (2, 2), 70_000))


def test_a_picture_drawn_in_memory_is_on_white_as_one_of_a_file_is() -> None:
    clear = pil.new("RGBA", (2, 2), (200, 0, 0, 0))
    drawn = decode_image(read_image(clear).data)
    assert drawn.getpixel((0, 0)) == decode_image(file_of(clear)).getpixel((0, 0)) == (255,) * 3


def test_marks_stand_where_the_images_are() -> None:
    made = message("user", ["a", PICTURE, {"type": "text", "text": "b" + IMAGE_MARK}, PICTURE])
    assert made.content == f"a{IMAGE_MARK}b\ufffd{IMAGE_MARK}"
    label = f"[image 6x4 {made.images[0].digest[:8]}]"
    assert words(made.content, made.images) == f"a{label}b\ufffd{label}"
    result = placed(ToolResult(text="Taken.", images=(file_of(PICTURE),)))
    assert result.text == IMAGE_MARK + "Taken."
    (kept,) = without_images([result])
    assert (kept.text, kept.images) == (label + "Taken.", ())
    with pytest.raises(DataError, match="1 images, but 2 marks"):
        placed(replace(result, text=IMAGE_MARK * 2))


def test_environments_may_give_images_as_openrlhf_does() -> None:
    observation = as_observation({"observation": "Look.", "images": [PICTURE]})
    (shown,) = observation.content
    assert isinstance(shown, Message)
    assert shown.content == IMAGE_MARK + "Look."
    step = as_step_result(
        {"rewards": 0.0, "done": False, "environment_feedback": "Go.", "images": [PICTURE]}
    )
    assert step.environment_feedback == (replace(shown, content=IMAGE_MARK + "Go."),)
    parts = [{"type": "text", "text": "a"}, {"type": "image", "image": PICTURE}]
    (shown,) = as_observation([{"role": "user", "content": parts}]).content
    assert isinstance(shown, Message)
    assert shown.content == "a" + IMAGE_MARK
    with pytest.raises(EnvError, match="reset: an image is given as int"):
        as_observation({"observation": "Look.", "images": [3]})
    with pytest.raises(EnvError, match="step returned 1 images beside messages"):
        as_step_result(
            {"rewards": 0, "done": 1, "environment_feedback": [shown], "images": [PICTURE]}
        )


def row(images: tuple[ImageSpan, ...] = ()) -> Trajectory:
    return Trajectory(
        task_id="t", group_id="g", rollout_id="g/0", prompt_ids=(1, 2), response_ids=(3,),
        response_mask=(1,), rollout_log_probs=(-0.5,), policy_versions=(0,), reward=1.0, score=1.0,
        termination=Termination.ENV_DONE, images=images,
    )  # fmt: skip


def test_rows_keep_spans_and_rows_of_text_have_no_column(tmp_path: Path) -> None:
    span = ImageSpan(digest="d" * 32, start=1, tokens=6, grid=(1, 2, 3))
    store = TrajectoryStore(tmp_path)
    for step, images in enumerate([(span, replace(span, start=9)), ()]):
        group = TrajectoryGroup(group_id="g", task_id="t", trajectories=(row(images),))
        store.write(step, "train", [group])
        (stored,) = store.read("train", step=step)
        assert stored.trajectory.images == images
    text = StoredTrajectory(step=0, kind="train", trajectory=row())
    assert set(SCHEMA.names) - set(schema_of([text]).names) == {"images", "requests"}


def test_a_folder_keeps_an_image_once_and_names_what_is_gone(tmp_path: Path) -> None:
    image, folder = read_image(PICTURE), ImageFolder(tmp_path / "images")
    folder.keep(image)
    kept = folder.path(image.digest)
    stamp = kept.stat().st_mtime_ns
    ImageFolder(tmp_path / "images").keep(image)
    assert kept.stat().st_mtime_ns == stamp
    assert folder.data(image.digest) == image.data
    kept.unlink()
    with pytest.raises(DataError, match=f"image {image.digest} cannot be read"):
        folder.data(image.digest)
