"""The limits of one rollout, and the pure question which of them is reached.

The loop and the gateway ask here, so that a limit has one rule and one text, whoever drives the
rollout. Nothing here has a clock: they give how far it has come (`RolloutProgress`). The token
limits keep a small reserve free, the room that one more environment turn and the answer to it need
at least. So a rollout ends *before* its last step, which can say so to the environment
(`Action.last`), and never between a step and the turn that its feedback asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.schema import RolloutSection
from agentrl.engine import TURN_LIMIT_S
from agentrl.errors import EnvError
from agentrl.types import Termination

MIN_FEEDBACK_TOKENS = 16
"""Feedback is shortened to the room that is left, but not below this many tokens."""

MIN_TURN_TOKENS = 16
"""A model turn that would get fewer tokens than this is not worth starting."""


LONGEST_TOKEN = 256
"""Characters; no tokenizer has longer tokens, but for runs of one character."""


@dataclass(slots=True, kw_only=True)
class RolloutProgress:
    """Turns and tokens of a rollout so far; kept by the loop or the gateway's session."""

    assistant_turns: int = 0
    """Model turns sampled."""
    user_turns: int = 0
    """Tool or environment turns appended."""
    response_tokens: int = 0
    """Sampled and environment tokens after the first prompt, over all rows."""
    context_tokens: int = 0
    """Everything the engine would see now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A limit that ends the rollout."""

    termination: Termination
    """Termination of the rollout."""
    detail: str
    """The name of the limit, its value and how far the rollout came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """Every limit of one rollout; names and units as in `RolloutSection`."""

    max_assistant_turns: int
    """Model turns."""
    max_user_turns: int
    """Tool or environment turns."""
    max_turn_tokens: int
    """New tokens per model turn."""
    max_response_tokens: int
    """Response tokens, environment tokens included."""
    max_context_tokens: int
    """Prompt plus response."""
    max_parallel_calls: int
    """Tool calls run per turn."""
    max_tool_tokens: int
    """Tokens kept of one tool result or feedback."""
    timeout_s: float
    """Seconds that environment and tools may take in the whole rollout."""
    turn_limit_s: float
    """Seconds that one model turn may take."""
    env_timeout_s: float
    """Wall clock of one `reset`, `step` or `close`."""
    delta_overhead: int = 0
    """Tokens the chat format puts around one environment turn."""

    @classmethod
    def of(cls, section: RolloutSection, *, delta_overhead: int = 0) -> RolloutLimits:
        """The limits in a config section."""
        return cls(
            max_assistant_turns=section.max_assistant_turns,
            max_user_turns=section.max_user_turns,
            max_turn_tokens=section.max_turn_tokens,
            max_response_tokens=section.max_response_tokens,
            max_context_tokens=section.max_context_tokens,
            max_parallel_calls=section.max_parallel_calls,
            max_tool_tokens=section.max_tool_tokens,
            timeout_s=section.timeout_s,
            turn_limit_s=TURN_LIMIT_S,
            env_timeout_s=section.env_timeout_s,
            delta_overhead=delta_overhead,
        )

    def room(self, progress: RolloutProgress) -> int:
        """Tokens that may still be added to the response; may be negative."""
        return min(
            self.max_response_tokens - progress.response_tokens,
            self.max_context_tokens - progress.context_tokens,
        )

    def turn_budget(self, progress: RolloutProgress) -> int:
        """`max_tokens` of the next model turn; not positive when there is no room for one."""
        return min(self.max_turn_tokens, self.room(progress))

    def delta_room(self, progress: RolloutProgress) -> int:
        """Tokens the next environment turn may have, with room left for an answer."""
        return self.room(progress) - MIN_TURN_TOKENS

    def reached(self, progress: RolloutProgress, *, result_tokens: int = 0) -> Reached | None:
        """The limit because of which no model turn may follow the one just sampled.

        Args:
            progress: the state after a model turn and its tool calls.
            result_tokens: size of the tool results that the model would have to see.

        Returns:
            None if the rollout may go on. Limits that are really used up win over those with only
            the reserve left, so that the reason names what the model ran into.
        """
        if hit := self._tokens(progress, needed=1) or self._turns(progress):
            return hit
        feedback = self.delta_overhead + MIN_FEEDBACK_TOKENS
        return self._tokens(progress, needed=result_tokens + feedback + MIN_TURN_TOKENS)

    def context_left(self, progress: RolloutProgress, *, result_tokens: int = 0) -> int:
        """Tokens of the context beyond the shortest feedback and answer.

        Negative if it is full and nothing else is: then a shorter history can go on.

        Args:
            progress: the state after a model turn and its tool calls.
            result_tokens: size of the tool results that the model would have to see.
        """
        reserve = self.delta_overhead + MIN_FEEDBACK_TOKENS + MIN_TURN_TOKENS
        left = self.max_context_tokens - progress.context_tokens - result_tokens - reserve
        if left < 0 and (
            self._turns(progress)
            or progress.response_tokens + MIN_TURN_TOKENS > self.max_response_tokens
        ):
            return 0
        return left

    def after_history(self, progress: RolloutProgress) -> Reached | None:
        """The limit because of which no model turn may follow a history that a step gave.

        Args:
            progress: the state with that history; its tokens are the context.
        """
        return self._turns(progress) or self._tokens(progress, needed=MIN_TURN_TOKENS)

    def before_request(self, progress: RolloutProgress) -> Reached | None:
        """The limit because of which a turn that an agent asks for is not begun.

        An agent has no environment turns: what it appends is part of its next request.

        Args:
            progress: the state with that request; its prompt is the context.
        """
        return (
            self.prompt_too_long(progress.context_tokens)
            or self._model_turns(progress.assistant_turns)
            or self._tokens(progress, needed=1)
        )

    def side_calls(self, number: int) -> Reached | None:
        """The limit on calls that another model answers, after `number` of them."""
        return self._model_turns(number, f"{number} side calls of {self.max_assistant_turns}")

    def repeats(self, number: int) -> Reached | None:
        """The limit on requests that were made before: asking the same for ever must end."""
        same = f"{self.max_assistant_turns} requests were the same as one before"
        return self._model_turns(number, same)

    def refusals(self, number: int) -> Reached | None:
        """The limit on requests that no limit left room for: each stays in the record."""
        full = f"{self.max_assistant_turns} requests were refused for their length"
        return self._model_turns(number, full)

    def _model_turns(self, number: int, detail: str = "") -> Reached | None:
        if number < self.max_assistant_turns:
            return None
        detail = detail or f"{number} of {self.max_assistant_turns}"
        return Reached(termination=Termination.MAX_TURNS, detail=f"max_assistant_turns: {detail}")

    def _turns(self, progress: RolloutProgress) -> Reached | None:
        if reached := self._model_turns(progress.assistant_turns):
            return reached
        if progress.user_turns >= self.max_user_turns:
            return Reached(
                termination=Termination.MAX_TURNS,
                detail=f"max_user_turns: {progress.user_turns} of {self.max_user_turns}",
            )
        return None

    def check_characters(self, characters: int) -> None:
        """Refuse a prompt whose encoding would take long and cannot fit.

        Raises:
            EnvError: it has more characters than the context has room for.
        """
        most = self.max_context_tokens * LONGEST_TOKEN
        if characters > most:
            raise EnvError(
                f"the first observation has {characters:,} characters, expected at most {most:,} "
                f"({LONGEST_TOKEN} for each of rollout.max_context_tokens "
                f"{self.max_context_tokens}); make it shorter"
            )

    def prompt_too_long(self, prompt_tokens: int) -> Reached | None:
        """Return true if a prompt leaves no room for a single sampled token."""
        if prompt_tokens < self.max_context_tokens:
            return None
        return Reached(
            termination=Termination.CONTEXT_FULL,
            detail=f"max_context_tokens: the prompt alone has {prompt_tokens} tokens of "
            f"{self.max_context_tokens}",
        )

    def no_room(self, progress: RolloutProgress) -> Reached:
        """The ending when the next environment turn does not fit however short it is made."""
        response_left = self.max_response_tokens - progress.response_tokens
        context_left = self.max_context_tokens - progress.context_tokens
        if context_left <= response_left:
            return Reached(
                termination=Termination.CONTEXT_FULL,
                detail=f"max_context_tokens: {progress.context_tokens} of "
                f"{self.max_context_tokens}, and the feedback does not fit",
            )
        return Reached(
            termination=Termination.MAX_TOKENS,
            detail=f"max_response_tokens: {progress.response_tokens} of "
            f"{self.max_response_tokens}, and the feedback does not fit",
        )

    def _tokens(self, progress: RolloutProgress, *, needed: int) -> Reached | None:
        note = "" if needed == 1 else f", and the next turn needs at least {needed} more"
        if progress.context_tokens + needed > self.max_context_tokens:
            return Reached(
                termination=Termination.CONTEXT_FULL,
                detail=f"max_context_tokens: {progress.context_tokens} of "
                f"{self.max_context_tokens}{note}",
            )
        if progress.response_tokens + needed > self.max_response_tokens:
            return Reached(
                termination=Termination.MAX_TOKENS,
                detail=f"max_response_tokens: {progress.response_tokens} of "
                f"{self.max_response_tokens}{note}",
            )
        return None
