"""The books of both ends: only what is new travels, and never the wrong front."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.serving.lean.frames import FrameError, pack_ids, unpack_ids
from agentrl.serving.lean.prefixes import ClientBook, ServerBook


class Pair:
    """Both books, with nothing but the arguments of a GENERATE between them."""

    def __init__(self, *, client_tokens: int = 10_000, server_tokens: int = 10_000) -> None:
        self.client = ClientBook(max_tokens=client_tokens)
        self.server = ServerBook(max_tokens=server_tokens)
        self.sent_tokens = 0
        self.asked_again = 0

    def turn(self, session: str, prompt: list[int], answer: tuple[int, ...]) -> tuple[int, ...]:
        """The ids the server would sample after."""
        sent = self.client.take(session, prompt)
        self.sent_tokens += len(sent.new) // 4
        held = self.server.extend(session, have=sent.have, new=sent.new, digest=sent.digest)
        if held is None:
            self.asked_again += 1
            self.client.full(sent)
            self.sent_tokens += len(sent.new) // 4
            held = self.server.extend(session, have=0, new=sent.new, digest=sent.digest)
            assert held is not None
        seen = unpack_ids(held.packed)
        packed = pack_ids(answer)
        self.server.answered(session, held, packed)
        self.client.keep(session, sent, answer, packed)
        return seen


def test_only_new_tokens_are_sent() -> None:
    """Fails if what was sampled is sent back."""
    pair = Pair()
    prompt = [1, 2, 3]
    assert pair.turn("s", prompt, (4, 5)) == (1, 2, 3)
    prompt += [4, 5, 6]
    assert pair.turn("s", prompt, (7,)) == (1, 2, 3, 4, 5, 6)
    assert pair.sent_tokens == 3 + 1
    assert pair.asked_again == 0


@pytest.mark.parametrize(
    "rewritten", [[9, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9, 6], [1, 2], [], [1, 2, 3, 5, 4, 6]]
)
def test_a_rewritten_history_is_sent_in_full(rewritten: list[int]) -> None:
    """Fails if only length and last ids of the front are compared."""
    pair = Pair()
    pair.turn("s", [1, 2, 3], (4, 5))
    assert pair.turn("s", rewritten, (7,)) == tuple(rewritten)
    assert pair.sent_tokens == 3 + len(rewritten)


def test_the_callers_list_is_neither_kept_nor_changed() -> None:
    """Fails if the book holds the live list: a change of it would go unseen."""
    pair = Pair()
    prompt = [1, 2, 3]
    pair.turn("s", prompt, (4,))
    assert prompt == [1, 2, 3]
    prompt[0] = 9
    prompt += [4]
    assert pair.turn("s", prompt, (5,)) == (9, 2, 3, 4)


def test_a_tuple_is_recognised_as_the_same_history() -> None:
    """Fails if a tuple never equals the list that is held."""
    pair = Pair()
    pair.turn("s", [1, 2, 3], (4,))
    pair.turn("s", (1, 2, 3, 4, 5), (6,))  # type: ignore[arg-type]
    pair.turn("s", [1, 2, 3, 4, 5, 6], (7,))
    assert pair.sent_tokens == 4


def test_books_that_came_apart_are_found_out() -> None:
    """Fails if the server believes the client's count without the digest."""
    pair = Pair()
    pair.turn("s", [1, 2, 3], (4,))
    stranger = ClientBook()
    sent = stranger.take("s", [1, 2, 9])
    stranger.keep("s", sent, (4,), pack_ids((4,)))
    sent = stranger.take("s", [1, 2, 9, 4, 5])
    assert pair.server.extend("s", have=sent.have, new=sent.new, digest=sent.digest) is None


def test_a_damaged_full_prompt_is_an_error() -> None:
    """It cannot be asked for again: it is what was asked for."""
    with pytest.raises(FrameError, match="damaged"):
        ServerBook().extend("s", have=0, new=pack_ids([1, 2]), digest=5)


def test_the_server_forgets_the_session_unused_for_longest() -> None:
    """Fails if tokens are not counted, or the newest session goes first."""
    pair = Pair(server_tokens=12)
    for session in ("a", "b", "c"):
        pair.turn(session, [1, 2, 3, 4], (5,))
    assert list(pair.server) == ["b", "c"]
    assert pair.turn("a", [1, 2, 3, 4, 5, 6], (7,)) == (1, 2, 3, 4, 5, 6)
    assert pair.asked_again == 1
    assert list(pair.server) == ["a"] or list(pair.server) == ["c", "a"]


def test_an_answer_to_a_session_that_went_is_not_kept() -> None:
    """Fails if a turn that ends after its session brings the session back for good."""
    book = ServerBook()
    sent = ClientBook().take("s", [1, 2])
    held = book.extend("s", have=0, new=sent.new, digest=sent.digest)
    assert held is not None
    book.drop("s")
    book.answered("s", held, pack_ids((3,)))
    assert list(book) == []


def test_the_client_remembers_no_more_than_its_bound() -> None:
    pair = Pair(client_tokens=12)
    for session in ("a", "b", "c"):
        pair.turn(session, [1, 2, 3, 4], (5,))
    sent = pair.sent_tokens
    pair.turn("c", [1, 2, 3, 4, 5, 6], (7,))
    assert pair.sent_tokens == sent + 1
    pair.turn("a", [1, 2, 3, 4, 5, 6], (7,))
    assert pair.sent_tokens == sent + 1 + 6


ids = st.lists(st.integers(0, 3), max_size=6)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), ids, ids), max_size=25),
    st.integers(4, 40),
    st.integers(4, 40),
)
def test_the_server_samples_after_the_callers_ids_whatever_happens(
    script: list[tuple[str, bool, list[int], list[int]]], client_tokens: int, server_tokens: int
) -> None:
    """Fails if the digest leaves out the held ids, or an eviction of either book is forgotten."""
    pair = Pair(client_tokens=client_tokens, server_tokens=server_tokens)
    history: dict[str, list[int]] = {}
    for session, rewrite, new, answer in script:
        prompt = new if rewrite else [*history.get(session, []), *new]
        assert pair.turn(session, prompt, tuple(answer)) == tuple(prompt)
        history[session] = [*prompt, *answer]
