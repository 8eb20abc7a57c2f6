"""The main function of a further rank of a fit: it does what rank 0 orders, in the same order.

An order is a frame with `do`: `step` with the number of the step, `evaluate` or `show` with the
name of a dataset, `hold`, `write` with the folder to write into, or `end`. Errors of the work
itself reach rank 0 through the group of the ranks.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.disk.logs import log_to, quiet_libraries
from agentrl.errors import AgentrlError
from agentrl.fit.crew import join
from agentrl.fit.sets import RankSetup
from agentrl.machine.compute_threads import reserve_cores
from agentrl.machine.processes.child_main import ChildChannel

if TYPE_CHECKING:
    from agentrl.fit.model import HeldFit

logger = logging.getLogger(__name__)


def serve(channel: ChildChannel) -> None:
    """Serve until rank 0 sends `end`, or ends."""
    channel.end_with_parent()
    setup: RankSetup = pickle.loads(channel.receive().body)
    quiet_libraries()
    reserve_cores()
    with log_to(setup.log), ExitStack() as stack:
        try:
            _follow(channel, setup, stack)
        except AgentrlError:
            logger.exception("rank %d ends", setup.rank)
            raise


def _follow(channel: ChildChannel, setup: RankSetup, stack: ExitStack) -> None:
    from agentrl.fit.losses.row_numbers import row_numbers
    from agentrl.fit.model import open_fit_model
    from agentrl.fit.updates import FitUpdates

    config, sets = setup.config, setup.sets
    updates = FitUpdates(config, sets)
    model = open_fit_model(
        config,
        sets.every,
        base=setup.base,
        run_dir=setup.run_dir,
        checkpoint=setup.checkpoint,
        reference=setup.reference,
        mismatches=updates.mismatches(config.train.steps),
        open_ranks=lambda: join(setup.address, setup.rank, config, stack),
    )
    held: HeldFit | None = None
    while True:
        head = channel.receive().head
        if head["do"] == "end":
            return
        if head["do"] == "step":
            update = updates.step(head["step"])
            model.fitter.step(update.trained, measured=update.measured)
        elif head["do"] == "evaluate":
            update = updates.evaluation(head["name"])
            model.fitter.evaluate(update.trained, update.measured)
        elif head["do"] == "show":
            scores = config.objective.kind == "rm"
            row_numbers(model.fitter.backend, updates.shown(head["name"]), scores=scores)
        elif head["do"] == "hold":
            held = model.hold()
        elif held is not None:
            with contextlib.suppress(OSError, AgentrlError):  # rank 0 is told of it
                model.write(held, Path(head["folder"]))
            held = None
