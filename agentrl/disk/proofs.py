"""Keeps in `run.json` how the models of a run compare with their own forward passes.

    "proofs": {"model.path": {"model": "LlamaForCausalLM", "dtype": "bfloat16",
                              "forms": {"packed": 0.004, "prefix-shared": 0.004},
                              "worst": {"packed": 0.02, "prefix-shared": 0.02},
                              "tolerance": 0.31, "worst_tolerance": 5.0, "tokens": 124,
                              "seconds": 0.8,
                              "widened": {..., "dtype": "float32", "tolerance": 7e-5}}}

They are those of the latest start. Several processes of a run write: trainer, engines, workers.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.disk.proof_lines import PROOFS
from agentrl.disk.run_name import IDENTITY_FILE
from agentrl.machine.files import write_whole

if TYPE_CHECKING:
    from agentrl.models.proof import ModelProof

ENGINE = "serving.engine"
"""Name of the embedded engine among proofs."""


def keep_proofs(run_dir: Path, proofs: Mapping[str, ModelProof | None]) -> None:
    """Add proofs to the identity of a run.

    Args:
        run_dir: of the run; nothing is written into a folder that is none.
        proofs: by key of the config, or role; None for a model that is not there.

    Raises:
        OSError: `run.json` cannot be written.
    """
    found = {name: proof.as_dict() for name, proof in proofs.items() if proof is not None}
    file = run_dir / IDENTITY_FILE
    if not found or not file.is_file():
        return
    folder = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # ends with the descriptor
        identity: dict[str, Any] = json.loads(file.read_bytes())
        identity[PROOFS] = {**identity.get(PROOFS, {}), **found}
        write_whole(file, json.dumps(identity, indent=1).encode())
    finally:
        os.close(folder)
