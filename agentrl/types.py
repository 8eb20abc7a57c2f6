"""The records that stages hand to each other.

Every stage of agentrl takes one record and gives one record, and knows the records but not the
other stages. This module imports the standard library only, so anything may import it.

Legend for the shapes in field docstrings: `_T` response positions of one row, `_P` prompt tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]

IMAGE_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands in the text of a message or tool result where one of its images is."""


class Termination(StrEnum):
    """Why a rollout ended. `TERMINATION_RULES` says what follows from it, for every stage.

    Example:
        >>> Termination("max_turns") is Termination.MAX_TURNS
        True
    """

    ENV_DONE = "env_done"
    """The environment returned `done=True`."""
    NO_TOOL_CALL = "no_tool_call"
    """The model answered without an action although the loop runs on tool calls."""
    MAX_TURNS = "max_turns"
    """`max_assistant_turns` or `max_user_turns` was reached before the environment was done."""
    MAX_TOKENS = "max_tokens"
    """The response budget of the rollout was used up."""
    CONTEXT_FULL = "context_full"
    """Prompt plus response reached the context length of the model."""
    TOOL_TIMEOUT = "tool_timeout"
    """The model's own action, or the rollout as a whole, ran past its wall-clock limit."""
    OUTPUT_LIMIT = "output_limit"
    """The model's own action printed more than the sandbox keeps, and the environment ended it."""
    OOM = "oom"
    """The model's own action used more memory than its sandbox allows."""
    SANDBOX_FAILED = "sandbox_failed"
    """The sandbox itself failed; the model had no part in it."""
    ENGINE_FAILED = "engine_failed"
    """The inference engine failed."""
    NO_ENGINE = "no_engine"
    """No inference engine took requests; the group is rolled out again and never trained so."""
    ENV_CRASHED = "env_crashed"
    """`reset` or `step` raised."""
    GRADER_CRASHED = "grader_crashed"
    """The reward could not be computed (raised, NaN, wrong type)."""
    ABORTED = "aborted"
    """The run was stopped while the rollout was in flight."""
    STALE = "stale"
    """The rollout was sampled by weights older than the configured bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationRule:
    """Consequences of one termination for every later stage.

    Example:
        >>> rule = TERMINATION_RULES[Termination.MAX_TOKENS]
        >>> rule.in_loss, rule.truncated, rule.retried
        (True, True, False)
    """

    reward_trusted: bool
    """Whether `Trajectory.reward` measures what the policy did."""
    in_baseline: bool
    """Whether the reward takes part in the statistics of its group."""
    in_loss: bool
    """Whether the action tokens are trained on."""
    truncated: bool = False
    """Whether a budget truncated the rollout before its end."""
    retried: bool = False
    """Whether the worker tries the rollout again on fresh parts before it drops it."""
    from_env: bool = False
    """Whether an environment may report it in its `StepResult`."""
    mark: Literal["done", "limit", "fault"]
    """How views mark it: the environment was done, the policy met a limit, or no fault of its."""
    meaning: str
    """One sentence for those who look at a rollout."""


def _trusted(
    meaning: str,
    *,
    mark: Literal["done", "limit"] = "limit",
    truncated: bool = False,
    from_env: bool = False,
) -> TerminationRule:
    return TerminationRule(
        reward_trusted=True, in_baseline=True, in_loss=True, truncated=truncated,
        from_env=from_env, mark=mark, meaning=meaning,
    )  # fmt: skip


def _dropped(meaning: str, *, retried: bool = False) -> TerminationRule:
    return TerminationRule(
        reward_trusted=False, in_baseline=False, in_loss=False, retried=retried,
        mark="fault", meaning=meaning,
    )  # fmt: skip


TERMINATION_RULES: Mapping[Termination, TerminationRule] = {
    Termination.ENV_DONE: _trusted("The environment said it is done.", mark="done", from_env=True),
    Termination.NO_TOOL_CALL: _trusted("The model answered without a tool call."),
    Termination.MAX_TURNS: _trusted("It used all turns it may take.", truncated=True),
    Termination.MAX_TOKENS: _trusted("It used all tokens it may sample.", truncated=True),
    Termination.CONTEXT_FULL: _trusted("The context had no room left.", truncated=True),
    Termination.TOOL_TIMEOUT: _trusted(
        "Its own action, or the whole rollout, took longer than it may.", from_env=True
    ),
    Termination.OUTPUT_LIMIT: _trusted(
        "Its own action printed more than the sandbox keeps.", from_env=True
    ),
    Termination.OOM: _trusted(
        "Its own action used more memory than the sandbox allows.", from_env=True
    ),
    Termination.SANDBOX_FAILED: _dropped(
        "The sandbox broke: no fault of the policy.", retried=True
    ),
    Termination.ENGINE_FAILED: _dropped(
        "The engine that samples broke: no fault of the policy.", retried=True
    ),
    Termination.NO_ENGINE: _dropped("No engine was there to sample: no fault of the policy."),
    Termination.ENV_CRASHED: _dropped(
        "The environment raised an error: no fault of the policy.", retried=True
    ),
    Termination.GRADER_CRASHED: _dropped(
        "The reward could not be computed: no fault of the policy.", retried=True
    ),
    Termination.ABORTED: _dropped("The run was stopped while it was in flight."),
    Termination.STALE: _dropped("Weights older than the bound sampled it."),
}
"""The one table every stage reads: a new ending is a member above and a row here, no more, since
filters, views and the page take its traits and its meaning from here. `loss.mask_truncated` may
further exclude truncated rows."""


class CallStatus(StrEnum):
    """The parser's verdict on a span that looks like a tool call. A bad call is data."""

    OK = "ok"
    """Well formed: name and arguments were read."""
    MALFORMED = "malformed"
    """The span could not be parsed (broken JSON, unknown structure)."""
    UNCLOSED = "unclosed"
    """The opening marker is there, the closing one is not."""
    MISSING_NAME = "missing_name"
    """Parsed, but it names no tool."""
    INVALID_ARGUMENTS = "invalid_arguments"
    """Parsed, but the arguments are not an object."""


class ToolStatus(StrEnum):
    """The way in which one tool call ended."""

    OK = "ok"
    """The tool returned a result."""
    ERROR = "error"
    """The tool raised `ToolError`; its text is what the model sees."""
    INVALID_ARGUMENTS = "invalid_arguments"
    """The arguments did not fit the schema; the tool did not run."""
    UNKNOWN_TOOL = "unknown_tool"
    """No tool of that name is offered."""
    MALFORMED = "malformed"
    """The call could not be parsed; the tool did not run."""
    OVER_CAP = "over_cap"
    """Beyond `max_parallel_calls`; the tool did not run and the result says so."""
    TIMEOUT = "timeout"
    """The tool ran past its time limit."""


class FinishReason(StrEnum):
    """Why the engine stopped generating a turn."""

    STOP = "stop"
    """A stop token was sampled; it is the last id of the generation."""
    LENGTH = "length"
    """`max_tokens` was reached."""
    ABORT = "abort"
    """The request was cancelled."""


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
    """

    id: str
    """Unique inside the rollout; made by the parser."""
    name: str
    """The tool; empty when the call is malformed."""
    arguments: Mapping[str, Any]
    """Parsed arguments; empty when the call is malformed."""
    raw: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to do: a row of a dataset.

    Example:
        >>> task = Task(id="gsm8k/17", prompt="What is 1 + 2?", label="3")
        >>> task.split
        'train'
    """

    id: str
    """Unique inside its dataset and stable across runs; resume and grouping rely on it."""
    prompt: str | tuple[Message, ...]
    """Text (becomes one user message) or chat messages."""
    label: Any = None
    """What the environment needs to judge an answer; never shown to the model."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Anything else of the row; JSON-serialisable."""
    split: str = "train"
    """Which split the row belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Settings with which one turn is sampled.

    Example:
        >>> SamplingParams(temperature=0.7, max_tokens=512, stop_token_ids=(2,), seed=17).top_p
        1.0
    """

    temperature: float = 1.0
    """Divides the logits; 0 is greedy. The trainer divides by the same number."""
    top_p: float = 1.0
    """Nucleus bound in (0, 1]; 1 samples from the whole vocabulary."""
    max_tokens: int = 256
    """Most new tokens in this turn."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends after sampling one of these; the stop token is part of the generation."""
    seed: int | None = None
    """Makes the draws of this request reproducible, whatever else is in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The tokens that an engine returns for one turn. Token in, token out.

    Example:
        Two ids sampled by the weights of step 4; the second is the stop token.

        >>> turn = Generation(ids=(31, 2), log_probs=(-0.7, -0.1), policy_versions=(4, 4),
        ...                   finish_reason=FinishReason.STOP)
        >>> turn.cached_tokens
        0
    """

    ids: tuple[int, ...]
    """Sampled token ids, in order, with the stop token if one was sampled."""
    log_probs: tuple[float, ...]
    """Natural log-probability of each id under softmax(logits / temperature)."""
    finish_reason: FinishReason
    """Reason generation ended."""
    policy_versions: tuple[int, ...]
    """The weights that sampled each id."""
    cached_tokens: int = 0
    """Prompt tokens the engine did not have to compute again."""

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.log_probs) == len(self.policy_versions):
            raise ValueError(
                f"Generation: ids, log_probs and policy_versions must have one length, got "
                f"{len(self.ids)}, {len(self.log_probs)}, {len(self.policy_versions)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of the conversation, as a span of the response.

    Example:
        The first four response positions are the model's, the next three the tool's:

        >>> said = Turn(role="assistant", start=0, end=4, text="add(1, 2)", reward=0.5)
        >>> seen = Turn(role="tool", start=4, end=7, text="3")
        >>> seen.start == said.end, seen.reward
        (True, None)
    """

    role: Role
    """`assistant` was sampled; `tool` and `user` were put there by the environment."""
    start: int
    """First response position."""
    end: int
    """One past the last response position."""
    text: str
    """Of an assistant turn: decoded from its ids, without special tokens. Of the others: the
    contents that were encoded into the span; with an empty span the model never saw them."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls parsed from an assistant turn."""
    tool_results: tuple[ToolResult, ...] = ()
    """Results shown in a tool turn."""
    reward: float | None = None
    """What `step` returned for this assistant turn."""
    finish_reason: FinishReason | None = None
    """Why generation of an assistant turn ended."""
    duration_s: float = 0.0
    """Wall time in seconds: generation for assistant turns, tools or environment otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Reasons for the reward of a rollout, for those who read it; the model never sees them.

    An environment gives one with `StepResult.explanation`, a reward function with
    `RewardValue.explanation`. Longer texts than `agentrl.explanation.MOST_CHARS` are shortened in
    the middle where they are stored.

    Example:
        >>> why = Explanation(reference="36", reason="the last number is 35, expected 36")
        >>> why.reference, why.tests
        ('36', '')
    """

    reference: str = ""
    """The right answer, as the task has it: a value, a solution, a change of source."""
    tests: str = ""
    """Tests that graded the rollout, one a line, each with how it ended."""
    grader_output: str = ""
    """Text that the grader printed: the log of a test run, a traceback."""
    reason: str = ""
    """Sentences that say why the reward is what it is; of a judge its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """One turn that was asked of the model, for reading: a node of its rollout's tree.

    An agent asks at the gateway; in our own loop the environment asks by giving histories.

    Example:
        >>> AgentRequest(behind=0, branch="edited", row=1, turn=0, sampled_tokens=12).kind
        'main'
    """

    behind: int | None = None
    """Position, among the requests of the rollout, of the one whose turn it continues; None where
    it begins a conversation or could not be read."""
    kind: str = "main"
    """Conversation that it belongs to: `main`, `title`, `summary` or `subagent`; empty where it was
    refused before that was known."""
    branch: str = ""
    """Reason for which it does not go on at the end of a conversation, and so breaks the row:
    `edited`, `system`, `tools` or `asked_again`; empty where it goes on."""
    row: int | None = None
    """`row_index` of the row that holds its turn; None where the turn is not trained on."""
    turn: int | None = None
    """Position of its turn among the turns of that row."""
    untrained: str = ""
    """Reason for which its turn is in no row: `side_call` or `not_delivered`; empty elsewhere."""
    refused: str = ""
    """Reason for which it got an error in place of a turn, and the message of the error."""
    retries: int = 0
    """Times that the same body came again and got the same answer."""
    prompt_tokens: int = 0
    """Tokens before its turn."""
    sampled_tokens: int = 0
    """Tokens of its turn."""
    asked: str = ""
    """Beginning of the last message that was new in it."""
    said: str = ""
    """Beginning of its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One row of training data: one rollout of one task, or the part of it after a prefix break.

    The ids are exactly those the engine saw and produced, in order. Text derives from them.

    Example:
        Two sampled tokens, one of the environment, one sampled after a sync of the weights:

        >>> row = Trajectory(
        ...     task_id="gsm8k/17", group_id="s3/gsm8k/17", rollout_id="s3/gsm8k/17/0",
        ...     prompt_ids=(1, 5, 9), response_ids=(31, 7, 12, 2), response_mask=(1, 1, 0, 1),
        ...     rollout_log_probs=(-0.7, -1.2, 0.0, -0.1), policy_versions=(4, 4, -1, 5),
        ...     reward=1.0, termination=Termination.ENV_DONE)
        >>> row.num_action_tokens, row.rule.reward_trusted
        (3, True)
    """

    task_id: str
    """`Task.id`."""
    group_id: str
    """Shared by the rollouts of one task in one step; group statistics go by it."""
    rollout_id: str
    """One rollout. Rows that share it count once in advantages and loss weights."""
    row_index: int = 0
    """Position of this row among the rows of its rollout."""
    prompt_ids: tuple[int, ...]
    """[_P] What the engine was given before the first sampled token."""
    response_ids: tuple[int, ...]
    """[_T] Sampled and environment tokens in order."""
    response_mask: tuple[int, ...]
    """[_T] 1 = sampled by the policy, 0 = put there by the environment."""
    rollout_log_probs: tuple[float, ...]
    """[_T] The sampler's log-probability; 0.0 where the mask is 0."""
    policy_versions: tuple[int, ...]
    """[_T] The weights that sampled the token; -1 where the mask is 0."""
    prompt_text: str = ""
    """`prompt_ids` decoded with their special tokens, with words in place of the placeholders of
    each image (`agentrl.images.label`), for reading; filled by the worker."""
    turns: tuple[Turn, ...] = ()
    """Spans over the response, contiguous and in order."""
    reward: float | None = None
    """Sum of step rewards, with the reward functions of the config; None when it cannot be
    trusted."""
    reward_parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named parts of the reward; for reading, never added again."""
    score: float | None = None
    """The environment's 0-1 verdict for filters and evaluation; defaults to the reward."""
    termination: Termination
    """Reason the rollout ended."""
    termination_detail: str = ""
    """Which limit fired, or the error of an infrastructure failure."""
    extra_logs: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers the environment wants averaged into the metrics; see `usage` for ours."""
    usage: Mapping[str, float] = field(default_factory=dict[str, float])
    """Sandboxes, served models and failed attempts of the rollout, by the names in `agentrl.usage`;
    filled by the worker, never by an environment."""
    explanation: Explanation | None = None
    """Reasons for the reward, for reading; the same in all rows of a rollout, None where neither
    the environment nor a reward function gave any. Never part of a prompt."""
    requests: tuple[AgentRequest, ...] = ()
    """Turns that were asked of the model, oldest first, those refused included; in the first row of
    a rollout only. Empty where our own loop ran an environment that gave no other history."""
    split: str = "train"
    """`Task.split`."""
    temperature: float = 1.0
    """Sampling temperature of the action tokens; the trainer divides logits by it."""
    duration_s: float = 0.0
    """Wall time of the rollout in seconds."""
    images: tuple[ImageSpan, ...] = ()
    """Images among the tokens, by position; empty for rows of text alone."""

    def __post_init__(self) -> None:
        lengths = {
            "response_ids": len(self.response_ids),
            "response_mask": len(self.response_mask),
            "rollout_log_probs": len(self.rollout_log_probs),
            "policy_versions": len(self.policy_versions),
        }
        if len(set(lengths.values())) != 1:
            raise ValueError(f"Trajectory {self.rollout_id}: unequal lengths {lengths}")

    @property
    def rule(self) -> TerminationRule:
        """Consequences of this rollout's termination for later stages."""
        return TERMINATION_RULES[self.termination]

    @property
    def num_action_tokens(self) -> int:
        """Tokens sampled by the policy; the length every penalty and metric uses."""
        return sum(self.response_mask)

    @property
    def tokens_by_version(self) -> Mapping[int, int]:
        """Tokens sampled by the policy, by the weights that sampled them."""
        return Counter(compress(self.policy_versions, self.response_mask))


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardValue:
    """Value of a reward function, with the numbers behind it.

    A function of `reward.functions` may give one in place of a number.

    Example:
        >>> RewardValue(value=0.75, parts={"correct": 1.0, "short": 0.0}).value
        0.75
    """

    value: float
    """The number that is weighted and added to the reward."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """For reading: stored in `Trajectory.reward_parts` as `FUNCTION/PART`, never added again."""
    explanation: Explanation | None = None
    """Reasons for the value, for reading; added to those of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer to a prompt: messages, or the very tokens of a rollout.

    Example:
        >>> Completion(ids=(31, 7, 12), mask=(1, 0, 1)).length
        2
    """

    messages: tuple[Message, ...] = ()
    """From the first assistant message on; results of tools and more turns may follow."""
    ids: tuple[int, ...] = ()
    """[_T] Sampled and environment tokens in order; empty where only messages are known."""
    mask: tuple[int, ...] = ()
    """[_T] 1 = sampled by the policy, 0 = put there by the environment."""
    text: str = ""
    """`ids` decoded, for reading."""
    images: tuple[ImageSpan, ...] = ()
    """Images among the ids of the prompt and of the completion, by position."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.mask):
            raise ValueError(f"Completion: {len(self.ids)} ids, but a mask of {len(self.mask)}")
        if bool(self.ids) == bool(self.messages):
            raise ValueError("Completion: give either ids with a mask, or messages")

    @property
    def length(self) -> int:
        """Sampled tokens, or characters of assistant messages and calls."""
        if self.ids:
            return sum(self.mask)
        spoken = [message for message in self.messages if message.role == "assistant"]
        return sum(
            len(message.content) + sum(map(_characters, message.tool_calls)) for message in spoken
        )


def _characters(call: ToolCall) -> int:
    return len(call.raw) or len(call.name) + len(json.dumps(dict(call.arguments), default=str))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A prompt and what followed it, of which the assistant's part is learned.

    Example:
        >>> question = Message(role="user", content="2 + 2?")
        >>> answer = Message(role="assistant", content="4")
        >>> Conversation(id="1", prompt=(question,),
        ...              completion=Completion(messages=(answer,))).weight
        1.0
    """

    id: str
    """Unique inside its dataset and stable across runs."""
    prompt: tuple[Message, ...] = ()
    """Messages before the first one of the assistant; empty where `prompt_ids` are known."""
    prompt_ids: tuple[int, ...] = ()
    """[_P] Tokens that the completion follows; empty where only messages are known."""
    completion: Completion
    """From the first message of the assistant on."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """OpenAI function schemas of the tools that were offered."""
    weight: float = 1.0
    """Weight of the conversation in the loss."""
    task_id: str = ""
    """`Task.id` where it is known; data is divided by task."""
    source: str = ""
    """Where it comes from: file and row, or run, step and group."""

    def __post_init__(self) -> None:
        if bool(self.prompt) == bool(self.prompt_ids):
            raise ValueError(f"Conversation {self.id}: give either a prompt or prompt_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """Two completions of one prompt, of which one is better.

    Example:
        >>> better, worse = (Completion(messages=(Message(role="assistant", content=text),))
        ...                  for text in ("4", "5"))
        >>> pair = PreferencePair(id="1", prompt=(Message(role="user", content="2 + 2?"),),
        ...                       chosen=better, rejected=worse, margin=1.0)
        >>> pair.chosen.length
        1
    """

    id: str
    """Unique inside its dataset and stable across runs."""
    prompt: tuple[Message, ...] = ()
    """Messages before the first one that differs; empty where `prompt_ids` are known."""
    prompt_ids: tuple[int, ...] = ()
    """[_P] Tokens that both completions follow; empty where only messages are known."""
    prompt_text: str = ""
    """`prompt_ids` decoded, for reading."""
    chosen: Completion
    """The better one."""
    rejected: Completion
    """The worse one."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """OpenAI function schemas of the tools that were offered."""
    margin: float | None = None
    """Reward of `chosen` less that of `rejected`, in the units of the reward; None unknown. It is
    negative where a label was drawn against the rewards."""
    label_probability: float | None = None
    """Probability in [0, 1] that `chosen` is the better one; None takes the label as certain."""
    weight: float = 1.0
    """Weight of the pair in the loss."""
    task_id: str = ""
    """`Task.id` where it is known; data is divided by task, never by pair."""
    source: str = ""
    """Where it comes from: file and row, or run, step and group."""

    def __post_init__(self) -> None:
        if bool(self.prompt) == bool(self.prompt_ids):
            raise ValueError(f"PreferencePair {self.id}: give either a prompt or prompt_ids")

    @property
    def prompt_images(self) -> tuple[str, ...]:
        """Digests of the images among `prompt_ids`, by position."""
        end = len(self.prompt_ids)
        return tuple(span.digest for span in self.chosen.images if span.start < end)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens:
    """Numbers of the trainer for the response tokens of one row, in the last update that saw it.

    Rows are truncated after their last trained token, so the arrays may be shorter than the
    response; positions that are not trained hold 0. Rows that no update computed have no such
    record.

    Example:
        The second token is the environment's, and a row ends after its last trained token:

        >>> tokens = TrainedTokens(
        ...     group_id="s3/gsm8k/17", rollout_id="s3/gsm8k/17/0", row_index=0, updates=1,
        ...     trained=(True, False, True), old_log_probs=(-0.7, 0.0, -0.1),
        ...     log_probs=(-0.6, 0.0, -0.1), entropy=(1.1, 0.0, 0.3), advantages=(0.5, 0.0, 0.5),
        ...     correction=(1.0, 0.0, 1.0), clip=(0, 0, 0), loss=(-0.014, 0.0, -0.0125))
        >>> sum(tokens.trained), tokens.ref_log_probs
        (2, None)
    """

    group_id: str
    """`Trajectory.group_id`."""
    rollout_id: str
    """`Trajectory.rollout_id`."""
    row_index: int
    """`Trajectory.row_index`."""
    updates: int
    """How many updates of the step computed this row."""
    trained: Sequence[bool]
    """[_T] Whether the token is in the loss; the sampled ones among the others were masked."""
    old_log_probs: Sequence[float]
    """[_T] The trainer's log-probability before the first update of the step."""
    log_probs: Sequence[float]
    """[_T] The trainer's log-probability in that last update."""
    entropy: Sequence[float]
    """[_T] Entropy of the policy at the token in nats."""
    advantages: Sequence[float]
    """[_T] Advantage of the token, credit assigned."""
    correction: Sequence[float]
    """[_T] Weight of the sampler correction; 1 without one."""
    clip: Sequence[int]
    """[_T] -1 where the lower bound held the ratio back, 1 where the upper did, else 0."""
    loss: Sequence[float]
    """[_T] What the token added to the loss of that update, weights and denominators included;
    0 where the loss is one sum over many tokens."""
    ref_log_probs: Sequence[float] | None = None
    """[_T] The reference policy's log-probability; None without a penalty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """The rollouts of one task in one step. Groups may be uneven.

    Example:
        >>> def row(number: int) -> Trajectory:
        ...     return Trajectory(
        ...         task_id="t", group_id="g", rollout_id=f"g/{number}", prompt_ids=(1,),
        ...         response_ids=(2,), response_mask=(1,), rollout_log_probs=(-0.1,),
        ...         policy_versions=(0,), termination=Termination.ENV_DONE)
        >>> group = TrajectoryGroup(group_id="g", task_id="t", trajectories=(row(0), row(1)))
        >>> [rows[0].rollout_id for rows in group.rollouts()]
        ['g/0', 'g/1']
    """

    group_id: str
    """Shared by all rows."""
    task_id: str
    """`Task.id`."""
    trajectories: tuple[Trajectory, ...]
    """Rows; several rows may share a `rollout_id`."""

    def __post_init__(self) -> None:
        strangers = {t.group_id for t in self.trajectories} - {self.group_id}
        if strangers:
            raise ValueError(f"TrajectoryGroup {self.group_id}: rows of other groups {strangers}")

    def rollouts(self) -> Iterator[tuple[Trajectory, ...]]:
        """Rows by rollout, in the order in which the rollouts first appear."""
        by_rollout: dict[str, list[Trajectory]] = {}
        for row in self.trajectories:
            by_rollout.setdefault(row.rollout_id, []).append(row)
        for rows in by_rollout.values():
            yield tuple(sorted(rows, key=lambda row: row.row_index))
