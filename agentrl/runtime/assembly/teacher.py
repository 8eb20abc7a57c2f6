"""The teacher of a run: checked before anything is loaded, and made for its trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl.config.distill import CheckpointTeacher, DistillSection, ServedTeacher
from agentrl.config.plan import TrainerPlan
from agentrl.config.schema import ModelSection
from agentrl.disk.model_source import model_source, source_beside
from agentrl.disk.other_models import (
    check_read_ids,
    check_same_vocabulary,
    other_model_source,
)
from agentrl.errors import ConfigError
from agentrl.fit.data.vocabulary import vocabulary_of
from agentrl.models.rotary import check_row_length
from agentrl.models.source import (
    check_language_model,
    load_tokenizer,
    loadable,
    stored_config,
    weights_bytes,
)
from agentrl.models.vision.sizes import model_sizes

if TYPE_CHECKING:
    from agentrl.models.vision.reader import VisionReader
    from agentrl.train.backends.contract import TrainBackend
    from agentrl.train.backends.ranks import Ranks
    from agentrl.train.distill.records import Teacher

KEY = "algorithm.distill.teacher"


def teacher_section(plan: TrainerPlan) -> DistillSection | None:
    """The distillation of a run; None where it trains without a teacher."""
    return plan.algorithm.distill if plan.train.steps else None


def check_teacher(plan: TrainerPlan, *, tokenizer: Any = None) -> str:
    """Refuse a teacher that cannot be used, before any weight is loaded. Asks no server.

    Args:
        plan: of the trainer.
        tokenizer: of the policy; None does not compare vocabularies.

    Returns:
        The teacher in words.

    Raises:
        ConfigError: a path that holds no model, one of another vocabulary, rows that are longer
            than it reads, or a key that is not set.
    """
    section = teacher_section(plan)
    if section is None:
        return "no teacher"
    teacher = section.teacher
    if isinstance(teacher, CheckpointTeacher):
        _check_checkpoint(teacher, section, plan, tokenizer=tokenizer)
        return f"{teacher.path} beside the policy, {_form(section)}"
    if isinstance(teacher, ServedTeacher):
        _server(teacher, section, vocabulary=section.top_k)
        return f"{teacher.model} at {teacher.url}, {_form(section)}"
    started = "" if teacher.weights == "current" else " as the run began with it"
    return f"the policy{started}, with a hint, {_form(section)}"


async def ask_server(plan: TrainerPlan, tokenizer: Any = None) -> str:
    """Ask a served teacher what it has to answer in the run; nothing for other teachers.

    Args:
        plan: of the trainer.
        tokenizer: of the policy; None loads it.

    Raises:
        ConfigError: another tokenizer, or rows longer than the server takes.
        ServedModelError: it cannot be asked, or gives no log-probabilities of prompts.
    """
    section = teacher_section(plan)
    if section is None or not isinstance(section.teacher, ServedTeacher):
        return ""
    if tokenizer is None:
        source = model_source(plan.model)
        tokenizer = load_tokenizer(plan.model.model_copy(update={"path": source}))
    server = _server(section.teacher, section, vocabulary=len(tokenizer))
    await server.check(tokenizer, context=plan.rollout.max_context_tokens)
    return "it answers"


def make_teacher(
    plan: TrainerPlan,
    backend: TrainBackend,
    *,
    began: ModelSection,
    vocabulary: int,
    ranks: Ranks | None,
    images: VisionReader | None = None,
) -> Teacher | None:
    """The teacher of a run; every rank makes its own. A server was asked before (`ask_server`).

    Args:
        plan: of the trainer.
        backend: of the policy.
        began: the model that the run began with.
        vocabulary: tokens that the policy's head has.
        ranks: that train together, joined already; None is this process alone.
        images: of the policy, which the teacher reads, too; None for a policy of text.

    Returns:
        None for a run without distillation.

    Raises:
        ConfigError: as `check_teacher`, or a model that cannot be loaded.
        TrainError: the ranks hold different weights, `top_k` is larger than the vocabulary, or
            another rank is gone.
    """
    from agentrl.train.distill import TeacherModel, load_teacher

    section = teacher_section(plan)
    if section is None:
        return None
    teacher, top_k, own = section.teacher, section.top_k, plan.train.backend
    if teacher.kind == "served":
        return _server(teacher, section, vocabulary=vocabulary)
    if teacher.kind == "checkpoint":
        check_teacher(plan, tokenizer=load_tokenizer(began))
        source = source_beside(plan.model, other_model_source(teacher.path, plan.base))
        model = began.model_copy(update={"path": source})
        return load_teacher(
            model, top_k=top_k, vocabulary=vocabulary, backend=own, ranks=ranks, images=images
        )
    if teacher.weights == "current":
        return TeacherModel(
            backend, top_k=top_k, vocabulary=vocabulary, hinted=True, name="policy with a hint"
        )
    return load_teacher(
        began,
        top_k=top_k,
        vocabulary=vocabulary,
        backend=own,
        ranks=ranks,
        hinted=True,
        images=images,
    )


def teacher_bytes(plan: TrainerPlan) -> int | None:
    """Bytes of the weights of a teacher in its files; 0 where no other model is loaded.

    Returns:
        None where the teacher is the model that the run begins with.
    """
    section = teacher_section(plan)
    if section is None or section.teacher.kind == "served":
        return 0
    if section.teacher.kind == "hint":
        return 0 if section.teacher.weights == "current" else None
    return weights_bytes(other_model_source(section.teacher.path, plan.base))


def _form(section: DistillSection) -> str:
    return f"top_k {section.top_k}, coef {section.coef:g}"


def _server(teacher: ServedTeacher, section: DistillSection, *, vocabulary: int) -> Any:
    from agentrl.train.distill.teacher_server import TeacherServer

    return TeacherServer(teacher, top_k=section.top_k, vocabulary=vocabulary)


def _check_checkpoint(
    teacher: CheckpointTeacher, section: DistillSection, plan: TrainerPlan, *, tokenizer: Any
) -> None:
    source = loadable(other_model_source(teacher.path, plan.base), key=f"{KEY}.path")
    source = source_beside(plan.model, source)
    check_language_model(source, key=f"{KEY}.path")
    try:
        shape = stored_config(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{KEY}.path {teacher.path!r} has no usable config: {error}") from None
    text = getattr(shape, "text_config", None) or shape
    positions = getattr(text, "max_position_embeddings", None)
    context = plan.rollout.max_context_tokens
    if positions is not None and positions < context:
        raise ConfigError(
            f"{KEY}.path {teacher.path!r} reads {positions} tokens, but a row may have {context} "
            "(rollout.max_context_tokens); lower that, or take a teacher of longer contexts"
        )
    check_row_length(
        shape, context, who=f"{KEY}.path {teacher.path!r}", key="rollout.max_context_tokens"
    )
    if section.top_k > text.vocab_size:
        raise ConfigError(
            f"algorithm.distill.top_k is {section.top_k}, but {teacher.path!r} has "
            f"{text.vocab_size} tokens; lower it"
        )
    if tokenizer is not None:
        _check_images(shape, plan.model, path=teacher.path)
        theirs = load_tokenizer(plan.model.model_copy(update={"path": source}))
        who = f"{KEY}.path {teacher.path!r}"
        check_same_vocabulary(tokenizer.get_vocab(), theirs.get_vocab(), who)
        check_read_ids(tokenizer.get_vocab(), text.vocab_size, who)
        if text.vocab_size < (ours := vocabulary_of(model_source(plan.model))):
            raise ConfigError(
                f"{who} has {text.vocab_size} token ids (vocab_size in its config.json), but the "
                f"policy has {ours}, and may sample one for which the teacher has no probability; "
                f"take a teacher with at least {ours}, or save this one after "
                f"model.resize_token_embeddings({ours})"
            )


def _check_images(shape: Any, model: ModelSection, *, path: str) -> None:
    """Refuse a teacher that cannot be given the images of a vision-language policy."""
    from agentrl.models.vision.reader import check_shared_images, family_of

    policy = stored_config(model_source(model))
    family = family_of(policy, path=model.path)
    if family is not None:
        check_shared_images(shape, family, model_sizes(policy), who=f"{KEY}.path {path!r}")
