"""Starting, resuming and ending a fit."""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.chat import build_chat
from agentrl.config.fit import FitConfig
from agentrl.config.load import FIT_FILE
from agentrl.config.schema import ModelSection
from agentrl.data.run.tokenizer_file import write_tokenizer
from agentrl.disk.checkpoint import Checkpoint, checkpoint_to_resume, sweep
from agentrl.disk.logs import log_to
from agentrl.disk.metric_sinks import check_sinks, open_metrics
from agentrl.disk.model_source import model_source
from agentrl.disk.run_directory import RunDir
from agentrl.errors import AgentrlError, ConfigError, DataError, RunError
from agentrl.fit.crew import FitCrew, of_rank
from agentrl.fit.data.fit_data import FitEncoding, digest_of, load_centered, load_fit_data
from agentrl.fit.data.vocabulary import check_same_tokens, vocabulary_of
from agentrl.fit.doubts import fit_doubts
from agentrl.fit.ensemble import fit_members
from agentrl.fit.heads import with_head_weights
from agentrl.fit.model import (
    FitReference,
    find_reference,
    open_fit_model,
    reference_section,
)
from agentrl.fit.progress import FitProgress, FitResult
from agentrl.fit.rollouts import CheckpointScorer, rollout_plan
from agentrl.fit.session import (
    DATA,
    REFERENCE,
    WEIGHTS,
    FitSession,
)
from agentrl.fit.sets import FitSets
from agentrl.fit.shown import ShownExamples, shown_of
from agentrl.fit.updates import FitUpdates
from agentrl.machine.compute_threads import reserve_cores, run_computing
from agentrl.machine.processes.stop import StopSwitch
from agentrl.metrics.run_clock import RunClock
from agentrl.models.source import check_language_model, load_tokenizer
from agentrl.models.vision.checks import check_seeing_fit

logger = logging.getLogger(__name__)


def load_fit_sets(
    config: FitConfig, *, base: Path, scorer: CheckpointScorer | None = None
) -> FitSets:
    """Read and encode all data of a fit; needs the tokenizer, and no weights.

    Args:
        config: names the data.
        base: where relative paths of the config start.
        scorer: as for `fit`.

    Raises:
        AgentrlError: whatever does not fit, named.
    """
    from agentrl.models.stored import check_files
    from agentrl.models.vision.reader import load_reader

    check_fit(config, base=base, scorer=scorer)
    source, scores = model_source(config.model), config.objective.kind == "rm"
    check_language_model(source, scores=scores)
    tokenizer = _tokenizer(config.model)
    images = load_reader(source, tokenizer)
    if images is not None:
        check_seeing_fit(config)
    objective = config.objective
    encoding = FitEncoding(
        objective=objective,
        train=config.train,
        chat=build_chat(tokenizer, config.chat, images=images),
        base=base,
        vocabulary=vocabulary_of(source),
    )
    sets = FitSets(
        train=with_head_weights(load_fit_data(config.data, encoding), config),
        evals={
            name: load_fit_data(section, encoding, name=name)
            for name, section in config.eval.datasets.items()
        },
    )
    if objective.kind == "rm" and objective.center_data is not None:
        sets = replace(sets, centered=load_centered(objective.center_data, encoding))
    doubled = [name for name, times in Counter(e.id for e in sets.every).items() if times > 1]
    if doubled:
        raise DataError(
            f"example {doubled[0]!r} is twice in data and eval.datasets; ids must be unique, with "
            "the name of a dataset before those of eval.datasets"
        )
    if not scores:
        check_files(source, who=f"model.path {config.model.path!r}")
    reference = reference_section(config, base=base)
    if reference is not None and reference.path != config.model.path:
        key = "objective.reference"
        beside = model_source(reference, key=key)
        check_language_model(beside, key=key)
        check_files(beside, who=f"{key} {reference.path!r}")
        check_same_tokens(tokenizer, _tokenizer(reference), sets.every, path=reference.path)
    return sets


def _tokenizer(section: ModelSection) -> Any:

    return load_tokenizer(section.model_copy(update={"path": model_source(section)}))


def check_fit(config: FitConfig, *, base: Path, scorer: CheckpointScorer | None) -> None:
    """Refuse sinks and a loss that are not there, before anything is read.

    Raises:
        ConfigError: one that is not there, or `eval.rollouts` without what rolls out.
    """
    check_sinks(config.log)
    if config.eval.rollouts is not None:
        if scorer is None:
            raise ConfigError(
                "eval.rollouts is set, but this fit was called without a scorer, which rolls "
                "checkpoints out; start it with `agentrl fit`, or pass scorer="
                "agentrl.runtime.sampling.checkpoint_scores.RolloutScorer()"
            )
        scorer.check(rollout_plan(config.eval.rollouts, base=base))
    if config.objective.kind == "dpo" and not config.objective.unpaired:
        from agentrl.fit.losses.pair_registry import find_pair_loss

        find_pair_loss(config.objective.loss, base=base)


async def fit(
    config: FitConfig,
    *,
    base: Path,
    run_dir: RunDir | None = None,
    progress: FitProgress,
    scorer: CheckpointScorer | None = None,
) -> FitResult:
    """Train on data from the first step, or go on with the fit in `run_dir`.

    Args:
        config: what to do; for a resumed fit already checked with `RunDir.adopt`.
        base: where relative paths of the config start.
        run_dir: the locked directory of a fit to resume; None begins a new one.
        progress: notified of what happens.
        scorer: rolls checkpoints out for `eval.rollouts`; without it that must not be set.

    Raises:
        AgentrlError: anything wrong with config, data, model or run directory. Of a fit that has
            made no step, only what it computed of its reference stays.
        Interrupted: SIGINT or SIGTERM; the last finished step is saved.
    """
    config = FIT_FILE.whole(config, base)
    objective = config.objective
    if objective.kind == "rm" and objective.ensemble > 1 and objective.ensemble_mode == "members":
        return await fit_members(config, fit, base=base, run_dir=run_dir, progress=progress)
    reserve_cores()
    stop = StopSwitch(grace_s=config.run.grace_s)
    with stop.on_signals():
        config = run_dir.resolve_models(config) if run_dir else config
        try:
            sets = await stop.guard(run_computing(load_fit_sets, config, base=base, scorer=scorer))
            directory = run_dir or RunDir.create(config, base=base)
        except BaseException:
            if run_dir is not None:
                run_dir.close()
            raise
        trained = False
        try:
            config = directory.resolve_models(config)
            with log_to(directory.log_file), ExitStack() as stack:
                sweep(directory.checkpoints)
                try:
                    session = await run_computing(
                        _open,
                        config,
                        sets,
                        directory,
                        base=base,
                        progress=progress,
                        scorer=scorer,
                        stack=stack,
                        stop=stop,
                    )
                    try:
                        return await session.run(stop)
                    finally:
                        trained = session.done > 0
                except AgentrlError as error:
                    # Known, so no traceback; the caller decides what is shown.
                    logger.info("the fit ends with an error: %s", error)
                    raise
        except AgentrlError:
            if not trained and run_dir is None:  # one that is resumed is there already
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
    scorer: CheckpointScorer | None,
    stack: ExitStack,
    stop: StopSwitch,
) -> FitSession:
    from agentrl.train.optim.resumed import resume_notes

    began, updates = time.monotonic(), FitUpdates(config, sets)
    steps = updates.steps_per_epoch * config.data.epochs
    if config.train.steps:
        steps = min(steps, config.train.steps)
    planned = config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})
    checkpoint = checkpoint_to_resume(directory.checkpoints, steps=steps)
    centered = sets.centered.examples if sets.centered else ()
    digest = digest_of([*sets.train.examples, *centered])
    if checkpoint is not None:
        _require_same_data(checkpoint, digest, config)

    def on_reference(pairs: int, total: int) -> None:
        stop.check()
        if not pairs:
            progress.phase("reference")
        progress.trained(pairs, total)

    mismatches = updates.mismatches(steps)
    reference = find_reference(
        config, base=base, pinned=checkpoint.state.cursor.get(REFERENCE) if checkpoint else None
    )
    if checkpoint is not None and reference is not None:
        _require_same_reference(checkpoint, reference)
    crew = FitCrew(planned, run_dir=directory.path)
    begin = checkpoint.path if checkpoint else None
    model = open_fit_model(
        of_rank(planned, 0),
        sets.every,
        base=base,
        run_dir=directory.path,
        checkpoint=begin,
        reference=reference,
        mismatches=mismatches,
        shown=shown_of(config, sets.evals),
        open_ranks=lambda: crew.open(
            sets, base=base, checkpoint=begin, reference=reference, stack=stack
        ),
        on_reference=on_reference,
    )
    metrics = open_metrics(directory, config)
    stack.callback(metrics.close)
    done = checkpoint.state.step if checkpoint else 0
    metrics.truncate_after(done)
    shown = ShownExamples(
        config=planned, evals=sets.evals, run_dir=directory.path, compares=reference is not None
    )
    write_tokenizer(directory.tokenizer_file, model.tokenizer)
    shown.store.remove_after(done)
    progress.note(f"run {directory.path}")
    ranks = f"; {config.ranks} ranks" if config.ranks > 1 else ""
    progress.note(f"model {model.text}; objective {config.objective.kind}{ranks}")
    progress.note(f"data {sets.train.text()}; {steps} steps")
    for name, data in sets.evals.items():
        progress.note(f"eval {name}: {data.text()}")
    if sets.centered:
        progress.note(f"center_data: {sets.centered.text()}")
    for doubt in fit_doubts(config, sets):
        progress.note(doubt)
    if done:
        progress.note(f"resumed after step {done}")
    for note in resume_notes(directory.changed, planned.train, done=done):
        logger.info("%s", note)
        progress.note(note)
    return FitSession(
        config=planned,
        model=model,
        crew=crew,
        updates=updates,
        evals={name: updates.evaluation(name) for name in sets.evals},
        shown=shown,
        directory=directory,
        metrics=metrics,
        progress=progress,
        scorer=scorer,
        done=done,
        # Models that were loaded take time of the fit, too.
        clock=RunClock(
            planned.train.max_minutes,
            elapsed_s=time.monotonic() - began + (checkpoint.state.elapsed_s if checkpoint else 0),
        ),
        cursor={
            DATA: digest,
            **({REFERENCE: reference.path, WEIGHTS: reference.digest} if reference else {}),
        },
        base=base,
    )


def _require_same_reference(checkpoint: Checkpoint, reference: FitReference) -> None:
    """With other weights at its path, a fit would go on towards another policy."""
    known = checkpoint.state.cursor.get(WEIGHTS)
    if known is not None and known != reference.digest:
        raise RunError(
            f"--resume: the weights of the reference in {reference.path} are not those that this "
            f"fit was trained with for {checkpoint.state.step} steps; put them back, or start "
            f"another fit with another run.name and model.path={checkpoint.path}"
        )


def _require_same_data(checkpoint: Checkpoint, digest: str, config: FitConfig) -> None:
    """Other data has another order: some examples would be trained twice in an epoch, or never."""
    known = checkpoint.state.cursor.get(DATA)
    if known != digest:
        raise RunError(
            f"--resume: {config.data.source} does not hold the examples that this fit was trained "
            f"on for {checkpoint.state.step} steps (the file has changed, or what is left out of "
            "it, as by train.micro_batch_tokens); undo the change, or start another fit with "
            f"another run.name and model.path={checkpoint.path}"
        )
