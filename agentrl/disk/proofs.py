"""Keeps in `run.json` how the models of a run compare with their own forward passes.

    "proofs": {"model.path": {"model": "LlamaForCausalLM", "dtype": "bfloat16",
                              "forms": {"packed": 0.004, "prefix-shared": 0.004},
                              "worst": {"packed": 0.02, "prefix-shared": 0.02},
                              "tolerance": 0.31, "tokens": 124, "seconds": 0.8,
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

from agentrl.disk.run_name import IDENTITY_FILE
from agentrl.machine.files import write_whole

if TYPE_CHECKING:
    from agentrl.models.proof import ModelProof

PROOFS = "proofs"
"""Key in `run.json`."""
ENGINE = "serving.engine"
"""Name of the embedded engine among proofs."""
_WORST = 16.0
"""As in `agentrl.models.proof`, which needs torch."""


def proof_lines(identity: Mapping[str, Any]) -> list[str]:
    """What `run.json` has of proofs, in words, one line for each model.

    Args:
        identity: content of `run.json`, of any version or age; what is no proof is left out.
    """
    found = identity.get(PROOFS)
    proofs = found.items() if isinstance(found, dict) else ()
    lines: list[str] = []
    for name, proof in proofs:
        try:
            text = f"{name}: {proof['model']} gives the numbers of its own forward pass: "
            wider = [proof["widened"]] if proof.get("widened") else []
            lines.append(text + "; ".join(_in_words(each) for each in (proof, *wider)))
        except (KeyError, TypeError, ValueError, AttributeError):
            lines.append(f"{name}: its proof in run.json cannot be read")
    return lines


def _in_words(proof: Mapping[str, Any]) -> str:
    """As in `in bfloat16 packed off by 0.004 on average, 0.02 at most (0.3 and 5 are allowed)`."""
    worst = proof.get("worst") or {}
    forms = [
        f"{form} off by {mean:.2g} on average"
        + (f", {worst[form]:.2g} at most" if form in worst else "")
        for form, mean in proof["forms"].items()
    ]
    limit = proof["tolerance"]
    allowed = f"{limit:.2g} on average and {_WORST * limit:.2g} at most"
    return f"in {proof['dtype']} {'; '.join(forms)} (rounding explains {allowed})"


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
