"""Conversations for the simulator: drawn, or as long as those of a run were."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from agentrl.types import Trajectory

Session = tuple["SimulatedTurn", ...]
"""The turns of one conversation, in order."""
LONGEST = 20.0
"""A drawn length is at most so many times the median, as every real length has a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTurn:
    """One request of a conversation."""

    new_tokens: int
    """Prompt tokens that were not in the conversation before: the prompt, or results of tools."""
    generated_tokens: int
    """Sampled."""
    then_s: float = 0.0
    """Seconds until the next turn: tools and environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Medians of log-normal lengths. The defaults are an agent that calls short tools."""

    turns: float = 6.0
    """Turns of a session; spread half as wide as the others."""
    prompt_tokens: int = 800
    """Tokens of the first prompt; not spread."""
    new_tokens: float = 200.0
    """Tokens of tool results between two turns."""
    generated_tokens: float = 250.0
    """Tokens sampled in a turn."""
    tool_s: float = 2.0
    """Seconds between two turns."""
    sigma: float = 1.0
    """Standard deviation of the logarithms; 0 makes all sessions equal."""


def synthetic_sessions(number: int, lengths: Lengths, *, seed: int) -> list[Session]:
    """Draw sessions; the first ones do not depend on how many are drawn."""
    sessions: list[Session] = []
    for index in range(number):
        rng = random.Random(f"{seed}/{index}")

        def draw(median: float, sigma: float, rng: random.Random = rng) -> float:
            return median * min(LONGEST, math.exp(rng.gauss(0.0, sigma)))

        turns = max(1, round(draw(lengths.turns, lengths.sigma / 2)))
        sessions.append(
            tuple(
                SimulatedTurn(
                    new_tokens=max(1, round(draw(lengths.new_tokens, lengths.sigma)))
                    if turn
                    else lengths.prompt_tokens,
                    generated_tokens=max(1, round(draw(lengths.generated_tokens, lengths.sigma))),
                    then_s=draw(lengths.tool_s, lengths.sigma) if turn + 1 < turns else 0.0,
                )
                for turn in range(turns)
            )
        )
    return sessions


def recorded_sessions(trajectories: Iterable[Trajectory]) -> list[Session]:
    """The turns of stored trajectories, one session a row; rows without samples are left out.

    A row that begins after a prefix break shares hardly anything with the one before, so it is a
    session of its own.
    """
    sessions: list[Session] = []
    for row in trajectories:
        turns: list[SimulatedTurn] = []
        fresh = len(row.prompt_ids)
        for turn in row.turns:
            length = turn.end - turn.start
            if turn.role == "assistant" and length:
                turns.append(SimulatedTurn(new_tokens=max(1, fresh), generated_tokens=length))
                fresh = 0
                continue
            fresh += length
            if turns and turn.role != "assistant":
                turns[-1] = replace(turns[-1], then_s=turns[-1].then_s + turn.duration_s)
        if turns:
            sessions.append(tuple(turns))
    return sessions
