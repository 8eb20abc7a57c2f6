"""Rollouts of the solutions that an environment gives: an expert's, to learn from by `fit`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentrl.chat import build_chat
from agentrl.config import RunConfig
from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.disk.model_source import model_source
from agentrl.env import Solution
from agentrl.errors import ConfigError
from agentrl.images import ImageFolder
from agentrl.machine.processes.stop import StopSwitch
from agentrl.models.source import load_tokenizer
from agentrl.preflight.reward.known_answers import find_solutions
from agentrl.preflight.reward.scripted_generator import ScriptedGenerator, script_of
from agentrl.runtime.assembly.parts import (
    make_env_factory,
    make_worker,
    open_sandboxes,
)
from agentrl.runtime.assembly.tools import open_tools
from agentrl.runtime.checks.task_faults import training_tasks
from agentrl.runtime.drivers.concurrency import RolloutLimit
from agentrl.runtime.drivers.groups import run_groups, sampling_of, stable_seed
from agentrl.runtime.launch import in_flight
from agentrl.runtime.progress import Progress
from agentrl.runtime.sampling.sample import Collection, collection_of, logged

_NAME = "solutions"


async def record_solutions(
    config: RunConfig,
    *,
    base: Path,
    model_path: str | None = None,
    tasks: int | None,
    out: Path,
    progress: Progress,
    solutions: Mapping[str, Solution] | None = None,
) -> Collection:
    """Play the solution of each of the first training tasks through the rollout loop, once.

    Rows are those of a policy that says the solution: chat format, tools, environment, sandbox and
    reward are those of the run. No weights are loaded.

    Args:
        config: environment, limits, and the `model.path` whose tokenizer reads the conversations.
        base: where relative paths of the config start.
        model_path: takes the place of `model.path`, which then need not be there.
        tasks: how many; None takes all.
        out: trajectories go to `out`/trajectories, images to `out`/images.
        progress: notified of what happens.
        solutions: of somebody else by task id, in place of those of the environment.

    Raises:
        ConfigError: the environment gives no solution to any of them.
        AgentrlError: anything else that does not fit.
        Interrupted: SIGINT or SIGTERM.
    """
    from agentrl.models.vision.reader import load_reader

    run = plan_run(config, base)
    plan, seed = run.rollouts, run.schedule.run.seed
    source = model_source(plan.model, path=model_path)
    tokenizer = load_tokenizer(plan.model.model_copy(update={"path": source}))
    images = load_reader(source, tokenizer)
    if images is not None:
        images.folder = ImageFolder(out / "images")
    chat = build_chat(tokenizer, plan.chat, images=images)
    chosen = training_tasks(run, model_path=model_path).train[:tasks]
    stop = StopSwitch()
    with stop.on_signals():
        async with logged(open_tools(plan.env, base=plan.base), out) as tools:
            make_env = make_env_factory(plan.env, base=plan.base, rollout=plan.rollout)
            if solutions is None:
                solutions = await find_solutions(make_env, chosen, tools)
            known = [task for task in chosen if task.id in solutions]
            if not known:
                raise ConfigError(
                    f"env.target {plan.env.target!r} gives no solution to any of {len(chosen)} "
                    "tasks; give its class a method solution(task) that returns what an expert "
                    "says, a text or one for each turn"
                )
            scripts = {
                f"{_NAME}/{position:04d}-{task.id}": script_of(solutions[task.id], chat, plan.chat)
                for position, task in enumerate(known)
            }
            sandboxes = await open_sandboxes(plan.sandbox, base=plan.base)
            try:
                worker, _ = make_worker(
                    plan,
                    generator=ScriptedGenerator(scripts),
                    tokenizer=tokenizer,
                    sandboxes=sandboxes,
                    tools=tools,
                    images=images,
                )
                progress.phase(_NAME, len(known))
                groups = await stop.guard(
                    run_groups(
                        worker,
                        known,
                        name=_NAME,
                        n=1,
                        sampling=sampling_of(plan.rollout, 1.0, chat.stop_token_ids),
                        seed=lambda task: stable_seed(seed, _NAME, task.id),
                        limit=RolloutLimit(in_flight(run.engines, run.schedule.schedule)),
                        on_group=lambda group: progress.advance(1, 0),
                    )
                )
            finally:
                await sandboxes.close()
    TrajectoryStore(out / "trajectories").write(0, "train", groups, None)
    return collection_of(groups, out)
