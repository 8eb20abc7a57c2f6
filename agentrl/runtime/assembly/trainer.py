"""The trainer of a run, put together from its config: one function for every runtime."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.plan import TrainerPlan
from agentrl.data import TokenStore
from agentrl.disk.model_source import model_source, source_beside
from agentrl.disk.other_models import other_model_source
from agentrl.disk.pinned_models import MODEL
from agentrl.disk.proofs import keep_proofs
from agentrl.estimators import find_estimator
from agentrl.models.source import check_model_path
from agentrl.models.vision.checks import check_seeing
from agentrl.runtime.assembly.teacher import make_teacher

if TYPE_CHECKING:
    from agentrl.config.schema import CriticSection
    from agentrl.train import Trainer
    from agentrl.train.backends.ranks import Ranks
    from agentrl.train.token_record import TokenListener


def make_trainer(
    plan: TrainerPlan,
    model: Any,
    *,
    run_dir: Path,
    ranks: Ranks | None = None,
    checkpoint: Path | None = None,
) -> Trainer:
    """The trainer of a run, with its backend, reference, critic and teacher, where it has them.

    Every process of a run calls it with the same arguments but for its rank in `ranks`.

    Args:
        plan: of the trainer.
        model: the policy; loaded from the checkpoint if there is one.
        run_dir: gets the batch of a step that fails and, with `log.tokens`, in `tokens/` what each
            rank made of every token; every rank writes there.
        ranks: that train together, joined already and closed by the caller; None is this process
            alone.
        checkpoint: to go on from; None begins with the models of the config.

    Raises:
        ConfigError: settings that do not go together, or a model that cannot be loaded.
        RunError: a checkpoint that does not fit.
        TrainError: the ranks hold different weights, or one of them is gone.
    """
    from agentrl.models.vision.reader import reader_of
    from agentrl.train import Trainer, load_reference
    from agentrl.train.backends.choose import make_backend, prove_adapters
    from agentrl.train.critic import Critic
    from agentrl.train.losses import needs_of
    from agentrl.train.model.value_head import load_critic

    reader = reader_of(model)
    if reader is not None:
        check_seeing(plan)
    algorithm, train = plan.algorithm, plan.train
    find_estimator(algorithm.advantage_estimator, base=plan.base)
    needs = needs_of(algorithm, base=plan.base)
    # A sharded backend takes the model apart.
    vocabulary = len(model.get_output_embeddings().weight)
    backend = make_backend(
        model,
        train=train,
        gradient_checkpointing=plan.model.gradient_checkpointing,
        ranks=ranks,
        mask_keys=needs.mask_keys,
    )
    # Reference and critic are what the run began with, also when it goes on from a checkpoint.
    began = plan.model.model_copy(update={"path": model_source(plan.model)})
    critic = None
    if algorithm.needs_values:
        critic = Critic(
            load_critic(
                _critic_section(plan),
                began,
                images=reader,
                in_parts=train.backend.divides_weights,
            ),
            section=plan.critic,
            train=train,
            gradient_checkpointing=plan.model.gradient_checkpointing,
            ranks=ranks,
        )
    reference = load_reference(
        began,
        algorithm,
        mask_keys=needs.mask_keys,
        backend=train.backend,
        ranks=ranks,
        images=reader,
    )
    teacher = make_teacher(
        plan, backend, began=began, vocabulary=vocabulary, ranks=ranks, images=reader
    )
    trainer = Trainer(
        model,
        train=train,
        algorithm=algorithm,
        backend=backend,
        reference=reference,
        critic=critic,
        teacher=teacher,
        failures=run_dir,
        record=_token_record(run_dir, ranks) if plan.log.tokens else None,
    )
    if checkpoint is not None:
        trainer.load(checkpoint)
        prove_adapters(backend, model)
        if critic is not None:
            prove_adapters(critic.backend, critic.model, who="the critic")
    if backend.rank == 0:
        proofs = {
            MODEL: backend.proof,
            "critic": critic and critic.backend.proof,
            "reference": reference and reference.frozen.proof,
            "teacher": getattr(teacher, "proof", None),  # a server has none
        }
        keep_proofs(run_dir, proofs)
    return trainer


def check_learner(plan: TrainerPlan) -> str:
    """Refuse what `make_trainer` would refuse, as far as it is known before anything is loaded.

    Args:
        plan: of the trainer.

    Returns:
        Who trains what, in words.

    Raises:
        ConfigError: a backend that does not fit the optimizer, adapters without peft, a kernel of
            attention that cannot run here, or a critic from a path that is no checkpoint.
    """
    train = plan.train
    if train.steps == 0:
        return "train.steps is 0: nothing is trained"
    from agentrl.train.backends.choose import check_backend, check_kernel

    check_backend(train, dtype=plan.model.dtype)
    if plan.runtime.kind == "local":
        check_kernel(plan.model.attention, device=plan.model.device, dtype=plan.model.dtype)
    valued = plan.algorithm.needs_values
    for key, section in (
        ("train.lora", train.lora),
        ("critic.lora", plan.critic.adapters if valued else None),
    ):
        if section is not None:
            from agentrl.train.model.lora import load_peft

            load_peft(key)
    ranks = plan.runtime.trainer_ranks if plan.runtime.kind == "ray" else 1
    what = "all weights" if train.lora is None else f"adapters of rank {train.lora.rank}"
    text = f"{train.optimizer} on {what}, backend {train.backend.kind}, ranks: {ranks}"
    if not valued:
        return text

    path = _critic_section(plan).path
    if path is not None:
        check_model_path(path, key="critic.path")
    return f"{text}, with a critic"


def _token_record(run_dir: Path, ranks: Ranks | None) -> TokenListener:
    """Stores what the trainer made of the tokens; the trainer contains every failure of it."""

    world_size = 1 if ranks is None else ranks.world_size
    return partial(TokenStore(run_dir / "tokens").write, ranks=world_size)


def _critic_section(plan: TrainerPlan) -> CriticSection:
    """With its path resolved as that of every model beside the policy."""
    section = plan.critic
    if section.path is None:
        return section
    source = source_beside(plan.model, other_model_source(section.path, plan.base))
    return section.model_copy(update={"path": source})
