"""Refusals of train backends that divide the model: all that they cannot do, said at once.

The parts of the algorithm come first and alone: where one of them rules the backend out, places for
its ranks are of no use. A backend that learns a part needs its entry in `impossible` deleted, and
nothing else.
"""

from __future__ import annotations

from agentrl.config.training import TrainSection


def impossible(train: TrainSection) -> dict[str, str]:
    """Parts of the algorithm that the backend does not know, each with what to do without it.

    Args:
        train: the optimizer and the backend.
    """
    if train.backend.kind == "torch" or train.steps == 0:
        return {}
    parts = (
        (
            train.lora is not None,
            "train.lora, whose adapters are trained on a whole model",
            "leave train.lora out",
        ),
    )
    return {text: instead for asked, text, instead in parts if asked}


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
    if parts := impossible(train):
        return (
            f"train.backend is {backend}, which divides the model and cannot train "
            f"{', nor '.join(parts)}; set train.backend: torch, or {' and '.join(parts.values())}"
        )
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
