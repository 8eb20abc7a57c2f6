"""Records of one turn of the model: how it is sampled, its tokens, and its place in the rollout."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.types.endings import FinishReason
from agentrl.types.messages import Role, ToolCall, ToolResult


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
