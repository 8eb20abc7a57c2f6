"""Tells the proofs of `run.json` (see `agentrl.disk.proofs`) in words, for doctor and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROOFS = "proofs"
"""Key in `run.json`."""
_WORST = 16.0
"""As in `agentrl.models.proof`, which needs torch."""


def proof_lines(identity: Mapping[str, Any]) -> list[str]:
    """Proofs of `run.json` in words, one line for each model.

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
    """As in `in bfloat16 by flex packed off by 0.004 on average, 0.02 at most (...)`."""
    worst = proof.get("worst") or {}
    forms = [
        f"{form} off by {mean:.2g} on average"
        + (f", {worst[form]:.2g} at most" if form in worst else "")
        for form, mean in proof["forms"].items()
    ]
    by = f" by {proof['attention']}" if proof.get("attention") else ""
    limit = proof["tolerance"]
    allowed = f"{limit:.2g} on average and {_WORST * limit:.2g} at most"
    return f"in {proof['dtype']}{by} {'; '.join(forms)} (rounding explains {allowed})"
