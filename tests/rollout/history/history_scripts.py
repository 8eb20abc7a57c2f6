"""Conversations with forks, compaction and sub-agents, played in the loop and at the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.gateway.records import ReadRequest, TurnRequest
from agentrl.rollout import RolloutWorker
from agentrl.rollout.recorder import RecordedRow
from agentrl.serving import TokenClient
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.tool import Tool
from agentrl.types import AgentRequest, Message, SamplingParams, Task, ToolCall, Trajectory
from tests.gateway.gateway_fakes import ADD, serve

CHAT = build_chat(ByteTokenizer(), ChatSection(tool_parser="hermes"))
SYSTEM = Message(role="system", content="You add.")
BEGIN = Message(role="user", content="Begin.")
OTHER = Message(role="system", content="You look things up.")
BARE = Message(role="system", content="You write titles.")
ROOM: dict[str, Any] = {
    "max_response_tokens": 40_000, "max_context_tokens": 80_000, "max_turn_tokens": 2000,
    "max_assistant_turns": 100, "max_user_turns": 100,
}  # fmt: skip

Move = tuple[str, int]
"""Kind of the change before a turn, and a number that chooses an earlier point."""


def user(text: str) -> Message:
    return Message(role="user", content=text)


@dataclass
class Moves:
    """The history before each turn but the first, from moves."""

    moves: Sequence[Move]
    asked: list[tuple[Message, ...]] = field(default_factory=lambda: [(SYSTEM, BEGIN)])
    bare: bool = False
    """Whether the present conversation offers no tools."""

    def next(self, history: tuple[Message, ...]) -> tuple[Message, ...] | None:
        """All that the model sees next; `history` ends with its turn and the results of it."""
        number = len(self.asked)
        if number > len(self.moves):
            return None
        kind, at = self.moves[number - 1]
        earlier = self.asked[at % number]
        last = max(n for n, message in enumerate(history) if message.role == "assistant")
        if kind == "on":
            made = (*history, user(f"On {number}."))
        elif kind == "fork":
            made = (*earlier[:-1], user(f"Again {number}."))
        elif kind == "same":
            made = earlier
        elif kind == "compact":
            made = (SYSTEM, user(f"So far {number}."))
        elif kind == "carry":
            made = (SYSTEM, user(f"So far {number}."), *history[last:], user("On."))
        elif kind == "invent":
            said = Message(role="assistant", content=f"invented {number}")
            made = (*earlier, said, user("And?"))
        elif kind == "ask":
            made = (BARE, user(f"Title {number}."))
        else:
            made = (OTHER, user(f"Look {number}."))
        self.bare = made[0] == BARE
        self.asked.append(made)
        return made


class Mover(AgentInstance):
    """Plays moves; feeds back what only goes on, and gives a history for all else."""

    wants_history = True

    def __init__(self, moves: Sequence[Move]) -> None:
        self.moves = Moves(moves)
        self.seen: list[Action] = []

    async def reset(self, task: Task) -> Observation:
        return Observation(content=(SYSTEM, BEGIN))

    async def step(self, action: Action) -> StepResult:
        self.seen.append(action)
        made = self.moves.next(action.history)
        if made is None:
            return StepResult(done=True, rewards=1.0)
        if made[:-1] == action.history:
            return StepResult(environment_feedback=made[-1].content)
        return StepResult(history=made, history_tools=() if self.moves.bare else None)


async def by_loop(
    replies: Sequence[str], moves: Sequence[Move], *, tools: Sequence[Tool] = (ADD,)
) -> tuple[tuple[Trajectory, ...], ScriptedEngine]:
    """Rows of the moves as steps of an environment."""
    engine = ScriptedEngine(list(replies), ByteTokenizer())
    worker = RolloutWorker(
        generator=TokenClient([engine]),
        chat=CHAT,
        parser=build_parser("hermes"),
        make_env=lambda: Mover(moves),
        tools=tools,
        section=RolloutSection(**ROOM, retries=0),
    )
    group = await worker.run_group(
        Task(id="t", prompt="Begin."),
        group_id="g",
        n=1,
        sampling=SamplingParams(max_tokens=10_000),
        seed=7,
    )
    return group.trajectories, engine


async def by_gateway(
    replies: Sequence[str], moves: Sequence[Move]
) -> tuple[list[RecordedRow], ScriptedEngine, tuple[AgentRequest, ...]]:
    """Rows of the moves as requests to the gateway, and the records of those."""
    served = serve(CHAT, list(replies), **ROOM)
    plan, history = Moves(moves), (SYSTEM, BEGIN)
    number = 0
    while True:
        tools = () if plan.bare else (ADD,)
        asked = ReadRequest(
            request=TurnRequest(messages=history, tools=tools),
            body={},
            digest=str(number).encode(),
        )
        _, turn = await served.session.ask(lambda asked=asked: asked, size=1)
        answer = await turn
        served.session.deliver(answer)
        results = [
            Message(
                role="tool", content=str(c.arguments["a"] + c.arguments["b"]), tool_call_id=c.id
            )
            for c in answer.calls
        ]
        made = plan.next((*history, answer.message, *results))
        if made is None:
            rows = served.rows().finish()
            return rows, served.engine, served.session.requests()
        history, number = made, number + 1


def sum_of(call: ToolCall) -> str:
    return str(call.arguments["a"] + call.arguments["b"])


def arrays(row: RecordedRow | Trajectory) -> tuple[Any, ...]:
    """Everything that training sees of a row."""
    if isinstance(row, Trajectory):
        return (
            row.prompt_ids, row.response_ids, row.response_mask, row.rollout_log_probs,
            row.policy_versions, row.temperature,
        )  # fmt: skip
    at = row.prompt_length
    return (
        tuple(row.ids[:at]), tuple(row.ids[at:]), tuple(row.mask), tuple(row.log_probs),
        tuple(row.versions), row.temperature,
    )  # fmt: skip
