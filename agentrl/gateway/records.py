"""The records between a wire and a session: a request for a turn, its answer, and a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from agentrl.tool import Tool
from agentrl.types import Message, ToolCall

if TYPE_CHECKING:
    from agentrl.rollout.history.tree import TreeNode

MODEL = "policy"
"""Name of the one model that is served; `agentrl serve` uses the same."""


MOST_MESSAGES = 4096
"""Most messages of a request, and most items that stand for them."""
MOST_TOOLS = 1024
"""Most tools that a request offers."""
MOST_STOPS = 16
"""Most stop texts of a request."""
MOST_STOP_LENGTH = 1024
"""Most characters of a stop text."""


class RefusalReason(StrEnum):
    """Reason of a request that is not answered."""

    BAD_REQUEST = "bad_request"
    """Not JSON, a field of a wrong type, or something that is not supported."""
    NOT_TEXT = "not_text"
    """Images, audio or files for a model of text."""
    UNKNOWN_SESSION = "unknown_session"
    """No session, or one that is not open."""
    NO_ACCESS = "no_access"
    """The access token is missing or wrong."""
    UNKNOWN_MODEL = "unknown_model"
    """A model name that is not served."""
    UNKNOWN_PATH = "unknown_path"
    """A wire or method that is not spoken."""
    TOO_LARGE = "too_large"
    """The body is over the limit."""
    TOO_LATE = "too_late"
    """The body did not come in time."""
    CONTEXT_FULL = "context_full"
    """The conversation leaves no room for a sampled token."""
    LIMIT = "limit"
    """The rollout used all turns or tokens it may take."""
    BUSY = "busy"
    """As many rollouts as may be are under way."""
    ENGINE = "engine"
    """The engine failed; no fault of the request."""


class RequestRefused(Exception):
    """A request that gets an error in the form of its wire."""

    def __init__(
        self, reason: RefusalReason, message: str, *, tokens: int = 0, most: int = 0
    ) -> None:
        """Take the reason.

        Args:
            reason: decides status and error type.
            message: says what, what it got, what was expected and what to do.
            tokens: of the conversation, where the context is full.
            most: tokens of the context, where it is full.
        """
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.tokens, self.most = tokens, most
        self.behind: TreeNode | None = None
        """Node of the message tree behind which it was placed; None where it was not."""


def check_number(field: str, number: int, most: int, of: str) -> None:
    """Refuse more than `most` of something.

    Raises:
        RequestRefused: names the field and the bound.
    """
    if number > most:
        raise RequestRefused(
            RefusalReason.TOO_LARGE,
            f"{field} has {number} or more {of}, at most {most} are read; send less",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One request for a turn of the model, as every wire gives it."""

    messages: tuple[Message, ...]
    """The whole conversation, system messages first, one message a tool result."""
    tools: tuple[Tool, ...] = ()
    """Functions that are offered."""
    calls: bool = True
    """Whether calls are read; False for a tool choice of `none`."""
    parallel: bool = True
    """Whether a turn may hold more than one call."""
    max_tokens: int | None = None
    """Most new tokens; None leaves it to the limits of the rollout."""
    stop: tuple[str, ...] = ()
    """Texts that end the turn and are not part of the answer."""
    stream: bool = False
    """Whether the answer comes as events."""
    stream_usage: bool = False
    """Whether a stream of chat completions ends with the token counts."""
    log_probs: bool = False
    """Whether the answer brings the log-probabilities of its tokens."""
    previous: str = ""
    """Id of the answer whose conversation these messages continue; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """The body of a request, read."""

    request: TurnRequest
    """What is asked for."""
    body: Mapping[str, Any]
    """All of it, for the answer."""
    digest: bytes
    """The same for the same request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAnswer:
    """One sampled turn, as every wire writes it."""

    id: str
    """Unique in its session."""
    text: str
    """Words outside of calls and thoughts."""
    reasoning: str
    """The thought before them; empty for none."""
    calls: tuple[ToolCall, ...]
    """Calls that could be read."""
    finish: Literal["stop", "length", "calls"]
    """Why the turn ended."""
    stop_text: str | None
    """Which of the stop texts ended it."""
    prompt_tokens: int
    """Tokens before the turn."""
    sampled_tokens: int
    """Tokens of the turn."""
    cached_tokens: int
    """Prompt tokens that the engine did not compute again."""
    log_probs: tuple[tuple[str, float], ...] = ()
    """Text and log-probability of each sampled token, where they were asked for; another model
    gives none."""

    @property
    def message(self) -> Message:
        """The turn as a message of the conversation, without its thought."""
        return Message(role="assistant", content=self.text, tool_calls=self.calls)
