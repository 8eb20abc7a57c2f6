"""The policy update: log-probabilities, loss, optimizer, checkpoint."""

from agentrl.train.checkpoint import save_checkpoint
from agentrl.train.pretrained import Pretrained, load_pretrained
from agentrl.train.trainer import Trainer

__all__ = ["Pretrained", "Trainer", "load_pretrained", "save_checkpoint"]
