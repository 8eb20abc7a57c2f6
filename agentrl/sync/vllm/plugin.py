"""Registers our weight receiver with vLLM; an entry point of `vllm.general_plugins`.

vLLM calls it in every process it starts, also in those that never see new weights, and with
versions of vLLM that know nothing of weight transfer: it is cheap, may be called again, and never
fails.
"""

from __future__ import annotations

import contextlib
import logging

logger = logging.getLogger(__name__)

NAME = "agentrl"
"""For `--weight-transfer-config '{"backend": "agentrl"}'`."""


def register() -> None:
    """Register the receiver by the name of its module, which is imported when it is needed."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    except ImportError as error:
        logger.info("this vLLM has no weight transfer, agentrl cannot update it: %s", error)
        return
    # A second call in one process is no mistake.
    with contextlib.suppress(ValueError):
        WeightTransferEngineFactory.register_engine(
            NAME, "agentrl.sync.vllm.receiver", "AgentrlWeightTransferEngine"
        )
