"""The choice of an optimizer by its name in the config."""

from __future__ import annotations

from torch import nn

from agentrl.config.schema import TrainSection
from agentrl.train.optim.eight_bit import MasterAdamW8bit
from agentrl.train.optim.muon import MasterMuon
from agentrl.train.optim.optimizer import MasterAdamW


def make_optimizer(model: nn.Module, train: TrainSection) -> MasterAdamW:
    """Make the optimizer of `train.optimizer` for the parameters that require gradients.

    Raises:
        ConfigError: this torch has no Muon, or the model has no matrix for it; or bitsandbytes is
            not installed.
    """
    if train.optimizer == "muon":
        return MasterMuon(model, betas=train.betas, weight_decay=train.weight_decay)
    if train.optimizer == "adamw_8bit":
        return MasterAdamW8bit(model, betas=train.betas, weight_decay=train.weight_decay)
    return MasterAdamW(model, betas=train.betas, weight_decay=train.weight_decay)
