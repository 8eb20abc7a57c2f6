"""The policy update: log-probabilities, loss, optimizer, checkpoint."""

from agentrl.train.backends.data_parallel import DataParallelBackend
from agentrl.train.backends.ranks import Meeting, Ranks
from agentrl.train.checkpoint import save_checkpoint
from agentrl.train.critic import Critic
from agentrl.train.failed_step import load_failed_step
from agentrl.train.frozen_policy import FrozenPolicy
from agentrl.train.logprob_worker import LogProbSource, LogProbWorker
from agentrl.train.model.pretrained import Pretrained, load_pretrained
from agentrl.train.model.value_head import ValueModel, load_value_model
from agentrl.train.reference import Reference, load_reference
from agentrl.train.replay_failed_step import replay_failed_step
from agentrl.train.trainer import Trainer

__all__ = [
    "Critic",
    "DataParallelBackend",
    "FrozenPolicy",
    "LogProbSource",
    "LogProbWorker",
    "Meeting",
    "Pretrained",
    "Ranks",
    "Reference",
    "Trainer",
    "ValueModel",
    "load_failed_step",
    "load_pretrained",
    "load_reference",
    "load_value_model",
    "replay_failed_step",
    "save_checkpoint",
]
