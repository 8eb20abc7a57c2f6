"""The codec of the lean connection: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import contextlib
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.serving.lean import frames, handshake, turns
from agentrl.serving.lean.frames import FrameError, FrameKind, FrameSplitter
from agentrl.types import FinishReason, Generation, ImageSpan, SamplingParams

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
thorough = settings(deadline=None, max_examples=200)


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    spans = draw(st.lists(st.tuples(st.integers(1, 5), int64), max_size=4))
    versions = [version for length, version in spans for _ in range(length)]
    count = len(versions)
    return Generation(
        ids=tuple(draw(st.lists(int32, min_size=count, max_size=count))),
        log_probs=tuple(draw(st.lists(floats, min_size=count, max_size=count))),
        finish_reason=draw(st.sampled_from(FinishReason)),
        policy_versions=tuple(versions),
        cached_tokens=draw(st.integers(0, 2**32 - 1)),
    )


uint32 = st.integers(0, 2**32 - 1)
images = st.builds(
    ImageSpan,
    digest=st.binary(min_size=16, max_size=16).map(bytes.hex),
    start=uint32,
    tokens=uint32,
    grid=st.tuples(uint32, uint32, uint32),
)
samplings = st.builds(
    SamplingParams,
    temperature=floats,
    top_p=floats,
    max_tokens=st.integers(0, 2**32 - 1),
    stop_token_ids=st.lists(int32, max_size=5).map(tuple),
    seed=st.none() | int64,
)


def only(data: bytes, *, cuts: list[int] | None = None) -> tuple[int, bytes]:
    """The one frame in `data`, given to the splitter in pieces."""
    splitter = FrameSplitter()
    ends = [*sorted({cut % (len(data) + 1) for cut in cuts or []}), len(data)]
    found, start = [], 0
    for end in ends:
        found += splitter.feed(data[start:end])
        start = end
    assert len(found) == 1
    return found[0]


@thorough
@given(
    st.integers(0, 2**64 - 1),
    st.text(max_size=40),
    samplings,
    st.lists(int32),
    st.lists(images, max_size=3).map(tuple),
    st.lists(int32),
)
def test_a_turn_arrives_as_it_was_sent(
    request_id: int,
    session: str,
    sampling: SamplingParams,
    new: list[int],
    shown: tuple[ImageSpan, ...],
    cuts: list[int],
) -> None:
    """Fails if a number is rounded (a temperature sent as float32) or a sign is lost."""
    packed = frames.pack_ids(new)
    data = turns.encode_generate(
        request_id, session, sampling, have=7, digest=9, new=packed, images=shown
    )
    kind, payload = only(data, cuts=cuts)
    assert kind == FrameKind.GENERATE
    turn = turns.decode_generate(payload)
    assert turn == (request_id, session, 7, 9, sampling, packed, shown)
    assert frames.unpack_ids(turn.new) == tuple(new)


@thorough
@given(st.integers(0, 2**64 - 1), generations(), int64, st.lists(int32))
def test_a_result_arrives_as_it_was_sent(
    request_id: int, generation: Generation, version: int, cuts: list[int]
) -> None:
    """Fails if log-probs lose bits, or if a change of weights in mid-turn loses its place."""
    packed = frames.pack_ids(generation.ids)
    data = turns.encode_result(request_id, generation, version=version, packed_ids=packed)
    kind, payload = only(data, cuts=cuts)
    assert kind == FrameKind.RESULT
    assert turns.decode_result(payload) == (request_id, version, generation, packed)


@thorough
@given(st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=50))), st.integers(1, 30))
def test_frames_come_out_in_order_however_they_are_cut(
    sent: list[tuple[FrameKind, bytes]], piece: int
) -> None:
    """Fails if a frame that ends where a piece ends is kept back, or its head is read twice."""
    data = b"".join(frames.frame(kind, payload) for kind, payload in sent)
    splitter = FrameSplitter()
    found = []
    for start in range(0, len(data), piece):
        found += splitter.feed(data[start : start + piece])
    assert found == sent


DECODERS = (
    turns.decode_generate,
    turns.decode_result,
    turns.decode_error,
    turns.decode_control,
    turns.decode_id,
    handshake.ClientHandshake("s").prove,
    handshake.ClientHandshake("s").welcomed,
    handshake.ServerHandshake("s").challenge,
    handshake.ServerHandshake("s").check,
)


@thorough
@given(st.binary(max_size=300), st.sampled_from(DECODERS))
def test_garbage_is_a_frame_error_and_nothing_else(payload: bytes, decode: object) -> None:
    """Fails if a count in a frame is believed before the frame is known to be as long."""
    with contextlib.suppress(FrameError):
        decode(payload)  # type: ignore[operator]


@thorough
@given(st.integers(1, 2**32 - 1), generations())
def test_a_cut_or_stretched_result_is_refused(cut: int, generation: Generation) -> None:
    packed = frames.pack_ids(generation.ids)
    payload = turns.encode_result(1, generation, version=0, packed_ids=packed)[5:]
    with pytest.raises(FrameError):
        turns.decode_result(payload[: cut % len(payload)])
    with pytest.raises(FrameError):
        turns.decode_result(payload + b"x")


def test_counts_that_lie_cost_no_memory() -> None:
    """Fails if spans are spread out before their sum is compared with the number of ids."""
    head = struct.pack("<QqBIII", 1, 0, 0, 0, 1, 2)
    body = struct.pack("<id", 5, -1.0) + struct.pack("<IqIq", 2**32 - 1, 0, 2**32 - 1, 1)
    with pytest.raises(FrameError, match="cover"):
        turns.decode_result(head + body)
    with pytest.raises(FrameError, match="expected 5"):
        turns.decode_result(struct.pack("<QqBIII", 1, 0, 0, 0, 2**32 - 1, 1))


def test_a_length_that_no_frame_has_is_refused_at_once() -> None:
    """Fails if the splitter waits for 4 GiB because somebody says they will come."""
    splitter = FrameSplitter(limit=100)
    assert splitter.feed(struct.pack("<IB", 100, FrameKind.PING)) == []
    for length in (0, 101, 2**32 - 1):
        with pytest.raises(FrameError, match="lean protocol"):
            FrameSplitter(limit=100).feed(struct.pack("<IB", length, FrameKind.PING))
    with pytest.raises(FrameError, match="GET /"):
        FrameSplitter().feed(b"GET / HTTP/1.1\r\n\r\n")


def test_numbers_that_do_not_fit_are_named() -> None:
    with pytest.raises(FrameError, match="32 bits"):
        frames.pack_ids([1, 2**31])
    with pytest.raises(FrameError, match="32 bits"):
        frames.pack_ids([1, "2"])  # type: ignore[list-item]
    for sampling in (SamplingParams(seed=2**63), SamplingParams(max_tokens=-1)):
        with pytest.raises(FrameError, match="cannot be sent"):
            turns.encode_generate(1, "s", sampling, have=0, digest=0, new=b"")


def test_infinite_and_absent_log_probs_travel_too() -> None:
    """The codec judges nothing: what an engine says is the rollout's to refuse."""
    generation = Generation(
        ids=(1, 2),
        log_probs=(-math.inf, math.nan),
        finish_reason=FinishReason.STOP,
        policy_versions=(3, 3),
    )
    data = turns.encode_result(1, generation, version=3, packed_ids=frames.pack_ids((1, 2)))
    back = turns.decode_result(data[5:]).generation
    assert back.log_probs[0] == -math.inf
    assert math.isnan(back.log_probs[1])


# -- handshake --------------------------------------------------------------------------------


def shake(client: handshake.ClientHandshake, server: handshake.ServerHandshake) -> None:
    challenge = server.challenge(client.hello()[5:])
    server.check(client.prove(challenge[5:])[5:])


def test_both_ends_prove_that_they_know_the_secret() -> None:
    shake(handshake.ClientHandshake("s"), handshake.ServerHandshake("s"))
    with pytest.raises(FrameError, match="another secret"):
        shake(handshake.ClientHandshake("s"), handshake.ServerHandshake("t"))


def test_a_proof_cannot_be_used_again() -> None:
    """Fails if the server's nonce does not enter the proof: then a listener could replay it."""
    client, server = handshake.ClientHandshake("s"), handshake.ServerHandshake("s")
    hello = client.hello()[5:]
    proof = client.prove(server.challenge(hello)[5:])[5:]
    server.check(proof)
    other = handshake.ServerHandshake("s")
    other.challenge(hello)
    with pytest.raises(FrameError, match="another one"):
        other.check(proof)


def test_a_proof_is_not_accepted_before_a_hello() -> None:
    """Fails if the expected proof starts as something that a client can send."""
    with pytest.raises(FrameError):
        handshake.ServerHandshake("s").check(b"")


def test_another_protocol_is_named() -> None:
    client = handshake.ClientHandshake("s", protocol=7)
    with pytest.raises(FrameError, match=r"speaks lean protocol 7, this end 2"):
        handshake.ServerHandshake("s").challenge(client.hello()[5:])
    hello = handshake.ClientHandshake("s")
    challenge = handshake.ServerHandshake("s", protocol=3).challenge(hello.hello()[5:])
    with pytest.raises(FrameError, match=r"the server speaks lean protocol 3"):
        hello.prove(challenge[5:])
