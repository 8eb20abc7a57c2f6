"""A whole run whose agent loops are children: real trainer, real sync, fake servers."""

from __future__ import annotations

from pathlib import Path

from agentrl.chat import build_chat
from agentrl.cli.simulate.fleet.fake_fleet import fake_fleet
from agentrl.cli.simulate.fleet.fake_servers import FakeTurn
from agentrl.config import RunConfig, load_config
from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.disk.metric_sinks import open_metrics
from agentrl.disk.run_directory import RunDir
from agentrl.machine.processes.stop import StopSwitch
from agentrl.metrics.sinks import read_metrics
from agentrl.models.source import load_tokenizer
from agentrl.runtime.assembly.parts import load_task_sets
from agentrl.runtime.assembly.resume_point import resume_point
from agentrl.runtime.drivers.choose import make_run
from agentrl.runtime.open_stages import open_stages
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import Parts
from tests.runtime.tiny_project import write_project

STEPS = 2
PLACES = """
def places(trajectories, task):
    return [100.0 * index for index in range(len(trajectories))]
"""


async def run_stages(config: RunConfig, base: Path) -> Path:
    """Run a config as `launch.train` does, without asking the servers what they are."""
    directory, plan = RunDir.create(config, base=base), plan_run(config, base)
    try:
        tasks = load_task_sets(plan.tasks)
        point = resume_point(directory, tasks, seed=config.run.seed, steps=config.train.steps)
        store = TrajectoryStore(directory.trajectories)
        async with open_stages(directory, plan, point, store, Progress()) as opened:
            metrics = open_metrics(directory, config)
            try:
                parts = Parts(
                    stages=opened.stages,
                    cursor=point.cursor,
                    eval_tasks=tasks.evals,
                    store=store,
                    metrics=metrics,
                    in_flight=12,
                )
                run = make_run(
                    plan.schedule,
                    directory,
                    parts,
                    history=point.history,
                    progress=Progress(),
                    stop=StopSwitch(),
                )
                await run.run()
            finally:
                metrics.close()
        return directory.path
    finally:
        directory.close()


async def test_a_run_stores_and_syncs_with_child_workers(tmp_path: Path) -> None:
    # Fails if environment or sandbox of a file beside the config are not found in a child, if a
    # child samples with weights of another version, or if it gives away groups before the functions
    # of whole groups were asked.
    config = load_config(write_project(tmp_path, train__steps=STEPS))
    tokenizer = load_tokenizer(config.model)
    chat = build_chat(tokenizer, config.chat)
    ids = [*chat.encode_plain("audio"), chat.stop_token_ids[0]]
    turn = FakeTurn(seconds=0.01, ids=ids, max_context_tokens=128)
    with fake_fleet(2, turn, conversations=12) as fakes:
        path = write_project(
            tmp_path,
            train__steps=STEPS,
            serving={"engine": "external", "urls": list(fakes.urls)},
            runtime={"kind": "local", "worker_processes": 2},
            log={"tensorboard": False},
            reward={"functions": {"places": {"target": "places.py:places", "weight": 0.01}}},
        )
        (tmp_path / "places.py").write_text(PLACES)
        run = await run_stages(load_config(path), tmp_path)
        turns, _ = fakes.counts()
    store = TrajectoryStore(run / "trajectories")
    rows = [row for step in range(1, STEPS + 1) for row in store.read("train", step=step)]
    versions = [set(row.trajectory.policy_versions) - {-1} for row in rows]
    assert versions == [{0}] * 12 + [{1}] * 12
    for group in {row.trajectory.group_id for row in rows}:
        members = [row.trajectory for row in rows if row.trajectory.group_id == group]
        parts = [member.reward_parts for member in members]
        assert [part["places"] for part in parts] == [100.0 * i for i in range(len(members))]
        assert [row.reward for row in members] == [part["env"] + i for i, part in enumerate(parts)]
    # One turn a rollout; two evaluations of three tasks, each twice; beside them the comparison
    # after the first sync: eight turns of two engines, whose answers are none, and so once more.
    assert turns == STEPS * 12 + 2 * 3 * 2 + 8 * 2 * 2
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "rollout/started" in line]
    assert len(lines) == STEPS
    assert (run / "logs" / "worker-0.log").is_file()
