"""Images of data sets: columns and parts in the layouts of other trainers, and what is refused."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as pil

from agentrl.config.schema import DatasetSection
from agentrl.data.tasks.load import load_tasks
from agentrl.data.tasks.pass_rates import task_digest
from agentrl.errors import DataError
from agentrl.types import IMAGE_MARK, Task


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    pil.new("RGB", (8, 4), (shade, 0, 0)).save(buffer, format="PNG")
    return buffer.getvalue()


def url(shade: int) -> str:
    return "data:image/png;base64," + base64.b64encode(png(shade)).decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shots").mkdir()
    for shade in (1, 2):
        (tmp_path / "shots" / f"{shade}.png").write_bytes(png(shade))
    return tmp_path


def load(folder: Path, *rows: dict[str, Any], **section: Any) -> list[Task]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_tasks(DatasetSection(source=str(path), **section))


def shown(task: Task) -> list[tuple[str, list[bytes]]]:
    assert not isinstance(task.prompt, str)
    return [(said.content, [image.data for image in said.images]) for said in task.prompt]


def test_paths_start_from_the_folder_of_the_file(folder: Path) -> None:
    [task] = load(folder, {"prompt": "Which?", "images": ["shots/1.png", url(2)], "label": "a"})
    assert shown(task) == [(IMAGE_MARK * 2 + "Which?", [png(1), png(2)])]
    assert task.metadata == {}


def test_places_of_verl_and_trl_take_the_images_in_order(folder: Path) -> None:
    column = [{"path": "shots/1.png"}, {"bytes": base64.b64encode(png(2)).decode()}]
    verl = {
        "prompt": [{"role": "user", "content": "A <image> then <image>?"}],
        "images": column,
        "reward_model": {"ground_truth": "6"},
    }
    user = {"type": "image"}, {"type": "text", "text": "or"}, {"type": "image"}
    trl = {
        "prompt": [{"role": "system", "content": "Look."}, {"role": "user", "content": list(user)}],
        "images": column,
    }
    first, second = load(folder, verl, trl)
    assert first.label == "6"
    assert shown(first) == [(f"A {IMAGE_MARK} then {IMAGE_MARK}?", [png(1), png(2)])]
    assert shown(second)[1] == (f"{IMAGE_MARK}or{IMAGE_MARK}", [png(1), png(2)])


def test_parts_of_chat_formats_hold_their_images(folder: Path) -> None:
    parts = [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": url(1)}},
        {"type": "image", "image": "shots/2.png"},
    ]
    nemo = {"type": "input_image", "image_url": url(2)}
    request = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "?"}, nemo]}]}
    chat, responses = load(
        folder,
        {"prompt": [{"role": "user", "content": parts}]},
        {"responses_create_params": request},
    )
    assert shown(chat) == [(f"See{IMAGE_MARK * 2}", [png(1), png(2)])]
    assert shown(responses) == [("?" + IMAGE_MARK, [png(2)])]


def test_a_parquet_column_of_hugging_face_is_named_by_the_config(folder: Path) -> None:
    rows = [{"question": "Which?", "image": {"bytes": png(n), "path": "1.png"}} for n in (1, 2)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    section = DatasetSection(
        source=str(folder / "train.parquet"), columns={"prompt": "question", "images": "image"}
    )
    one, two = load_tasks(section)
    assert shown(one) == [(IMAGE_MARK + "Which?", [png(1)])]
    # What distinguishes the rows is the picture alone, for their ids and for measured pass rates.
    assert one.id != two.id == load_tasks(section)[1].id
    assert task_digest(one) != task_digest(two)


def test_decoded_pictures_give_the_same_id_every_time(folder: Path) -> None:
    (folder / "made.py").write_text(
        "from PIL import Image\n"
        "def rows(split):\n"
        "    return [{'prompt': 'Which?', 'images': [Image.new('RGB', (8, 4))]}]\n"
    )
    section = DatasetSection(source="made.py:rows")
    [one], [again] = load_tasks(section, base=folder), load_tasks(section, base=folder)
    assert shown(one)[0][0] == IMAGE_MARK + "Which?"
    assert one.id == again.id


def test_a_container_image_is_no_picture(folder: Path) -> None:
    [task] = load(folder, {"prompt": "Mend it.", "images": ["registry/name:tag"]})
    assert task.prompt == "Mend it."
    assert task.metadata == {"images": ["registry/name:tag"]}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "?", "images": ["gone.png"]}, r"line 1: image 0: the image .*gone.png"),
        ({"prompt": "?", "images": [url(1)[:-9]]}, "image 0: an image"),
        ({"prompt": "<image>", "images": [url(1), url(2)]}, "2 images for 1 places"),
        ({"prompt": "<image> <image>", "images": [url(1)]}, "more places for images than the 1"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image"}]}]},
            "more places for images than the 0",
        ),
        (
            {"prompt": [{"role": "system", "content": "a"}], "images": [url(1)]},
            "no message of the user",
        ),
        (
            {"prompt": [{"role": "user", "content": [{"type": "video"}]}]},
            r"type \['video'\]; expected image, image_url, input_image, text",
        ),
    ],
)
def test_a_row_whose_images_do_not_fit_is_named(
    row: dict[str, Any], words: str, folder: Path
) -> None:
    with pytest.raises(DataError, match=words):
        load(folder, row)
