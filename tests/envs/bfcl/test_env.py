"""BFCL's conversations in the real loop: its own answers are worth 1, less is worth 0."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("bfcl_eval")

from agentrl_envs.bfcl import CATEGORIES, BfclTask, expected_calls, multi_turn_tasks
from agentrl_envs.bfcl.functions import DOCUMENTS, documents, owners

from agentrl.chat import build_chat, build_parser
from agentrl.config import load_config
from agentrl.config.schema import ChatSection, DatasetSection, RolloutSection
from agentrl.data import load_tasks
from agentrl.env import Action
from agentrl.errors import ConfigError, EnvError
from agentrl.rollout import RolloutWorker
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.types import SamplingParams, Task, Termination, ToolStatus
from tests.envs.test_solutions import solve

TASKS = {task.id: task for task in multi_turn_tasks("all")}
ASKING = {
    item["name"]
    for backend in DOCUMENTS
    for item in documents(backend)
    if item["parameters"].get("required")
}
"""Functions that cannot be called without an argument."""


def script(task: Task, stop: int | None = None):
    for calls in expected_calls(task)[:stop]:
        for name, arguments in calls:
            body = json.dumps({"name": name, "arguments": arguments})
            yield f"<tool_call>\n{body}\n</tool_call>"
        yield "Done."
    while True:
        yield "All is done. Reward: 1.0"


async def play(task: Task, replies, **env_args):
    """One rollout by a script, with the environment it was made in."""
    tokenizer, made = ByteTokenizer(), []

    def make():
        made.append(BfclTask(**env_args))
        return made[-1]

    worker = RolloutWorker(
        generator=ScriptedEngine(lambda ids, session: next(replies), tokenizer),
        chat=build_chat(tokenizer, ChatSection(tool_parser="hermes")),
        parser=build_parser("hermes"),
        make_env=make,
        section=RolloutSection(
            max_assistant_turns=80,
            max_user_turns=80,
            max_turn_tokens=5000,
            max_response_tokens=400_000,
            max_context_tokens=500_000,
            max_tool_tokens=20_000,
            retries=0,
        ),
    )
    group = await worker.run_group(
        task, group_id="g", n=1, sampling=SamplingParams(max_tokens=5000), seed=0
    )
    return group.trajectories[-1], made[-1]


@pytest.mark.parametrize(
    "name",
    [
        "multi_turn_base_0",
        "multi_turn_base_150",
        "multi_turn_miss_func_49",
        "multi_turn_miss_func_70",
        "multi_turn_miss_param_112",
        "multi_turn_long_context_20",
    ],
)
async def test_the_answers_of_the_benchmark_earn_everything_and_a_part_earns_a_share(name):
    """Fails if turns are judged one off, or if late functions cannot be called."""
    task = TASKS[name]
    row, env = await play(task, script(task))
    assert (row.reward, row.score) == (1.0, 1.0), row.extra_logs
    assert row.termination is Termination.ENV_DONE
    assert not env.backends.alive
    turns = len(task.label["expected"])
    row, _ = await play(task, script(task, stop=turns - 1), reward="fraction")
    shares = [any(text.split("(")[0] in ASKING for text in turn) for turn in task.label["expected"]]
    assert (row.reward, row.score) == (sum(shares[:-1]) / sum(shares), 0.0)
    assert row.extra_logs["wrong_empty"] == 1.0


async def test_doing_nothing_and_claiming_success_earns_nothing():
    row, _ = await play(TASKS["multi_turn_base_0"], script(TASKS["multi_turn_base_0"], stop=0))
    assert (row.reward, row.score, row.termination) == (0.0, 0.0, Termination.ENV_DONE)


async def test_a_turn_that_expects_no_call_is_no_share_of_the_reward():
    """Fails if a turn that is right for everybody counts: silence would earn in 175 tasks."""
    task = next(task for task in TASKS.values() if not task.label["expected"][0])
    row, _ = await play(task, script(task, stop=0), reward="fraction")
    assert (row.reward, row.score) == (0.0, 0.0)
    row, _ = await play(task, script(task), reward="fraction")
    assert (row.reward, row.score) == (1.0, 1.0)


async def test_a_function_that_comes_late_is_unknown_before():
    """Fails if all functions are offered from the start, when there is nothing to be missed."""
    task = TASKS["multi_turn_miss_func_0"]
    (late,) = [turn["new"] for turn in task.metadata["turns"] if turn["new"]]
    env = BfclTask()
    observation = await env.reset(task)
    assert not {tool.name for tool in observation.tools} & set(late)
    offered = []
    for _ in expected_calls(task):
        result = await env.step(Action(text="no calls"))
        offered += [tool.name for tool in result.tools]
        told = all(f'"name": "{name}"' in result.environment_feedback for name in late)
        assert bool(result.tools) == told
    assert offered == late
    await env.close()


async def test_every_step_beyond_the_bound_ends_the_episode():
    calls = '<tool_call>\n{"name": "pwd", "arguments": {}}\n</tool_call>'
    row, _ = await play(TASKS["multi_turn_base_0"], iter([calls] * 50), max_steps=3)
    assert sum(turn.role == "assistant" for turn in row.turns) == 4
    assert (row.reward, row.extra_logs["unfinished"]) == (0.0, 1.0)


async def test_arguments_are_checked_before_the_back_end_sees_them():
    task = TASKS["multi_turn_base_0"]
    bad = [
        {"name": "cd", "arguments": {"folder": "document", "force": True}},
        {"name": "cd", "arguments": {}},
        {"name": "cd", "arguments": {"folder": "x" * 60_000}},
        {"name": "cd", "arguments": {"folder": 7}},
    ]
    replies = iter(
        [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in bad[:2]] + ["x"] * 9
    )
    row, _ = await play(task, replies)
    results = [result for turn in row.turns for result in turn.tool_results]
    assert [result.status for result in results] == [ToolStatus.INVALID_ARGUMENTS] * 2
    assert "did you mean" in results[0].text or "valid: folder" in results[0].text
    assert "missing: folder" in results[1].text
    env = BfclTask()
    (cd,) = [tool for tool in (await env.reset(task)).tools if tool.name == "cd"]
    with pytest.raises(Exception, match="more than 50000 characters"):
        cd.validate(bad[2]["arguments"])
    with pytest.raises(Exception, match="Error during execution"):
        await cd.call(bad[3]["arguments"], None)
    await env.close()


async def test_calls_of_one_turn_run_in_the_order_in_which_they_are_written():
    """Fails if they are sent to the back-ends at the same time."""
    env = BfclTask()
    tools = {tool.name: tool for tool in (await env.reset(TASKS["multi_turn_base_0"])).tools}
    folders = ["document", "..", "archive", "..", "document"]
    calls = [tools["cd"].call({"folder": name}, None) for name in folders]
    texts = [result.text for result in await asyncio.gather(*calls)]
    assert [("document" in t, "archive" in t) for t in texts[::2]] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    await env.close()


async def test_a_call_that_is_given_up_is_not_answered_to_the_next_one():
    """Fails if the process is kept, whose next answer is that to the earlier question."""
    env = BfclTask()
    tools = {tool.name: tool for tool in (await env.reset(TASKS["multi_turn_base_0"])).tools}
    assert env.backends is not None
    os.kill(env.backends.pid, signal.SIGSTOP)  # so its answer is not there yet
    giving_up = asyncio.ensure_future(tools["cd"].call({"folder": "document"}, None))
    await asyncio.sleep(0)
    giving_up.cancel()
    await asyncio.gather(giving_up, return_exceptions=True)
    with pytest.raises(EnvError, match="the BFCL back-ends failed at 'call'"):
        await tools["ls"].call({}, None)
    await env.close()


async def test_back_ends_that_are_killed_from_outside_are_infrastructure():
    """Fails if the end of the process is charged to the model, with a reward of 0."""
    task = TASKS["multi_turn_base_0"]

    class Killed(BfclTask):
        async def step(self, action):
            assert self.backends is not None
            os.kill(self.backends.pid, signal.SIGKILL)
            return await super().step(action)

    env = Killed()
    await env.reset(task)
    with pytest.raises(Exception, match="failed at 'turn': the process ended with status -9"):
        await env.step(Action(text="done"))
    await env.close()


async def test_a_second_reset_and_one_that_is_cancelled_leave_no_process():
    """Fails if a second reset forgets the process of the first."""
    before = children()
    twice = BfclTask()
    await twice.reset(TASKS["multi_turn_base_0"])
    await twice.reset(TASKS["multi_turn_base_1"])
    await twice.close()
    for delay_s in (0.0, 0.005, 0.02):
        env = BfclTask()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(delay_s):
                await env.reset(TASKS["multi_turn_base_0"])
        await env.close()
    for _ in range(2400):
        if children() == before:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"left: {children() - before}")


def children() -> set[str]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as listed:  # noqa: PTH123
        return set(listed.read().split())


def test_splits_share_no_conversation_and_ids_are_those_of_the_benchmark():
    parts = {split: multi_turn_tasks(split) for split in ("train", "held_out")}
    numbers = {split: {t.id.rsplit("_", 1)[1] for t in tasks} for split, tasks in parts.items()}
    assert not numbers["train"] & numbers["held_out"]
    assert (len(parts["train"]), len(parts["held_out"]), len(TASKS)) == (640, 160, 800)
    assert [task.id for task in multi_turn_tasks("all", ("miss_func",))[:2]] == [
        "multi_turn_miss_func_0",
        "multi_turn_miss_func_1",
    ]
    section = DatasetSection(
        source="agentrl_envs.bfcl:multi_turn_tasks", args={"categories": ["base"]}
    )
    assert len(load_tasks(section)) == 160
    json.dumps([[task.label, dict(task.metadata)] for task in TASKS.values()])


def test_every_document_is_a_json_schema():
    kinds = {"object", "number", "integer", "string", "boolean", "array"}

    def walk(schema):
        assert schema["type"] in kinds
        for entry in (*schema.get("properties", {}).values(), schema.get("items")):
            if entry:
                walk(entry)

    from agentrl_envs.bfcl.functions import DOCUMENTS, json_schema

    for backend in DOCUMENTS:
        for item in documents(backend):
            walk(json_schema(item["parameters"]))
    # A name in two back-ends would be one tool for two methods.
    assert len(owners(DOCUMENTS)) == sum(len(documents(name)) for name in DOCUMENTS)


def test_the_config_that_is_shipped_loads():
    folder = Path(__file__).parents[3] / "configs"
    config = load_config(folder / "bfcl.yaml")
    assert load_tasks(config.dataset, base=folder)
    assert BfclTask(**config.env.args)


async def test_bad_input_is_explained():
    with pytest.raises(ConfigError, match="held_out, train"):
        multi_turn_tasks("test")
    with pytest.raises(ConfigError, match="did you mean 'miss_func'"):
        multi_turn_tasks("train", ("miss_fun",))
    with pytest.raises(ConfigError, match="max_steps"):
        BfclTask(max_steps=0)
    with pytest.raises(ConfigError, match="did you mean 'fraction'"):
        BfclTask(reward=cast("Any", "fractions"))
    with pytest.raises(ValueError, match="multi_turn_tasks"):
        await BfclTask().reset(Task(id="t", prompt="p"))
    assert set(CATEGORIES) == {task.metadata["category"] for task in TASKS.values()}


async def test_the_solution_for_preflight_is_worth_1_and_not_shown():
    for name in ("multi_turn_base_0", "multi_turn_miss_func_70"):
        assert (await solve(BfclTask, TASKS[name])).reward == 1.0
    many = max(TASKS.values(), key=lambda task: max(map(len, task.label["expected"])))
    assert BfclTask().solution(many) is None
    env = BfclTask()
    shown = await env.reset(TASKS["multi_turn_base_0"])
    await env.close()
    assert not any(
        call in str(shown.content) for call in TASKS["multi_turn_base_0"].label["expected"][0]
    )
