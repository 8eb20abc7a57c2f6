"""Images in requests of an agent: into the ids, to the engine and into the rows, in every wire."""

from __future__ import annotations

import base64
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image as pil

from agentrl.chat import build_chat
from agentrl.config.schema import ChatSection
from agentrl.gateway import known
from agentrl.images import read_image
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import Generation, ImageSpan, SamplingParams
from tests.gateway.gateway_fakes import CALL, CHAT_TOOLS, Served, serve

RED, BLUE = (read_image(pil.new("RGB", (8, 8), color)) for color in ("red", "blue"))
HUGE = read_image(pil.new("1", (4001, 4000)))
PLACEHOLDER = ByteTokenizer.images.placeholder_id


class SeeingEngine(ScriptedEngine):
    """Notes which images it is shown."""

    def __init__(self, replies: Any) -> None:
        super().__init__(replies, ByteTokenizer())
        self.shown: list[tuple[ImageSpan, ...]] = []

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """Note the images, which must stand where the ids have placeholders."""
        at = [number for number, token in enumerate(prompt_ids) if token == PLACEHOLDER]
        assert [span.start for span in images] == at
        self.shown.append(tuple(images))
        return await super().generate(prompt_ids, sampling, session_id, images)


def seeing(*replies: str) -> Served:
    chat = build_chat(
        ByteTokenizer(), ChatSection(tool_parser="hermes"), images=ByteTokenizer.images
    )
    return serve(chat, [], engine=SeeingEngine(list(replies)))


def url(image: Any) -> str:
    return "data:image/png;base64," + base64.b64encode(image.data).decode()


def part(image: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(image)}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


async def test_images_go_to_the_engine_and_into_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    expand = ByteTokenizer.images.expand

    def noted(image: Any) -> Any:
        reads.append(threading.current_thread().name)
        return expand(image)

    served = seeing(CALL, "Seen.")
    monkeypatch.setattr(ByteTokenizer.images, "expand", noted)
    history: list[Any] = [{"role": "user", "content": [text("Look:"), part(RED), text("Well?")]}]
    said = await served.chat(history, tools=CHAT_TOOLS)
    call = said["tool_calls"][0]["id"]
    result = {"role": "tool", "tool_call_id": call, "content": [part(BLUE), text("done")]}
    history += [said, result, {"role": "user", "content": [part(RED), part(BLUE)]}]
    await served.chat(history, tools=CHAT_TOOLS)
    # Reading a picture on the event loop would hold up all other rollouts.
    assert reads
    assert all(name.startswith("long-texts") for name in reads)
    engine = served.engine
    assert isinstance(engine, SeeingEngine)
    digests = [[span.digest for span in shown] for shown in engine.shown]
    assert digests == [[RED.digest], [RED.digest, BLUE.digest, RED.digest, BLUE.digest]]
    (row,) = served.rows().rows
    assert [span.digest for span in row.images] == digests[1]
    assert [row.ids[span.start] for span in row.images] == [PLACEHOLDER] * 4
    assert row.turns[1].text.startswith(f"[image 8x8 {BLUE.digest[:8]}]done")
    # Another picture in the same words is another history.
    history[0] = {"role": "user", "content": [text("Look:"), part(BLUE), text("Well?")]}
    await served.chat(history, tools=CHAT_TOOLS)
    assert engine.shown[-1][0].digest == BLUE.digest
    rows = served.rows().rows
    assert {row.images[0].digest for row in rows} == {RED.digest, BLUE.digest}
    for row in rows:
        assert [row.ids[span.start] for span in row.images] == [PLACEHOLDER] * 4


SOURCE = {"type": "base64", "media_type": "image/png", "data": url(RED).partition(",")[2]}
MESSAGES = {
    "max_tokens": 20,
    "messages": [{"role": "user", "content": [{"type": "image", "source": SOURCE}]}],
}
RESPONSES = {
    "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url(RED)}]}]
}


@pytest.mark.parametrize(
    ("path", "body"), [("messages", MESSAGES), ("responses", RESPONSES)], ids=str
)
async def test_every_wire_shows_an_image(chat, path, body) -> None:
    served = seeing("Red.")
    status, answer = await served.post(path, {"model": "policy", **body})
    assert status == 200, answer
    assert isinstance(served.engine, SeeingEngine)
    assert [span.digest for span in served.engine.shown[0]] == [RED.digest]
    # A model of text says so, and samples nothing.
    blind = serve(chat, ["x"])
    status, answer = await blind.post(path, {"model": "policy", **body})
    assert status == 400
    assert "reads text only" in answer["error"]["message"]
    assert blind.engine.requests == []


@pytest.mark.parametrize(
    ("role", "link", "words"),
    [
        ("user", "https://x.org/a.png", "nothing is fetched"),
        ("user", "/etc/passwd", "nothing is fetched"),
        ("user", "data:image/png;base64,AAAA", "is no picture"),
        ("user", None, "expected a data URL"),
        ("system", url(RED), "in a message of the system"),
        ("user", url(HUGE), "at most 16,000,000 pixels"),
    ],
)
async def test_an_image_that_cannot_be_shown_is_refused(role, link, words) -> None:
    served = seeing("x")
    content = [{"type": "image_url", "image_url": {"url": link}}, text("What?")]
    body = {"model": "policy", "messages": [{"role": role, "content": content}]}
    status, answer = await served.post("chat/completions", body)
    assert (status, served.engine.requests) == (400, [])
    assert words in answer["error"]["message"]


async def test_the_images_of_a_session_have_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MOST_IMAGE_BYTES", len(RED.data))
    served = seeing("x", "y")

    async def count(*images: Any) -> tuple[int, Any]:
        content = [
            {"type": "image", "source": {**SOURCE, "data": url(image).partition(",")[2]}}
            for image in images
        ]
        body = {"model": "policy", "messages": [{"role": "user", "content": content}]}
        return await served.post("messages/count_tokens", body)

    assert (await count(RED))[0] == 200
    assert (await count(RED, RED))[0] == 200  # one file
    status, answer = await count(RED, BLUE)
    assert status == 413
    assert "bytes of images" in answer["error"]["message"]
