"""Groups, seeds, failures, retries and cleaning up."""

from __future__ import annotations

import asyncio
import logging
import math

import numpy as np
import pytest

from agentrl.env import AgentInstance, Observation, StepResult
from agentrl.errors import EngineError, GraderError, SandboxError
from agentrl.rollout import rollout_metrics
from agentrl.rollout.adapters.adapt import adapt_env
from agentrl.rollout.adapters.declared_scores import declares_scores
from agentrl.rollout.seeds import rollout_seed
from agentrl.rollout.under_way.effort import CancelledWork
from agentrl.rollout.under_way.in_flight import InFlightReport
from agentrl.sandbox import ExecResult, Isolation, Outcome, Probe, Sandbox, SandboxBackend
from agentrl.testing import ByteTokenizer, ScriptedEngine
from agentrl.tool import FunctionTool
from agentrl.types import (
    TERMINATION_RULES,
    Explanation,
    Generation,
    Message,
    Termination,
    TrajectoryGroup,
)
from tests.rollout.rollout_fakes import Plain, Talk, call

DONE = StepResult(done=True, rewards=1.0)


class FakeSandbox(Sandbox):
    """Runs `sleep`-like commands: the first word is a number of seconds."""

    workdir = "/w"

    def __init__(self, backend: FakeBackend, limits) -> None:
        self.limits = limits
        self._backend = backend

    async def exec(self, command, *, stdin=b"", timeout_s=None, cwd=None, env=None):
        await asyncio.sleep(float(command[0]))
        return ExecResult(outcome=Outcome.OK, exit_code=0, stdout="", stderr="", duration_s=0.0)

    async def read_file(self, path, *, max_bytes=2**20):
        return b""

    async def write_file(self, path, data): ...

    async def upload(self, source, target): ...

    async def snapshot(self):
        raise SandboxError("no snapshots here")

    async def close(self):
        await asyncio.sleep(0.01)
        self._backend.closed += 1


class FakeBackend(SandboxBackend):
    name = "fake"

    def __init__(self, broken: int = 0) -> None:
        self.opened = self.closed = 0
        self.broken = broken

    async def probe(self):
        return Probe(available=True, isolation=Isolation.WEAK, detail="")

    async def create(self, limits, snapshot=None):
        await asyncio.sleep(0)
        self.opened += 1
        if self.opened <= self.broken:
            raise SandboxError("no room for a sandbox")
        return FakeSandbox(self, limits)

    async def close(self): ...


async def shell(seconds: float, sandbox: Sandbox) -> str:
    """Run a command.

    Args:
        seconds: how long it takes
    """
    return (await sandbox.exec([str(seconds)])).outcome


@pytest.mark.parametrize(
    ("where", "error", "termination"),
    [
        ("reset", RuntimeError("broken reset"), Termination.ENV_CRASHED),
        ("step", KeyError("label"), Termination.ENV_CRASHED),
        ("step", TimeoutError("of its own"), Termination.ENV_CRASHED),
        ("step", asyncio.CancelledError(), Termination.ENV_CRASHED),
        ("step", SandboxError("gone"), Termination.SANDBOX_FAILED),
        ("step", GraderError("no verdict"), Termination.GRADER_CRASHED),
        ("step", EngineError("judge is down"), Termination.ENGINE_FAILED),
        ("init", ValueError("bad argument"), Termination.ENV_CRASHED),
    ],
)
async def test_a_crash_is_an_ending_and_never_a_reward_of_zero(
    bench, caplog, where, error, termination
):
    class Broken(Talk):
        def __init__(self):
            super().__init__()
            if where == "init":
                raise error

        async def reset(self, task):
            if where == "reset":
                raise error
            return await super().reset(task)

        async def step(self, action):
            raise error

    made = bench(["hi"], Broken)
    with caplog.at_level(logging.WARNING):
        row = await made.one()
    assert row.termination is termination
    assert (row.reward, row.score) == (None, None)
    assert type(error).__name__ in row.termination_detail
    assert "test_worker.py" in row.termination_detail
    assert len([r for r in caplog.records if "group/0" in r.getMessage()]) == 1
    assert made.engine.ended == ["group/0"] or where in ("reset", "init")
    assert [env.closed for env in made.envs] == ([] if where == "init" else [1])


@pytest.mark.parametrize("reward", [math.nan, math.inf, "1", None, [1.0], np.array([1.0, 2.0])])
async def test_a_reward_that_is_no_number_is_a_crash_of_the_grader(bench, reward):
    """Fails if such a reward becomes 0, or a truth value."""
    row = await bench(["hi"], lambda: Talk(StepResult(rewards=reward, done=True))).one()
    assert (row.termination, row.reward) == (Termination.GRADER_CRASHED, None)
    assert "rewards" in row.termination_detail


async def test_wrong_return_types_say_what_was_expected(bench):
    row = await bench(["hi"], lambda: Talk(42)).one()
    assert "step returned int 42, expected StepResult or a dictionary" in row.termination_detail
    row = await bench(["hi"], lambda: Talk({"reward": 1})).one()
    assert "'rewards' and 'done' missing" in row.termination_detail
    row = await bench(["hi"], lambda: Talk(prompt=Observation(content=7))).one()
    assert "is int 7, expected text or chat messages" in row.termination_detail
    made = bench(
        ["hi"], lambda: Talk(StepResult(environment_feedback="x", sampling_params={"n": 2}))
    )
    assert "unknown sampling parameter: got 'n'" in (await made.one()).termination_detail
    row = await bench(["hi"], object).one()
    assert "no method 'reset'" in row.termination_detail


async def test_infrastructure_is_tried_again_on_fresh_parts(bench):
    """Fails if the retry reuses the environment or the session of the failed attempt."""

    def fail(number, session_id):
        return EngineError("down") if number == 0 else None

    made = bench(["hi"], lambda: Talk(DONE), fail=fail, retries=1)
    row = await made.one()
    assert (row.termination, row.reward, row.rollout_id) == (Termination.ENV_DONE, 1.0, "group/0")
    assert len(made.envs) == 2
    assert made.engine.ended == ["group/0", "group/0#1"]
    assert made.worker.retried == {Termination.ENGINE_FAILED: 1}
    seeds = {request.sampling.seed for request in made.engine.requests}
    assert len(seeds) == 1


async def test_an_environment_cannot_write_what_a_rollout_used(bench):
    """Fails if numbers of an environment enter the ledger of the tokens."""
    logs = {"retried/tokens": 1e9, "sandbox/opened": 5.0, "tries": 2.0}
    made = bench(["hi"], lambda: Talk(StepResult(done=True, rewards=1.0, extra_logs=logs)))
    row = await made.one()
    assert (row.usage, row.extra_logs) == ({}, {"tries": 2.0})


async def test_reasons_for_the_reward_reach_the_record_and_never_the_model(bench):
    """Fails if a reference answer is in anything that the policy reads."""
    steps = (
        StepResult(environment_feedback="go on", explanation=Explanation(reference="SECRET")),
        StepResult(done=True, rewards=1.0, explanation=Explanation(reason="SECRET, too")),
    )
    made = bench(["hi", "there"], lambda: Talk(*steps))
    row = await made.one()
    assert row.explanation == Explanation(reference="SECRET", reason="SECRET, too")
    seen = [ByteTokenizer().decode(request.prompt_ids) for request in made.engine.requests]
    assert "go on" in seen[-1]
    assert not any("SECRET" in text for text in [*seen, *(turn.text for turn in row.turns)])


async def test_what_a_thrown_away_attempt_sampled_is_not_forgotten(bench):
    """Fails if a retry leaves no trace of its tokens."""
    more = StepResult(environment_feedback="go on")
    scripts = iter([(more, KeyError("gone")), (more, DONE)])
    made = bench(["hi", "there"] * 2, lambda: Talk(*next(scripts)), retries=1)
    row = await made.one()
    assert made.worker.retried == {Termination.ENV_CRASHED: 1}
    assert row.usage["retried/tokens"] == row.num_action_tokens > 0
    assert row.usage["retried/seconds"] > 0
    group = TrajectoryGroup(group_id="group", task_id=row.task_id, trajectories=(row,))
    assert not [name for name in rollout_metrics([group]).result() if name.startswith("env/")]


async def test_what_a_cancelled_group_had_sampled_is_counted(bench):
    """A sibling that had ended is lost with the group; fails if only those under way count."""
    stepped: list[str] = []

    class Held(Talk):
        async def step(self, action):
            stepped.append(self.context.rollout_id)
            if not self.context.rollout_id.endswith("/0"):
                await asyncio.sleep(600)
            return await super().step(action)

    made = bench(["hi"] * 3, Held)
    running = asyncio.create_task(made.group(3))
    while len(stepped) < 3:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert made.worker.cancelled == CancelledWork()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    alone = await bench(["hi"], lambda: Talk(DONE)).one()
    assert made.worker.cancelled.tokens == 3 * alone.num_action_tokens > 0
    assert made.worker.cancelled.seconds > 2 * 0.05


async def test_a_rollout_in_flight_waits_for_its_sandbox_and_then_for_its_grader(bench):
    """Fails if the wait for a sandbox is laid to the environment, or an ended rollout is in it."""
    seen: list[dict[str, int]] = []

    def look():
        report = made.worker.in_flight.report(0, made.client.engine_of)
        seen.append({name: one.count for name, one in report.waits.items()})

    class Slow(FakeBackend):
        async def create(self, limits, snapshot=None):
            look()
            return await super().create(limits, snapshot)

    class Opens(Talk):
        async def reset(self, task):
            await self.context.open_sandbox()
            look()
            return await super().reset(task)

    async def grade(task, rows):
        look()
        return rows

    async def grade_group(task, rollouts):
        look()
        return rollouts

    grade.group = grade_group
    made = bench(["hi"], lambda: Opens(DONE), sandboxes=Slow(), grade=grade)
    await made.group(1)
    look()
    assert seen == [{"sandbox": 1}, {"environment": 1}, {"grader": 1}, {"grader": 1}, {}]


async def test_a_reward_of_the_model_is_never_retried(bench):
    made = bench(["hi"], lambda: Talk(StepResult(done=True, rewards=0.0)), retries=3)
    await made.one()
    assert len(made.envs) == 1


async def test_engine_answers_are_checked(bench):
    class Odd(ScriptedEngine):
        async def generate(self, prompt_ids, sampling, session_id):
            generation = await super().generate(prompt_ids, sampling, session_id)
            count = {"group/0": 0, "group/1": sampling.max_tokens + 1, "group/2": 3}[session_id]
            value = math.nan if session_id == "group/2" else -1.0
            return Generation(
                ids=(1,) * count,
                log_probs=(value,) * count,
                finish_reason=generation.finish_reason,
                policy_versions=(0,) * count,
            )

    made = bench(None, lambda: Talk(DONE), engine=Odd(["x"], ByteTokenizer()), max_turn_tokens=20)
    rows = (await made.group(3)).trajectories
    assert {row.termination for row in rows} == {Termination.ENGINE_FAILED}
    assert [row.response_ids for row in rows] == [(), (), ()]
    assert "0 tokens, expected 1 to 20" in rows[0].termination_detail
    assert "not finite" in rows[2].termination_detail


async def test_prompt_is_tokenised_once_per_group(chat, bench):
    """Fails if every rollout renders its own prompt."""

    class Counting:
        renders = 0

        def __getattr__(self, name):
            return getattr(chat, name)

        def render_prompt(self, messages, tools=()):
            Counting.renders += 1
            return chat.render_prompt(messages, tools)

    made = bench(["hi"], lambda: Talk(DONE), chat_format=Counting())
    group = await made.group(8)
    assert Counting.renders == 1
    assert len({row.prompt_ids for row in group.trajectories}) == 1
    prompts = iter("abcd")
    made = bench(["hi"], lambda: Talk(DONE, prompt=next(prompts)), chat_format=Counting())
    group = await made.group(4)
    assert Counting.renders == 5
    assert len({row.prompt_ids for row in group.trajectories}) == 4


async def test_seeds_are_the_same_in_every_run_and_differ_by_sample_and_turn(bench):
    def env():
        return Talk(StepResult(environment_feedback="more"))

    runs = []
    for seed in (0, 0, 1):
        made = bench(["hi"], env, max_assistant_turns=3)
        await made.group(4, seed=seed)
        asked = {(r.session_id, len(r.prompt_ids), r.sampling.seed) for r in made.engine.requests}
        runs.append((asked, sorted(env.context.seed for env in made.envs)))
    assert runs[0] == runs[1] != runs[2]
    seeds = [seed for _, _, seed in runs[0][0]]
    assert len(set(seeds)) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Not Python's hash, which differs between processes.
    assert rollout_seed(0, "task", 0) == 7905864231159165583
    assert len(set(runs[0][1])) == 4


async def test_sandbox_is_opened_once_on_use_shared_and_closed(bench):
    backend = FakeBackend()

    class Uses(Talk):
        async def step(self, action):
            self.sandbox = await self.context.open_sandbox()
            return await super().step(action)

    tools = [FunctionTool(shell)]
    made = bench(
        [call("shell", '{"seconds": 0}') * 3, "bye"],
        lambda: Uses(StepResult(), DONE),
        tools=tools,
        sandboxes=backend,
    )
    rows = (await made.group(2)).trajectories
    assert {row.termination for row in rows} == {Termination.ENV_DONE}
    assert (backend.opened, backend.closed) == (2, 2)
    made = bench(["bye"], lambda: Talk(DONE), tools=tools, sandboxes=backend)
    await made.one()
    assert backend.opened == 2


async def test_sandbox_that_cannot_start_is_tried_again(bench):
    backend = FakeBackend(broken=1)
    made = bench(
        [call("shell", '{"seconds": 0}'), "bye"],
        lambda: Talk(StepResult(), DONE),
        tools=[FunctionTool(shell)],
        sandboxes=backend,
        retries=1,
    )
    row = await made.one()
    assert row.termination is Termination.ENV_DONE
    assert made.worker.retried == {Termination.SANDBOX_FAILED: 1}


async def test_no_sandbox_says_so(bench):
    made = bench([call("shell", '{"seconds": 0}')], Talk, tools=[FunctionTool(shell)])
    assert "no sandbox backend" in (await made.one()).termination_detail


async def test_a_step_that_hangs_in_the_models_own_command_is_the_models(bench):
    """Fails if a slow step is always blamed on the environment: then an endless loop in the
    model's code would drop out of the baseline instead of scoring 0."""

    class Judge(Talk):
        async def step(self, action):
            sandbox = await self.context.open_sandbox()
            await sandbox.exec(["30"])

    backend = FakeBackend()
    row = await bench(["while True"], Judge, sandboxes=backend, env_timeout_s=0.1).one()
    assert row.termination is Termination.TOOL_TIMEOUT
    assert row.reward == 0.0
    assert backend.closed == 1


@pytest.mark.parametrize("stage", ["generate", "tool", "step", "reset"])
async def test_cancellation_gives_everything_back(bench, stage):
    """Fails if cleaning up is not shielded: the second cancellation then interrupts it."""
    backend = FakeBackend()
    reached = asyncio.Event()

    async def wait_here(at):
        if at == stage:
            reached.set()
            await asyncio.sleep(600)

    class Held(Talk):
        async def reset(self, task):
            await self.context.open_sandbox()
            await wait_here("reset")
            return await super().reset(task)

        async def step(self, action):
            await wait_here("step")

        async def close(self):
            await asyncio.sleep(0.02)
            self.closed += 1

    async def hold() -> str:
        """Wait."""
        await wait_here("tool")
        return ""

    class Engine(ScriptedEngine):
        async def generate(self, prompt_ids, sampling, session_id):
            await wait_here("generate")
            return await super().generate(prompt_ids, sampling, session_id)

    made = bench(
        None,
        Held,
        tools=[FunctionTool(hold)],
        sandboxes=backend,
        engine=Engine([call("hold")], ByteTokenizer()),
    )
    running = asyncio.create_task(made.group(3))
    await asyncio.wait_for(reached.wait(), 120)
    await asyncio.sleep(0)
    seen = made.worker.in_flight.report(2, made.client.engine_of)
    waits_for = {"generate": "model", "tool": "tool"}.get(stage, "environment")
    assert (seen.count, len(seen.oldest)) == (3, 2)
    assert seen.waits[waits_for].count == 3
    assert seen.oldest[0].rollout_id == "group/0"
    assert seen.oldest[0].turn == (0 if stage == "reset" else 1)
    assert seen.oldest[0].engine == ("" if stage == "reset" else "scripted-0")
    rollouts = asyncio.all_tasks() - {asyncio.current_task(), running}
    running.cancel()
    await asyncio.sleep(0.005)
    for rollout in rollouts:
        rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [env.closed for env in made.envs] == [1, 1, 1]
    assert (backend.opened, backend.closed) == (3, 3)
    assert made.client.balancer.in_flight("scripted-0") == 0
    assert made.worker.in_flight.report(9, made.client.engine_of) == InFlightReport()
    if stage not in ("reset", "generate"):
        assert sorted(made.engine.ended) == ["group/0", "group/1", "group/2"]
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others


async def test_a_close_that_fails_or_hangs_does_not_change_the_rollout(bench):
    class Bad(Talk):
        async def close(self):
            raise RuntimeError("cannot close")

    class Hanging(Talk):
        async def close(self):
            await asyncio.sleep(600)

    assert (await bench(["hi"], lambda: Bad(DONE)).one()).reward == 1.0
    assert (await bench(["hi"], lambda: Hanging(DONE), env_timeout_s=0.05).one()).reward == 1.0


async def test_observation_text_is_filled_only_on_request(bench):
    class Reader(Talk):
        wants_observation_text = True

    steps = (StepResult(environment_feedback="more"), DONE)
    made = bench(["one", "two"], lambda: Reader(*steps))
    row = await made.one()
    first, second = made.envs[0].actions
    assert first.observation_text == row.prompt_text
    assert (first.text, first.raw_text) == ("one", "one<|im_end|>")
    seen = made.engine.requests[1].prompt_ids
    assert second.observation_text == made.chat.decode_raw(seen)
    made = bench(["one", "two"], lambda: Talk(*steps))
    await made.one()
    assert made.envs[0].actions[1].observation_text == made.envs[0].actions[1].raw_text == ""


async def test_metrics_add_up_and_leave_failures_out_of_the_reward(bench):
    scripts = iter(
        [
            Talk(StepResult(done=True, rewards=1.0, scores=0.5, extra_logs={"x": 2.0, "y@max": 3})),
            Talk(StepResult(done=True, rewards=0.0, extra_logs={"x": 4.0, "y@max": 5})),
            Talk(RuntimeError("boom")),
            Talk(StepResult(environment_feedback="more")),
        ]
    )
    made = bench(["hi"], lambda: next(scripts), max_assistant_turns=2)
    group = await made.group(4)
    numbers = rollout_metrics([group]).result()
    endings = {k: v for k, v in numbers.items() if k.startswith("rollout/termination/")}
    assert sum(endings.values()) == 4
    assert endings["rollout/termination/env_crashed"] == 1
    assert len(endings) == len(TERMINATION_RULES)
    assert numbers["reward"] == pytest.approx(1 / 3)
    assert numbers["reward_std"] == pytest.approx(np.std([1, 0, 0], ddof=1))
    assert numbers["score"] == pytest.approx(0.5 / 3)
    assert numbers["frac_reward_zero_std"] == 0.0
    assert numbers["completions/clipped_ratio"] == 0.25
    assert (numbers["env/x"], numbers["env/y"]) == (3.0, 5.0)
    assert numbers["num_turns/mean"] == pytest.approx(5 / 4)
    assert numbers["completions/max_length"] == 6.0


async def test_messages_may_be_given_in_every_form(bench):
    feedback = (Message(role="user", content="a"), Message(role="user", content="b"))
    made = bench(
        ["hi", "ho"],
        lambda: Talk(
            StepResult(environment_feedback=feedback),
            DONE,
            prompt=Observation(content=[{"role": "system", "content": "s"},
                                        {"role": "user", "content": "u"}]),
        ),
        tools=[],
    )  # fmt: skip
    row = await made.one()
    assert row.prompt_text == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    )
    assert row.turns[1].text == "a\nb"
    assert row.termination is Termination.ENV_DONE


@pytest.mark.parametrize(
    "result",
    [
        StepResult(done=True, extra_logs={"a": [1.0, 2.0]}),  # type: ignore[dict-item]
        StepResult(done=True, rewards=10**400),
        StepResult(environment_feedback="go on", sampling_params=["temperature"]),  # type: ignore[arg-type]
        StepResult(environment_feedback="go on", sampling_params={"max_tokens": float("inf")}),
    ],
)
async def test_whatever_step_returns_costs_at_most_its_rollout(bench, result):
    """Fails if coercing a result raises anything that leaves the loop."""
    row = await bench(["x", "y"], lambda: Talk(result)).one()
    assert row.rule.retried
    assert row.reward is None


async def test_an_answer_that_was_cut_off_is_truncated_however_it_was_graded(bench):
    row = await bench(["x" * 50], lambda: Talk(), max_turn_tokens=20).one()
    assert row.termination is Termination.MAX_TOKENS
    assert row.rule.truncated
    assert row.reward == 1.0


class Scored(AgentInstance):
    """Pays every turn, and gives its verdict with the last one that it asks for."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    async def reset(self, task):
        return Observation(content="Begin.")

    async def step(self, action):
        if action.turn + 1 < self.turns:
            return StepResult(rewards=1.0, environment_feedback="more")
        return verdict()


class Paid(Scored):
    """The same without a verdict: its rewards are all there is."""

    async def step(self, action):
        done = action.turn + 1 == self.turns
        return StepResult(rewards=0.1, environment_feedback="" if done else "more", done=done)


def verdict():
    return StepResult(rewards=1.0, scores=0.5, done=True)


@pytest.mark.parametrize(
    ("make", "lengths", "scores"),
    [
        (Scored, [4, 4], [0.0, 0.0]),  # all are cut off: the code says that there is a verdict
        (Scored, [2, 4], [0.5, 0.0]),
        (Paid, [40, 40], [0.3, 0.3]),
        (Paid, [2, 40], [0.2, 0.3]),
    ],
)
async def test_what_a_limit_cuts_off_before_its_verdict_has_solved_nothing(
    bench, make, lengths, scores
):
    """Fails where the rewards so far, 3.0 of the first row, stand in for a verdict of 0 to 1."""
    left = iter(lengths)
    made = bench(["hi"], lambda: make(next(left)), max_assistant_turns=3)
    group = await made.group(2)
    assert [row.score for row in group.trajectories] == pytest.approx(scores)


async def test_a_score_that_misses_one_by_rounding_is_stored_as_one(bench):
    made = bench(["hi"], lambda: Paid(10), max_assistant_turns=20)
    assert (await made.one()).score == 1.0


class PlainVerdict(Plain):
    """Gives its verdict in a dictionary."""

    async def step(self, states):
        return {"rewards": 1.0, "done": True, "scores": 0.5}


class NotInstalled:
    """An optional import of somebody's that fails where it is used."""

    def __getattribute__(self, name):
        raise ImportError("not installed")


extra = NotInstalled()


class UsesExtra(Plain):
    async def step(self, states):
        return extra.play(states)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (adapt_env(UsesExtra("")), False),
        (Scored(1), True),
        (Paid(1), False),
        (adapt_env(Plain("")), False),
        (adapt_env(PlainVerdict("")), True),
    ],
)
def test_the_code_of_an_environment_tells_if_it_gives_scores(env, expected):
    assert declares_scores(env) is expected


class NoCoroutine(Talk):
    """Written without `async`."""

    def step(self, action):
        return StepResult(rewards=1.0, done=True)

    def close(self):
        self.closed += 1


async def test_a_step_that_is_no_coroutine_is_refused_by_name(bench, caplog):
    """Fails with `object StepResult can't be used in 'await' expression`."""
    made = bench(["hi"], NoCoroutine)
    row = await made.one()
    assert row.termination is Termination.ENV_CRASHED
    assert "NoCoroutine.step is no coroutine: it returned StepResult" in row.termination_detail
    assert "write it as `async def`" in row.termination_detail
    assert made.envs[0].closed == 1
    assert "NoCoroutine.close is no coroutine" in caplog.text
