"""Messages of a chat: their text, images, tool calls and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrl.types.endings import CallStatus, ToolStatus

Role = Literal["system", "user", "assistant", "tool"]


IMAGE_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands in the text of a message or tool result where one of its images is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture that the model is shown, as the bytes of its file. `agentrl.images` reads them.

    Example:
        >>> Image(digest="9f86d081884c7d65", data=b"...", width=64, height=48).width
        64
    """

    digest: str
    """First 32 hexadecimal digits of the SHA-256 of `data`; two images are equal if it is."""
    data: bytes = field(repr=False, compare=False)
    """A whole PNG, JPEG, WebP, GIF or BMP file."""
    width: int
    """Columns of pixels."""
    height: int
    """Rows of pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpan:
    """The tokens of one image in a row of training data.

    Example:
        Six tokens of an image behind four tokens of text, two rows of three features each:

        >>> span = ImageSpan(digest="9f86d081884c7d65", start=4, tokens=6, grid=(1, 2, 3))
        >>> span.end, span.features
        (10, 6)
    """

    digest: str
    """`Image.digest`; the file is kept under it in the folder `images` of the run."""
    start: int
    """Position of its first placeholder in `prompt_ids` + `response_ids`."""
    tokens: int
    """Tokens from its first to its last placeholder; some families write markers between them."""
    grid: tuple[int, int, int]
    """Features as (frames or tiles, rows, columns); their product is the number of placeholders."""

    @property
    def end(self) -> int:
        """One past the position of its last placeholder."""
        return self.start + self.tokens

    @property
    def features(self) -> int:
        """Placeholders of the image, each of which stands for one feature vector."""
        frames, rows, columns = self.grid
        return frames * rows * columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a chat.

    Example:
        >>> Message(role="user", content="What is 1 + 2?").role
        'user'
    """

    role: Role
    """Role of the speaker."""
    content: str
    """Text, with `IMAGE_MARK` where an image stands; `agentrl.images.message` makes it of parts."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls made by an assistant message."""
    tool_call_id: str | None = None
    """For a `tool` message: the call it answers."""
    name: str | None = None
    """For a `tool` message: the tool that answered."""
    images: tuple[Image, ...] = ()
    """Images of the message, in the order of their marks; without marks they stand before the
    text. Only for models that read images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call as parsed from the model's text.

    Example:
        Five sampled tokens, of which the last three are the call:

        >>> call = ToolCall(id="4f1c0a2b9", name="add", arguments={"a": 1, "b": 2},
        ...                 raw='<tool_call>{"name": "add", ...}</tool_call>', span=(2, 5))
        >>> call.status.value, call.span
        ('ok', (2, 5))

        One that is made by hand, as a solution or for a test:

        >>> ToolCall("add", {"a": 1, "b": 2}).name
        'add'
    """

    name: str = field(kw_only=False)
    """The tool; empty when the call is malformed."""
    arguments: Mapping[str, Any] = field(kw_only=False)
    """Parsed arguments; empty when the call is malformed."""
    id: str = ""
    """Unique inside the rollout; made by the parser."""
    raw: str = ""
    """The text of the span, verbatim; empty for a call that was not read from text."""
    status: CallStatus = CallStatus.OK
    """Status given by the parser."""
    error: str = ""
    """Why it is not `OK`, in words the model can act on."""
    span: tuple[int, int] = (0, 0)
    """Half-open token span inside the turn's ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result that came back for one call.

    Example:
        >>> ToolResult(text="3", call_id="4f1c0a2b9", name="add", duration_s=0.002).status.value
        'ok'
    """

    text: str
    """Text the model reads."""
    status: ToolStatus = ToolStatus.OK
    """Status of the call."""
    call_id: str = ""
    """The call it answers; filled by the loop."""
    name: str = ""
    """The tool; filled by the loop."""
    duration_s: float = 0.0
    """Wall time of the call in seconds; filled by the loop."""
    truncated: bool = False
    """Whether `text` was shortened to the limit of the loop."""
    data: Any = None
    """Anything a tool hands to the environment and not to the model."""
    images: tuple[Any, ...] = ()
    """Images that the model is shown with the text, as in `Message.images`; a tool may give
    whatever `agentrl.images.read_image` reads, the loop makes `Image` records of it."""
