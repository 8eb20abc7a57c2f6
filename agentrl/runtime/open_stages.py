"""The stages of a run: opened as `runtime` asks, closed in any case."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config.fleet import ServingSection, SyncSection
from agentrl.config.plan import Plan
from agentrl.config.training import LoraSection
from agentrl.data.run.tokenizer_file import write_tokenizer
from agentrl.disk.checkpoint import Checkpoint
from agentrl.disk.proofs import ENGINE, keep_proofs
from agentrl.disk.run_directory import RunDir
from agentrl.machine.compute_threads import run_computing
from agentrl.runtime.assembly.engines import OpenEngines
from agentrl.runtime.assembly.hints import open_hints
from agentrl.runtime.assembly.layout import engine_width
from agentrl.runtime.assembly.live_servers import live_servers
from agentrl.runtime.assembly.local_stages import LocalEngines, LocalLearner, Push
from agentrl.runtime.assembly.resume_point import ResumePoint
from agentrl.runtime.assembly.step_batch import StepMaker
from agentrl.runtime.assembly.trainer import make_trainer
from agentrl.runtime.assembly.weight_check import (
    Digests,
    FirstSyncCheck,
    Turn,
    most_apart,
    probe_prompts,
)
from agentrl.runtime.assembly.weight_route import device_to_device, own_address, section_backend
from agentrl.runtime.assembly.weight_stream import sent_digests, sent_weights
from agentrl.runtime.checks.colocation import make_turns, with_turns
from agentrl.runtime.checks.fleet import require_server
from agentrl.runtime.children.stages import ChildEngines
from agentrl.runtime.colocated.turns import TurnTaking
from agentrl.runtime.open_policy import Policy, open_policy
from agentrl.runtime.progress import Progress
from agentrl.runtime.records import OpenStages, find_cluster
from agentrl.runtime.stages import Stages
from agentrl.sync import WeightSync, make_sender

if TYPE_CHECKING:
    from agentrl.data import TrajectoryStore
    from agentrl.models.proof import ModelProof
    from agentrl.train import Trainer

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def open_stages(
    directory: RunDir,
    plan: Plan,
    point: ResumePoint,
    store: TrajectoryStore,
    progress: Progress,
) -> AsyncIterator[OpenStages]:
    """As `runtime` asks: in this process, or on a cluster."""
    cluster = find_cluster(plan.engines.runtime.kind)
    if cluster is not None:
        async with cluster.open(
            plan,
            run_dir=directory.path,
            trajectories=directory.trajectories,
            checkpoint=point.checkpoint,
            note=progress.note,
            check_server=lambda url, backend: require_server(plan.engines, url, backend=backend),
        ) as opened:
            for line in opened.actor_lines:
                logger.info("%s", line)
            yield opened
        return
    plan, colocation = with_turns(plan)
    turns = None if colocation is None else make_turns(colocation, progress.note)
    checkpoint, engine = point.checkpoint, plan.engines
    async with open_policy(
        plan,
        logs=directory.logs,
        note=progress.note,
        model_path=str(checkpoint.path) if checkpoint else None,
        version=checkpoint.state.version if checkpoint else 0,
        train=True,
        images=directory.path / "images",
        turns=turns,
    ) as policy:
        assert policy.pretrained is not None  # there is something to train
        write_tokenizer(directory.tokenizer_file, policy.pretrained.tokenizer)
        learner, trainer = open_learner(plan, policy, store, checkpoint, run_dir=directory.path)
        if turns is not None and colocation is not None:
            turns.attach(trainer.offload(colocation.moves))
        async with syncing(
            engine.sync,
            engine.serving,
            policy,
            trainer,
            device=engine.model.device,
            lora=plan.trainer.train.lora,
            directory=directory.weights,
        ) as push:
            engines = _engine_stage(policy, push, turns)
            stages = Stages(
                rollouts=policy.rollouts,
                engines=engines,
                engine_devices=engine_width(engine.serving),
                learner=learner,
                stop_token_ids=policy.chat.stop_token_ids,
                reward_models=policy.reward_models,
                in_flight=policy.rollouts.in_flight,
            )
            model = f"{policy.model}; sampled by {policy.engines.text}"
            proof = trainer.backend.proof
            model += "" if proof is None else f"; {proof.text}"
            adapted = plan.trainer.train.lora is not None and checkpoint is not None
            engine_proof = _engine_proof(policy.engines, adapters_loaded=adapted)
            keep_proofs(directory.path, {ENGINE: engine_proof, **policy.reward_proofs})
            backend = section_backend(engine.serving, engine.sync, device=engine.model.device)
            async with live_servers(
                engine,
                policy.engines.client,
                directory.path,
                lambda url: require_server(plan.engines, url, backend=backend),
                backend=backend,
                note=progress.note,
                pictures=policy.engines.pictures,
            ):
                yield OpenStages(stages=stages, model=model, sandbox=policy.sandbox_text)


def _engine_proof(engines: OpenEngines, *, adapters_loaded: bool) -> ModelProof | None:
    """The proof of the embedded engine; it opened before the trainer loaded adapters into it."""
    if adapters_loaded and engines.prove_again is not None:
        return engines.prove_again()
    return engines.proof


def _engine_stage(policy: Policy, push: Push, turns: TurnTaking | None) -> LocalEngines:
    """The engines, which workers in child processes ask without this process."""
    client, wait_s = policy.engines.client, policy.engines.wait_s
    if policy.news is not None:
        client.counted = policy.news.counted
        return ChildEngines(client, push, policy.news, wait_s=wait_s, turns=turns)
    shared = policy.engines.shares_weights
    return LocalEngines(client, push, shared=shared, wait_s=wait_s, turns=turns)


def open_learner(
    plan: Plan,
    policy: Policy,
    store: TrajectoryStore,
    checkpoint: Checkpoint | None,
    *,
    run_dir: Path,
) -> tuple[LocalLearner, Trainer]:
    """The trainer of a policy, where its checkpoint left it."""
    from agentrl.train.saving.held_trainer import hold_trained

    pretrained = policy.pretrained
    assert pretrained is not None
    begin = checkpoint.path if checkpoint else None
    trainer = make_trainer(plan.trainer, pretrained.model, run_dir=run_dir, checkpoint=begin)
    hints = open_hints(plan.trainer, plan.tasks, plan.rollouts.chat)
    maker = StepMaker(plan.schedule, hints=hints, checkpoint=begin)
    learner = LocalLearner(
        maker,
        trainer,
        store,
        hold=lambda: hold_trained(pretrained.model, pretrained.tokenizer, trainer),
    )
    return learner, trainer


@contextlib.asynccontextmanager
async def syncing(
    section: SyncSection,
    serving: ServingSection,
    policy: Policy,
    trainer: Trainer,
    *,
    device: str,
    lora: LoraSection | None,
    directory: Path,
) -> AsyncIterator[Push]:
    """Connect the trainer's weights to the engines; what moves them is closed at the end.

    Args:
        section: by which backend.
        serving: which engines.
        policy: its model is trained, its engines receive.
        trainer: sends.
        device: as `model.device`.
        lora: adapters that may go alone.
        directory: folder of the `disk` backend.
    """

    from agentrl.train.logprob_worker import turn_log_probs

    backend = section_backend(serving, section, device=device)
    sender = make_sender(
        section,
        backend=backend,
        directory=directory,
        address=own_address(serving.urls),
        cuda=device_to_device(serving, section, device=device),
        workers=engine_width(serving),
        describe=lambda: [
            (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in weights()
        ],
    )
    sync = WeightSync(policy.engines.client, sender, limit_s=section.timeout_s)
    try:
        await sync.connect()
        pretrained = policy.pretrained
        assert pretrained is not None  # there is something to train
        weights = sent_weights(lora, pretrained.model, trainer, backend=backend)

        async def score(turns: Sequence[Turn]) -> Sequence[Sequence[float]]:
            return await run_computing(turn_log_probs, trainer.backend, turns)

        async def sent() -> Digests:
            return await run_computing(sent_digests, pretrained.model, trainer)

        yield FirstSyncCheck(
            lambda version: sync.push(weights, version),
            policy.engines.client,
            score,
            sent,
            probe_prompts(pretrained.tokenizer),
            shared=policy.engines.shares_weights,
            bound=most_apart(serving.args if serving.engine == "vllm" else {}),
        )
    finally:
        await sync.close()
