"""Harbor task directories: read, played from their folder, graded by their own tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentrl_envs.swe import HarborTask
from agentrl_envs.swe.harbor import _HarborGrade, read_reward

from agentrl.config.schema import DatasetSection
from agentrl.data import load_tasks
from agentrl.env import Action, EnvContext
from agentrl.errors import DataError, GraderError
from agentrl.types import Message, Task
from tests.envs.strongest_backend import strongest_backend
from tests.envs.swe.swe_episode import SUBMITTED, TOOLS, Place

TEST = """#!/bin/bash
mkdir -p /logs/verifier
if python3 /tests/check.py; then echo 1 > /logs/verifier/reward.txt
else echo '{"reward": 0.25}' > /logs/verifier/reward.json; fi
"""
CHECK = "import sys\nsys.exit(open('/app/hello.txt').read() != 'hi\\n')\n"


@pytest.fixture
async def backend():
    made = strongest_backend()
    yield made
    await made.close()


def write(
    folder: Path, *, toml: str = "[verifier]\ntimeout_sec = 20.0\n", test: str = TEST
) -> Path:
    for name, text in {
        "task.toml": f'version = "1.0"\n[metadata]\ndifficulty = "easy"\n{toml}',
        "instruction.md": "Write hi into /app/hello.txt, not into /applied.",
        "environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY . /app\n",
        "environment/given.txt": "x",
        "tests/test.sh": test,
        "tests/check.py": CHECK,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def load(folder: Path, **args) -> list[Task]:
    args = {"path": folder.name, **args}
    section = DatasetSection(source="agentrl_envs.swe:harbor_tasks", args=args)
    return load_tasks(section, base=folder.parent)


async def play(backend, task: Task, script: str, **args):
    place = Place(backend)
    env = HarborTask(**args)
    env.context = EnvContext(tools=TOOLS, open_sandbox=place.open, new_sandbox=place.fresh)
    try:
        shown = (await env.reset(task)).content
        sandbox = await place.open()
        result = await sandbox.exec(("sh", "-c", script), cwd="repo")
        assert result.exit_code == 0, result
        return shown, await env.step(Action(text="", tool_results=(SUBMITTED,)))
    finally:
        await place.close()


async def test_a_task_is_played_and_its_tests_give_the_score(backend, tmp_path):
    write(tmp_path / "tasks/hello")
    (task,) = load(tmp_path / "tasks", image="none")
    assert (task.id, task.metadata) == ("hello", {"difficulty": "easy"})
    shown, step = await play(backend, task, "echo hi >hello.txt; rm given.txt; ls ..")
    assert isinstance(shown[1], Message)
    assert "/repo/hello.txt, not into /applied." in shown[1].content
    assert (step.rewards, step.scores) == (1.0, 1.0)
    _, half = await play(backend, task, "echo no >hello.txt", reward="fraction")
    assert (half.rewards, half.scores) == (0.25, 0.25)
    # What is not in the task's folder does not reach the tests: neither a result nor other tests.
    cheat = "mkdir -p ../grade/logs/verifier ../grade/tests; echo no >hello.txt;"
    cheat += "echo 1 >../grade/logs/verifier/reward.txt; echo >../grade/tests/check.py"
    assert (await play(backend, task, cheat))[1].rewards == 0.0
    assert (await play(backend, task, "cd ..; rm -rf repo"))[1].rewards == 0.0


@pytest.mark.parametrize(("written", "earned"), [("1e9", 1.0), ("-3", 0.0)])
async def test_no_score_leaves_its_bounds(written, earned, backend, tmp_path):
    write(tmp_path / "tasks/hello", test=f"mkdir -p /logs/verifier; echo {written} "
          ">/logs/verifier/reward.txt")  # fmt: skip
    (task,) = load(tmp_path / "tasks", image="none")
    _, step = await play(backend, task, "true", reward="fraction")
    assert (step.rewards, step.scores) == (earned, earned)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (".50", 0.5), ("1.", 1.0), ("+1", 1.0), ("1e0", 1.0), ("-.5\n", -0.5), ("01", 1.0),
        ("true", 1.0), ('"0.5"', 0.5), ('{"time": 3, "reward": .50}', 0.5), ('{"score": +1.}', 1.0),
        ('{"says": "is 1. or .5", "reward": 0}', 0.0),
    ],
)  # fmt: skip
def test_numbers_of_any_language_are_read(text, reward):
    """Caught: `.50`, as bc writes it, was no number, and its rollout earned 0."""
    assert read_reward(text) == reward


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"passed": 7, "total": 9}', r"it names \['passed', 'total'\], but neither reward nor sc"),
        ('{"reward": null}', "expected one finite number"),
        ("{}", r"it names \[\]"),
        ("[1]", "expected one finite number"),
        ("1 2", "it holds '1 2'"),
        ("1_0", "it holds '1_0'"),
        ("0x1", "it holds '0x1'"),
        ("nan", "it holds 'nan'"),
        ("1e999", "expected one finite number"),
        ("", "it holds ''"),
    ],
)
def test_what_is_no_declared_score_is_refused_by_name(text, words):
    """Caught: an object without a reward paid its first value, here 7 passed tests."""
    with pytest.raises(ValueError, match=words):
        read_reward(text)


@pytest.mark.parametrize("changes", [False, True])
async def test_tests_that_fail_now_and_then_are_the_doing_of_who_changed_what_they_read(
    changes, backend, tmp_path, monkeypatch
):
    """Caught: an agent that changed nothing earned 0 where its tests gave no score twice."""
    write(tmp_path / "tasks/hello", test="mkdir -p /logs/verifier; echo '{\"passed\": 7}' "
          ">/logs/verifier/reward.json")  # fmt: skip
    (task,) = load(tmp_path / "tasks", image="none")
    tested, runs = HarborTask._tested, []

    async def flaky(self, left, limits):
        runs.append(left)
        if len(runs) > 2:
            return _HarborGrade(reward=0.0, output="")
        return await tested(self, left, limits)

    monkeypatch.setattr(HarborTask, "_tested", flaky)
    if changes:
        _, step = await play(backend, task, "echo hi >hello.txt")
        assert (step.rewards, step.extra_logs["grading_broken"], len(runs)) == (0.0, 1.0, 3)
    else:
        with pytest.raises(GraderError, match=r"reward.json that cannot be read.*'passed'"):
            await play(backend, task, "cat given.txt; touch given.txt")


async def test_tests_that_say_nothing_are_no_reward_of_0(backend, tmp_path):
    write(tmp_path / "tasks/hello", test="echo broken >&2; exit 1")
    (task,) = load(tmp_path / "tasks", image="none")
    with pytest.raises(GraderError, match=r"wrote no /logs/verifier/reward.txt.*broken"):
        await play(backend, task, "true")


LOADS = """import sys, os
sys.path.insert(0, "/app")
try:
    import hello
except ImportError:
    pass
sys.exit(1)
"""
RUINS = {
    "kills the test script": "echo 'import os; os.kill(os.getppid(), 9); os._exit(0)' >hello.py",
    "stops the test script": "echo 'import os; os.kill(os.getppid(), 19); os._exit(0)' >hello.py",
    "writes a score too deep to read": 'printf \'import os; os.makedirs(os.environ["LOGS"], '
    'exist_ok=True)\\nopen(os.environ["LOGS"]+"/reward.txt", "w").write("[" * 100000)'
    "\\nos.kill(os.getppid(), 9)' >hello.py",
    "removes everything": 'cd /; rm -rf "$OLDPWD/.." 2>/dev/null; true',
    "locks its folder": "chmod 000 . ..; true",
    "leaves 60,000 files": "mkdir d; cd d; seq 60000 | xargs touch 2>/dev/null; true",
}


@pytest.mark.parametrize("trick", RUINS)
async def test_an_agent_cannot_make_itself_infrastructure(trick, backend, tmp_path):
    """Caught: the rollout is dropped, and the failure of the model does not count."""
    folder = write(
        tmp_path / "tasks/hello", test=TEST.replace("if ", "export LOGS=/logs/verifier\nif ")
    )
    (folder / "tests/check.py").write_text(LOADS)
    (folder / "task.toml").write_text("[verifier]\ntimeout_sec = 5.0\n")
    (task,) = load(tmp_path / "tasks", image="none")
    _, step = await play(backend, task, RUINS[trick], reward="all")
    assert (step.rewards, step.done) == (0.0, True)


def test_images_come_from_the_task_or_from_the_config(tmp_path):
    write(tmp_path / "tasks/a")
    write(tmp_path / "tasks/b", toml='[environment]\ndocker_image = "mine:1"\nworkdir = "/w"\n')
    first, second = load(tmp_path / "tasks", image="harbor-{name}")
    assert (first.label["image"], first.label["root"]) == ("harbor-a", "/app")
    assert (second.label["image"], second.label["root"]) == ("mine:1", "/w")
    with pytest.raises(DataError, match=r"a/task.toml: .*names no docker_image; build one with"):
        load(tmp_path / "tasks")
    (only,) = load(tmp_path / "tasks/b")
    assert only.id == "b"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("instruction.md", None, "hello: a Harbor task needs instruction.md"),
        ("tests/test.sh", None, "hello: a Harbor task needs tests/test.sh"),
        ("task.toml", "[broken", "hello: task.toml or instruction.md"),
        ("task.toml", '[verifier]\ntimeout_sec = "long"', "verifier.timeout_sec is 'long'"),
        ("task.toml", None, "no Harbor tasks here; expected NAME/task.toml"),
    ],
)
def test_a_broken_task_directory_is_named(tmp_path, name, text, words):
    place = write(tmp_path / "tasks/hello") / name
    place.unlink()
    if text is not None:
        place.write_text(text)
    with pytest.raises(DataError, match=words):
        load(tmp_path / "tasks", image="none")
