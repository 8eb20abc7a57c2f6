"""Starting, resuming and ending a local run: what is opened here is closed here."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config import RunConfig
from agentrl.engine import WeightTicket
from agentrl.errors import AgentrlError
from agentrl.metrics import MetricBag
from agentrl.runtime.assemble import (
    TaskSets,
    describe_model,
    load_model,
    load_task_sets,
    make_env_factory,
    make_tools,
    make_worker,
    open_sandboxes,
)
from agentrl.runtime.checkpoint import Checkpoint, latest_checkpoint, sweep
from agentrl.runtime.local import LocalEngines, LocalLearner, LocalRollouts
from agentrl.runtime.logs import log_to
from agentrl.runtime.progress import Progress, RunPlan
from agentrl.runtime.records import History, Parts, RunResult
from agentrl.runtime.run_dir import RunDir, holds_a_run, run_path
from agentrl.runtime.stages import Stages
from agentrl.runtime.stop import Interrupted, StopSwitch
from agentrl.runtime.synchronous import SynchronousRun
from agentrl.serving.threads import reserve_cores, run_computing

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat
    from agentrl.data import TaskCursor
    from agentrl.metrics.sinks import MetricsLog
    from agentrl.sandbox import SandboxBackend
    from agentrl.serving import TokenClient
    from agentrl.train.pretrained import Pretrained

logger = logging.getLogger(__name__)

_ELAPSED = "timing_s/elapsed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A loaded model behind an engine, ready to roll out."""

    pretrained: Pretrained
    """Model and tokenizer."""
    client: TokenClient
    """The generator, and control over its engine."""
    rollouts: LocalRollouts
    """Makes groups with it."""
    chat: ChatFormat
    """How messages become ids."""
    sandboxes: SandboxBackend
    """Where code runs."""
    sandbox_text: str
    """Backend and how strong it is."""


@contextlib.asynccontextmanager
async def open_policy(
    config: RunConfig, *, base: Path, model_path: str | None = None, version: int = 0
) -> AsyncIterator[Policy]:
    """Load the model, start the engine and the sandboxes; close them in any case.

    Raises:
        AgentrlError: whatever does not fit, named.
    """
    from agentrl.serving import TokenClient
    from agentrl.serving.embedded import EmbeddedEngine

    sandboxes = await open_sandboxes(config.sandbox, base=base)
    try:
        probe = await sandboxes.probe()
        reserve_cores()
        pretrained = await run_computing(load_model, config, path=model_path)
        engine = EmbeddedEngine(
            pretrained.model,
            section=config.serving,
            max_context_tokens=config.rollout.max_context_tokens,
            version=version,
        )
        client = TokenClient([engine])
        try:
            worker, chat = make_worker(
                config,
                generator=client,
                tokenizer=pretrained.tokenizer,
                sandboxes=sandboxes,
                base=base,
            )
            yield Policy(
                pretrained=pretrained,
                client=client,
                rollouts=LocalRollouts(worker),
                chat=chat,
                sandboxes=sandboxes,
                sandbox_text=f"{sandboxes.name} ({probe.isolation.name.lower()} isolation)",
            )
        finally:
            await client.close()
    finally:
        await sandboxes.close()


async def train(
    config: RunConfig, *, base: Path, run_dir: RunDir | None = None, progress: Progress
) -> RunResult:
    """Run a config from its first step, or go on with the run in `run_dir`.

    Args:
        config: what to do; for a resumed run already checked with `RunDir.adopt`.
        base: where relative paths of the config start.
        run_dir: the locked directory of a run to resume; None begins a new run.
        progress: told what happens.

    Raises:
        AgentrlError: anything wrong with config, data, model, sandbox or run directory. A run
            directory made by this call that holds nothing worth keeping is removed again.
        Interrupted: SIGINT or SIGTERM; everything is closed and the last finished step is saved.
    """
    stop = StopSwitch()
    with stop.on_signals():
        check_parts(config, base=base)
        tasks = load_task_sets(config, base=base)
        directory = run_dir or RunDir.create(config, base=base)
        try:
            with log_to(directory.log_file):
                try:
                    return await _run_in(directory, config, base, tasks, progress, stop)
                except Exception as error:
                    if not isinstance(error, Interrupted):
                        # Only for the traceback in run.log; the caller decides what is shown.
                        logger.info("the run ends with an error", exc_info=True)
                    raise
        except AgentrlError:
            directory.discard()
            raise
        finally:
            directory.close()


def check_parts(config: RunConfig, *, base: Path) -> None:
    """Resolve what the config names before anything is opened or loaded.

    Raises:
        AgentrlError: the first thing that does not resolve.
    """
    from agentrl.chat import build_parser
    from agentrl.train.pretrained import check_model_path

    check_model_path(config.model.path)
    build_parser(config.chat.tool_parser)
    make_tools(config.env, base=base)
    make_env_factory(config.env, base=base)


def open_run(config: RunConfig, *, base: Path) -> RunDir | None:
    """The run that `config` names, locked, for `--resume`; None if there is none to go on with.

    Raises:
        RunError: it is in use, or the config does not fit it.
    """
    path = run_path(config)
    if not holds_a_run(path):
        logger.info("nothing to resume in %s: starting from the first step", path)
        return None
    run_dir, _, _ = RunDir.resume(path)
    try:
        run_dir.adopt(config, base=base)
    except AgentrlError:
        run_dir.close()
        raise
    return run_dir


async def _run_in(
    directory: RunDir,
    config: RunConfig,
    base: Path,
    tasks: TaskSets,
    progress: Progress,
    stop: StopSwitch,
) -> RunResult:
    from agentrl.data import TrajectoryStore
    from agentrl.train import Trainer

    sweep(directory.checkpoints)
    point = resume_point(directory, config, tasks)
    history, checkpoint = point.history, point.checkpoint
    async with open_policy(
        config,
        base=base,
        model_path=str(checkpoint.path) if checkpoint else None,
        version=checkpoint.state.version if checkpoint else 0,
    ) as policy:
        trainer = Trainer(
            policy.pretrained.model,
            train=config.train,
            algorithm=config.resolved_algorithm(),
            gradient_checkpointing=config.model.gradient_checkpointing,
        )
        if checkpoint:
            trainer.load(checkpoint.path)
        metrics = open_metrics(directory, config)
        try:
            progress.started(
                RunPlan(
                    run_dir=directory.path,
                    steps=config.train.steps,
                    done=history.done,
                    max_minutes=config.train.max_minutes,
                    model=describe_model(policy.pretrained),
                    sandbox=policy.sandbox_text,
                    tasks=len(tasks.train),
                    rollouts_per_step=config.rollout.prompts_per_step
                    * config.rollout.n_samples_per_prompt,
                )
            )
            store = TrajectoryStore(directory.trajectories)

            async def push(version: int) -> MetricBag:
                # The embedded engine samples from the trainer's parameters: the version moves.
                await policy.client.load_weights(WeightTicket(backend="inprocess", version=version))
                await policy.client.resume_all()
                return MetricBag()

            parts = Parts(
                stages=Stages(
                    rollouts=policy.rollouts,
                    engines=LocalEngines(policy.client, push, shared=True),
                    learner=LocalLearner(
                        config,
                        trainer,
                        store,
                        save=lambda folder: _save(folder, policy.pretrained, trainer),
                    ),
                    stop_token_ids=policy.chat.stop_token_ids,
                ),
                cursor=point.cursor,
                eval_tasks=tasks.evals,
                store=store,
                metrics=metrics,
                in_flight=in_flight(config),
            )
            run = SynchronousRun(
                config, directory, parts, history=history, progress=progress, stop=stop
            )
            result = await run.run()
            progress.finished(result)
            return result
        finally:
            metrics.close()


def in_flight(config: RunConfig) -> int:
    """Most rollouts at once: twice what all engines decode, so that none waits for tools."""
    return (
        2 * config.serving.max_batch_size * max(config.serving.replicas, len(config.serving.urls))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where a run directory says its run stands; for a new run, at the start."""

    checkpoint: Checkpoint | None
    """The newest complete one."""
    cursor: TaskCursor
    """After the last task of the checkpoint."""
    history: History
    """Steps done, lines logged, time spent."""


def resume_point(directory: RunDir, config: RunConfig, tasks: TaskSets) -> ResumePoint:
    """Read where the run stands.

    Raises:
        DataError: the dataset is not the one the run was begun with.
    """
    from agentrl.data import TaskCursor
    from agentrl.metrics.sinks import read_metrics

    checkpoint = latest_checkpoint(directory.checkpoints)
    if checkpoint:
        cursor = TaskCursor.restore(tasks.train, checkpoint.state.cursor)
    else:
        cursor = TaskCursor(tasks.train, seed=config.run.seed)
    logged: dict[int, dict[str, float]] = {}
    if directory.metrics_file.is_file():
        for line in read_metrics(directory.metrics_file):
            known = {name: value for name, value in line.items() if value is not None}
            logged.setdefault(line["step"], {}).update(known)
    elapsed = [values[_ELAPSED] for values in logged.values() if _ELAPSED in values]
    if checkpoint:
        elapsed.append(checkpoint.state.elapsed_s)
    history = History(
        done=checkpoint.state.step if checkpoint else 0,
        logged=logged,
        elapsed_s=max(elapsed, default=0.0),
    )
    return ResumePoint(checkpoint=checkpoint, cursor=cursor, history=history)


def open_metrics(directory: RunDir, config: RunConfig) -> MetricsLog:
    """The sinks of the config; JSON lines always."""
    from agentrl.metrics.sinks import JsonlSink, MetricsLog, TensorBoardSink

    sinks: list[Any] = [JsonlSink(directory.metrics_file)]
    if config.log.tensorboard:
        sinks.append(TensorBoardSink(directory.tensorboard))
    return MetricsLog(sinks)


def _save(folder: Path, pretrained: Pretrained, trainer: Any) -> None:
    pretrained.model.save_pretrained(folder)
    pretrained.tokenizer.save_pretrained(folder)
    trainer.save(folder)
