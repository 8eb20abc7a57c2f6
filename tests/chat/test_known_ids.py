from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from agentrl.chat import known_ids
from agentrl.chat.known_ids import KnownIds


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def test_a_text_is_encoded_once_and_keeps_its_ids() -> None:
    known = KnownIds(encode)
    assert [list(known.get(text)) for text in ("ab", "c", "ab")] == [[97, 98], [99], [97, 98]]
    assert known.encoded == 2


def test_texts_that_were_not_asked_for_are_forgotten_first() -> None:
    # Fails if everything is kept, or if the text encoded first is forgotten though it is in use.
    known = KnownIds(encode)
    most = known_ids._MOST_CHARACTERS
    texts = [sign * (most // 4) for sign in "abcd"]
    for text in texts:
        known.get(text)
    known.get(texts[0])
    known.get("x")
    encoded = known.encoded
    known.get(texts[0])
    known.get(texts[2])
    assert known.encoded == encoded
    known.get(texts[1])
    assert known.encoded == encoded + 1


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_threads_share_it(size: int) -> None:
    known = KnownIds(lambda text: encode(text[:3]))
    texts = [f"{index}" + "x" * size for index in range(12)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(known.get, texts * 4))
    assert [list(ids) for ids in found] == [encode(text[:3]) for text in texts] * 4
    kept = sum(map(len, known._ids))
    assert known._characters == kept <= known_ids._MOST_CHARACTERS
