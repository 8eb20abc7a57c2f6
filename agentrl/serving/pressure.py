"""The number of conversations at once that engines can cache: pure, without clock or network.

A later turn of a conversation costs little while its engine still holds the keys and values of the
turns before. With too many conversations at once the engine evicts some, and every later turn of
those is prefilled again from its beginning. With too few, engines decode fewer sequences than they
could, because conversations wait for their tools. So the number follows what is observed:

    prefixes are computed again, and conversations wait for engines    shrinks by `SHRINK`
    prefixes are still cached, and engines could decode more           grows by 1 / `GROW`

Both halves of the first condition are needed: while engines have time to spare, computing a prefix
again costs less than an engine that waits for a tool. Only turns that stayed on their engine under
the same weights count; others find no cache for reasons that fewer conversations would not change.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.serving.records import Served

EVICTING = 0.1
"""Share of the prefix tokens that are computed again from which a cache counts as too small."""
HOLDING = 0.02
"""Share of them up to which a cache counts as large enough for more conversations."""
WAIT_FOR_ENGINES = 0.8
"""Share of the live conversations that are in a turn from which engines, not tools, are waited
for."""
FULL = 0.9
"""Share of the decoding slots in use from which engines could not decode more."""
SHRINK = 0.8
"""One step down leaves this share of the conversations that run."""
GROW = 8
"""One step up adds the limit divided by this."""
TURNS_TO_SHRINK = 0.5
"""Later turns for each conversation that are observed before a step down."""
TURNS_TO_GROW = 4.0
"""Likewise before a step up: caches fill slowly, so what holds has to hold for longer."""


@dataclass(slots=True, kw_only=True)
class ConversationLimit:
    """The most conversations at once, changed by what is observed of the engines.

    Example:
        >>> limit = ConversationLimit(value=100, least=8, most=400)
        >>> counts = Served(later_turns=100, prefix_tokens=1000, recomputed_tokens=500)
        >>> limit.observe(counts, running=100, step=1, live=100, asked=95, slots=64)
        >>> limit.value
        80
    """

    value: int
    """Conversations at once."""
    least: int
    """The value never falls below this."""
    most: int
    """The value never rises above this."""
    _seen: Served | None = None
    _unchanged_since: int = 0
    _in_turns: float = 0.0
    _used: float = 0.0
    _looks: int = 0

    def observe(
        self, served: Served, *, running: int, step: int, live: int, asked: int, slots: int
    ) -> None:
        """Take the counts of all engines since they began, and change the value where due.

        Args:
            served: sums over all engines; smaller ones than before begin a new observation.
            running: conversations that count against the value; of a group all, until its last
                one ends.
            step: conversations that begin together; with less room than that no more can run.
            live: of those that run, the ones that have asked for a turn and will ask for more.
            asked: of the live ones, those whose turn an engine has not answered yet.
            slots: sequences that all engines together decode at once.
        """
        before = self._seen or Served()
        turns = served.later_turns - before.later_turns
        if turns < 0:
            self._restart(served)
            return
        self._in_turns += min(1.0, asked / live) if live else 0.0
        self._used += asked / slots
        self._looks += 1
        if turns < TURNS_TO_SHRINK * running or not turns:
            return
        prefix = served.prefix_tokens - before.prefix_tokens
        evicted = (served.recomputed_tokens - before.recomputed_tokens) / prefix if prefix else 0.0
        in_turns = self._in_turns / self._looks
        if evicted > EVICTING and in_turns >= WAIT_FOR_ENGINES:
            # More than the value run where an evaluation has a loop of its own beside training.
            self.value = max(self.least, int(min(running, self.value) * SHRINK))
            self._restart(served)
            return
        idle = self._used / self._looks < FULL
        if evicted > HOLDING or not idle or running + step <= self.value:
            self._restart(served)
            return
        if served.later_turns - self._unchanged_since >= TURNS_TO_GROW * running:
            self.value = min(self.most, self.value + max(1, self.value // GROW))
            self._restart(served)
            return
        self._look_anew(served)

    def _restart(self, served: Served) -> None:
        self._unchanged_since = served.later_turns
        self._look_anew(served)

    def _look_anew(self, served: Served) -> None:
        # A copy: its owner goes on counting.
        self._seen = Served(
            later_turns=served.later_turns,
            prefix_tokens=served.prefix_tokens,
            recomputed_tokens=served.recomputed_tokens,
        )
        self._in_turns, self._used, self._looks = 0.0, 0.0, 0
