"""New weights from the trainer to every engine, and the proof that they arrived."""

from agentrl.sync.choose import find_transfer, make_receiver, make_sender, resolve_backend
from agentrl.sync.coordinator import WeightSync
from agentrl.sync.transfer import WeightReceiver, WeightSender
from agentrl.sync.transfer_kind import SenderSetup, TransferRoute, WeightTransfer

__all__ = [
    "SenderSetup",
    "TransferRoute",
    "WeightReceiver",
    "WeightSender",
    "WeightSync",
    "WeightTransfer",
    "find_transfer",
    "make_receiver",
    "make_sender",
    "resolve_backend",
]
