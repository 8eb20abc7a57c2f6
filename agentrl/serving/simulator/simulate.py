"""A discrete-event simulation of conversations on a fleet of servers. Pure: no clock, no chance.

A server does one thing at a time, as an inference engine does in its steps:

    queue --(fewer than max_sequences run)--> prefill, alone --> decode, together with the others

- Prefill takes the prompt tokens that are not in the cache over `prefill_tokens_per_s`; its end is
  the first token. Decoding stands still meanwhile.
- A decoding step gives every running sequence one token and takes `step_s + sequence_s * running`
  seconds, so that the throughput saturates with the batch.
- The cache holds `cache_tokens`. Running sequences always fit; sessions that are not running are
  evicted from their end, the one unused for longest first. Different sessions share nothing.

Left out: prefill in chunks beside decoding, swapping when running sequences outgrow the cache, the
network. Ties in time go by the order in which things were caused, so equal inputs give equal
reports, to the last digit.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from agentrl.serving.pressure import ConversationLimit
from agentrl.serving.records import Served
from agentrl.serving.simulator.policies import RoutingPolicy
from agentrl.serving.simulator.workload import SimulatedTurn

OBSERVE_S = 1.0
"""Seconds between two looks of a `ConversationLimit` at the servers, as in a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerModel:
    """Speed and memory of a server. The defaults are about a 7B model on one H100."""

    prefill_tokens_per_s: float = 20_000.0
    """Prompt tokens computed a second."""
    step_s: float = 0.010
    """Seconds of a decoding step whatever runs."""
    sequence_s: float = 0.0001
    """Seconds of a decoding step for each running sequence."""
    cache_tokens: int = 400_000
    """Tokens whose keys and values fit."""
    max_sequences: int = 256
    """Running at once; more wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingReport:
    """Results of one routing policy."""

    turns: int
    """Served; all there were."""
    makespan_s: float
    """Until the last turn ended."""
    turn_p50_s: float
    """Median seconds from a request to its last token."""
    turn_p95_s: float
    """95th percentile of the same."""
    first_token_p50_s: float
    """Median seconds from a request to its first token."""
    prefill_tokens: int
    """Prompt tokens computed."""
    recomputed_tokens: int
    """Of those, the ones that some server had computed or sampled in an earlier turn."""
    cache_hit_rate: float
    """Share of prompt tokens found in the cache."""
    moves: int
    """Turns on another server than the turn before."""
    imbalance: float
    """Busy seconds of the busiest server over the mean of all."""


@dataclass(slots=True, eq=False)
class _Request:
    session: int
    turn: SimulatedTurn
    context: int
    """Tokens of the conversation before this turn."""
    asked_s: float
    first_token_s: float = 0.0
    cached: int = 0
    stayed: bool = False
    """On the server of the turn before."""

    @property
    def prompt(self) -> int:
        return self.context + self.turn.new_tokens

    @property
    def total(self) -> int:
        return self.prompt + self.turn.generated_tokens


@dataclass(slots=True, eq=False)
class _Server:
    model: ServerModel
    now_s: float = 0.0
    busy_s: float = 0.0
    queue: deque[_Request] = field(default_factory=deque)
    prefilling: _Request | None = None
    prefill_end_s: float = 0.0
    steps: float = 0.0
    """Decoding steps done since the beginning; a running sequence ends at a known one."""
    running: list[tuple[float, int, _Request]] = field(default_factory=list)
    cache: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Tokens held of each session that is not running, the one unused for longest first."""
    cached: int = 0
    """Sum of `cache`."""
    occupied: int = 0
    """Tokens of running sequences and the one being prefilled."""
    order: count[int] = field(default_factory=count)

    def advance(self, now_s: float) -> None:
        """Advance the time; nothing ends in between."""
        if self.prefilling or self.running:
            self.busy_s += now_s - self.now_s
        if self.running and not self.prefilling:
            self.steps += (now_s - self.now_s) / self._step_s()
        self.now_s = now_s

    def next_s(self) -> float | None:
        """When the next prefill or sequence ends if no request comes."""
        if self.prefilling:
            return self.prefill_end_s
        if self.running:
            return self.now_s + max(0.0, self.running[0][0] - self.steps) * self._step_s()
        return None

    def step(self) -> list[_Request]:
        """End what ends now, begin what can; the requests that are done."""
        done: list[_Request] = []
        if (request := self.prefilling) is not None:
            self.prefilling = None
            request.first_token_s = self.now_s
            end = self.steps + request.turn.generated_tokens - 1
            if request.turn.generated_tokens == 1:
                done.append(request)
            else:
                heapq.heappush(self.running, (end, next(self.order), request))
        elif self.running:
            end, _, request = heapq.heappop(self.running)
            self.steps = end
            done.append(request)
        for request in done:
            self.occupied -= request.total
            self.cache[request.session] = request.total
            self.cached += request.total
            self._make_room()
        self.begin()
        return done

    def begin(self) -> None:
        """Prefill the next in the queue, if there is room."""
        if self.prefilling or not self.queue or len(self.running) >= self.model.max_sequences:
            return
        request = self.prefilling = self.queue.popleft()
        request.cached = self.cache.pop(request.session, 0)
        self.cached -= request.cached
        self.occupied += request.total
        self._make_room()
        seconds = (request.prompt - request.cached) / self.model.prefill_tokens_per_s
        self.prefill_end_s = self.now_s + seconds

    @property
    def requests(self) -> int:
        """Number of requests that wait, are prefilled or decode."""
        return len(self.queue) + len(self.running) + (self.prefilling is not None)

    def _make_room(self) -> None:
        surplus = self.cached + self.occupied - self.model.cache_tokens
        while surplus > 0 and self.cache:
            session, held = next(iter(self.cache.items()))
            evicted = min(held, surplus)
            if evicted == held:
                del self.cache[session]
            else:
                self.cache[session] = held - evicted
            self.cached -= evicted
            surplus -= evicted

    def _step_s(self) -> float:
        return self.model.step_s + self.model.sequence_s * len(self.running)


def simulate(
    sessions: Sequence[Sequence[SimulatedTurn]],
    policy: RoutingPolicy,
    *,
    engines: Sequence[str],
    model: ServerModel,
    limit: ConversationLimit | None = None,
) -> RoutingReport:
    """Serve all sessions and report how it went.

    Args:
        sessions: their turns in order; a turn has at least one new and one generated token.
        policy: fresh, over `engines`.
        engines: names of the servers.
        model: what each of them can do.
        limit: bounds the sessions at once and follows the caches, as in a run; it is changed by
            the simulation. None lets all begin together.
    """
    servers = {name: _Server(model) for name in engines}
    homes: dict[int, str] = {}
    events: list[tuple[float, int, str, _Request | None]] = []
    order = count()
    finished: list[tuple[float, _Request]] = []
    moves = 0
    expected: dict[str, int] = {}

    def look_again(name: str) -> None:
        # Only the latest word on a server counts; what was foreseen before is void.
        expected[name] = next(order)
        if (at_s := servers[name].next_s()) is not None:
            heapq.heappush(events, (at_s, expected[name], name, None))

    coming_sessions = deque(index for index, turns in enumerate(sessions) if turns)
    position = dict.fromkeys(range(len(sessions)), 0)
    under_way, served, observed_s = 0, Served(), 0.0

    def begin_sessions(now_s: float) -> None:
        nonlocal under_way
        while coming_sessions and (limit is None or under_way < limit.value):
            index = coming_sessions.popleft()
            first = _Request(session=index, turn=sessions[index][0], context=0, asked_s=now_s)
            heapq.heappush(events, (now_s, next(order), "", first))
            under_way += 1

    begin_sessions(0.0)
    while events:
        now_s, number, name, request = heapq.heappop(events)
        if request is not None:
            name = policy.choose(str(request.session), request.context)
            request.stayed = homes.get(request.session) == name
            moves += homes.get(request.session, name) != name
            homes[request.session] = name
            servers[name].advance(now_s)
            servers[name].queue.append(request)
            servers[name].begin()
            look_again(name)
        elif expected[name] == number:
            servers[name].advance(now_s)
            for done in servers[name].step():
                finished.append((now_s, done))
                policy.done(name)
                if done.stayed:
                    served.count_prefix(done.context, done.cached)
                position[done.session] += 1
                turns = sessions[done.session]
                if position[done.session] == len(turns):
                    policy.end(str(done.session))
                    under_way -= 1
                    begin_sessions(now_s)
                    continue
                coming = _Request(
                    session=done.session,
                    turn=turns[position[done.session]],
                    context=done.total,
                    asked_s=now_s + done.turn.then_s,
                )
                heapq.heappush(events, (coming.asked_s, next(order), "", coming))
            look_again(name)
        if limit is not None and now_s >= observed_s + OBSERVE_S:
            observed_s = now_s
            asked = sum(server.requests for server in servers.values())
            limit.observe(
                served,
                running=under_way,
                step=1,
                live=under_way,
                asked=asked,
                slots=len(servers) * model.max_sequences,
            )
            begin_sessions(now_s)
    return _report(finished, moves, [server.busy_s for server in servers.values()])


def _report(
    finished: Sequence[tuple[float, _Request]], moves: int, busy: Sequence[float]
) -> RoutingReport:
    requests = [request for _, request in finished]
    seconds = [end_s - request.asked_s for end_s, request in finished]
    prompts = sum(request.prompt for request in requests)
    cached = sum(request.cached for request in requests)
    mean_busy = sum(busy) / len(busy)
    return RoutingReport(
        turns=len(finished),
        makespan_s=max((end_s for end_s, _ in finished), default=0.0),
        turn_p50_s=percentile(seconds, 0.5),
        turn_p95_s=percentile(seconds, 0.95),
        first_token_p50_s=percentile([r.first_token_s - r.asked_s for r in requests], 0.5),
        prefill_tokens=prompts - cached,
        recomputed_tokens=sum(request.context - request.cached for request in requests),
        cache_hit_rate=cached / prompts if prompts else 0.0,
        moves=moves,
        imbalance=max(busy) / mean_busy if mean_busy else 1.0,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values do not exceed; 0 for none.

    Example:
        >>> percentile([3.0, 1.0, 2.0, 4.0], 0.5)
        2.0
    """
    ranked = sorted(values)
    # A rank that is whole but for rounding must not become the next one.
    rank = math.ceil(len(ranked) * share - 1e-9)
    return ranked[max(0, rank - 1)] if ranked else 0.0
