"""Bringing the learner's weights to engines that hold others."""

from __future__ import annotations

import time

from agentrl.errors import EngineError, RunError
from agentrl.metrics import MetricBag
from agentrl.runtime.progress import Progress
from agentrl.runtime.stages import Stages


async def bring_weights(stages: Stages, bag: MetricBag, progress: Progress) -> None:
    """Sync, where engines and learner are not at the same version.

    Raises:
        RunError: the engines have newer weights than the learner.
        AgentrlError: as `EngineStage.sync`.
    """
    version = stages.learner.version
    try:
        serving = stages.engines.version
    except EngineError:
        serving = None  # they do not agree: a sync makes them
    if serving == version:
        return
    if serving is not None and serving > version:
        raise RunError(
            f"the engines serve version {serving} of the weights, but the trainer is at "
            f"{version}: what they sample is not what is trained. Does another run use these "
            "servers? Give each run its own, or restart them"
        )
    progress.phase("sync")
    began = time.monotonic()
    bag.merge(await stages.engines.sync(version))
    bag.sum("timing_s/sync", time.monotonic() - began)
