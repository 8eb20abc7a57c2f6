"""Runs the real driver, client, store and weight sync against fake servers, and measures them.

    driver (this process)  run_groups -> worker -> TokenClient -> HTTP --> fake servers (children)
                           StepMaker -> TrajectoryStore
                           WeightSync --------------------------> HTTP --> fake servers

Only the trainer's arithmetic is left out: a step is prepared and stored, and its version counted.
"""

from __future__ import annotations

import contextlib
import resource
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.chat import build_chat
from agentrl.cli.simulate.fleet.case import GROUP, ScaleCase, run_config
from agentrl.cli.simulate.fleet.conversation import call_of
from agentrl.cli.simulate.fleet.fake_fleet import fake_fleet
from agentrl.cli.simulate.fleet.fake_servers import FakeTurn
from agentrl.cli.simulate.fleet.meter import PhaseMeter, PhaseUse, resident_bytes, typical
from agentrl.cli.simulate.fleet.metered_stages import (
    LEARN,
    ROLLOUT,
    SYNC,
    MeteredEngines,
    MeteredLearner,
)
from agentrl.config.fleet import SyncSection
from agentrl.config.plan import Plan, plan_run
from agentrl.config.schema import ChatSection
from agentrl.data import TaskCursor, TrajectoryStore
from agentrl.disk.metric_sinks import open_metrics
from agentrl.disk.run_directory import RunDir
from agentrl.errors import RunError
from agentrl.machine.processes.stop import StopSwitch
from agentrl.metrics.sinks import MetricsLog
from agentrl.models.source import load_tokenizer
from agentrl.runtime.assembly.engines import UNKNOWN_VERSION, OpenEngines, open_engines
from agentrl.runtime.assembly.local_stages import LocalEngines, LocalRollouts
from agentrl.runtime.assembly.parts import make_worker, open_sandboxes
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.runtime.assembly.tools import open_tools
from agentrl.runtime.children.open_workers import open_workers
from agentrl.runtime.children.stages import ChildEngines
from agentrl.runtime.drivers.choose import make_run
from agentrl.runtime.engine_wait import Push
from agentrl.runtime.launch import slots_per_engine
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import Parts, RunHistory
from agentrl.runtime.stages import EngineStage, RolloutStage, Stages
from agentrl.sync import WeightSync, make_sender
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.serving import TokenClient

WEIGHT_BYTES = 2**20
"""Bytes of the weights of an update, which the fake servers do not read."""
_SPARE_FILES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleReport:
    """The use of a simulated run."""

    case: ScaleCase
    """Size of the run."""
    turns: int
    """Turns that the fake servers answered."""
    failed: Mapping[str, int]
    """Rollouts that did not end as they should, by their ending."""
    tokens: int
    """Tokens of all stored rows, prompts included."""
    rollout: PhaseUse
    """Use of the rollouts of a step."""
    learn: PhaseUse
    """Use of preparing and storing a step."""
    sync: PhaseUse
    """Use of a weight update."""
    before_bytes: int
    """Memory of the driver before the first step."""
    resident_bytes: Sequence[int]
    """Memory of the driver after each step."""
    peak_bytes: int
    """Most memory that the driver ever held."""
    store_bytes: int
    """Bytes of the stored trajectories."""
    servers_cpu_s: float
    """Processor time of the fake servers in seconds, which a real fleet spends elsewhere."""

    @property
    def ideal_s(self) -> float:
        """Wall time of the rollouts of a step, if the driver took none."""
        return self.case.turns * self.case.turn_s


async def simulate_scale(
    case: ScaleCase, *, memory: Callable[[], int] = resident_bytes
) -> ScaleReport:
    """Run a case and measure it.

    Args:
        case: its size.
        memory: of this process in bytes; read after each step.

    Raises:
        RunError: this process may not open as many files as the case needs.
        AgentrlError: the case is not possible, or the run failed.
    """
    at_once = -(-case.conversations // max(1, case.workers))
    with _open_files(at_once + case.servers + _SPARE_FILES):
        with tempfile.TemporaryDirectory(prefix="agentrl-scale-") as folder:
            return await _simulate(case, Path(folder), memory)


async def _simulate(case: ScaleCase, folder: Path, memory: Callable[[], int]) -> ScaleReport:

    probe = run_config(case, ["http://127.0.0.1:1"], folder)
    tokenizer = load_tokenizer(probe.model)
    turn = _turn(case, probe.chat, probe.rollout.max_context_tokens, tokenizer)
    with fake_fleet(case.servers, turn, conversations=case.conversations) as fakes:
        config, meter = run_config(case, fakes.urls, folder), PhaseMeter(memory=memory)
        directory, plan = RunDir.create(config, base=folder), plan_run(config, folder)
        sinks = partial(open_metrics, directory, config)
        async with _open_parts(directory, plan, sinks, tokenizer, meter) as (parts, learner):
            before = memory()
            run = make_run(
                plan.schedule,
                directory,
                parts,
                history=RunHistory(),
                progress=Progress(),
                stop=StopSwitch(),
            )
            meter.start()
            await run.run()
        turns, servers_cpu_s = fakes.counts()
        return ScaleReport(
            case=case,
            turns=turns,
            failed=learner.failed,
            tokens=learner.tokens,
            rollout=typical(meter.phases[ROLLOUT]),
            learn=typical(meter.phases[LEARN]),
            sync=typical(meter.phases[SYNC]),
            before_bytes=before,
            resident_bytes=meter.resident_bytes,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            store_bytes=_size_of(directory.trajectories),
            servers_cpu_s=servers_cpu_s,
        )


def _turn(case: ScaleCase, section: ChatSection, context: int, tokenizer: Any) -> FakeTurn:
    chat = build_chat(tokenizer, section)
    return FakeTurn(
        seconds=case.turn_s,
        ids=[*chat.encode_plain(call_of(case.result_chars)), chat.stop_token_ids[0]],
        max_context_tokens=context,
    )


@contextlib.asynccontextmanager
async def _open_parts(
    directory: RunDir,
    plan: Plan,
    sinks: Callable[[], MetricsLog],
    tokenizer: Any,
    meter: PhaseMeter,
) -> AsyncIterator[tuple[Parts, MeteredLearner]]:
    """The parts of a driver, as `agentrl.runtime.launch` opens them, with a trainer that counts."""
    engine, rollout = plan.engines, plan.schedule.rollout
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(directory.close)
        engines = await stack.enter_async_context(
            open_engines(
                engine.serving,
                engine.sync,
                engine.model,
                max_context_tokens=rollout.max_context_tokens,
                wait_s=0.0,
                model=None,
                source="",
                logs=directory.logs,
                version=UNKNOWN_VERSION,
                note=lambda line: None,
            )
        )
        push = await stack.enter_async_context(_syncing(engine.sync, engines.client))
        store = TrajectoryStore(directory.trajectories)
        learner = MeteredLearner(StepMaker(plan.schedule), store, meter)
        rollouts, stage = await _open_rollouts(
            plan, engines, push, tokenizer, directory=directory, stack=stack, meter=meter
        )
        stages = Stages(
            rollouts=rollouts,
            engines=MeteredEngines(stage, meter),
            engine_devices=1,
            learner=learner,
            stop_token_ids=build_chat(tokenizer, plan.rollouts.chat).stop_token_ids,
        )
        metrics = sinks()
        stack.callback(metrics.close)
        tasks = [
            Task(id=f"task-{index}", prompt=f"Read what text {index} says, part by part.")
            for index in range(rollout.prompts_per_step)
        ]
        parts = Parts(
            stages=stages,
            cursor=TaskCursor(tasks, seed=0),
            eval_tasks={},
            store=store,
            metrics=metrics,
            in_flight=rollout.prompts_per_step * GROUP,
            slots_per_engine=slots_per_engine(engine.serving),
        )
        yield parts, learner


async def _open_rollouts(
    plan: Plan,
    engines: OpenEngines,
    push: Push,
    tokenizer: Any,
    *,
    directory: RunDir,
    stack: contextlib.AsyncExitStack,
    meter: PhaseMeter,
) -> tuple[RolloutStage, EngineStage]:
    """Workers in child processes, or one in this process; `open_policy` without a model."""
    one, runtime = plan.rollouts, plan.engines.runtime
    assert runtime.kind == "local"
    if runtime.worker_processes:
        opened = await stack.enter_async_context(
            open_workers(
                one,
                plan.engines,
                logs=directory.logs,
                engines=engines,
                tokenizer=tokenizer,
                version=UNKNOWN_VERSION,
            )
        )
        meter.workers = lambda: opened.workers.pids
        return opened.rollouts, ChildEngines(engines.client, push, opened.news)
    sandboxes = await open_sandboxes(one.sandbox, base=one.base)
    stack.push_async_callback(sandboxes.close)
    tools = await stack.enter_async_context(open_tools(one.env, base=one.base))
    worker, _ = make_worker(
        one,
        generator=engines.client,
        tokenizer=tokenizer,
        sandboxes=sandboxes,
        tools=tools,
    )
    rollouts = LocalRollouts(worker, cancelled=lambda: worker.cancelled)
    return rollouts, LocalEngines(engines.client, push, shared=False)


@contextlib.asynccontextmanager
async def _syncing(section: SyncSection, client: TokenClient) -> AsyncIterator[Push]:
    """The real fan-out of weights, with few bytes of them."""
    import torch

    weight = torch.zeros(WEIGHT_BYTES // 4)
    described = [("weight", "float32", tuple(weight.shape))]
    sender = make_sender(section, backend=section.backend, describe=lambda: described)
    sync = WeightSync(client, sender)
    try:
        await sync.connect()
        yield lambda version: sync.push(lambda: iter([("weight", weight)]), version)
    finally:
        await sync.close()


@contextlib.contextmanager
def _open_files(needed: int) -> Iterator[None]:
    """Raise the limit of open files for this process and those that it starts.

    Raises:
        RunError: it may not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed:
        yield
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(needed, hard)))
    except (OSError, ValueError):
        raise RunError(
            f"the case needs {needed} open files in a process (each conversation has a "
            f"connection), but the limit is {hard}: raise it (ulimit -n {needed}), divide the "
            "conversations among more processes (--workers), or take fewer"
        ) from None
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(needed, hard)))


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
