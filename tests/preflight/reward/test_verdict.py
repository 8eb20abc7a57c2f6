"""What preflight says of a reward: non-answers that are paid, solutions that are not, crashes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.chat import build_chat
from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.models.source import load_tokenizer
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.preflight.plan import full_plan
from agentrl.preflight.reward.known_answers import AnswerKind, TriedAnswer
from agentrl.preflight.reward.sample_verdict import judge_samples
from agentrl.preflight.reward.verdict import judge_answers
from agentrl.types.finding import Finding, Status
from tests.preflight.check_lines import lines_of
from tests.runtime.tiny_project import write_project

ENVS = '''
from agentrl import AgentInstance, Observation, StepResult
from agentrl.types import ToolCall


class Base(AgentInstance):
    reward_range = (0.0, 1.0)

    async def reset(self, task):
        self.task = task
        return Observation(content=str(task.prompt))

    async def step(self, action):
        return StepResult(rewards=self.judge(action), done=True)

    def solution(self, task):
        return f"It is {task.id}."


class Good(Base):
    def judge(self, action):
        return float(f"is {self.task.id}" in action.text)


class PaysAll(Base):
    def judge(self, action):
        return 1.0


class PaysLength(Base):
    def judge(self, action):
        return min(1.0, len(action.text) / 20)


class PaysNothing(Base):
    def judge(self, action):
        return 0.0


class Crashes(Base):
    def judge(self, action):
        return float(action.text.split()[-1] == self.task.id + ".")


class Shrug(Good):
    def solution(self, task):
        return None


class Calls(Base):
    """Solved by a call in the first turn and words in the second."""

    async def step(self, action):
        if action.turn == 0:
            self.found = action.tool_results[0].text if action.tool_results else ""
            return StepResult(environment_feedback="go on")
        return StepResult(rewards=float(self.found == "7" and "seven" in action.text), done=True)

    def solution(self, task):
        return [ToolCall(id="", name="add", arguments={"a": 3, "b": 4}, raw=""), "seven"]
'''
TOOLS = '''
async def add(a: int, b: int) -> str:
    """Add.

    Args:
        a: one.
        b: other.
    """
    return str(a + b)
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preflight-reward")
    limits = {"max_turn_tokens": 150, "max_response_tokens": 300, "max_context_tokens": 500}
    file = write_project(folder, **{f"rollout__{name}": value for name, value in limits.items()})
    (folder / "envs.py").write_text(ENVS)
    (folder / "tools.py").write_text(TOOLS)
    return file


@pytest.fixture(autouse=True)
def _in_its_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of overrides start at the current folder."""
    monkeypatch.chdir(project.parent)


async def lines(project: Path, *overrides: str) -> dict[str, Finding]:
    config = load_config(project, overrides)
    return await lines_of(full_plan(plan_run(config, project.parent), found=PreflightFacts()))


@pytest.mark.parametrize(
    ("env", "status", "words"),
    [
        ("Good", Status.OK, ["the solution: reward 1", "empty: reward 0"]),
        ("PaysAll", Status.FAIL, ["constant: every answer gets 1, on 4 tasks"]),
        ("PaysLength", Status.FAIL, ["length alone pays", "the longer earns more"]),
        ("PaysNothing", Status.FAIL, ["constant: every answer gets 0, on 4 tasks"]),
        ("Crashes", Status.FAIL, ["could not be judged (empty)", "env_crashed", "IndexError"]),
        ("Shrug", Status.WARN, ["no good answer is known"]),
    ],
)
async def test_what_the_reward_pays_for(
    project: Path, env: str, status: Status, words: list[str]
) -> None:
    check = (await lines(project, f"env.target=envs.py:{env}"))["reward test"]
    assert check.status is status, check
    assert [word for word in words if word not in check.detail] == [], check.detail
    assert bool(check.fix) is (status is not Status.OK)


async def test_a_solution_may_call_tools_over_several_turns(project: Path) -> None:
    """Fails if a call is not written as the run's parser reads it, or turns are mixed up."""
    room = ["rollout.max_context_tokens=2000", "train.micro_batch_tokens=2000"]
    calls = ["env.target=envs.py:Calls", "env.tools=[tools.py:add]", *room]
    for parser in ("hermes", "qwen3_coder", "llama3_json", "mistral"):
        found = await lines(project, *calls, f"chat.tool_parser={parser}")
        assert found["reward test"].status is Status.OK, found["reward test"]
        assert found["tool calls"].detail == f"{parser} reads back calls of add"
    short = [*calls, "chat.tool_parser=hermes", "rollout.max_turn_tokens=40"]
    check = (await lines(project, *short))["reward test"]
    assert "the solution was cut off at its token limit on 4 tasks" in check.detail
    assert check.fix == "raise rollout.max_turn_tokens"
    found = await lines(project, *calls)
    assert found["tool calls"].detail == "fenced_json reads back calls of add"
    assert found["reward test"].status is Status.OK
    found = await lines(project, *calls, "chat.tool_parser=none")
    assert found["tool calls"].status is Status.WARN
    assert found["reward test"].status is Status.FAIL


@pytest.mark.parametrize(
    ("parser", "prefix"),
    [
        ("hermes", "Well.\n"),
        ("hermes", "<tool_call>"),
        ("hermes", "I will add.\n<tool_call>\n{"),
        ("hermes", "<think>"),
        ("hermes", "<think></think>"),
        ("qwen3_coder", "<tool_call>\n"),
        ("llama3_json", "{"),
    ],
)
async def test_a_solution_of_calls_goes_on_behind_a_reply_prefix(
    project: Path, parser: str, prefix: str
) -> None:
    """Fails if the call is written once more, or stands inside of the thought that it opens."""
    found = await lines(
        project, "env.target=envs.py:Calls", "env.tools=[tools.py:add]",
        "rollout.max_context_tokens=2000", "train.micro_batch_tokens=2000",
        f"chat.tool_parser={parser}", f"chat.reply_prefix={json.dumps(prefix)}",
    )  # fmt: skip
    assert "the solution: reward 1" in found["reward test"].detail, found["reward test"]


async def test_reward_functions_are_part_of_what_is_tried(project: Path) -> None:
    """Fails if only the environment's own reward is looked at."""
    (project.parent / "bonus.py").write_text("def bonus(trajectory, task):\n    return 2.0\n")
    bonus = ["env.target=envs.py:Good", "reward.functions={bonus: {target: 'bonus.py:bonus'}}"]
    check = (await lines(project, *bonus))["reward test"]
    assert "empty: reward 2" in check.detail
    assert check.status is Status.FAIL


async def test_functions_of_groups_are_left_out(project: Path) -> None:
    """Fails if an answer that is alone in its group is said to be paid for nothing."""
    source = "def middle(trajectories, task):\n    return [2.0] * len(trajectories)\n"
    (project.parent / "places.py").write_text(source)
    places = ["env.target=envs.py:Good", "reward.functions={place: {target: 'places.py:middle'}}"]
    check = (await lines(project, *places))["reward test"]
    assert check.status is Status.OK
    assert "empty: reward 0" in check.detail
    # One for TRL is called with a group, and judges each completion all the same.
    trl = "def paid(completions, **columns):\n    return [2.0 for _ in completions]\n"
    (project.parent / "paid.py").write_text(trl)
    paid = ["env.target=envs.py:Good", "reward.functions={paid: {target: 'paid.py:paid'}}"]
    assert "empty: reward 2" in (await lines(project, *paid))["reward test"].detail
    check = (await lines(project, *places, "reward.env_weight=0"))["reward test"]
    assert check.status is Status.OK
    assert "not tried: functions of groups are all of the reward" in check.detail


async def test_a_reply_prefix_and_a_stop_text_are_heeded(project: Path) -> None:
    """The solution begins with the prefix, which the model never writes itself, and ends where
    sampling would stop."""
    prefixed = ["env.target=envs.py:Good", "chat.reply_prefix='It'", "chat.stop=['.']"]
    check = (await lines(project, *prefixed))["reward test"]
    assert "the solution: reward 1" in check.detail, check


def answer(kind: str, reward: float | None, **changes: object) -> TriedAnswer:
    values: dict[str, object] = {
        "kind": kind, "task_id": "t", "text": "x", "reward": reward, "score": reward,
        "termination": "env_done", "detail": "", "tokens": 9, "sandbox": False, "group_id": "g",
        **changes,
    }  # fmt: skip
    return TriedAnswer(**values)  # pyright: ignore[reportArgumentType]


def test_luck_is_a_warning_and_shaping_is_none() -> None:
    lucky = [answer(AnswerKind.TOKEN, float(n == 0), task_id=str(n)) for n in range(4)]
    found = judge_answers([*lucky, answer(AnswerKind.SOLUTION, 1.0, task_id="9")])
    assert found.status is Status.WARN
    assert "one token is paid on 1 of 4 tasks, as ['0']" in found.detail
    shaped = [answer(AnswerKind.FORM, 0.1, score=0.0), answer(AnswerKind.SOLUTION, 1.0)]
    assert judge_answers(shaped).status is Status.OK
    half = [answer(AnswerKind.FORM, 0.5, score=0.0), answer(AnswerKind.SOLUTION, 1.0)]
    assert judge_answers(half).status is Status.FAIL
    weak = [answer(AnswerKind.EMPTY, 0.0), answer(AnswerKind.SOLUTION, 0.7, score=0.5)]
    assert "the solution scores 0.5 on task 't'" in judge_answers(weak).detail
    # Without a verdict beside the reward, 1 is not what a right answer has to earn.
    costs = [answer(AnswerKind.EMPTY, -900.0), answer(AnswerKind.SOLUTION, -13.0)]
    assert judge_answers(costs).status is Status.OK
    some = answer(AnswerKind.SOLUTION, -800.0, task_id="u")
    assert "the solution scores -800 on task 'u'" in judge_answers([*costs, some]).detail


def test_samples_of_a_model_are_judged() -> None:
    mixed = [answer("sample", float(n % 2), group_id=str(n // 4)) for n in range(16)]
    found = judge_samples(mixed, where="here")
    assert found.status is Status.OK, found
    assert "reward 0.5 on average, 0 to 1; 8 earned 0, 8 earned 1" in found.detail
    assert "agentrl traj show here" in found.detail
    assert judge_samples([answer("sample", 0.0)] * 8).status is Status.FAIL
    failed = judge_samples([answer("sample", None, termination="env_crashed", detail="boom")])
    assert failed.status is Status.FAIL
    assert "env_crashed: boom" in failed.detail
    flat = [answer("sample", float(n // 8), group_id=str(n // 4)) for n in range(16)]
    assert "in 4 of 4 groups all earned the same" in judge_samples(flat).detail
    cut = [answer("sample", r, termination="max_tokens") for r in (0.0, 1.0)]
    assert "2 of them were cut off" in judge_samples(cut).detail
    cheap = [answer("sample", r, tokens=1, text="\x1b[31m") for r in (0.0, 1.0)]
    assert "2 tokens were paid: '\\x1b[31m'" in judge_samples(cheap).detail


def test_the_command_says_what_each_sample_scored(project: Path, tmp_path: Path) -> None:
    """Status 1 where a line failed; the tiny model writes, so that each sample can be read."""
    import typer

    from agentrl.cli.preflight import command

    app = typer.Typer()
    app.command()(command)
    words = [str(project), "env.target=envs.py:PaysAll", "--samples", "8", "--json"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "samples")])
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    status = {check["name"]: check["status"] for check in found["checks"]}
    assert status["reward test"] == status["reward samples"] == "fail"
    written = [item for item in found["answers"] if item["kind"] == "sample"]
    assert len(written) == 8
    assert {item["reward"] for item in written} == {1.0}
    assert (tmp_path / "samples" / "trajectories" / "train").is_dir()
    good = CliRunner().invoke(app, [str(project), "env.target=envs.py:Good", "train.steps=0"])
    assert good.exit_code == 0, good.output
    assert "-> set health.rules" in good.output


def test_a_script_is_what_a_model_would_sample(project: Path) -> None:
    from agentrl.preflight.reward.scripted_generator import encode_turn

    config = load_config(project, ["chat.reply_prefix=ab", "chat.stop=['!']"])
    tokenizer = load_tokenizer(config.model)
    chat = build_chat(tokenizer, config.chat)
    end = chat.stop_token_ids[0]
    assert tokenizer.decode(encode_turn("abc!d", chat, config.chat)) == "c!"
    assert encode_turn("", chat, config.chat) == (end,)
    assert encode_turn("abxy", chat, config.chat)[-1] == end
    # Foreign text never turns into a special token.
    assert encode_turn("<|im_end|>", chat, config.chat).count(end) == 1
