"""The frames of an open connection: turns and their results, errors and control. Pure.

Numbers travel as they are: ids as int32, temperature, top_p and log-probabilities as float64.

The records are named tuples, not dataclasses: they are made once or twice a turn, and a frozen
dataclass costs several times as much to make.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from agentrl.serving.lean.frames import (
    FrameError,
    FrameKind,
    check_length,
    decode_json,
    decode_text,
    encode_json,
    floats,
    frame,
    ints,
    pack_ids,
    unpack,
    unpack_ids,
)
from agentrl.types import FinishReason, Generation, ImageSpan, SamplingParams


class Failure(IntEnum):
    """Which error an ERROR frame stands for."""

    REFUSED = 0
    """`EngineRefused`: nothing was sampled."""
    ENGINE = 1
    """`EngineError`."""
    SYNC = 2
    """`SyncError`."""


class GenerateFrame(NamedTuple):
    """A turn to sample."""

    request_id: int
    """Counts up in each connection."""
    session_id: str
    """The session of the turn."""
    have: int
    """Leading prompt tokens the server is believed to hold."""
    digest: int
    """CRC-32 of the whole prompt as int32 bytes, those that are held included."""
    sampling: SamplingParams
    """Sampling parameters of the turn."""
    new: bytes
    """The prompt from token `have` on, as int32 bytes."""
    images: tuple[ImageSpan, ...]
    """Images among all of the prompt; their files are in a folder that both ends see."""


class ResultFrame(NamedTuple):
    """A turn that was sampled."""

    request_id: int
    """Id of the request."""
    version: int
    """The weights that the engine has now."""
    generation: Generation
    """The turn."""
    packed_ids: bytes
    """Sampled ids as int32 bytes."""


class ErrorFrame(NamedTuple):
    """A request that failed."""

    request_id: int
    """Id of the request."""
    failure: Failure
    """Which error."""
    text: str
    """Message of the error."""


class ControlFrame(NamedTuple):
    """A CONTROL, or the ANSWER to one."""

    request_id: int
    """Id of the request."""
    body: dict[str, Any]
    """JSON."""


_ID = struct.Struct("<Q")
# request, have, digest, max_tokens, temperature, top_p, seeded, seed, then the counts of session
# bytes, stop ids, new ids and images
_GENERATE = struct.Struct("<QIIIdd?qHHIH")
# digest, first token, tokens, grid
_IMAGE = struct.Struct("<16s5I")
# request, engine version, finish reason, cached tokens, then the counts of ids and version spans
_RESULT = struct.Struct("<QqBIII")
_ERROR = struct.Struct("<QB")
_SPAN = struct.Struct("<Iq")
_FINISH = tuple(FinishReason)
_FINISH_CODE = {reason: code for code, reason in enumerate(_FINISH)}


# -- turns ------------------------------------------------------------------------------------


def encode_generate(
    request_id: int,
    session_id: str,
    sampling: SamplingParams,
    *,
    have: int,
    digest: int,
    new: bytes,
    images: Sequence[ImageSpan] = (),
) -> bytes:
    """A GENERATE; the arguments are the fields of `GenerateFrame`.

    Raises:
        FrameError: a number that does not fit.
    """
    session = session_id.encode()
    stops = _packed_stop_ids(sampling.stop_token_ids)
    seed = sampling.seed
    try:
        head = _GENERATE.pack(
            request_id,
            have,
            digest,
            sampling.max_tokens,
            sampling.temperature,
            sampling.top_p,
            seed is not None,
            0 if seed is None else seed,
            len(session),
            len(stops) // 4,
            len(new) // 4,
            len(images),
        )
        shown = b"".join(_packed_image(span) for span in images)
    except (struct.error, ValueError) as error:
        raise FrameError(f"a request that cannot be sent ({error}): {sampling}") from error
    return frame(FrameKind.GENERATE, head, session, stops, new, shown)


def decode_generate(payload: bytes) -> GenerateFrame:
    """Decode a GENERATE frame.

    Raises:
        FrameError: it is not whole.
    """
    head = unpack(_GENERATE, payload)
    request_id, have, digest, max_tokens, temperature, top_p, seeded, seed = head[:8]
    sessions, stops, news, images = head[8:]
    at = _GENERATE.size
    session_end = at + sessions
    stop_end = session_end + 4 * stops
    new_end = stop_end + 4 * news
    check_length("GENERATE", payload, new_end + images * _IMAGE.size)
    session_id = decode_text(payload[at:session_end])
    sampling = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        stop_token_ids=unpack_ids(payload[session_end:stop_end]),
        seed=seed if seeded else None,
    )
    new = payload[stop_end:new_end]
    shown = tuple(_read_images(payload[new_end:])) if images else ()
    return GenerateFrame(request_id, session_id, have, digest, sampling, new, shown)


def _packed_image(span: ImageSpan) -> bytes:
    return _IMAGE.pack(bytes.fromhex(span.digest), span.start, span.tokens, *span.grid)


def _read_images(payload: bytes) -> Iterator[ImageSpan]:
    for digest, start, tokens, *grid in _IMAGE.iter_unpack(payload):
        frames, rows, columns = grid
        yield ImageSpan(
            digest=digest.hex(), start=start, tokens=tokens, grid=(frames, rows, columns)
        )


def encode_result(
    request_id: int, generation: Generation, *, version: int, packed_ids: bytes
) -> bytes:
    """A RESULT; the arguments are the fields of `ResultFrame`.

    Raises:
        FrameError: a number that does not fit.
    """
    ids, versions = generation.ids, generation.policy_versions
    spans: list[tuple[int, int]] = []
    start = 0
    for at in range(1, len(versions) + 1):
        if at == len(versions) or versions[at] != versions[start]:
            spans.append((at - start, versions[start]))
            start = at
    try:
        head = _RESULT.pack(
            request_id,
            version,
            _FINISH_CODE[generation.finish_reason],
            generation.cached_tokens,
            len(ids),
            len(spans),
        )
        body = floats(len(ids)).pack(*generation.log_probs)
        tail = b"".join(_SPAN.pack(*span) for span in spans)
    except struct.error as error:
        raise FrameError(f"a generation that cannot be sent: {error}") from error
    return frame(FrameKind.RESULT, head, packed_ids, body, tail)


def decode_result(payload: bytes) -> ResultFrame:
    """Decode a RESULT frame.

    Raises:
        FrameError: it is not whole.
    """
    request_id, version, finish, cached, count, spans = unpack(_RESULT, payload)
    at = _RESULT.size
    ids_end = at + 4 * count
    floats_end = ids_end + 8 * count
    check_length("RESULT", payload, floats_end + spans * _SPAN.size)
    if finish >= len(_FINISH):
        raise FrameError(f"finish reason {finish}, expected less than {len(_FINISH)}")
    if spans == 1:
        length, span_version = _SPAN.unpack_from(payload, floats_end)
        versions = (span_version,) * (length if length == count else 0)
    else:
        versions = _read_spans(payload[floats_end:], count)
    if len(versions) != count:
        raise FrameError(f"versions that do not cover the {count} ids of a RESULT")
    packed = payload[at:ids_end]
    generation = Generation(
        ids=ints(count).unpack(packed),
        log_probs=floats(count).unpack_from(payload, ids_end),
        finish_reason=_FINISH[finish],
        policy_versions=versions,
        cached_tokens=cached,
    )
    return ResultFrame(request_id, version, generation, packed)


def _read_spans(payload: bytes, count: int) -> tuple[int, ...]:
    spans = list(_SPAN.iter_unpack(payload))
    # Checked before anything of that size is built.
    if sum(length for length, _ in spans) != count:
        return ()
    return tuple(version for length, version in spans for _ in range(length))


def encode_id(kind: FrameKind, request_id: int) -> bytes:
    """A CANCEL or NEED_FULL."""
    return frame(kind, _ID.pack(request_id))


def decode_id(payload: bytes) -> int:
    """The request of a CANCEL or NEED_FULL."""
    return unpack(_ID, payload, exact=True)[0]


# -- errors and control -----------------------------------------------------------------------


def encode_error(request_id: int, failure: Failure, text: str) -> bytes:
    """Encode an ERROR frame."""
    return frame(FrameKind.ERROR, _ERROR.pack(request_id, failure), text.encode(errors="replace"))


def decode_error(payload: bytes) -> ErrorFrame:
    """Decode an ERROR frame.

    Raises:
        FrameError: it is not whole.
    """
    request_id, failure = unpack(_ERROR, payload)
    if failure not in Failure.__members__.values():
        raise FrameError(f"failure {failure}, expected one of {[int(f) for f in Failure]}")
    text = payload[_ERROR.size :].decode(errors="replace")
    return ErrorFrame(request_id, Failure(failure), text)


def encode_control(kind: FrameKind, request_id: int, body: dict[str, Any]) -> bytes:
    """A CONTROL or ANSWER.

    Raises:
        FrameError: a body that is no JSON.
    """
    return frame(kind, _ID.pack(request_id), encode_json(body))


def decode_control(payload: bytes) -> ControlFrame:
    """Read a CONTROL or ANSWER.

    Raises:
        FrameError: it is no JSON object.
    """
    (request_id,) = unpack(_ID, payload)
    return ControlFrame(request_id, decode_json(payload[_ID.size :]))


@lru_cache(maxsize=256)
def _packed_stop_ids(ids: tuple[int, ...]) -> bytes:
    return pack_ids(ids)
