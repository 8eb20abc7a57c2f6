"""The main function of the process that trains a reward model further and measures it.

    job -> mix pairs -> fit from the present model -> accuracy of both -> scale -> outcome

It sends a frame with `outcome` or `error` at the end and frames about its progress before; its
parent may end it at any moment, and it ends with its parent.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.chat import build_chat
from agentrl.config.fit import FitConfig
from agentrl.config.load import FIT_FILE, dump_config
from agentrl.config.schema import ChatSection, ModelSection
from agentrl.disk.checkpoint import resolve_model_path
from agentrl.disk.logs import quiet_libraries
from agentrl.errors import DataError, in_words
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.launch import fit
from agentrl.fit.rating.reward_model import open_reward_model
from agentrl.fit.rating.scored_pairs import NamedPairs, ScoredPairs, score_pairs
from agentrl.fit.refresh.jobs import TRAIN_PAIRS, FitOutcome, RefreshJob
from agentrl.fit.refresh.origin import fit_of
from agentrl.fit.refresh.pool import write_mixed
from agentrl.fit.refresh.records import HELD_OUT_PAIRS, NEW_PAIRS
from agentrl.machine.processes.child_main import ChildChannel
from agentrl.models.source import load_tokenizer
from agentrl.reward.scale import SCALE_FILE, RewardScale
from agentrl.reward.temperature import FittedTemperature, fit_regular_temperature

logger = logging.getLogger(__name__)

_HELD = "heldout"
_ACCURACY = f"eval/{_HELD}/rm/accuracy"
_MOST_A_STEP = 32
"""Pairs of an optimizer step where the fit that made the model is not known."""


def serve(channel: ChildChannel) -> None:
    """Do one job of the parent."""
    channel.end_with_parent()
    job = RefreshJob.from_json(channel.receive().head)
    quiet_libraries()
    logging.basicConfig(level=logging.INFO)
    try:
        channel.send({"outcome": asdict(asyncio.run(_refreshed(job, channel)))})
    except Exception as error:  # recording boundary: devices and disks raise anything
        why = in_words(error)
        logger.error("the refresh ends: %s", why)
        channel.send({"error": why})


async def _refreshed(job: RefreshJob, channel: ChildChannel) -> FitOutcome:

    known = fit_of(job.origin, Path(job.base))
    made_by, base = (None, Path(job.base)) if known is None else known
    tokenizer = load_tokenizer(ModelSection(path=job.current))
    chat = build_chat(tokenizer, made_by.chat if made_by else ChatSection())
    old = write_mixed(job, chat)
    config = fit_config(job, made_by, outputs=_outputs(job), pairs=_pairs_in(job))
    (Path(job.folder) / "fit.yaml").write_text(dump_config(config), encoding="utf-8")
    progress = _SentProgress(channel)
    result = await fit(config, base=base, progress=progress)
    accuracies = result.before.get(_ACCURACY), result.after.get(_ACCURACY)
    for name, value in zip(("present", "new"), accuracies, strict=True):
        if value is None or not math.isfinite(value):
            raise DataError(f"the {name} model has no accuracy on the held-out pairs: got {value}")
    before, after = (float(value or 0.0) for value in accuracies)
    stored = store_scale(job)
    return FitOutcome(
        before=before,
        after=after,
        old_pairs=old,
        loss=progress.loss,
        scale=stored.text,
        temperature=stored.temperature,
        temperature_kept=stored.kept,
    )


def _pairs_in(job: RefreshJob) -> int:
    return len(load_pairs(str(Path(job.folder) / TRAIN_PAIRS)))


def _outputs(job: RefreshJob) -> int:
    from agentrl.train.score_model import reward_head

    return reward_head(job.current).outputs


def fit_config(
    job: RefreshJob, made_by: FitConfig | None, *, outputs: int, pairs: int
) -> FitConfig:
    """The fit file of a refresh: that of the fit that made the model, with other data and steps.

    Args:
        job: names data, model and steps.
        made_by: None where it is not known, which takes the defaults of a reward model.
        outputs: of the head; 2 is one of `purm`.
        pairs: that are trained on.
    """
    given: dict[str, Any] = {} if made_by is None else made_by.model_dump(mode="json")
    folder = Path(job.folder)
    objective = given.get("objective", {"kind": "rm", "loss": "purm" if outputs == 2 else "bt"})
    train = given.get("train", {})
    per_step = min(given.get("data", {}).get("examples_per_step", _MOST_A_STEP), pairs)
    document = {
        "run": {"name": f"v{job.version}", "dir": job.models, "seed": job.seed},
        "model": {**given.get("model", {}), "path": job.current, "device": job.device},
        "chat": given.get("chat", {}),
        "data": {
            "source": str(folder / TRAIN_PAIRS),
            "examples_per_step": per_step,
            "epochs": math.ceil(job.steps * per_step / pairs) + 1,
        },
        # New pairs have no margins: no labeller says by how much a rollout is better.
        "objective": {**objective, "margin_scale": 0.0, "ensemble": 1},
        "train": {
            **train,
            "steps": job.steps,
            "max_minutes": None,
            "learning_rate": job.learning_rate,
            "schedule": "constant",
            "warmup_steps": 0,
            "backend": "torch",
            "micro_batch_tokens": max(train.get("micro_batch_tokens", 4096), 2 * job.longest),
        },
        "eval": {"datasets": {_HELD: {"source": str(folder / HELD_OUT_PAIRS)}}},
        "checkpoint": {"every_steps": job.steps, "keep_last": 1},
        "log": {"tensorboard": False},
    }
    return FIT_FILE.parse(document, where=f"the fit of {folder}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshedScale:
    """The scale of a new version of a reward model."""

    temperature: float
    """T, in units of the raw score."""
    kept: bool
    """The held-out pairs gave no T, so it is that of the version before."""
    text: str
    """The scale in words."""


def store_scale(job: RefreshJob) -> RefreshedScale:
    """Fit temperature and whitening of the new model, and write them beside its checkpoint.

    Mean and deviation come from the answers of all new pairs, which the policy of now has given;
    the temperature from the held-out ones alone, since those that were trained on are too sure.
    Pairs that give none, as where all are ordered wrong, leave that of the version before: 1 where
    that one has no scale, since its scores are then read as they are.

    Raises:
        DataError: all scores are equal, or one is not finite.
    """
    model = open_reward_model(
        str(Path(job.models) / f"v{job.version}"),
        device=job.device,
        batch_tokens=max(8192, job.longest + 1),
    )
    assert model.folder is not None
    folder = Path(job.folder)
    new, held = (load_pairs(str(folder / name)) for name in (NEW_PAIRS, HELD_OUT_PAIRS))
    scored = score_pairs(model, NamedPairs(name=str(folder), pairs=[*held, *new]))
    held_ids = {pair.id for pair in held}
    of_held = [index for index, pair in enumerate(scored.pairs) if pair.id in held_ids]
    rewards = np.concatenate([scored.chosen_NO[:, 0], scored.rejected_NO[:, 0]])
    found = temperature_of(scored.part(of_held))
    temperature = _temperature_before(job) if found is None else found.value
    try:
        scale = RewardScale.fitted(rewards, temperature=temperature)
    except DataError:
        if job.needs_scale:
            raise
        text = "none: all scores are equal"
    else:
        scale.save(model.folder)
        origin = "of the version before" if found is None else "of the held-out pairs"
        prior = f" ({found.prior})" if found is not None and found.prior else ""
        text = (
            f"temperature {temperature:.3g} {origin}{prior}, mean {scale.mean:.3g}, "
            f"std {scale.std:.3g}"
        )
    return RefreshedScale(temperature=temperature, kept=found is None, text=text)


def temperature_of(held: ScoredPairs) -> FittedTemperature | None:
    """Temperature of held-out pairs; None, with the reason in the log, where they give none."""
    try:
        return fit_regular_temperature(
            held.chosen_NO[:, 0] - held.rejected_NO[:, 0],
            variances=held.variances_N,
            label_probability=held.labels_N,
        )
    except DataError as error:
        logger.warning("the held-out pairs give no temperature: %s", error)
        return None


def _temperature_before(job: RefreshJob) -> float:
    folder = Path(resolve_model_path(job.current)).expanduser()
    return RewardScale.load(folder).temperature if (folder / SCALE_FILE).is_file() else 1.0


class _SentProgress:
    """A `FitProgress` whose calls go to the parent."""

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel
        self.loss = math.nan

    def note(self, text: str) -> None:
        logger.info("%s", text)
        self._channel.send({"note": text})

    def phase(self, name: str) -> None:
        self._channel.send({"phase": name})

    def step_done(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        self.loss = metrics.get("rm/loss", math.nan)
        self._channel.send({"step": step, "steps": steps, "loss": self.loss})

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        logger.info("step %d: %s", step, dict(metrics))

    def trained(self, done: int, total: int) -> None:
        self._channel.send({"done": done, "total": total})
