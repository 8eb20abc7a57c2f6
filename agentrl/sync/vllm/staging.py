"""Weights that a worker takes while its server samples.

    /collective_rpc  {"method": "stage_weights", "kwargs": {"ticket": ...}}   begins, in a thread
    /collective_rpc  {"method": "staged_weights"}                             asked until it is done
    /collective_rpc  {"method": "weight_digests"}                             what the model holds

A call into a worker stops its engine until it returns, so the work is done in a thread. Servers
are started with `--worker-extension-cls agentrl.sync.vllm.staging.StagingWorker`; one that is not
loads its weights while it is paused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentrl.engine import WeightTicket
from agentrl.errors import SyncError

if TYPE_CHECKING:
    from agentrl.sync.vllm.twin import ModelTwin

logger = logging.getLogger(__name__)


class Staging:
    """The thread that stages weights, and whose weights are staged."""

    def __init__(self) -> None:
        """Start no thread."""
        self._thread: threading.Thread | None = None
        self._staged: WeightTicket | None = None
        """Written by the thread, read after it has ended."""

    @property
    def running(self) -> bool:
        """True while a thread stages weights."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, ticket: WeightTicket, load: Callable[[WeightTicket], None]) -> None:
        """Call `load` in a thread; waits for one that is running."""
        self.wait()
        self._staged = None

        def stage() -> None:
            try:
                load(ticket)
            except SyncError as error:
                # The update loads these weights itself, and fails with the same words.
                logger.warning("version %d was not staged: %s", ticket.version, error)
            else:
                self._staged = ticket

        self._thread = threading.Thread(target=stage, name="stage-weights", daemon=True)
        self._thread.start()

    def holds(self, ticket: WeightTicket) -> bool:
        """True once for the ticket whose weights are staged; waits for the thread."""
        self.wait()
        staged, self._staged = self._staged, None
        return staged is not None and staged == ticket

    def wait(self) -> None:
        """Wait until no thread stages weights."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


class SpareModel:
    """The second copy of a model, made when weights are first staged, or known to be none."""

    def __init__(self, make: Callable[[], ModelTwin | None]) -> None:
        """Keep `make`, which returns None where there can be no copy; it is called once."""
        self._make = make
        self._made = False
        self._twin: ModelTwin | None = None

    def get(self) -> ModelTwin | None:
        """The two copies; None where weights are loaded while the server is paused.

        Called where nothing is computed, as `make` may need. Weights that come by a stream are
        never staged, and cost no second copy.
        """
        if not self._made:
            self._made = True
            try:
                self._twin = self._make()
            except Exception as error:  # vLLM raises all kinds, and a copy only saves time
                logger.warning(
                    "a second copy of the model could not be made, so syncs pause longer: %r", error
                )
        return self._twin


class StagingWorker:
    """Calls that are added to the worker of a server."""

    weight_transfer_engine: Any
    """Our engine, or one of vLLM's own, which stages nothing."""

    def stage_weights(self, ticket: dict[str, Any]) -> dict[str, bool]:
        """Begin to take weights while the server samples.

        Args:
            ticket: the fields of a `WeightTicket`.
        """
        stage = getattr(self.weight_transfer_engine, "stage_weights", None)
        if stage is not None:
            stage(WeightTicket(**ticket))
        return self.staged_weights()

    def staged_weights(self) -> dict[str, bool]:
        """`{"done": ...}`, true once nothing is being staged."""
        staged = getattr(self.weight_transfer_engine, "staged_weights", None)
        return {"done": staged is None or staged()}

    def weight_digests(self) -> dict[str, list[Any]]:
        """Digests of what the model holds; none where an engine of vLLM's own receives weights."""
        held = getattr(self.weight_transfer_engine, "weight_digests", None)
        return {} if held is None else held()
