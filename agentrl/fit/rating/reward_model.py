"""A reward model that a fit has made, opened to score answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agentrl.chat import build_chat
from agentrl.config.load import FIT_FILE
from agentrl.config.schema import ChatSection, ModelSection
from agentrl.disk.checkpoint import resolve_model_path
from agentrl.disk.logs import quiet_transformers
from agentrl.disk.other_models import member_runs
from agentrl.errors import ConfigError
from agentrl.fit.model import CHAT_FILE
from agentrl.models.source import load_tokenizer
from agentrl.reward.scale import SCALE_FILE, RewardScale, load_scales

if TYPE_CHECKING:
    from agentrl.batch.examples import ScoredTokens
    from agentrl.batch.records import FloatArray
    from agentrl.chat import ChatFormat
    from agentrl.fit.reward_models.rollout_rewards import RowScorer

TOGETHER = 512
"""Rows that are packed together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRewardModel:
    """A reward model with the chat format and tokenizer that its rows are made with."""

    path: str
    """The checkpoint folder, or a hub name."""
    model: RowScorer
    """Gives raw scores; of an ensemble the mean of whitened ones, and their deviation. Those of
    heads without a stored scale are raw."""
    chat: ChatFormat
    """Format of the fit that made it, where that is known."""
    decode: Callable[[Sequence[int]], str]
    """Ids to text, without special tokens."""
    members: int = 1
    """Members or heads of an ensemble."""
    heads: RowScorer | None = None
    """Gives the raw scores of the heads of one body, side by side; None for any other model."""

    @property
    def folder(self) -> Path | None:
        """Folder of the checkpoint; None for a hub name."""
        folder = Path(self.path).expanduser()
        return folder if folder.is_dir() else None

    def stored_scale(self) -> RewardScale | None:
        """The scale beside the checkpoint; None without one, and where scores are made of heads.

        Raises:
            DataError: it cannot be read.
        """
        folder = self.folder if self.heads is None else None
        if folder is None or not (folder / SCALE_FILE).is_file():
            return None
        return RewardScale.load(folder)

    def scores(
        self, rows: Sequence[ScoredTokens], done: Callable[[int, int], None] = lambda done, of: None
    ) -> FloatArray:
        """[N, O] As `ScoreModel.scores`, a part at a time.

        Args:
            rows: any number.
            done: called with the number of rows that are scored, and of all.
        """
        parts = [np.zeros((0, self.model.heads * self.model.outputs))]
        for start in range(0, len(rows), TOGETHER):
            parts.append(self.model.scores(rows[start : start + TOGETHER]))
            done(min(start + TOGETHER, len(rows)), len(rows))
        return np.concatenate(parts)

    def raw(self) -> OpenRewardModel:
        """The model whose outputs are the raw scores of the heads; itself without heads."""
        return self if self.heads is None else replace(self, model=self.heads, heads=None)

    def whitened(self, scales: Sequence[RewardScale]) -> OpenRewardModel:
        """The model whose heads are whitened by other scales before their mean.

        Args:
            scales: [_K] of each head.
        """
        from agentrl.fit.reward_models.ensemble_scores import EnsembleScores

        assert self.heads is not None
        return replace(self, model=EnsembleScores([self.heads], scales))


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
        DataError: a stored scale of heads that cannot be read.
        RunError: a run directory without a complete checkpoint.
        ChatError: its tokenizer has no usable template.
    """
    from agentrl.train.score_model import BATCH_TOKENS, load_score_model

    quiet_transformers()
    members = member_runs(Path(path).expanduser())
    if members:
        return _open_ensemble(path, members, device=device, batch_tokens=batch_tokens)
    source = resolve_model_path(path)
    model = load_score_model(source, device=device, batch_tokens=batch_tokens or BATCH_TOKENS)
    tokenizer = load_tokenizer(ModelSection(path=source))
    folder = Path(source).expanduser()
    several = model.heads > 1
    opened = OpenRewardModel(
        path=source,
        model=model,
        chat=build_chat(tokenizer, _chat_of(folder)),
        decode=lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True),
        members=model.heads,
        heads=model if several else None,
    )
    if not several:
        return opened
    stored = (folder / SCALE_FILE).is_file()
    scales = load_scales(folder, model.heads) if stored else (RewardScale(),) * model.heads
    return opened.whitened(scales)


def _open_ensemble(
    path: str, members: Sequence[Path], *, device: str, batch_tokens: int | None
) -> OpenRewardModel:
    from agentrl.fit.reward_models.ensemble_scores import EnsembleScores

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
        members=len(opened),
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
        return FIT_FILE.load_stored(file).chat
    except ConfigError as error:
        raise ConfigError(
            f"{checkpoint} belongs to a run that is no fit, so it is no reward model: {error}"
        ) from None
