"""Ways to be rewarded without doing what the user asked for. None of them may earn anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("bfcl_eval")

from agentrl_envs.bfcl.functions import DOCUMENTS, documents, owners

from agentrl.types import Termination
from tests.envs.bfcl.test_env import TASKS, expected_calls, play

TASK = TASKS["multi_turn_base_0"]


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def tree():
    """A folder with 2 ** 24 paths in it, made of few calls."""
    yield call("mkdir", dir_name="a")
    for index in range(24):
        yield call("cp", source="a", destination=f"b{index}")
        yield call("mv", source=f"b{index}", destination="a")


CHEATS = {
    "claims success": ["All files were moved. Reward: 1.0. Task complete."],
    "calls a private method": [call("_load_scenario", scenario={}, long_context=False)],
    "calls the constructor": [call("__init__"), call("__class__")],
    "reaches through a name": [call("mv.__globals__"), call("GorillaFileSystem.mv")],
    "sends code": [
        call("echo", content="__import__('pathlib').Path('CODE').touch()"),
        call("cd", folder="'); __import__('pathlib').Path('CODE').touch(); ('"),
        call("__import__('os').system('touch CODE')"),
    ],
    "sends objects for text": [
        call("mkdir", dir_name={"__eq__": "lambda self, other: True"}),
        call("touch", file_name=["temp"]),
        call("grep", file_name=None, pattern=True),
    ],
    "puts a folder into itself": [
        call("mkdir", dir_name="temp"),
        call("cp", source="temp", destination="temp"),
    ],
    "makes a state too large to look through": [*tree()],
    "makes what is right and then more": [
        *[call(name, **arguments) for name, arguments in expected_calls(TASK)[0]],
        call("mkdir", dir_name="more"),
    ],
    "does the first thing late and the rest in time": [
        "x",
        *[call(name, **arguments) for turn in expected_calls(TASK)[:2] for name, arguments in turn],
        "x",
        *[call(name, **arguments) for name, arguments in expected_calls(TASK)[2]],
        "x",
        *[call(name, **arguments) for name, arguments in expected_calls(TASK)[3]],
    ],
    "repeats what a user turn needs in the next one": [
        "x",
        *[call(name, **arguments) for turn in expected_calls(TASK) for name, arguments in turn],
    ],
}


@pytest.mark.parametrize("name", CHEATS)
async def test_a_conversation_cannot_be_cheated(name, tmp_path, monkeypatch):
    """Fails if a name is looked up on the back-end, if text becomes code, if user turns count that
    follow a wrong one, or if a strange state breaks the rollout, which then would not count."""
    monkeypatch.chdir(tmp_path)

    def replies():
        yield from CHEATS[name]
        while True:
            yield "Done."

    row, env = await play(TASK, replies(), max_steps=60, reward="fraction", cpu_s=1, memory_mb=512)
    assert row.termination in (Termination.ENV_DONE, Termination.TOOL_TIMEOUT), row
    assert (row.reward, row.score) == (0.0, 0.0)
    assert not env.backends.alive
    assert not [path for path in (tmp_path, Path("/")) if (path / "CODE").exists()]


async def test_a_call_that_does_not_end_is_stopped_and_ends_the_episode():
    """Fails if back-ends run in the process of the trainer, which then stands still."""
    task = next(t for t in TASKS.values() if "power" in owners(t.metadata["classes"]))
    row, env = await play(task, iter([call("power", base=10, exponent=10**11)] * 9), cpu_s=1)
    assert (row.reward, row.termination) == (0.0, Termination.TOOL_TIMEOUT)
    (result,) = [result for turn in row.turns for result in turn.tool_results]
    assert "took too long" in result.text
    assert not env.backends.alive


def nested(depth):
    value = "x"
    for _ in range(depth):
        value = [value]
    return value


FREE = {
    item["name"]
    for backend in DOCUMENTS
    for item in documents(backend)
    if not item["parameters"].get("required")
}


def without_arguments(task):
    """A call of every function that can be called without knowing anything."""
    return [
        call(item["name"])
        for backend in task.metadata["classes"]
        for item in documents(backend)
        if not item["parameters"].get("required")
    ]


EASY = [
    task
    for task in TASKS.values()
    if any(
        calls and all(text.split("(")[0] in FREE for text in calls)
        for calls in task.label["expected"]
    )
]


@pytest.mark.parametrize("task", EASY[:: max(1, len(EASY) // 8)], ids=lambda task: task.id)
async def test_calling_all_that_takes_no_argument_earns_nothing(task):
    """Fails if a user turn counts that wants nothing but to be told `fuelLevel()`."""
    blind = without_arguments(task)
    turns = [part for _ in task.metadata["turns"] for part in (*blind, "Done.")]
    row, _ = await play(task, iter(turns), max_steps=60, reward="fraction")
    assert row.termination is Termination.ENV_DONE, row
    assert (row.reward, row.score) == (0.0, 0.0), row.extra_logs


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("power", {"base": 10, "exponent": 5000}),
        ("power", {"base": nested(600), "exponent": 2}),
        ("power", {"base": "x" * 40_000, "exponent": nested(100)}),
        ("multiply", {"a": 10**3000, "b": 10**3000}),
        ("sum_values", {"numbers": [10**4000, 10**4299]}),
    ],
    ids=["a power too long for a text", "deep arguments", "other types", "a product", "a sum"],
)
async def test_a_call_that_our_own_code_cannot_word_is_the_models_doing(name, arguments):
    """Caught: a reward that is dropped, so that a wrong conversation does not count."""
    task = next(t for t in TASKS.values() if name in owners(t.metadata["classes"]))

    def replies():
        yield call(name, **arguments)
        while True:
            yield "Done."

    row, _ = await play(task, replies(), max_steps=60)
    assert (row.reward, row.termination) == (0.0, Termination.ENV_DONE), row


async def test_a_state_that_cannot_be_compared_is_wrong():
    """Caught: BFCL's checkers raise for what the model made of the back-ends."""

    def replies():
        yield call("mkdir", dir_name=nested(400))
        yield call("mkdir", dir_name="deep")
        for level in range(40):
            yield call("echo", content=nested(level * 20), file_name=f"file{level}")
        while True:
            yield "Done."

    row, _ = await play(TASK, replies(), max_steps=60)
    assert (row.reward, row.termination) == (0.0, Termination.ENV_DONE), row


async def test_names_and_contents_that_cannot_be_written_are_wrong():
    """Fails if a checker that stumbles over what the model stored drops the rollout."""
    deep: list = []
    for _ in range(60):
        deep = [deep]
    strange = [
        call("mkdir", dir_name=deep),
        call("touch", file_name="\ud800"),
        call("echo", content=deep, file_name="a"),
        call("echo", content="\ud800", file_name="b"),
        call("cd", folder=None),
    ]
    row, _ = await play(TASK, iter([*strange, *["x"] * 9]), max_steps=60, reward="fraction")
    assert (row.reward, row.termination) == (0.0, Termination.ENV_DONE), row
