"""A step that gives another history: what the model sees, the rows, the limits, the errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.tool import FunctionTool
from agentrl.types import Message, Task, Termination, ToolStatus, TrajectoryGroup
from tests.rollout.history.history_scripts import OTHER, SYSTEM, user
from tests.rollout.rollout_fakes import Talk, call

LONG = user("x" * 900)


class Steps(AgentInstance):
    """Makes each step of a function of the action; done after the last."""

    wants_history = True

    def __init__(self, *steps: Any, prompt: Any = "Begin.", raw: bool = False) -> None:
        self.steps = steps
        self.prompt = prompt
        self.raw = raw
        self.actions: list[Action] = []

    async def reset(self, task: Task) -> Observation:
        return Observation(content=self.prompt, raw=self.raw)

    async def step(self, action: Action) -> Any:
        self.actions.append(action)
        if len(self.actions) > len(self.steps):
            return StepResult(done=True, rewards=1.0)
        return self.steps[len(self.actions) - 1](action)


class Scripted(Talk):
    wants_history = True


def said(group: TrajectoryGroup) -> list[list[str]]:
    """Texts of the sampled turns, by row."""
    rows = group.trajectories
    return [[turn.text for turn in row.turns if turn.role == "assistant"] for row in rows]


def seen(bench: Any, number: int) -> str:
    """The prompt of one request, as text."""
    return bench.chat.decode_raw(bench.engine.requests[number].prompt_ids)


async def test_compaction_goes_on_behind_a_summary(bench):
    """Fails if old turns stay in the context, or if they are no longer trained."""
    made = bench(
        ["one", "two", "three"],
        lambda: Steps(
            lambda a: StepResult(environment_feedback="On.", rewards=0.25),
            lambda a: StepResult(history=(user("So far: one, two."),), rewards=0.25),
        ),
    )
    group = await made.group()
    assert said(group) == [["three"], ["one", "two"]]
    assert made.engine.requests[2].prompt_ids == made.chat.render_prompt(
        (user("So far: one, two."),), tuple(made.worker._parts.tools.values())
    )
    first, old = group.trajectories
    assert first.prompt_text == seen(made, 2)
    assert {(row.reward, row.rollout_id, row.termination) for row in (first, old)} == {
        (1.5, "group/0", Termination.ENV_DONE)
    }
    rewards = [[t.reward for t in row.turns if t.role == "assistant"] for row in (first, old)]
    assert rewards == [[1.0], [0.25, 0.25]]
    assert first.extra_logs == {"history_edited": 1.0}
    assert [(one.behind, one.branch, one.row, one.turn) for one in first.requests] == [
        (None, "", 1, 0), (0, "", 1, 2), (None, "edited", 0, 0),
    ]  # fmt: skip
    assert [(one.asked, one.said) for one in first.requests][1:] == [
        ("On.", "two"), ("So far: one, two.", "three"),
    ]  # fmt: skip
    assert old.requests == ()


async def test_a_fork_shares_what_was_before(bench):
    """Fails if the earlier turns are encoded again, which a spelling of their own would show."""
    odd = call("add", '{"b":5,  "a": 3}')

    def back(action: Action) -> StepResult:
        return StepResult(history=(*action.history[:3], user("Try again.")))

    made = bench([odd, "wrong", "right"], lambda: Steps(lambda a: StepResult(), back))
    group = await made.group()
    assert said(group) == [[odd, "right"], ["wrong"]]
    kept, left = group.trajectories
    whole = kept.prompt_ids + kept.response_ids
    assert whole[: len(left.prompt_ids)] != left.prompt_ids  # other words follow the result
    shared = len(kept.prompt_ids) + kept.turns[0].end
    assert left.prompt_ids[:shared] == whole[:shared]
    assert sum(left.response_mask) == len("wrong") + 1


async def test_a_sub_agent_has_its_own_tools_and_the_rollout_goes_on(bench):
    """Fails if its rows are lost, if it can call what it was not offered, or if the way back to the
    own conversation begins another row."""

    async def look(what: str) -> str:
        """Look something up.

        Args:
            what: the thing
        """
        return f"{what} is 8"

    mine: list[tuple[Message, ...]] = []

    def start(action: Action) -> StepResult:
        mine.append(action.history)
        return StepResult(history=(OTHER, user("What is x?")), history_tools=(FunctionTool(look),))

    made = bench(
        ["hm", call("look", '{"what": "x"}'), call("add", '{"a": 1, "b": 2}'), "x is 8", "8"],
        lambda: Steps(
            start,
            lambda a: StepResult(),
            lambda a: StepResult(),
            lambda a: StepResult(history=(*mine[0], user(f"The other agent: {a.text}"))),
            prompt=(SYSTEM, user("x?")),
        ),
        max_assistant_turns=9,
    )
    group = await made.group()
    main, other = group.trajectories
    assert said(group) == [["hm", "8"], [turn.text for turn in other.turns[::2]]]
    results = [turn.tool_results[0] for turn in other.turns if turn.tool_results]
    assert [result.status for result in results] == [ToolStatus.OK, ToolStatus.UNKNOWN_TOOL]
    assert results[0].text == "x is 8"
    assert "look" in seen(made, 1)
    assert '"add"' not in seen(made, 1)
    assert main.extra_logs == {"history_side": 1.0}
    kinds = [one.kind for one in main.requests]
    assert kinds == ["main", "subagent", "subagent", "subagent", "main"]


async def test_a_history_can_be_asked_twice(bench):
    """Best of two from one point."""
    made = bench(["one", "two"], lambda: Steps(lambda a: StepResult(history=a.history[:-1])))
    group = await made.group()
    assert said(group) == [["two"], ["one"]]
    assert made.engine.requests[0].prompt_ids == made.engine.requests[1].prompt_ids
    assert group.trajectories[0].prompt_ids == group.trajectories[1].prompt_ids


async def test_temperatures_stay_apart(bench):
    made = bench(
        ["one", "two", "three"],
        lambda: Steps(
            lambda a: StepResult(environment_feedback="On.", sampling_params={"temperature": 0.5}),
            lambda a: StepResult(history=(*a.history, user("Go."))),
        ),
    )
    group = await made.group()
    assert [(row.temperature, len(row.turns)) for row in group.trajectories] == [
        (1.0, 2), (0.5, 2), (1.0, 1),
    ]  # fmt: skip
    requests = group.trajectories[0].requests
    assert [(one.row, one.turn, one.branch) for one in requests] == [
        (0, 0, ""), (1, 0, ""), (2, 0, ""),
    ]  # fmt: skip


async def test_results_a_history_leaves_out_stay_readable(bench):
    made = bench(
        [call("add", '{"a": 1, "b": 2}'), "three"],
        lambda: Steps(lambda a: StepResult(history=(user("It was 3."),))),
    )
    group = await made.group()
    old = group.trajectories[1]
    assert [(turn.role, turn.end - turn.start) for turn in old.turns][1:] == [("tool", 0)]
    assert old.turns[1].tool_results[0].text == "3"
    assert old.turns[1].tool_results[0].status is ToolStatus.OK


async def test_thoughts_and_words_are_told_apart(bench):
    """An earlier turn is found again although the conversation leaves its thought out."""
    made = bench(
        ["<think>hm</think>one", "two"],
        lambda: Steps(lambda a: StepResult(history=(*a.history, user("On.")))),
    )
    (row,) = (await made.group()).trajectories
    assert made.envs[0].actions[1].history[1].content == "one"
    assert row.response_mask[: len("<think>hm</think>one") + 1] == (1,) * 21


# -- limits -----------------------------------------------------------------------------------


async def test_a_shorter_history_makes_room_in_a_full_context(bench):
    """Fails if a full context ends the rollout although the environment compacts."""
    made = bench(
        ["y" * 340, "short"],
        lambda: Steps(lambda a: StepResult(history=(user("So far: much."),))),
        tools=[],
        max_context_tokens=400,
        max_response_tokens=390,
        max_turn_tokens=350,
    )
    group = await made.group()
    first, last = made.envs[0].actions
    assert first.last
    assert first.context_left < 0 < last.context_left
    assert said(group) == [["short"], ["y" * 340]]
    assert {row.termination for row in group.trajectories} == {Termination.ENV_DONE}


async def test_turns_and_response_tokens_count_over_all_histories(bench):
    """Other first prompts are free, as the first one is; everything behind them counts once."""
    again = [lambda a: StepResult(history=(user("Again."),))] * 9
    made = bench(["one"] * 9, lambda: Steps(*again), max_assistant_turns=3)
    group = await made.group()
    assert group.trajectories[0].termination is Termination.MAX_TURNS
    assert [action.last for action in made.envs[0].actions] == [False, False, True]

    made = bench(["one"] * 9, lambda: Steps(*again), max_user_turns=2, max_assistant_turns=9)
    group = await made.group()
    assert len(made.envs[0].actions) == 3
    assert "max_user_turns" in group.trajectories[0].termination_detail

    made = bench(
        ["one"] * 9,
        lambda: Steps(*again),
        max_response_tokens=80,
        max_turn_tokens=70,
        max_assistant_turns=9,
        tools=[],
    )
    group = await made.group()
    spent = sum(len(row.response_ids) for row in group.trajectories)
    assert group.trajectories[0].termination is Termination.MAX_TOKENS
    assert spent < 80


async def test_a_returned_turn_in_another_branch_counts_its_tokens(bench):
    def carry(action: Action) -> StepResult:
        return StepResult(history=(user("So far."), action.history[-1], user("On.")))

    made = bench(
        ["z" * 200, "one"],
        lambda: Steps(carry),
        max_response_tokens=420,
        max_turn_tokens=200,
        tools=[],
    )
    group = await made.group()
    assert group.trajectories[0].termination is Termination.MAX_TOKENS
    assert len(made.engine.requests) == 1


async def test_a_limit_that_ends_the_rollout_is_not_undone(bench):
    made = bench(
        ["one"], lambda: Steps(lambda a: StepResult(history=(user("On."),))), max_assistant_turns=1
    )
    row = await made.one()
    assert row.termination is Termination.MAX_TURNS


# -- bad input --------------------------------------------------------------------------------

RESULT = Message(role="tool", content="3", tool_call_id="nobody")
ANSWER = Message(role="assistant", content="Done.")
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (StepResult(history=()), "no message of the user"),
        (StepResult(history=(SYSTEM,)), "no message of the user"),
        (StepResult(history=(user("a"), ANSWER)), "ends with a message of the assistant"),
        (StepResult(history=(user("a"), ANSWER, user(" "))), "nothing but white space"),
        (StepResult(history=(user("a"), RESULT)), "'nobody'"),
        (StepResult(history="So far."), "history is str"),  # type: ignore[arg-type]
        (StepResult(history=(3,)), "message 0 is int"),  # type: ignore[arg-type]
        (StepResult(history=[IMAGE]), "image_url"),  # type: ignore[arg-type]
        ({"rewards": 0, "done": False, "history": [IMAGE]}, "image_url"),
        (
            {"rewards": 0, "done": False, "history": [{**IMAGE, "content": "a", "images": [1]}]},
            "images",
        ),
        (
            {"rewards": 0, "done": False, "history": [{"role": "robot", "content": "a"}]},
            "unknown role",
        ),
        (StepResult(history=(user("a"),), environment_feedback="b"), "beside history"),
        (StepResult(history_tools=()), "without history"),
        (StepResult(history=(LONG,) * 10), "max_context_tokens 8000"),
    ],
)
async def test_each_mistake_is_one_clear_error_and_costs_its_rollout(bench, step, message):
    """Fails if the run ends, if the model pays with a reward, or if the reason is lost."""
    made = bench(["one"], lambda: Scripted(step))
    group = await made.group()
    (row,) = group.trajectories
    assert row.termination is Termination.ENV_CRASHED
    assert row.reward is None
    assert row.termination_detail.startswith("step: EnvError: step: ")
    assert message in row.termination_detail.splitlines()[0]


async def test_a_class_that_does_not_want_histories_cannot_give_one(bench):
    row = await bench(["one"], lambda: Talk(StepResult(history=(user("a"),)))).one()
    assert row.termination is Termination.ENV_CRASHED
    assert "wants_history = True" in row.termination_detail


async def test_a_raw_rollout_has_no_history(bench):
    made = bench(["one"], lambda: Steps(lambda a: StepResult(history=(user("a"),)), raw=True))
    row = await made.one()
    assert row.termination is Termination.ENV_CRASHED
    assert "raw=True" in row.termination_detail


async def test_two_tools_of_one_name_are_refused(bench):
    async def look() -> str:
        """Look."""
        return ""

    tools = (FunctionTool(look), FunctionTool(look))
    step = StepResult(history=(user("a"),), history_tools=tools)
    row = await bench(["one"], lambda: Scripted(step)).one()
    assert row.termination is Termination.ENV_CRASHED
    assert "'look'" in row.termination_detail


async def test_dictionaries_may_give_a_history(bench):
    """As agent files written for other trainers give everything else."""
    step = {"rewards": 0.0, "done": False, "history": [{"role": "user", "content": "On."}]}
    done = StepResult(done=True, rewards=1.0)
    group = await bench(["one", "two"], lambda: Scripted(step, done)).group()
    assert said(group) == [["two"], ["one"]]


async def test_without_another_history_nothing_differs(bench):
    """Reading the conversation changes no row; fails if the notes or the tree leak into it."""
    replies = [call("add", '{"a": 1, "b": 2}') + call("refuse"), "three", "four"]
    steps = (StepResult(), StepResult(environment_feedback="And?"), StepResult(done=True))
    plain = await bench(replies, lambda: Talk(*steps)).one()

    class Reads(Talk):
        wants_history = True

    made = bench(replies, lambda: Reads(*steps))
    reading = await made.one()
    same = {"duration_s": 0.0, "turns": ()}
    assert replace(reading, **same) == replace(plain, **same)
    assert [replace(t, duration_s=0, tool_results=()) for t in reading.turns] == [
        replace(t, duration_s=0, tool_results=()) for t in plain.turns
    ]
    roles = [[message.role for message in action.history] for action in made.envs[0].actions]
    assert roles[-1] == ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
    assert plain.extra_logs == {}
