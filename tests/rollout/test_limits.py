"""Every limit ends the rollout with its own termination, names itself, and is announced."""

from __future__ import annotations

import asyncio
import re

import pytest

from agentrl.config.schema import RolloutSection
from agentrl.env import StepResult
from agentrl.rollout.limits import RolloutLimits, RolloutProgress
from agentrl.tool import FunctionTool
from agentrl.types import Termination as T
from agentrl.types import ToolStatus
from tests.rollout.rollout_fakes import Talk, call, sleep

MORE = StepResult(environment_feedback="more", rewards=0.25)


def chatty() -> Talk:
    return Talk(MORE)


@pytest.mark.parametrize(
    ("limits", "reply", "termination", "name"),
    [
        ({"max_assistant_turns": 3}, "hi", T.MAX_TURNS, "max_assistant_turns: 3 of 3"),
        ({"max_user_turns": 2, "max_assistant_turns": 9}, "hi", T.MAX_TURNS, "max_user_turns"),
        ({"max_user_turns": 0}, "hi", T.MAX_TURNS, "max_user_turns: 0 of 0"),
        ({"max_response_tokens": 400, "max_assistant_turns": 99}, "hi" * 20, T.MAX_TOKENS,
         "max_response_tokens"),
        ({"max_response_tokens": 400, "max_turn_tokens": 400}, "hi" * 900, T.MAX_TOKENS,
         "max_response_tokens: 400 of 400"),
        ({"max_context_tokens": 1200, "max_response_tokens": 1100, "max_assistant_turns": 99},
         "hi" * 20, T.CONTEXT_FULL, "max_context_tokens"),
    ],
)  # fmt: skip
async def test_a_limit_names_itself_and_is_announced(bench, limits, reply, termination, name):
    """Fails if a limit is noticed only after `step`, so that an environment that grades on
    `action.last` never grades."""
    limits = {"max_turn_tokens": 200} | limits
    made = bench([reply], chatty, **limits)
    row = await made.one()
    assert row.termination is termination
    assert row.termination_detail.startswith(name)
    assert len(row.response_ids) <= limits.get("max_response_tokens", 4000)
    actions = made.envs[0].actions
    assert [action.last for action in actions] == [False] * (len(actions) - 1) + [True]
    assert row.reward == pytest.approx(0.25 * len(actions))
    for request in made.engine.requests:
        used = len(request.prompt_ids) - len(row.prompt_ids)
        assert request.sampling.max_tokens == min(
            limits["max_turn_tokens"],
            limits.get("max_response_tokens", 4000) - used,
            limits.get("max_context_tokens", 8000) - len(request.prompt_ids),
        )


async def test_done_wins_over_a_limit(bench):
    made = bench(["hi"], lambda: Talk(StepResult(done=True, rewards=1.0)), max_assistant_turns=1)
    row = await made.one()
    assert (row.termination, row.reward) == (T.ENV_DONE, 1.0)
    assert made.envs[0].actions[0].last


async def test_prompt_without_room_is_context_full_and_asks_nothing(bench):
    made = bench(["hi"], lambda: Talk(prompt="x" * 9000))
    row = await made.one()
    assert row.termination is T.CONTEXT_FULL
    assert "prompt alone" in row.termination_detail
    assert (row.response_ids, row.reward, made.engine.requests) == ((), 0.0, [])


async def test_long_feedback_is_shortened_to_what_fits(bench):
    """Fails if feedback is appended whole (over the budget) or the rollout ends unannounced."""
    made = bench(
        ["hi" * 100],
        lambda: Talk(StepResult(environment_feedback="f" * 3000)),
        max_response_tokens=700,
        max_tool_tokens=2000,
        max_turn_tokens=700,
        max_assistant_turns=9,
    )
    row = await made.one()
    assert row.turns[1].text.startswith("fff")
    assert "left out" in row.turns[1].text
    assert len(row.response_ids) <= 700
    assert [a.last for a in made.envs[0].actions] == [False, True]


async def test_tool_results_that_do_not_fit_end_the_rollout_before_the_step(bench):
    async def flood() -> str:
        """Print a lot."""
        return "z" * 500

    made = bench(
        [call("flood")], chatty, tools=[FunctionTool(flood)], max_response_tokens=400,
        max_turn_tokens=300, max_tool_tokens=512,
    )  # fmt: skip
    row = await made.one()
    assert row.termination is T.MAX_TOKENS
    assert made.envs[0].actions[0].last
    assert row.response_mask[-1] == 1
    # The result is kept for the reader although the model never saw it.
    assert row.turns[-1].tool_results[0].text == "z" * 500
    assert row.turns[-1].start == row.turns[-1].end


async def test_results_and_feedback_are_shortened_in_tokens(bench):
    async def flood() -> str:
        """Print a lot."""
        return "a" * 300 + "b" * 300

    made = bench(
        [call("flood"), "bye"],
        lambda: Talk(StepResult(environment_feedback="f" * 300), StepResult(done=True)),
        tools=[FunctionTool(flood)],
        max_tool_tokens=60,
    )
    row = await made.one()
    (result,) = row.turns[1].tool_results
    assert result.truncated
    assert result.text.startswith("aaa")
    assert result.text.endswith("bbb")
    assert len(result.text) <= 60
    assert len(row.turns[1].text) <= 60 + 1 + 60


async def test_no_call_no_feedback_not_done(bench):
    row = await bench(["I give up"], lambda: Talk(StepResult(rewards=0.5))).one()
    assert (row.termination, row.reward) == (T.NO_TOOL_CALL, 0.5)


async def test_cut_turn_without_feedback_is_truncated(bench):
    made = bench(["x" * 99], lambda: Talk(StepResult()), max_turn_tokens=20)
    row = await made.one()
    assert row.termination is T.MAX_TOKENS
    assert row.termination_detail.startswith("max_turn_tokens")


async def test_a_turn_beyond_its_limit_is_infrastructure(bench, monkeypatch):
    """Fails if a clock that ran out is always `TOOL_TIMEOUT`."""
    monkeypatch.setattr("agentrl.rollout.limits.TURN_LIMIT_S", 0.05)
    row = await bench(["hi"], chatty, delay_s=600.0).one()
    assert row.termination is T.ENGINE_FAILED
    assert row.termination_detail.startswith("limit of a turn: a turn of at most 512 tokens")
    assert row.reward is None


async def test_turns_do_not_use_up_the_time_of_environment_and_tools(bench):
    """Fails if a model that writes much, or slowly, leaves no time for its own calls."""
    made = bench(["hi"], chatty, delay_s=0.3, timeout_s=1.0, max_assistant_turns=4)
    row = await made.one()
    assert row.termination is T.MAX_TURNS
    assert row.reward == 1.0


async def test_slow_actions_of_the_model_are_its_own(bench):
    made = bench(
        [call("sleep", '{"seconds": 0.06}')],
        lambda: Talk(StepResult(rewards=0.5)),
        tools=[FunctionTool(sleep)],
        timeout_s=0.1,
        max_assistant_turns=50,
    )
    row = await made.one()
    assert row.termination is T.TOOL_TIMEOUT
    assert row.termination_detail.startswith("timeout_s")
    # The call that was cut off by the clock of the rollout is answered, and the step graded.
    last = made.envs[0].actions[-1]
    assert last.last
    assert last.tool_results[0].status is ToolStatus.TIMEOUT
    assert row.reward == 0.5 * len(made.envs[0].actions)


async def test_an_environment_that_adds_up_is_infrastructure(bench):
    """Each step is within its own limit; together they are not within that of the rollout."""

    class Slow(Talk):
        async def step(self, action):
            await asyncio.sleep(0.06)
            return await super().step(action)

    made = bench(["hi"], lambda: Slow(MORE), timeout_s=0.1, max_assistant_turns=50)
    row = await made.one()
    assert row.termination is T.ENV_CRASHED
    assert re.match(r"timeout_s: \d+\.\d s of 0\.1 s; the model's own", row.termination_detail)
    assert made.envs[0].actions[-1].last


@pytest.mark.parametrize("where", ["reset", "step"])
async def test_slow_environment_is_infrastructure(bench, where):
    class Slow(Talk):
        async def reset(self, task):
            await asyncio.sleep(600 if where == "reset" else 0)
            return await super().reset(task)

        async def step(self, action):
            await asyncio.sleep(600)

    row = await bench(["hi"], Slow, env_timeout_s=0.05).one()
    assert row.termination is T.ENV_CRASHED
    assert row.termination_detail.startswith(f"env_timeout_s: {where} took longer")
    assert row.reward is None


async def test_environment_may_say_why_it_ends(bench):
    step = StepResult(done=True, rewards=0.0, termination=T.OOM)
    assert (await bench(["hi"], lambda: Talk(step)).one()).termination is T.OOM
    step = StepResult(done=True, termination=T.ENGINE_FAILED)
    row = await bench(["hi"], lambda: Talk(step)).one()
    assert row.termination is T.ENV_CRASHED
    assert "an environment may say" in row.termination_detail


def test_used_up_limits_win_over_the_reserve():
    limits = RolloutLimits.of(
        RolloutSection(max_assistant_turns=2, max_response_tokens=600), delta_overhead=10
    )
    near = RolloutProgress(assistant_turns=2, response_tokens=590, context_tokens=700)
    assert limits.reached(near).termination is T.MAX_TURNS
    over = RolloutProgress(assistant_turns=2, response_tokens=600, context_tokens=700)
    assert limits.reached(over).termination is T.MAX_TOKENS
    first = RolloutProgress(assistant_turns=1, response_tokens=590, context_tokens=700)
    assert limits.reached(first).termination is T.MAX_TOKENS
    assert limits.reached(RolloutProgress(assistant_turns=1, response_tokens=9)) is None
    assert limits.reached(RolloutProgress(assistant_turns=1), result_tokens=590) is not None
