"""Refusals of train backends that divide the model: all that they need, listed at once."""

from __future__ import annotations

from agentrl.config.training import TrainSection


def refusal(train: TrainSection, *, runtime: str, engine: str) -> str | None:
    """Why no trainer can be made of these settings; None if one can.

    Args:
        train: the optimizer and the backend.
        runtime: kind of the runtime.
        engine: kind of the engines.
    """
    backend = train.backend.kind
    if backend == "torch":
        return None
    places = []
    if runtime != "ray":
        places.append(
            f"its ranks are processes of their own, and runtime is {runtime}: set runtime: ray "
            "(one rank will do)"
        )
    if engine == "embedded":
        places.append(
            "serving.engine embedded samples from the very model that is trained: set "
            "serving.engine: vllm"
        )
    if not places:
        return None
    return (
        f"train.backend {backend} divides the model among ranks; {'; and '.join(places)}; or set "
        "train.backend: torch"
    )
