"""Runs of vision-language models: where they work, and where the files of their images lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config.fit import FitConfig
from agentrl.config.fleet import ServingSection
from agentrl.config.plan import TrainerPlan
from agentrl.errors import ConfigError
from agentrl.images import ImageFolder

if TYPE_CHECKING:
    from agentrl.models.vision.reader import VisionReader


def check_seeing(plan: TrainerPlan) -> None:
    """Refuse settings under which a vision-language model is not run yet.

    Args:
        plan: of the trainer of a model that reads images.

    Raises:
        ConfigError: names each setting, what it is and what it must be.
    """
    distill = plan.algorithm.distill
    served = distill is not None and distill.teacher.kind == "served"
    wanted = [
        # Its server is asked about ids alone.
        ("algorithm.distill.teacher.kind", "served", "checkpoint or hint", not served),
    ]
    _refuse(plan.model.path, wanted)


def check_seeing_fit(config: FitConfig) -> None:
    """Refuse a fit of a vision-language model that is not made yet.

    Raises:
        ConfigError: names each setting, what it is and what it must be.
    """
    objective = config.objective
    unpaired = objective.kind == "dpo" and objective.unpaired
    wanted = [
        # `transformers` has no sequence classifiers of most of them, which would load the result.
        ("objective", objective.kind, "sft or dpo", objective.kind != "rm"),
        # It puts answers to other prompts, whose images stand elsewhere.
        ("objective.loss", "kto", "one of pairs", not unpaired),
    ]
    _refuse(config.model.path, wanted)


def _refuse(path: str, wanted: Sequence[tuple[str, object, object, bool]]) -> None:
    wrong = [(key, got, want) for key, got, want, holds in wanted if not holds]
    if wrong:
        raise ConfigError(
            f"model.path {path!r} is a vision-language model, which runs with "
            + ", ".join(f"{key}: {want} (got {got})" for key, got, want in wrong)
            + "; other choices are for models of text"
        )


def open_images(
    plan: TrainerPlan, serving: ServingSection, reader: VisionReader | None, folder: Path
) -> None:
    """Open the folder in which the reader of a run's model keeps its images.

    Args:
        plan: of the trainer.
        serving: of the run.
        reader: None for a model that reads text only.
        folder: made when the first image comes.

    Raises:
        ConfigError: as `check_seeing`, or vLLM servers for a family that they cannot be shown.
    """
    if reader is not None:
        check_seeing(plan)
        family = reader.family
        if serving.engine != "embedded" and family.markers is None:
            raise ConfigError(
                f"model.path {plan.model.path!r} is a {family.name}, whose images are not shown "
                "to vLLM servers: the line breaks around an image are one token with those of the "
                "text beside it, so the ids of a prompt do not say what a server would make of it; "
                f"use serving.engine: embedded (got {serving.engine})"
            )
        reader.folder = ImageFolder(folder.absolute())
