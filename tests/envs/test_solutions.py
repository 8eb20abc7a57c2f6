"""Answers that environments give for preflight are worth 1 in the real loop, and never shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from agentrl_envs.gym import GymTask
from agentrl_envs.gym import make_tasks as games
from agentrl_envs.swe import HarborTask, RepairTask

from agentrl.chat import build_chat, build_parser
from agentrl.config.schema import ChatSection, RolloutSection
from agentrl.env import AgentInstance, EnvContext
from agentrl.preflight.reward.known_answers import find_solutions
from agentrl.preflight.reward.scripted_generator import ScriptedGenerator, script_of
from agentrl.rollout import RolloutWorker
from agentrl.sandbox import SandboxBackend
from agentrl.testing import ByteTokenizer
from agentrl.tool import Tool
from agentrl.types import SamplingParams, Task, ToolCall, Trajectory
from tests.envs.strongest_backend import strongest_backend
from tests.envs.swe.swe_episode import TOOLS, Place
from tests.envs.swe.swe_library import PATCH, make_folder
from tests.envs.swe.test_harbor import load, write

SECTION = RolloutSection(
    max_assistant_turns=60, max_user_turns=60, max_turn_tokens=9000, max_response_tokens=400_000,
    max_context_tokens=500_000, max_tool_tokens=9000, retries=0,
)  # fmt: skip


@pytest.fixture
async def backend():
    made = strongest_backend()
    yield made
    await made.close()


async def solve(
    make_env: Callable[[], AgentInstance],
    task: Task,
    tools: Sequence[Tool] = (),
    backend: SandboxBackend | None = None,
) -> Trajectory:
    """One rollout that says what the environment calls a solution."""
    solution = (await find_solutions(make_env, [task], tools))[task.id]
    section = ChatSection(tool_parser="hermes")
    chat = build_chat(ByteTokenizer(), section)
    worker = RolloutWorker(
        generator=ScriptedGenerator({"g": script_of(solution, chat, section)}),
        chat=chat,
        parser=build_parser("hermes"),
        make_env=make_env,
        tools=tools,
        sandboxes=backend,
        section=SECTION,
    )
    sampling = SamplingParams(max_tokens=9000, stop_token_ids=chat.stop_token_ids)
    group = await worker.run_group(task, group_id="g", n=1, sampling=sampling, seed=0)
    return group.trajectories[-1]


async def is_seen(text: str, env: AgentInstance, task: Task, backend: SandboxBackend) -> bool:
    """Whether a model can read it before it does anything, in the prompt or in a file."""
    place = Place(backend)
    env.context = EnvContext(tools=TOOLS, open_sandbox=place.open, new_sandbox=place.fresh)
    try:
        shown = await env.reset(task)
        found = await (await place.open()).exec(("grep", "-rqF", "--", text, "."))
        assert found.exit_code in (0, 1), found
        return text in str(shown.content) or found.exit_code == 0
    finally:
        await env.close()
        await place.close()


async def test_the_gold_change_of_a_repair_scores_1(backend, tmp_path: Path) -> None:
    for task in make_folder(tmp_path):
        row = await solve(RepairTask, task, TOOLS, backend)
        assert (row.reward, row.score) == (1.0, 1.0), row.termination_detail
        assert row.extra_logs["submitted"] == 1.0
    broken, mended = "return max(low, max(value, high))", "return max(low, min(value, high))"
    assert f"+    {mended}" in PATCH
    assert await is_seen(broken, RepairTask(), task, backend)
    assert not await is_seen(mended, RepairTask(), task, backend)


async def test_a_patch_of_any_size_and_bytes_arrives_as_it_is(backend, tmp_path: Path) -> None:
    """Fails if the patch is cut, quoted or written with other line ends."""
    (task, _) = make_folder(tmp_path)
    text = "".join(f'+it\'s "{n}" \\ $HOME `x` \u4e16\t\n' for n in range(200))
    extra = f"--- /dev/null\n+++ b/tinylib/more.txt\n@@ -0,0 +1,200 @@\n{text}"
    turns = RepairTask()
    turns.context = EnvContext(tools=TOOLS)
    long = {**task.label, "patch": f"{PATCH}{extra}"}
    said = turns.solution(Task(id=task.id, prompt=task.prompt, label=long))
    assert said is not None
    place = Place(backend)
    try:
        env = RepairTask()
        env.context = EnvContext(tools=TOOLS, open_sandbox=place.open, new_sandbox=place.fresh)
        await env.reset(task)
        sandbox = await place.open()
        for call in said[:-1]:
            assert isinstance(call, ToolCall)
            result = await TOOLS[0].call(call.arguments, sandbox)
            assert len(str(call.arguments)) < 1500
        wrote = (await sandbox.read_file("repo/tinylib/more.txt")).decode()
        assert wrote == text.replace("\n+", "\n")[1:], result
    finally:
        await place.close()


async def test_without_a_shell_a_repair_has_no_solution(tmp_path: Path) -> None:
    (task, _) = make_folder(tmp_path)
    assert await find_solutions(RepairTask, [task], TOOLS[1:]) == {}


async def test_a_harbor_solution_is_run_where_its_folder_lies_here(backend, tmp_path: Path) -> None:
    folder = write(tmp_path / "tasks/hello")
    (task,) = load(tmp_path / "tasks", image="none")
    assert await find_solutions(HarborTask, [task], TOOLS) == {}
    (folder / "solution").mkdir()
    (folder / "solution/solve.sh").write_text("test $PWD = /app && cp /solution/word hello.txt\n")
    (folder / "solution/word").write_text("hi\n")
    assert (await solve(HarborTask, task, TOOLS, backend)).reward == 1.0
    assert await is_seen("applied", HarborTask(), task, backend)
    assert not await is_seen("solution", HarborTask(), task, backend)


@pytest.mark.parametrize(
    ("args", "earned"),
    [
        ({"id": "FrozenLake-v1", "kwargs": {"is_slippery": False},
          "actions": ["left", "down", "right", "up"]}, 1.0),
        ({"id": "CliffWalking-v1"}, -13.0),
    ],
)  # fmt: skip
async def test_the_best_walk_through_a_game_is_known(args: dict, earned: float) -> None:
    (task,) = games(n=1)
    row = await solve(lambda: GymTask(**args), task)
    assert row.reward == earned
    assert row.termination == "env_done"


async def test_a_game_of_chance_has_no_solution() -> None:
    for name in ("FrozenLake-v1", "Blackjack-v1"):
        assert await find_solutions(lambda name=name: GymTask(id=name), games(n=1)) == {}
