"""A reward model that a fit has made, opened to score answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agentrl.chat import build_chat
from agentrl.config.load import FIT_FILE
from agentrl.config.schema import ChatSection, ModelSection
from agentrl.errors import ConfigError
from agentrl.reward.scale import SCALE_FILE, RewardScale
from agentrl.runtime.disk.checkpoint import resolve_model_path
from agentrl.runtime.disk.logs import quiet_transformers
from agentrl.runtime.fit.ensemble import member_runs
from agentrl.runtime.fit.model import CHAT_FILE

if TYPE_CHECKING:
    from agentrl.batch.examples import ScoredTokens
    from agentrl.batch.records import FloatArray
    from agentrl.chat import ChatFormat
    from agentrl.train.reward_models.rollout_rewards import RowScorer

TOGETHER = 512
"""Rows that are packed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRewardModel:
    """A reward model with the chat format and tokenizer that its rows are made with."""

    path: str
    """The checkpoint folder, or a hub name."""
    model: RowScorer
    """Gives raw scores; of an ensemble the mean of whitened ones, and their deviation."""
    chat: ChatFormat
    """Format of the fit that made it, where that is known."""
    decode: Callable[[Sequence[int]], str]
    """Ids to text, without special tokens."""

    @property
    def folder(self) -> Path | None:
        """Folder of the checkpoint; None for a hub name."""
        folder = Path(self.path).expanduser()
        return folder if folder.is_dir() else None

    def stored_scale(self) -> RewardScale | None:
        """The scale beside the checkpoint; None without one.

        Raises:
            DataError: it cannot be read.
        """
        if self.folder is None or not (self.folder / SCALE_FILE).is_file():
            return None
        return RewardScale.load(self.folder)

    def scores(
        self, rows: Sequence[ScoredTokens], done: Callable[[int, int], None] = lambda done, of: None
    ) -> FloatArray:
        """[N, O] As `ScoreModel.scores`, a part at a time.

        Args:
            rows: any number.
            done: called with the number of rows that are scored, and of all.
        """
        parts = [np.zeros((0, self.model.outputs))]
        for start in range(0, len(rows), TOGETHER):
            parts.append(self.model.scores(rows[start : start + TOGETHER]))
            done(min(start + TOGETHER, len(rows)), len(rows))
        return np.concatenate(parts)


def open_reward_model(
    path: str, *, device: str = "auto", batch_tokens: int | None = None
) -> OpenRewardModel:
    """Load a reward model and its tokenizer.

    Args:
        path: run directory of a fit, also one with members of an ensemble, a checkpoint folder or
            a hub name.
        device: as `model.device`.
        batch_tokens: most packed tokens of a pass; None takes 8192.

    Raises:
        ConfigError: it cannot be loaded, is no reward model, or a member of an ensemble has no
            stored scale.
        RunError: a run directory without a complete checkpoint.
        ChatError: its tokenizer has no usable template.
    """
    from agentrl.train.model.pretrained import load_tokenizer
    from agentrl.train.score_model import BATCH_TOKENS, load_score_model

    quiet_transformers()
    members = member_runs(Path(path).expanduser())
    if members:
        return _open_ensemble(path, members, device=device, batch_tokens=batch_tokens)
    source = resolve_model_path(path)
    model = load_score_model(source, device=device, batch_tokens=batch_tokens or BATCH_TOKENS)
    tokenizer = load_tokenizer(ModelSection(path=source))
    return OpenRewardModel(
        path=source,
        model=model,
        chat=build_chat(tokenizer, _chat_of(Path(source).expanduser())),
        decode=lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True),
    )


def _open_ensemble(
    path: str, members: Sequence[Path], *, device: str, batch_tokens: int | None
) -> OpenRewardModel:
    from agentrl.train.reward_models.ensemble_scores import EnsembleScores

    opened = [
        open_reward_model(str(each), device=device, batch_tokens=batch_tokens) for each in members
    ]
    scales: list[RewardScale] = []
    for each, one in zip(members, opened, strict=True):
        scale = one.stored_scale()
        if scale is None:
            raise ConfigError(
                f"{each} has no {SCALE_FILE}, but members of an ensemble are whitened before their "
                "mean, or the one with the largest scores decides alone; write it with `agentrl "
                f"rm report {each} --data PAIRS --store`, and so for each of the {len(members)} "
                "members"
            )
        scales.append(scale)
    return OpenRewardModel(
        path=path,
        model=EnsembleScores([one.model for one in opened], scales),
        chat=opened[0].chat,
        decode=opened[0].decode,
    )


def _chat_of(checkpoint: Path) -> ChatSection:
    """The section of the fit that wrote a checkpoint; the defaults where that is not known."""
    beside = checkpoint / CHAT_FILE
    if beside.is_file():  # also where the checkpoint was exported
        try:
            return ChatSection.model_validate_json(beside.read_text())
        except ValueError as error:
            raise ConfigError(f"{beside} is no section chat of a fit: {error}") from None
    file = checkpoint.parent.parent / "config.yaml"
    if checkpoint.parent.name != "checkpoints" or not file.is_file():
        return ChatSection()
    try:
        return FIT_FILE.load(file).chat
    except ConfigError as error:
        raise ConfigError(
            f"{checkpoint} belongs to a run that is no fit, so it is no reward model: {error}"
        ) from None
