"""Frames between the two ends of a lean connection, as bytes. Pure: no clock, no network.

A frame is a little-endian u32 (bytes that follow it), a u8 (its kind) and a payload:

    client                                   server
    HELLO      magic, protocol, nonce   -->
                                        <--  CHALLENGE  magic, protocol, nonce, proof
    PROOF      proof                    -->
                                        <--  WELCOME    JSON: name, version      (or REJECT)
    GENERATE   a turn                   -->
                                        <--  RESULT, NEED_FULL or ERROR
    CANCEL, END_SESSION (no answer)     -->
    CONTROL    JSON: op, arguments      -->
                                        <--  ANSWER     JSON        (or ERROR)
    PING                                -->
                                        <--  PONG

A proof is an HMAC of both nonces under the shared secret, so each end knows the other and the
secret never travels. Each request has an id that the client counts up. This module has
what all frames share; `handshake` has those of the first half, `turns` the others.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any

import orjson

PROTOCOL = 2
"""Both ends must speak the same."""
MAX_FRAME_BYTES = 64 << 20
"""Longest frame of a known peer."""
MAX_HANDSHAKE_BYTES = 4096
"""Longest frame of a peer that has not shown that it knows the secret."""


class FrameKind(IntEnum):
    """Kinds of a frame."""

    HELLO = 1
    PROOF = 2
    GENERATE = 3
    CANCEL = 4
    END_SESSION = 5
    CONTROL = 6
    PING = 7
    CHALLENGE = 17
    WELCOME = 18
    REJECT = 19
    RESULT = 20
    NEED_FULL = 21
    ERROR = 22
    ANSWER = 23
    PONG = 24


class FrameError(ValueError):
    """Bytes that violate the protocol. The connection they came from is useless."""


_HEAD = struct.Struct("<IB")

# -- ids --------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def ints(count: int) -> struct.Struct:
    """Packed format of `count` int32 values."""
    return struct.Struct(f"<{count}i")


@lru_cache(maxsize=4096)
def floats(count: int) -> struct.Struct:
    """Packed format of `count` float64 values."""
    return struct.Struct(f"<{count}d")


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as int32 bytes.

    Raises:
        FrameError: something that is no int32.
    """
    try:
        return ints(len(ids)).pack(*ids)
    except struct.error as error:
        raise FrameError(f"token ids must be integers of 32 bits: {error}") from error


def unpack_ids(packed: bytes | bytearray) -> tuple[int, ...]:
    """Token ids from int32 bytes."""
    return ints(len(packed) // 4).unpack(packed)


# -- frames -----------------------------------------------------------------------------------


class FrameSplitter:
    """Splits a stream of bytes into frames.

    Holds at most one frame that is not yet whole, of at most `limit` bytes, and joins its pieces
    once.
    """

    def __init__(self, *, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        """Longest frame accepted, in bytes behind the length."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._need = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take what was received.

        Returns:
            (kind, payload) of the frames that are whole now, in order.

        Raises:
            FrameError: a length that no frame can have.
        """
        if self._pieces:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._need:
                return []
            data = b"".join(self._pieces)
            self._pieces = []
        frames: list[tuple[int, bytes]] = []
        at, end = 0, len(data)
        need = _HEAD.size
        while end - at >= _HEAD.size:
            length, kind = _HEAD.unpack_from(data, at)
            if not 1 <= length <= self.limit:
                raise FrameError(
                    f"a frame of {length} bytes, expected 1 to {self.limit}; this is not the lean "
                    f"protocol (got {data[at : at + 16]!r})"
                )
            stop = at + 4 + length
            if stop > end:
                need = 4 + length
                break
            frames.append((kind, data[at + _HEAD.size : stop]))
            at = stop
        if at < end:
            self._pieces = [data[at:]]
            self._size = end - at
            self._need = need
        return frames


def frame(kind: FrameKind, *parts: bytes) -> bytes:
    """A frame around a payload."""
    payload = b"".join(parts)
    return _HEAD.pack(1 + len(payload), kind) + payload


def encode_json(body: dict[str, Any]) -> bytes:
    """Encode one JSON object.

    Raises:
        FrameError: a body that is no JSON.
    """
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        raise FrameError(f"a message that is no JSON: {error}") from error


def decode_text(payload: bytes) -> str:
    """The session of an END_SESSION.

    Raises:
        FrameError: it is no UTF-8.
    """
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise FrameError(f"a text that is not UTF-8: {error}") from error


def decode_json(payload: bytes) -> dict[str, Any]:
    """Decode one JSON object.

    Raises:
        FrameError: it is something else.
    """
    try:
        body = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise FrameError(f"a message that is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise FrameError(f"a message that is no JSON object but {type(body).__name__}")
    return body


def unpack(shape: struct.Struct, payload: bytes, *, exact: bool = False) -> tuple[Any, ...]:
    """The front of a payload, or all of it.

    Raises:
        FrameError: it is too short, or not exactly as long.
    """
    size = len(payload)
    if size < shape.size or (exact and size != shape.size):
        raise FrameError(f"a frame of {size} bytes, expected {shape.size}")
    return shape.unpack_from(payload)


def check_length(what: str, payload: bytes, expected: int) -> None:
    """Raise if a payload has another length than its counts require.

    Raises:
        FrameError: it has.
    """
    if len(payload) != expected:
        raise FrameError(f"a {what} of {len(payload)} bytes, expected {expected}")
