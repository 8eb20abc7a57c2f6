"""Starting, resuming and ending a local run: what is opened here is closed here."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config import RunConfig
from agentrl.errors import AgentrlError
from agentrl.runtime.algorithm_checks import doubts
from agentrl.runtime.assemble import (
    TaskSets,
    describe_model,
    load_model,
    load_task_sets,
    load_trained,
    make_env_factory,
    make_tools,
    make_worker,
    model_source,
    open_sandboxes,
    served_source,
)
from agentrl.runtime.checkpoint import Checkpoint, latest_checkpoint, resolve_model_path, sweep
from agentrl.runtime.drivers import check_schedule, make_run, runs_ahead
from agentrl.runtime.engines import UNKNOWN_VERSION, OpenEngines, open_engines
from agentrl.runtime.fleet_checks import require_fleet
from agentrl.runtime.learner import check_learner, make_trainer
from agentrl.runtime.local import LocalEngines, LocalLearner, LocalRollouts, Push
from agentrl.runtime.logs import log_to
from agentrl.runtime.progress import Progress, RunPlan
from agentrl.runtime.ray.layout import engine_width
from agentrl.runtime.reach import device_to_device, own_address, section_backend
from agentrl.runtime.records import History, Parts, RunResult
from agentrl.runtime.run_dir import RunDir, holds_a_run, run_path
from agentrl.runtime.sent_weights import sent_weights
from agentrl.runtime.stages import Stages
from agentrl.runtime.stop import Interrupted, StopSwitch
from agentrl.serving.threads import reserve_cores, run_computing

if TYPE_CHECKING:
    from agentrl.chat import ChatFormat
    from agentrl.data import TaskCursor, TrajectoryStore
    from agentrl.metrics.sinks import MetricsLog
    from agentrl.train import Trainer
    from agentrl.train.pretrained import Pretrained

logger = logging.getLogger(__name__)

_ELAPSED = "timing_s/elapsed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A model behind engines, ready to roll out."""

    pretrained: Pretrained | None
    """Model and tokenizer; None where only servers hold the model."""
    model: str
    """Describes the model."""
    engines: OpenEngines
    """Who samples from it."""
    rollouts: LocalRollouts
    """Makes groups with it."""
    chat: ChatFormat
    """How messages become ids."""
    sandbox_text: str
    """Backend and how strong it is."""


@contextlib.asynccontextmanager
async def open_policy(
    config: RunConfig,
    *,
    base: Path,
    logs: Path,
    note: Callable[[str], None],
    model_path: str | None = None,
    version: int = 0,
    train: bool = False,
) -> AsyncIterator[Policy]:
    """Load the model, start the engines and the sandboxes; close them in any case.

    Args:
        config: of the run.
        base: where its relative paths start.
        logs: folder for the output of servers.
        note: told what the user should read.
        model_path: overrides `model.path`.
        version: of the weights there.
        train: whether the model is needed in this process, wherever it samples.

    Raises:
        AgentrlError: whatever does not fit, named.
    """
    from agentrl.train.pretrained import load_tokenizer

    embedded = config.serving.engine == "embedded"
    sandboxes = await open_sandboxes(config.sandbox, base=base)
    try:
        probe = await sandboxes.probe()
        source = (
            served_source(config, checkpoint=model_path)
            if train
            else model_source(config, path=model_path)
        )
        pretrained: Pretrained | None = None
        if embedded or train:
            reserve_cores()
            pretrained = await (
                run_computing(load_trained, config, checkpoint=model_path)
                if train
                else run_computing(load_model, config, path=model_path)
            )
            tokenizer = pretrained.tokenizer
        else:
            tokenizer = load_tokenizer(config.model.model_copy(update={"path": source}))
        async with open_engines(
            config,
            model=pretrained.model if pretrained else None,
            source=source,
            logs=logs,
            # A sync before the first rollout brings servers to the trainer's version.
            version=UNKNOWN_VERSION if train and not embedded else version,
            note=note,
        ) as engines:
            worker, chat = make_worker(
                config,
                generator=engines.client,
                tokenizer=tokenizer,
                sandboxes=sandboxes,
                base=base,
            )
            yield Policy(
                pretrained=pretrained,
                model=describe_model(pretrained) if pretrained else f"{source} on {engines.text}",
                engines=engines,
                rollouts=LocalRollouts(worker),
                chat=chat,
                sandbox_text=f"{sandboxes.name} ({probe.isolation.name.lower()} isolation)",
            )
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
        AgentrlError: anything wrong with config, data, model, sandbox or run directory. Of a run
            directory made by this call that holds nothing worth keeping, only logs of servers stay.
        Interrupted: SIGINT or SIGTERM; everything is closed and the last finished step is saved.
    """
    from agentrl.train.losses import find_loss

    stop = StopSwitch()
    with stop.on_signals():
        config = run_dir.settle(config) if run_dir else config
        check_parts(config, base=base)
        find_loss(config.resolved_algorithm().policy_loss, base=base)
        tasks = load_task_sets(config, base=base)
        await require_fleet(config)
        directory = run_dir or RunDir.create(config, base=base)
        try:
            config = directory.settle(config)
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
    from agentrl.reward import load_reward_functions
    from agentrl.train.pretrained import check_model_path

    check_schedule(config)
    check_model_path(resolve_model_path(config.model.path))
    check_learner(config)
    build_parser(config.chat.tool_parser)
    make_tools(config.env, base=base)
    make_env_factory(config.env, base=base)
    load_reward_functions(config.reward, base=base, timeout_s=config.rollout.env_timeout_s)


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

    sweep(directory.checkpoints)
    point = resume_point(directory, config, tasks)
    store = TrajectoryStore(directory.trajectories)
    stages = _open_stages(directory, config, base, point, store, progress)
    async with stop.opening(stages) as opened:
        metrics = open_metrics(directory, config)
        try:
            progress.started(
                RunPlan(
                    run_dir=directory.path,
                    steps=config.train.steps,
                    done=point.history.done,
                    max_minutes=config.train.max_minutes,
                    model=opened.model,
                    sandbox=opened.sandbox,
                    tasks=len(tasks.train),
                    rollouts_per_step=config.rollout.prompts_per_step
                    * config.rollout.n_samples_per_prompt,
                )
            )
            for doubt in doubts(config, base=base):
                progress.note(doubt)
            parts = Parts(
                stages=opened.stages,
                cursor=point.cursor,
                eval_tasks=tasks.evals,
                store=store,
                metrics=metrics,
                in_flight=in_flight(config),
            )
            run = make_run(
                config, directory, parts, history=point.history, progress=progress, stop=stop
            )
            result = await run.run()
            progress.finished(result)
            return result
        finally:
            metrics.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStages:
    """The stages of a run, and what to say of them."""

    stages: Stages
    """For a driver."""
    model: str
    """Describes the model."""
    sandbox: str
    """Describes the sandboxes."""


@contextlib.asynccontextmanager
async def _open_stages(
    directory: RunDir,
    config: RunConfig,
    base: Path,
    point: ResumePoint,
    store: TrajectoryStore,
    progress: Progress,
) -> AsyncIterator[OpenStages]:
    """As `runtime` says: in this process, or on Ray."""
    if config.runtime == "ray":
        from agentrl.runtime.ray.launch import open_ray_stages

        async with open_ray_stages(
            config,
            base=base,
            run_dir=directory.path,
            trajectories=directory.trajectories,
            checkpoint=point.checkpoint,
            note=progress.note,
        ) as ray:
            for place in ray.places:
                logger.info("%s", place)
            yield OpenStages(stages=ray.stages, model=ray.model, sandbox=ray.sandbox)
        return
    checkpoint = point.checkpoint
    async with open_policy(
        config,
        base=base,
        logs=directory.logs,
        note=progress.note,
        model_path=str(checkpoint.path) if checkpoint else None,
        version=checkpoint.state.version if checkpoint else 0,
        train=True,
    ) as policy:
        learner, trainer = open_learner(
            config, policy, store, checkpoint, base=base, run_dir=directory.path
        )
        async with _syncing(config, policy, trainer, directory) as push:
            engines = LocalEngines(
                policy.engines.client,
                push,
                shared=policy.engines.shares_weights,
                patience_s=policy.engines.patience_s,
            )
            stages = Stages(
                rollouts=policy.rollouts,
                engines=engines,
                learner=learner,
                stop_token_ids=policy.chat.stop_token_ids,
            )
            model = f"{policy.model}; sampled by {policy.engines.text}"
            yield OpenStages(stages=stages, model=model, sandbox=policy.sandbox_text)


def open_learner(
    config: RunConfig,
    policy: Policy,
    store: TrajectoryStore,
    checkpoint: Checkpoint | None,
    *,
    base: Path,
    run_dir: Path,
) -> tuple[LocalLearner, Trainer]:
    """The trainer of a policy, where its checkpoint left it."""
    pretrained = policy.pretrained
    assert pretrained is not None
    trainer = make_trainer(
        config,
        pretrained.model,
        base=base,
        failures=run_dir,
        checkpoint=checkpoint.path if checkpoint else None,
    )
    learner = LocalLearner(
        config,
        trainer,
        store,
        save=lambda folder: _save(folder, pretrained, trainer),
        base=base,
        checkpoint=checkpoint.path if checkpoint else None,
    )
    return learner, trainer


@contextlib.asynccontextmanager
async def _syncing(
    config: RunConfig, policy: Policy, trainer: Trainer, directory: RunDir
) -> AsyncIterator[Push]:
    """How the trainer's weights reach the engines; what moves them is closed at the end."""
    from agentrl.sync import WeightSync, make_sender

    backend = section_backend(config)
    sender = make_sender(
        config.sync,
        backend=backend,
        directory=directory.weights,
        address=own_address(config),
        cuda=device_to_device(config),
        workers=engine_width(config.serving),
        describe=lambda: [
            (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in trainer.weights()
        ],
    )
    sync = WeightSync(policy.engines.client, sender)
    try:
        await sync.connect()
        assert policy.pretrained is not None  # there is something to train
        weights = sent_weights(config, policy.pretrained.model, trainer, backend=backend)
        yield lambda version: sync.push(weights, version)
    finally:
        await sync.close()


def in_flight(config: RunConfig) -> int:
    """Most rollouts at once: twice what all engines decode, so that none waits for tools.

    A schedule that runs ahead keeps a third one ready for each place, since a group holds its
    places until its last rollout has ended.
    """
    section = config.serving
    engines = len(section.urls) or section.replicas
    if section.engine == "embedded" and config.runtime == "ray":
        engines = config.ray.trainer_ranks  # each has one
    places = section.max_batch_size * engines
    return places * (3 if runs_ahead(config) else 2)


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
    from agentrl.train.lora import save_policy

    save_policy(pretrained.model, pretrained.tokenizer, folder)
    trainer.save(folder)
