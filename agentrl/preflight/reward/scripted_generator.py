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
from agentrl.types.thoughts import OPEN, closing_of, end_of_thought, parts_of_thought

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
    """One turn as a model would sample it: what it begins with left out, its stop token added.

    Where it begins inside of a thought, that is ended first: what is only thought is never said.
    """
    prefix = section.reply_prefix
    lead = f"{chat.thought_opening}{prefix}"
    opening, _, closed = parts_of_thought(lead[: end_of_thought(lead)])
    thinks, close = bool(opening.strip()) and not closed, closing_of(opening.strip() or OPEN)
    if isinstance(turn, ToolCall):
        call = chat.write_call(turn)
        text = f"{close}\n\n{call}" if thinks else call[_overlap(prefix, call) :]
        # A model samples the markers of a call as the single tokens they are.
        return (*chat.raw_delta(text, ended=False), chat.stop_token_ids[0])
    text = turn.removeprefix(prefix)
    if thinks and text.strip() and close not in text:
        text = f"{close}\n\n{text}"
    ends = [at for stop in section.stop if (at := text.find(stop)) >= 0]
    if not ends:
        return (*chat.encode_plain(text), chat.stop_token_ids[0])
    at = min(ends)
    stop = next(i for i, word in enumerate(section.stop) if text.startswith(word, at))
    return (*chat.encode_plain(text[:at]), chat.action_stop_ids[stop])


def _overlap(prefix: str, call: str) -> int:
    """Characters with which a call begins that the prefix has written already."""
    sizes = range(min(len(prefix), len(call)), 0, -1)
    return next((size for size in sizes if prefix.endswith(call[:size])), 0)
