"""Tools that an environment offers in the middle of an episode."""

from __future__ import annotations

from agentrl.env import StepResult
from agentrl.tool import FunctionTool
from agentrl.types import Termination, ToolStatus
from tests.rollout.rollout_fakes import Talk, call


async def late(word: str) -> str:
    """Say it.

    Args:
        word: what
    """
    return f"late {word}"


async def test_a_tool_can_be_called_once_a_step_has_offered_it(bench):
    """Fails if the tool can be called before, or is unknown afterwards."""
    told = StepResult(environment_feedback="You may call 'late' now.", tools=(FunctionTool(late),))
    made = bench(
        [call("late", '{"word": "a"}'), call("late", '{"word": "b"}'), "bye"],
        lambda: Talk(told, StepResult(), StepResult(done=True, rewards=1.0)),
    )
    row = await made.one()
    assert row.termination is Termination.ENV_DONE, row.termination_detail
    before, after = (turn.tool_results for turn in row.turns if turn.tool_results)
    assert [result.status for result in (*before, *after)] == [
        ToolStatus.UNKNOWN_TOOL,
        ToolStatus.OK,
    ]
    assert after[0].text == "late b"


async def test_a_late_tool_may_not_take_the_name_of_another(bench):
    twin = FunctionTool(late)
    twin.name = "add"
    made = bench(["hi", "bye"], lambda: Talk(StepResult(environment_feedback="x", tools=(twin,))))
    row = await made.one()
    assert row.termination is Termination.ENV_CRASHED
    assert "'add'" in row.termination_detail
