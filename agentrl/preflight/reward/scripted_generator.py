"""A `Generator` that writes given texts, so that known answers go through the whole loop.

Preflight asks what the reward code pays for. Answers reach it as a model's would: as ids, through
chat format, tool parser, tools, environment, sandbox and reward functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from agentrl.chat import ChatFormat
from agentrl.config.schema import ChatSection
from agentrl.env import Solution
from agentrl.types import FinishReason, Generation, ImageSpan, SamplingParams, ToolCall

Turns = Sequence[tuple[int, ...]]
"""Ids of each turn of an episode, the token that ends it included."""


class ScriptedGenerator:
    """Plays the turns of a script, one script a group; the last turn repeats."""

    def __init__(self, scripts: Mapping[str, Turns]) -> None:
        """Take the scripts by group id."""
        self._scripts = dict(scripts)
        self._turns: Counter[str] = Counter()

    def add(self, group_id: str, script: Turns) -> None:
        """Take one script more."""
        self._scripts[group_id] = script

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """The next turn of the session's script, truncated at `sampling.max_tokens`."""
        # Sessions are called GROUP/INDEX, and GROUP/INDEX#ATTEMPT when they are tried again.
        script = self._scripts[session_id.rpartition("/")[0]]
        turn = script[min(self._turns[session_id], len(script) - 1)]
        self._turns[session_id] += 1
        ids = turn[: sampling.max_tokens]
        return Generation(
            ids=ids,
            log_probs=(-1.0,) * len(ids),
            finish_reason=FinishReason.STOP if len(ids) == len(turn) else FinishReason.LENGTH,
            policy_versions=(0,) * len(ids),
        )

    async def end_session(self, session_id: str) -> None:
        """Forget the turns of a session."""
        self._turns.pop(session_id, None)


def script_of(solution: Solution, chat: ChatFormat, section: ChatSection) -> Turns:
    """The turns of an episode as ids.

    Args:
        solution: what is said.
        chat: encodes it.
        section: says how a turn begins and stops, and how a call is written.
    """
    turns = [solution] if isinstance(solution, str) else list(solution)
    return [encode_turn(turn, chat, section) for turn in turns] or [encode_turn("", chat, section)]


def encode_turn(turn: str | ToolCall, chat: ChatFormat, section: ChatSection) -> tuple[int, ...]:
    """One turn as a model would sample it: what it begins with left out, its stop token added."""
    if isinstance(turn, ToolCall):
        # A model samples the markers of a call as the single tokens they are.
        call = chat.raw_delta(chat.write_call(turn), ended=False)
        return (*call, chat.stop_token_ids[0])
    text = turn.removeprefix(section.reply_prefix)
    ends = [at for stop in section.stop if (at := text.find(stop)) >= 0]
    if not ends:
        return (*chat.encode_plain(text), chat.stop_token_ids[0])
    at = min(ends)
    stop = next(i for i, word in enumerate(section.stop) if text.startswith(word, at))
    return (*chat.encode_plain(text[:at]), chat.action_stop_ids[stop])
