"""New weights from the trainer to every engine, and the proof that they arrived."""

from agentrl.sync.choose import make_receiver, make_sender, resolve_backend
from agentrl.sync.coordinator import WeightSync
from agentrl.sync.transfer import WeightReceiver, WeightSender

__all__ = [
    "WeightReceiver",
    "WeightSender",
    "WeightSync",
    "make_receiver",
    "make_sender",
    "resolve_backend",
]
