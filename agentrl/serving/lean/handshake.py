"""The handshake by which both ends of a connection prove the secret. Pure but for the nonces.

Both prove with an HMAC over both nonces that they know the secret; it never travels, and a nonce
is used once. The protocol's number comes first, so that a mismatch can be said in words.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from dataclasses import dataclass

from agentrl.serving.lean.frames import (
    PROTOCOL,
    FrameError,
    FrameKind,
    decode_json,
    encode_json,
    frame,
    unpack,
)

MAGIC = b"agentrl\n"
"""Begins the first frame of either end."""
NONCE_BYTES = 16
"""Length of either nonce."""

_HELLO = struct.Struct(f"<8sB{NONCE_BYTES}s")
_CHALLENGE = struct.Struct(f"<8sB{NONCE_BYTES}s32s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Facts about the server at the other end."""

    name: str
    """The engine's own name."""
    version: int
    """The weights it has."""


class ClientHandshake:
    """Handshake of the end that dials."""

    def __init__(self, secret: str, *, protocol: int = PROTOCOL) -> None:
        self._secret = secret
        self._protocol = protocol
        self._nonce = os.urandom(NONCE_BYTES)
        self._challenged = False

    def hello(self) -> bytes:
        """The first frame of a connection."""
        return frame(FrameKind.HELLO, _HELLO.pack(MAGIC, self._protocol, self._nonce))

    def prove(self, challenge: bytes) -> bytes:
        """The answer to a CHALLENGE.

        Raises:
            FrameError: another protocol, or a server that does not know the secret.
        """
        _check_protocol(challenge, "the server")
        _, _, nonce, proof = unpack(_CHALLENGE, challenge, exact=True)
        if self._challenged:
            raise FrameError("a second challenge")
        self._challenged = True
        if not hmac.compare_digest(proof, _proof(self._secret, b"server", self._nonce, nonce)):
            raise FrameError("a proof of another secret than the one given for this server")
        return frame(FrameKind.PROOF, _proof(self._secret, b"client", self._nonce, nonce))

    def welcomed(self, welcome: bytes) -> Peer:
        """Check a WELCOME; returns the server that sent it.

        Raises:
            FrameError: it came before a challenge, or lacks a name or version.
        """
        body = decode_json(welcome)
        name, version = body.get("name"), body.get("version")
        if not (self._challenged and isinstance(name, str) and isinstance(version, int)):
            raise FrameError(f"an unexpected welcome: {body}")
        return Peer(name=name, version=version)


class ServerHandshake:
    """Handshake of the end that listens."""

    def __init__(self, secret: str, *, protocol: int = PROTOCOL) -> None:
        self._secret = secret
        self._protocol = protocol
        self._nonce = os.urandom(NONCE_BYTES)
        self._expected = b""

    def challenge(self, hello: bytes) -> bytes:
        """The answer to a HELLO.

        Raises:
            FrameError: another protocol, or a second HELLO.
        """
        _check_protocol(hello, "the client")
        _, _, nonce = unpack(_HELLO, hello, exact=True)
        if self._expected:
            raise FrameError("a second hello")
        self._expected = _proof(self._secret, b"client", nonce, self._nonce)
        mine = _proof(self._secret, b"server", nonce, self._nonce)
        return frame(FrameKind.CHALLENGE, _CHALLENGE.pack(MAGIC, self._protocol, self._nonce, mine))

    def check(self, proof: bytes) -> None:
        """Raise unless a PROOF shows that the client knows the secret.

        Raises:
            FrameError: it does not.
        """
        if not self._expected or not hmac.compare_digest(proof, self._expected):
            raise FrameError("the client's secret is another one")


def encode_welcome(peer: Peer) -> bytes:
    """Encode a WELCOME frame."""
    return frame(FrameKind.WELCOME, encode_json({"name": peer.name, "version": peer.version}))


def _proof(secret: str, side: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(secret.encode(), side + client_nonce + server_nonce, hashlib.sha256)


def _check_protocol(payload: bytes, who: str) -> None:
    if len(payload) <= len(MAGIC) or not payload.startswith(MAGIC):
        raise FrameError(f"{who} does not speak the lean protocol (got {payload[:16]!r})")
    theirs = payload[len(MAGIC)]
    if theirs != PROTOCOL:
        raise FrameError(
            f"{who} speaks lean protocol {theirs}, this end {PROTOCOL}; use the same version of "
            "agentrl on both sides"
        )
