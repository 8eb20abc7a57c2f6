"""One rollout as the gateway serves it: requests in, sampled turns out.

A request is placed in the message tree, what is new of it is rendered, and one turn is sampled
behind it. The turn runs in a task of the session, so that a connection that breaks changes nothing
of what is recorded, and the same request again gets the same answer.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import replace
from itertools import takewhile
from typing import Any

from agentrl.chat import ChatFormat
from agentrl.engine import TURN_CLOCK
from agentrl.errors import ChatError, ServedModelError
from agentrl.gateway.known import KnownParts
from agentrl.gateway.posted import PostedReward, digest_of, read_reward
from agentrl.gateway.reading import read_turn
from agentrl.gateway.records import (
    ReadRequest,
    RefusalReason,
    RequestRefused,
    TurnAnswer,
    TurnRequest,
)
from agentrl.gateway.session_record import SessionRecord
from agentrl.gateway.side_model import SideCalls, SideModel
from agentrl.images import without_pictures
from agentrl.rollout.clock import in_ticks
from agentrl.rollout.endings import RolloutEnded, crash
from agentrl.rollout.guard import bounded_turn
from agentrl.rollout.history import (
    BranchReason,
    ConversationKind,
    HeardMessage,
    HistoryPlacer,
    NodeKind,
    SampledText,
    TreeNode,
    answer_key,
)
from agentrl.rollout.history.kinds import kind_of_next
from agentrl.rollout.history.tree import has_turns
from agentrl.rollout.limits import Reached, RolloutProgress
from agentrl.rollout.long_texts import IMAGE_WORK, LongTexts
from agentrl.rollout.records import LoopParts
from agentrl.rollout.seeds import turn_seed
from agentrl.rollout.under_way.in_flight import Activity, WaitsFor
from agentrl.rollout.under_way.release import to_the_end
from agentrl.rollout.watch import DeadlineWatch
from agentrl.types import Generation, SamplingParams, Termination

READING_S = 60.0
"""Seconds of processor time in which the requests of a session are read and rendered, counts of
tokens among them. A policy can have them sent without end."""
READING_TURN_S = 2.0
"""More of them for each turn."""


class GatewaySession(SessionRecord):
    """One rollout; whoever knows its secret may ask for turns."""

    def __init__(
        self,
        parts: LoopParts,
        *,
        sampling: SamplingParams,
        seed: int,
        session_id: str,
        activity: Activity,
        side_calls: SideCalls = "train",
        watch: DeadlineWatch | None = None,
        takes_reward: bool = True,
    ) -> None:
        """Open it.

        Args:
            parts: engine, chat format, parser and limits.
            sampling: how turns are sampled. A request can make a turn shorter, and changes neither
                temperature nor `top_p`: the trainer divides by the one it knows.
            seed: of the rollout.
            session_id: conversation with the engines.
            activity: notes what the rollout waits for.
            side_calls: whether titles, summaries and sub-agents are trained on, or the model that
                answers them.
            watch: clock of the agent, which stands still while the model has its turn.
            takes_reward: whether the agent may post the reward. One that runs what the policy wrote
                beside it may not: the policy could ask for its own.
        """
        super().__init__(side_calls=side_calls)
        self.secret = secrets.token_urlsafe(24)
        """Names the session in a path, a header or as an API key."""
        self.known = KnownParts(sees=parts.chat.reads_images)
        """What was read of its requests."""
        self.limit: Reached | None = None
        """Limit of the rollout that turned a request away; None if none has."""
        self.failure: Reached | None = None
        """Failure of the engine, after which nothing more is sampled."""
        self.exhausted = asyncio.Event()
        """Set when no turn will be sampled any more: at a limit other than the context's, or after
        a failure."""
        self.closed = False
        """Whether requests are turned away because the rollout is over."""
        self.posted: PostedReward | None = None
        """The reward that the agent posted; None if it has not."""
        self.rewarded = asyncio.Event()
        """Set once a reward was posted, which ends the rollout."""
        self._texts = LongTexts(parts.long_texts)
        self._placer = HistoryPlacer(tree=self.tree, chat=parts.chat, long_texts=self._texts)
        self._parts = parts
        self._sampling = sampling
        self._seed = seed
        self._session_id = session_id
        self._activity = activity
        # What a served model costs is booked on the rollout, whatever task a request comes in.
        self._context = copy_context()
        self._watch = watch
        self._takes_reward = takes_reward
        self._turns: dict[bytes, asyncio.Task[TurnAnswer]] = {}
        self._response_tokens = 0
        self._counted: set[TreeNode] = set()
        self._started = 0
        self._unplayed = 0
        """Requests that were placed, and found no room for a turn."""
        self._waiting = 0
        self._read: tuple[TreeNode | None, list[int]] = None, []
        """The node behind which the latest turn was sampled, and the ids of its path."""
        # Messages are placed and rendered by one request at a time, so that none stands twice.
        self._placing = asyncio.Lock()

    # -- requests ---------------------------------------------------------------------------

    async def ask(
        self, read: Callable[[], ReadRequest], *, size: int
    ) -> tuple[ReadRequest, asyncio.Task[TurnAnswer]]:
        """Begin to sample a turn, or find the one that the same request began.

        Args:
            read: reads what is asked for, with `known`.
            size: bytes that it reads.

        Returns:
            What is asked for, and the task of the turn, which gives the answer or raises
            `RequestRefused`.

        Raises:
            RequestRefused: it cannot be answered; nothing was recorded.
        """
        async with self._placing:
            asked = await self._take(read, size)
            body = asked.digest
            if (known := self._turns.get(body)) is not None:
                return asked, self._again(known)
            self._check_open()
            self._refuse_at(self._parts.limits.refusals(self._unplayed))
            request = self._with_previous(asked.request)
            if (frozen := self._frozen(request)) is not None:
                turn = asyncio.create_task(frozen, context=self._context.copy())
                self._turns[body] = turn
                turn.add_done_callback(lambda done: self._forget_failed(body, done))
                return asked, turn
            node = await self._place(request)
            try:
                sampling = self._turn_sampling(request, node)
            except RequestRefused as refused:
                refused.behind = node
                if refused.reason is RefusalReason.CONTEXT_FULL:
                    refused.behind = self.tree.undo()  # each may hold megabytes
                self._unplayed += 1
                raise
            turn = asyncio.create_task(self._sample(node, request, sampling, self._started))
            self._started += 1
            self._turns[body] = turn
            turn.add_done_callback(lambda done: self._forget_failed(body, done))
        return asked, turn

    async def count(self, read: Callable[[], ReadRequest], *, size: int) -> int:
        """Tokens of a conversation, as its prompt would be; nothing is recorded.

        Args:
            read: as `ask` takes it.
            size: as `ask` takes it.

        Raises:
            RequestRefused: it cannot be read or rendered.
        """
        async with self._placing:
            request = (await self._take(read, size)).request
            self.counts["counted"] += 1
            heard = self._heard(request)
            found = self.tree.match(heard, self.known.tools_key(request.tools))
            if found is not None and found.known == len(heard):
                return found.node.length
            try:
                return len(await self._placer.rendered(heard, request.tools))
            except ChatError as error:
                raise _refused_by_template(error) from error

    def reward(self, raw: bytes) -> PostedReward:
        """Take the reward that the agent posts; no turn is begun after it.

        Args:
            raw: body of the request; the same again is the same reward.

        Raises:
            RequestRefused: it cannot be read, or is another one than before.
        """
        if not self._takes_reward:
            raise RequestRefused(
                RefusalReason.BAD_REQUEST,
                "the environment of this session gives the reward itself; post none",
            )
        if self.posted is None:
            posted = read_reward(raw)
            if self.closed:
                self._check_open()
            self.posted = posted
            self.closed = True
            self.rewarded.set()
        elif self.posted.digest != digest_of(raw):
            raise RequestRefused(
                RefusalReason.BAD_REQUEST,
                f"this session has the reward {self.posted.step.rewards:g} already, and its "
                "rollout is over; open another session",
            )
        return self.posted

    async def _take(self, read: Callable[[], ReadRequest], size: int) -> ReadRequest:
        """Read a request beside the event loop, with all that is heard of it.

        Raises:
            RequestRefused: it cannot be read, or too much was read before.
        """
        most_s = READING_S + READING_TURN_S * self._started
        if self._texts.spent_s > most_s:
            text = f"reading its requests took {self._texts.spent_s:.0f} s of {most_s:g} s"
            self.limit = Reached(termination=Termination.MAX_TURNS, detail=text)
            self.exhausted.set()
            raise RequestRefused(
                RefusalReason.LIMIT,
                f"the requests of this session took {self._texts.spent_s:.0f} s of processor time "
                f"to read, at most {most_s:g} s may be used after {self._started} turns; send "
                "shorter conversations, and count their tokens less often",
            )

        def heard() -> ReadRequest:
            asked = read()
            self.known.hear(asked.request.messages)
            self.known.tools_key(asked.request.tools)
            return asked

        # What is known is no one else's until the thread is done with it.
        work = IMAGE_WORK if self.known.sees else size
        return await to_the_end(self._texts.run_alone(work, heard))

    def _again(self, turn: asyncio.Task[TurnAnswer]) -> asyncio.Task[TurnAnswer]:
        self._refuse_at(self._parts.limits.repeats(self.counts["retries"]))
        self.counts["retries"] += 1
        self._retried[turn] += 1
        return turn

    def _check_open(self) -> None:
        if self.failure is not None:
            raise RequestRefused(
                RefusalReason.ENGINE, f"the engine failed: {self.failure.detail.splitlines()[0]}"
            )
        if self.closed:
            raise RequestRefused(
                RefusalReason.UNKNOWN_SESSION, "this session is closed: its rollout is over"
            )

    def _forget_failed(self, body: bytes, turn: asyncio.Task[TurnAnswer]) -> None:
        if turn.cancelled() or turn.exception() is not None:
            self._turns.pop(body, None)

    def _with_previous(self, request: TurnRequest) -> TurnRequest:
        if not request.previous:
            return request
        known = self._frozen_said.get(request.previous)
        if known is None and (sampled := self._answers.get(request.previous)) is not None:
            said = sampled[0].said
            assert said is not None
            known = said.served, sampled[1]
        if known is None:
            raise RequestRefused(
                RefusalReason.BAD_REQUEST,
                f"previous_response_id is {request.previous[:80]!r}, which is no answer of this "
                "session; send the whole conversation in input",
            )
        served, before = known
        # Instructions of a request take the place of those before.
        systems = [message for message in request.messages if message.role == "system"]
        rest = [message for message in request.messages if message.role != "system"]
        kept = [m for m in before if m.role != "system"] if systems else before
        return replace(request, messages=(*systems, *kept, served, *rest))

    # -- placing ----------------------------------------------------------------------------

    def _heard(self, request: TurnRequest) -> tuple[HeardMessage, ...]:
        heard = self.known.hear(request.messages)
        if not heard:
            raise RequestRefused(
                RefusalReason.BAD_REQUEST,
                "the conversation holds no text; send at least one message",
            )
        if heard[-1].spoken:
            raise RequestRefused(
                RefusalReason.BAD_REQUEST,
                "the conversation ends with a message of the assistant; a turn cannot be begun for "
                "the model, so end with a message of the user or a tool result",
            )
        return heard

    async def _place(self, request: TurnRequest) -> TreeNode:
        """The node behind which the turn is sampled, with everything before it in the tree."""
        try:
            return await self._placer.place(
                self._heard(request), request.tools, self.known.tools_key(request.tools)
            )
        except ChatError as error:
            raise _refused_by_template(error) from error

    # -- side calls of another model --------------------------------------------------------

    def _frozen(self, request: TurnRequest) -> Coroutine[Any, Any, TurnAnswer] | None:
        """The turn of the served model that answers side calls; None if it is the policy's."""
        model = self._side_calls
        if isinstance(model, str):
            return None
        heard = self._heard(request)
        kind = kind_of_next(self.tree, heard, self.known.tools_key(request.tools))
        if kind is ConversationKind.MAIN:
            return None
        number = sum(self.counts[f"frozen_{one}"] for one in ConversationKind)
        self._refuse_at(self._parts.limits.side_calls(number))
        self.counts[f"frozen_{kind}"] += 1
        return self._answer_frozen(model, request, number)

    async def _answer_frozen(
        self, model: SideModel, request: TurnRequest, number: int
    ) -> TurnAnswer:
        """Ask the served model; its turn is no row.

        Raises:
            RequestRefused: the model failed, which ends the rollout as infrastructure.
        """
        tools = request.tools if request.calls else ()
        self._begin_wait()
        try:
            said = await model.turn(
                [without_pictures(message) for message in request.messages],
                tools=[tool.schema() for tool in tools],
                max_tokens=request.max_tokens,
                stop=request.stop,
            )
        except ServedModelError as error:
            self.failure = crash("rollout.side_calls", error).reached
            self._check_open()
            raise
        finally:
            self._end_wait()
        calls = said.calls if request.parallel else said.calls[:1]
        answer = TurnAnswer(
            id=f"{self.secret[:8]}s{number:06d}",
            text=said.text,
            reasoning="",
            calls=calls,
            finish="length" if said.truncated else "calls" if calls else "stop",
            stop_text=None,
            prompt_tokens=said.prompt_tokens,
            sampled_tokens=said.sampled_tokens,
            cached_tokens=0,
        )
        self._frozen_said[answer.id] = answer.message, request.messages
        return answer

    # -- sampling ---------------------------------------------------------------------------

    def _stop_ids(self, request: TurnRequest) -> tuple[int, ...]:
        """Tokens at which sampling stops. Stop texts of several tokens are found afterwards."""
        chat = self._parts.chat
        words = [ids for word in request.stop if len(ids := chat.encode_plain(word)) == 1]
        ends = (*self._sampling.stop_token_ids, *chat.stop_token_ids, *chat.action_stop_ids)
        return tuple(dict.fromkeys((*ends, *(ids[0] for ids in words))))

    def _turn_sampling(self, request: TurnRequest, node: TreeNode) -> SamplingParams:
        """How the next turn is sampled.

        Raises:
            RequestRefused: a limit of the rollout leaves no room for it.
        """
        limits = self._parts.limits
        progress = RolloutProgress(
            assistant_turns=self._started,
            response_tokens=self._response_tokens + self._fresh_tokens(node),
            context_tokens=node.length,
        )
        self._refuse_at(limits.before_request(progress), prompt_tokens=node.length)
        return replace(
            self._sampling,
            max_tokens=min(
                self._sampling.max_tokens,
                limits.turn_budget(progress),
                request.max_tokens or limits.max_turn_tokens,
            ),
            stop_token_ids=self._stop_ids(request),
            seed=turn_seed(self._seed, self._started),
        )

    def _refuse_at(self, reached: Reached | None, *, prompt_tokens: int = 0) -> None:
        """Refuse the request if a limit is reached; a shorter prompt may go on if it was too long.

        Raises:
            RequestRefused: it is.
        """
        if reached is None:
            return
        if self.limit is None or not self.exhausted.is_set():
            self.limit = reached
        reached = self.limit  # what ended it first, whatever an agent that goes on runs into
        if reached.termination is Termination.CONTEXT_FULL:
            most = self._parts.limits.max_context_tokens
            raise RequestRefused(RefusalReason.CONTEXT_FULL, "", tokens=prompt_tokens, most=most)
        self.exhausted.set()
        raise RequestRefused(
            RefusalReason.LIMIT,
            f"this rollout is over, rollout.{reached.detail}; give the reward of what there is",
        )

    def _fresh_tokens(self, node: TreeNode) -> int:
        """Tokens behind first prompts that no turn has followed yet."""
        new = takewhile(lambda one: one not in self._counted, node.upward())
        return sum(len(one.ids) for one in new if one.parent is not None)

    async def _sample(
        self, node: TreeNode, request: TurnRequest, sampling: SamplingParams, number: int
    ) -> TurnAnswer:
        """Sample one turn, record it, and classify it.

        Raises:
            RequestRefused: the engine failed.
        """
        parts = self._parts
        watch = DeadlineWatch()
        TURN_CLOCK.set(watch)
        self._begin_wait()
        started = time.monotonic()
        try:
            generation = await bounded_turn(
                watch,
                parts.generator,
                self._ids_to(node),
                sampling,
                self._session_id,
                limit_s=parts.limits.turn_limit_s,
                images=node.path_images(),
            )
        except RolloutEnded as end:
            self.failure = end.reached
            self.exhausted.set()
            self._check_open()
            raise
        finally:
            watch.close()
            self._end_wait()
        turn = read_turn(
            generation,
            parts.chat,
            parts.parser,
            request,
            turn=number,
            end_ids=frozenset((*self._sampling.stop_token_ids, *parts.chat.stop_token_ids)),
            stop_ids=sampling.stop_token_ids,
        )
        answer = TurnAnswer(
            id=f"{self.secret[:8]}{number:06d}",
            text=turn.words,
            reasoning=turn.reasoning,
            calls=turn.calls,
            finish=turn.finish,
            stop_text=turn.stop_text,
            prompt_tokens=node.length,
            sampled_tokens=len(turn.generation.ids),
            cached_tokens=turn.generation.cached_tokens,
            log_probs=_log_probs(turn.generation, parts.chat) if request.log_probs else (),
        )
        sampled = TreeNode(
            kind=NodeKind.SAMPLED,
            ids=turn.generation.ids,
            parent=node,
            key=answer_key(answer.text, answer.calls),
            calls=answer.calls,
            stop_id=turn.stop_id,
            reason=BranchReason.ASKED_AGAIN if has_turns(node) else None,
            said=SampledText(
                generation=turn.generation,
                text=turn.text,
                calls=turn.found,
                served=answer.message,
                thought=turn.reasoning,
                truncated=turn.truncated,
                duration_s=in_ticks(time.monotonic() - started),
                temperature=sampling.temperature,
            ),
        )
        self.tree.add(sampled)
        self._response_tokens += self._fresh_tokens(sampled)
        self._counted.update([*takewhile(lambda one: one not in self._counted, sampled.upward())])
        self._answers[answer.id] = sampled, request.messages
        return answer

    def _ids_to(self, node: TreeNode) -> list[int]:
        """All ids of the path to a node: one list that grows, unless another turn reads it."""
        before, ids = self._read
        new = [*takewhile(lambda one: one is not before, node.upward())]
        if self._waiting > 1 or (new and new[-1].parent is None):
            ids = node.path_ids()
        else:
            for one in reversed(new):
                ids += one.ids
        self._read = node, ids
        return ids

    def _begin_wait(self) -> None:
        self._activity.turn += 1
        self._activity.wait(WaitsFor.MODEL)
        self._waiting += 1
        if self._watch is not None:
            self._watch.hold()

    def _end_wait(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._activity.wait(WaitsFor.ENVIRONMENT)
        if self._watch is not None:
            self._watch.release()

    # -- the end ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Take no more requests, and end the turns that are under way. Idempotent."""
        self.closed = True
        under_way = [turn for turn in self._turns.values() if not turn.done()]
        for turn in under_way:
            turn.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


def _log_probs(generation: Generation, chat: ChatFormat) -> tuple[tuple[str, float], ...]:
    texts = (chat.decode_raw([token]) for token in generation.ids)
    return tuple(zip(texts, generation.log_probs, strict=True))


def _refused_by_template(error: ChatError) -> RequestRefused:
    return RequestRefused(
        RefusalReason.BAD_REQUEST, f"the model's chat template refuses this: {error}"
    )
