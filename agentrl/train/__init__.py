"""The policy update: log-probabilities, loss, optimizer, checkpoint."""

from agentrl.train.checkpoint import save_checkpoint
from agentrl.train.data_parallel import DataParallelBackend
from agentrl.train.logprob_worker import LogProbSource, LogProbWorker
from agentrl.train.pretrained import Pretrained, load_pretrained
from agentrl.train.ranks import Meeting, Ranks
from agentrl.train.reference import FrozenPolicy, load_reference
from agentrl.train.trainer import Trainer

__all__ = [
    "DataParallelBackend",
    "FrozenPolicy",
    "LogProbSource",
    "LogProbWorker",
    "Meeting",
    "Pretrained",
    "Ranks",
    "Trainer",
    "load_pretrained",
    "load_reference",
    "save_checkpoint",
]
