"""Starting, resuming and ending a fit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.batch.examples import Example
from agentrl.chat import build_chat
from agentrl.compute_threads import reserve_cores, run_computing
from agentrl.config.fit import FitConfig
from agentrl.errors import AgentrlError
from agentrl.runtime.assembly.metric_sinks import open_metrics
from agentrl.runtime.assembly.parts import model_source
from agentrl.runtime.disk.checkpoint import (
    latest_checkpoint,
    sweep,
)
from agentrl.runtime.disk.logs import log_to
from agentrl.runtime.disk.run_directory import RunDir
from agentrl.runtime.fit.data import FitData, load_fit_data
from agentrl.runtime.fit.model import make_update, open_fit_model
from agentrl.runtime.fit.order import ExampleOrder
from agentrl.runtime.fit.session import FitProgress, FitResult, FitSession
from agentrl.runtime.stop import StopSwitch

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSets:
    """Encoded data of a fit."""

    train: FitData
    """Trained on."""
    evals: Mapping[str, FitData]
    """By the name in `eval.datasets`."""

    @property
    def every(self) -> list[Example]:
        """All examples."""
        return [example for data in (self.train, *self.evals.values()) for example in data.examples]


def load_fit_sets(config: FitConfig, *, base: Path) -> FitSets:
    """Read and encode all data of a fit; needs the tokenizer, and no weights.

    Raises:
        AgentrlError: whatever does not fit, named.
    """
    from agentrl.train.model.pretrained import load_tokenizer

    source = model_source(config.model)
    tokenizer = load_tokenizer(config.model.model_copy(update={"path": source}))
    chat = build_chat(tokenizer, config.chat)
    return FitSets(
        train=load_fit_data(config.data, config.objective, config.train, chat, base=base),
        evals={
            name: load_fit_data(section, config.objective, config.train, chat, base=base, name=name)
            for name, section in config.eval.datasets.items()
        },
    )


async def fit(
    config: FitConfig, *, base: Path, run_dir: RunDir | None = None, progress: FitProgress
) -> FitResult:
    """Train on data from the first step, or go on with the fit in `run_dir`.

    Args:
        config: what to do; for a resumed fit already checked with `RunDir.adopt`.
        base: where relative paths of the config start.
        run_dir: the locked directory of a fit to resume; None begins a new one.
        progress: notified of what happens.

    Raises:
        AgentrlError: anything wrong with config, data, model or run directory.
        Interrupted: SIGINT or SIGTERM; the last finished step is saved.
    """
    reserve_cores()
    stop = StopSwitch(grace_s=config.run.grace_s)
    with stop.on_signals():
        config = run_dir.resolve_model(config) if run_dir else config
        sets = load_fit_sets(config, base=base)
        directory = run_dir or RunDir.create(config, base=base)
        try:
            config = directory.resolve_model(config)
            with log_to(directory.log_file), ExitStack() as stack:
                sweep(directory.checkpoints)
                try:
                    session = await run_computing(
                        _open, config, sets, directory, base=base, progress=progress, stack=stack
                    )
                    return await session.run(stop)
                except AgentrlError:
                    # Only for the traceback in run.log; the caller decides what is shown.
                    logger.info("the fit ends with an error", exc_info=True)
                    raise
        except AgentrlError:
            directory.discard()
            raise
        finally:
            directory.close()


def _open(
    config: FitConfig,
    sets: FitSets,
    directory: RunDir,
    *,
    base: Path,
    progress: FitProgress,
    stack: ExitStack,
) -> FitSession:
    order = ExampleOrder(
        sets.train.examples, per_step=config.data.examples_per_step, seed=config.run.seed
    )
    steps = order.steps_per_epoch * config.data.epochs
    if config.train.steps:
        steps = min(steps, config.train.steps)
    planned = config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})
    checkpoint = latest_checkpoint(directory.checkpoints)
    model = open_fit_model(
        planned,
        sets.every,
        base=base,
        run_dir=directory.path,
        checkpoint=checkpoint.path if checkpoint else None,
        stack=stack,
    )
    metrics = open_metrics(directory, config)
    stack.callback(metrics.close)
    done = checkpoint.state.step if checkpoint else 0
    metrics.truncate_after(done)
    progress.note(f"run {directory.path}")
    progress.note(f"model {model.text}; objective {config.objective.kind}")
    progress.note(f"data {sets.train.text()}; {steps} steps")
    for name, data in sets.evals.items():
        progress.note(f"eval {name}: {data.text()}")
    if done:
        progress.note(f"resumed after step {done}")
    return FitSession(
        config=planned,
        model=model,
        order=order,
        evals={name: make_update(planned, data.examples) for name, data in sets.evals.items()},
        directory=directory,
        metrics=metrics,
        progress=progress,
        done=done,
        elapsed_s=checkpoint.state.elapsed_s if checkpoint else 0.0,
    )
