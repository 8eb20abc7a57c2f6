"""A GPU and Python wait for each other only where all passes of an update have been launched."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.config.schema import TrainSection
from agentrl.train.backends.torch_backend import TorchBackend
from agentrl.train.trainer import Trainer
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model

WAITS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero")


class Waits(TorchDispatchMode):
    """Notes every wait, and where the backward pass begins."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITS:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


class Noting(TorchBackend):
    waits: Waits

    def to_tensors(self, micro: Any) -> Any:
        self.waits.seen.append("begin")
        return super().to_tensors(micro)

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        self.waits.seen.append("end")


def test_nothing_is_read_before_the_last_backward_pass_is_launched() -> None:
    model = tiny_model()
    train = TrainSection()
    backend = Noting(model, train=train, gradient_checkpointing=False, lanes=1)
    trainer = Trainer(model, train=train, algorithm=algorithm(), backend=backend)
    backend.waits = Waits()
    trainer.step(make_step(make_groups()))  # the first one also tries how the model reads rows
    backend.waits = Waits()
    with backend.waits:
        metrics = trainer.step(make_step(make_groups())).result()
    seen = backend.waits.seen
    first, last = seen.index("begin"), len(seen) - 1 - seen[::-1].index("end")
    assert not set(seen[first:last]) - {"begin", "end"}, seen
    assert "nonzero" in seen[last:], "the look at numbers that are not finite was lost"
    assert metrics["entropy"] > 0.0
