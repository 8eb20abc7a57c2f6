"""The share of a training step that images, or reward models, cost.

    OMP_NUM_THREADS=1 python benchmarks/step_shares.py images configs/screens.yaml \\
      model.path=MODEL train.steps=4
    OMP_NUM_THREADS=1 python benchmarks/step_shares.py reward_models configs/quickstart.yaml \\
      reward.models.rm.path=RM train.steps=4

Trains as the config says (evaluation left out; `configs/screens.yaml` says how its model is made),
and counts the processor time of each thread inside what exists only for one of them:

- `images`: reading and keeping files, the image processor, placeholders and their proof, positions,
  features put in their places. The passes of the vision tower are the model's work, and drawing a
  screen the environment's: neither is counted. Limit: 5 % of the processor time of a step.
- `reward_models`: scoring the rollouts. Limit: 10 %.
"""

from __future__ import annotations

import asyncio
import functools
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.chat.pictures import slots
from agentrl.config import load_config
from agentrl.images import folder, marks, reading
from agentrl.models.vision import embed, families, reader
from agentrl.runtime.launch import train
from agentrl.runtime.progress import Progress
from agentrl.serving.embedded import pictures
from agentrl.train import score_model
from agentrl.train.model import image_rows

PARTS = {
    "images": ((slots, folder, marks, reading, pictures, image_rows, embed, reader), 0.05),
    "reward_models": ((score_model,), 0.10),
}
"""By name the modules of which everything public is counted, once a call from outside; the limit.
"""


class Clock(threading.local):
    """Processor time of this thread inside counted functions, the model's passes left out."""

    def __init__(self) -> None:
        self.depth = 0
        self.inside = 0.0


CLOCK = Clock()
COUNTED: defaultdict[str, float] = defaultdict(float)
LOCK = threading.Lock()


def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its processor time counted where it is the outermost one."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if CLOCK.depth:
            return function(*args, **kwargs)
        CLOCK.depth, CLOCK.inside = 1, 0.0
        began = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent = time.thread_time() - began - CLOCK.inside
            CLOCK.depth = 0
            with LOCK:
                COUNTED[name] += spent

    return call


def models_work(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose time is taken off that of a counted one around it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            CLOCK.inside += time.thread_time() - began

    return call


def count_all(modules: Sequence[ModuleType]) -> None:
    """Replace what is counted, under every name by which a module of agentrl knows it."""
    for module in modules:
        short = module.__name__.removeprefix("agentrl.")
        for name, value in list(vars(module).items()):
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            if isinstance(value, type):
                for method, own in list(vars(value).items()):
                    if callable(own) and not method.startswith("_"):
                        setattr(value, method, counted(f"{short}.{name}.{method}", own))
            elif callable(value):
                replace(value, counted(f"{short}.{name}", value))
    for family in vars(families).values():
        if isinstance(family, families.VisionFamily):
            object.__setattr__(family, "features", models_work(family.features))


def replace(old: Any, new: Any) -> None:
    """Put one function in the place of another in all modules."""
    for name, module in list(sys.modules.items()):
        if name.startswith("agentrl"):
            for key, value in list(vars(module).items()):
                if value is old:
                    setattr(module, key, new)


class Steps(Progress):
    """Processor seconds at the end of each step: of the process, and of what was counted."""

    def __init__(self) -> None:
        self.at: list[tuple[float, dict[str, float]]] = []

    def step_done(self, step: int, metrics: Mapping[str, float]) -> None:
        with LOCK:
            self.at.append((time.process_time(), dict(COUNTED)))


def main(part: str, file: str, *overrides: str) -> None:
    modules, limit = PARTS[part]
    with tempfile.TemporaryDirectory() as place:
        usual = (f"run.dir={place}", "eval.datasets={}", "train.steps=4")
        config = load_config(Path(file), (*usual, *overrides))
        steps = Steps()
        import agentrl.runtime.assembly.trainer
        import agentrl.serving.embedded.engine  # noqa: F401 - modules whose names are replaced

        count_all(modules)
        asyncio.run(train(config, base=Path(file).resolve().parent, progress=steps))
    # The first step also loads what the later ones have.
    shares: list[float] = []
    for (began, before), (ended, after) in zip(steps.at, steps.at[1:], strict=False):
        spent = {name: after[name] - before.get(name, 0.0) for name in after}
        shares.append(sum(spent.values()) / (ended - began))
        largest = sorted(spent.items(), key=lambda item: -item[1])[:5]
        print(
            f"step of {ended - began:.2f} CPU s, {sum(spent.values()):.3f} of them for {part}: "
            + ", ".join(f"{name} {seconds:.3f}" for name, seconds in largest)
        )
    print(
        f"median share {statistics.median(shares):.2%} [{min(shares):.2%}, {max(shares):.2%}], "
        f"limit {limit:.0%}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
