"""Images of prompts for vLLM: one placeholder each, files once, and the same ids back."""

from __future__ import annotations

import base64
import json

import pytest

from agentrl.errors import EngineRefused
from agentrl.serving.vllm.pictures import PromptPictures, misses_image
from agentrl.types import ImageSpan

PLACEHOLDER = 9


class Source:
    """Images that stand between two markers before and one behind."""

    placeholder_id = PLACEHOLDER
    markers = (2, 1)

    def png(self, digest: str) -> bytes:
        return digest.encode()


ONE = ImageSpan(digest="one", start=3, tokens=2, grid=(1, 1, 2))
TWO = ImageSpan(digest="two", start=9, tokens=4, grid=(1, 1, 3))
IDS = (5, 1, 2, 9, 9, 3, 6, 1, 2, 9, 9, 4, 9, 3, 7)


def answer(ids: tuple[int, ...] | None) -> bytes:
    ranges = {"image": [{"offset": 1, "length": 5}, {"offset": 7, "length": 7}]}
    return json.dumps({"prompt_token_ids": ids, "mm_placeholders": ranges}).encode()


def test_each_image_is_one_placeholder_and_its_file_goes_once() -> None:
    pictures = PromptPictures(Source())
    assert pictures.collapsed(IDS, (ONE, TWO), "s") == [5, 9, 6, 9, 7]
    first = pictures.parts((ONE, TWO), whole=False)
    assert [part["uuid"] for part in first] == ["one", "two"]
    assert base64.b64decode(first[1]["url"].partition(",")[2]) == b"two"
    assert not pictures.all_known((ONE, TWO))
    pictures.check(answer(IDS), IDS, (ONE, TWO), "s")
    assert pictures.all_known((ONE, TWO))
    assert [part["url"] for part in pictures.parts((ONE, TWO), whole=False)] == [None, None]
    assert all(part["url"] for part in pictures.parts((ONE, TWO), whole=True))


def test_a_difference_names_the_image() -> None:
    pictures = PromptPictures(Source())
    wrong = ImageSpan(digest="two", start=9, tokens=4, grid=(1, 2, 2))
    with pytest.raises(EngineRefused, match=r"image 1 \(two\) has 3 placeholders .* expected 4"):
        pictures.collapsed(IDS, (ONE, wrong), "s")
    with pytest.raises(EngineRefused, match=r"1 placeholders of images .* sampled"):
        pictures.collapsed((*IDS, PLACEHOLDER), (ONE, TWO), "s")
    longer = (*IDS[:10], 9, *IDS[10:])
    with pytest.raises(
        EngineRefused, match=r"16 tokens of a prompt of 15.*token 11.*image 1 \(two"
    ):
        pictures.check(answer(longer), IDS, (ONE, TWO), "s")
    with pytest.raises(EngineRefused, match="return_token_ids"):
        pictures.check(answer(None), IDS, (ONE, TWO), "s")
    assert not pictures.all_known((ONE,))


def test_only_a_dropped_image_is_sent_again() -> None:
    assert misses_image(b'{"error": "Cache miss for image at index 1 but data is not provided."}')
    assert not misses_image(b'{"error": "prompt too long"}')
