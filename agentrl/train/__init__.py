"""The policy update: log-probabilities, loss, optimizer, checkpoint."""

from agentrl.train.checkpoint import save_checkpoint
from agentrl.train.logprob_worker import LogProbSource, LogProbWorker
from agentrl.train.pretrained import Pretrained, load_pretrained
from agentrl.train.reference import FrozenPolicy, load_reference
from agentrl.train.trainer import Trainer

__all__ = [
    "FrozenPolicy",
    "LogProbSource",
    "LogProbWorker",
    "Pretrained",
    "Trainer",
    "load_pretrained",
    "load_reference",
    "save_checkpoint",
]
