"""Environments of other make run unchanged."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from agentrl.env import AgentInstance, Observation, StepResult
from agentrl.errors import ConfigError, EnvError
from agentrl.plugins.imports import resolve
from agentrl.rollout import adapt_env, load_env_class
from agentrl.types import Termination
from tests.rollout.rollout_fakes import Talk, call

AGENTS = Path(__file__).parent / "agents"


@pytest.mark.parametrize("name", ["AgentExecutor", "AgentInstance"])
async def test_openrlhf_file_runs_unchanged(bench, name):
    """Fails if the template is applied to its feedback, if the stop token is cut from
    `action_text` (the file then adds a second one), or if tensors are not taken as rewards."""
    make = load_env_class(f"openrlhf_guess.py:{name}", base=AGENTS)
    assert "openrlhf" not in sys.modules
    made = bench(["is it 3?", "x" * 300, "7"], make, max_turn_tokens=20)
    row = await made.one(label=7, prompt="Guess.")
    assert (row.termination, row.reward, row.score) == (Termination.ENV_DONE, 1.0, 1.0)
    assert row.extra_logs == {"turns": 3.0}
    text = made.chat.decode_raw(row.prompt_ids + row.response_ids)
    user, assistant = "<|im_start|>user\n", "<|im_start|>assistant\n"
    assert text == (
        f"{user}Guess.<|im_end|>\n{assistant}is it 3?<|im_end|>\n{user}wrong<|im_end|>\n"
        f"{assistant}{'x' * 20}\n<|im_end|>\n{user}wrong<|im_end|>\n{assistant}7<|im_end|>"
    )
    env = made.envs[0]
    assert env._inner.seen[1][0] == text[: text.index("x")]
    assert env._inner.seen[1][1] == "x" * 20
    assert env._inner.seed == env.context.seed
    assert [r.sampling.top_p for r in made.engine.requests] == [1.0, 0.9, 0.9]
    for request in made.engine.requests:
        assert request.prompt_ids == (row.prompt_ids + row.response_ids)[: len(request.prompt_ids)]


async def test_trying_the_constructor_leaves_nothing_behind():
    """A run makes one instance to see whether its arguments fit. Fails with a coroutine that was
    never awaited if `async def __init__` is called then."""
    make = load_env_class("openrlhf_guess.py:AgentInstance", base=AGENTS)
    env = make(anything=1)
    await env.close()
    del env
    gc.collect()


async def test_older_openrlhf_file(bench):
    made = bench(["hi"], load_env_class("openrlhf_older.py:AgentExecutor", base=AGENTS))
    row = await made.one()
    assert (row.termination, row.reward) == (Termination.ENV_DONE, 1.0)


async def test_skyrl_environment_runs_unchanged(bench):
    make = load_env_class("skyrl_count.py:CountEnv", base=AGENTS)
    closed: list[int] = []
    made = bench(["2", "3"], lambda: make(hint="More.", max_turns=3, closed=closed))
    row = await made.one(label=3, prompt="How many?", metadata={"extra_info": {"level": 7}})
    assert (row.termination, row.reward) == (Termination.ENV_DONE, 1.0)
    assert row.extra_logs == {"steps": 2.0, "level": 7.0}
    text = made.chat.decode_raw(row.prompt_ids + row.response_ids)
    assert "<|im_start|>system\nCount." in text
    assert "<|im_start|>user\nHow many?<|im_end|>" in text
    assert "2<|im_end|>\n<|im_start|>user\nMore.<|im_end|>" in text
    await made.envs[0].close()
    assert closed == [3]
    spec = {"reward_spec": {"method": "rule", "ground_truth": 9}}
    made = bench(["1", "9"], lambda: make(hint="More.", max_turns=1))
    row = await made.one(label=1, metadata=spec)
    assert (row.reward, len(row.turns)) == (0.0, 1)


async def test_verl_interaction_runs_unchanged(bench):
    make = load_env_class("verl_again.py:Again", base=AGENTS)
    assert "verl" not in sys.modules
    made = bench([call("add", '{"a": 1, "b": 2}'), "4", "3"], make)
    row = await made.one(label="3", prompt="1 + 2?")
    assert (row.termination, row.reward) == (Termination.ENV_DONE, 1.0)
    assert [role for role, _ in made.envs[0]._inner.seen] == [
        "user", "assistant", "tool", "assistant", "user", "assistant"
    ]  # fmt: skip
    assert made.envs[0]._inner.seen[2:5] == [("tool", "3"), ("assistant", "4"), ("user", "Again.")]
    assert made.envs[0]._inner.open == {}
    assert "<|im_start|>user\nAgain.<|im_end|>" in made.chat.decode_raw(row.response_ids)
    asked = {"extra_info": {"interaction_kwargs": {"name": "x", "ground_truth": "5"}}}
    made = bench(["5"], make)
    row = await made.one(label="3", metadata=asked)
    assert row.reward == 1.0
    await made.envs[0].close()
    # The base class of verl ends without being told what.
    without = load_env_class("verl_again.py:WithoutEnd", base=AGENTS)
    assert (await bench(["5"], without).one()).termination is Termination.ENV_DONE


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("skyrl_count.py:CountEnv", "env.args has no 'hint'; it has nothing"),
        ("skyrl_count.py:Broken", "step returned ['rewards'], expected observations, reward"),
        ("skyrl_count.py:Blocks", "init returned list, expected (messages, metadata)"),
        ("verl_again.py:Short", "generate_response must return (should_terminate, response"),
    ],
)
async def test_what_is_wrong_with_them_is_said(bench, target, message):
    make = load_env_class(target, base=AGENTS)
    args = {"hint": "x"} if not target.endswith("CountEnv") else {}
    row = await bench(["a"], lambda: make(**args)).one(label=1)
    assert row.termination is Termination.ENV_CRASHED
    assert message in row.termination_detail


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("openrlhf_older.py:OwnLoop", "has its own 'execute'"),
        ("openrlhf_older.py:Neither", "has no method 'reset'"),
        ("openrlhf_older.py:Agent", "has no 'Agent': got 'Agent'; valid"),
        ("openrlhf_older.py:__doc__", "names a str, expected an environment class"),
        ("missing.py:X", "does not exist"),
    ],
)
def test_targets_that_are_no_environment(target, message):
    with pytest.raises(ConfigError, match=message):
        load_env_class(target, base=AGENTS)


async def test_native_classes_and_functions_load():
    assert load_env_class("tests.rollout.rollout_fakes:Talk") is Talk
    assert issubclass(Talk, AgentInstance)
    env = load_env_class("tests.rollout.rollout_fakes:make_plain")(word="yes")
    assert isinstance(env, AgentInstance)


async def test_native_instance_passes_and_may_return_dictionaries(bench):
    env = Talk()
    assert adapt_env(env) is env
    steps = (
        {"rewards": np.float32(0.5), "environment_feedback": "more", "done": False},
        {"rewards": 1, "done": True, "scores": True, "extra_logs": {"n": np.int64(2)}},
    )
    made = bench(["a", "b"], lambda: Talk(*steps, prompt={"observation": "Begin."}))
    row = await made.one()
    assert (row.reward, row.score, row.extra_logs) == (1.5, 1.0, {"n": 2.0})
    # Native: the template is applied.
    assert "<|im_start|>user\nmore<|im_end|>" in made.chat.decode_raw(row.response_ids)


@pytest.mark.parametrize("images", [None, [], ["a picture"]])
async def test_images_in_feedback_are_refused_and_not_dropped(bench, images):
    step = {"rewards": 1, "done": True, "environment_images": images}
    row = await bench(["a"], lambda: Talk(step)).one()
    if images:
        assert row.termination is Termination.ENV_CRASHED
        assert "step: the image 'a picture' cannot be read" in row.termination_detail
    else:
        assert (row.termination, row.reward) == (Termination.ENV_DONE, 1.0)


async def test_what_is_no_environment_is_refused():
    with pytest.raises(EnvError, match="int is not an environment: it has no method 'reset'"):
        adapt_env(3)


async def test_raw_observation_must_stay_text(bench):
    raw = Observation(content="Begin: ", raw=True)
    made = bench(
        ["a", "b"],
        lambda: Talk(StepResult(environment_feedback=" no. "), StepResult(done=True), prompt=raw),
        tools=[],
    )
    row = await made.one()
    assert row.prompt_text == "Begin: "
    assert made.chat.decode_raw(row.response_ids) == "a<|im_end|> no. b<|im_end|>"


REWARD_FILE = """
from openrlhf.utils.agent import AgentExecutorBase
from openrlhf.utils.logging_utils import init_logger

log = init_logger(__name__)

def reward_func(queries, prompts, labels):
    return [1.0 for _ in queries]
"""


def test_a_reward_file_may_import_what_an_agent_file_may(tmp_path):
    """Fails if the stand-ins are there for `env.target` alone."""
    (tmp_path / "scoring.py").write_text(REWARD_FILE)
    assert resolve("scoring.py:reward_func", base=tmp_path)(["a"], [""], [""]) == [1.0]
    assert not {name for name in sys.modules if name.partition(".")[0] in ("openrlhf", "verl")}


@pytest.mark.parametrize("has_interactions", [False, True])
async def test_verl_may_be_installed_beside_us(tmp_path, monkeypatch, bench, has_interactions):
    """Fails with verl 0.9, which has no interactions: nothing stood in for them then."""
    package = tmp_path / "site" / "verl"
    for file in ("__init__.py", "utils/__init__.py", "utils/score.py"):
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        (package / file).write_text("half = 0.5\n")
    if has_interactions:
        (package / "interactions").mkdir()
        (package / "interactions/base.py").write_text(
            "class BaseInteraction:\n    real = True\n    def __init__(self, config): pass\n"
        )
    monkeypatch.syspath_prepend(package.parent)
    text = (AGENTS / "verl_again.py").read_text()
    (tmp_path / "mine.py").write_text(f"from verl.utils.score import half\n{text}")
    made = bench(["no", "yes"], load_env_class("mine.py:Again", base=tmp_path))
    base = type(made.worker._make_env()._inner).__mro__[1]
    assert getattr(base, "real", False) is has_interactions
    left = {name for name in sys.modules if name.partition(".")[0] == "verl"}
    assert ("verl.interactions" in left) is has_interactions
    assert "verl.utils.score" in left
    for name in left:
        del sys.modules[name]
