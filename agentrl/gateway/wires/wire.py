"""The contract of a wire: JSON in and out, and nothing of sessions or tokens."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from agentrl.gateway.known import KnownParts
from agentrl.gateway.records import RequestRefused, TurnAnswer, TurnRequest


class Wire(ABC):
    """One way to ask for a turn."""

    path: str
    """Path of its requests, below `/v1/`."""
    history: str
    """Field of a body that lists the messages."""

    @abstractmethod
    def read(self, body: Mapping[str, Any], known: KnownParts) -> TurnRequest:
        """The request in a body. Fields that are not known are ignored.

        Args:
            body: of the request.
            known: parts that its session has read before.

        Raises:
            RequestRefused: a field that is known has a wrong type, or asks for what is not served.
        """

    @abstractmethod
    def write(self, answer: TurnAnswer, body: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer to a request."""

    @abstractmethod
    def events(
        self, answer: TurnAnswer, request: TurnRequest, body: Mapping[str, Any]
    ) -> Iterator[bytes]:
        """The answer as server-sent events."""

    @abstractmethod
    def error(self, refused: RequestRefused) -> tuple[int, dict[str, Any]]:
        """HTTP status and body of an error."""

    def error_event(self, refused: RequestRefused) -> bytes:
        """The same in a stream that has begun."""
        return event(self.error(refused)[1])


def as_json(data: Mapping[str, Any]) -> bytes:
    """The JSON of an answer. A model can write numbers and characters that few writers take."""
    try:
        return orjson.dumps(data)
    except TypeError:
        return json.dumps(data).encode()


def event(data: Mapping[str, Any] | str, *, name: str = "") -> bytes:
    """The bytes of one server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    text = data.encode() if isinstance(data, str) else as_json(data)
    return head + b"data: " + text + b"\n\n"


def said_by(refused: RequestRefused, *, full: str) -> str:
    """The message of an error.

    Args:
        refused: the error.
        full: for a full context, with `{tokens}` and `{most}`, in the words that agents look for.
    """
    return refused.message or full.format(tokens=refused.tokens, most=refused.most)
