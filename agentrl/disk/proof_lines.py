"""Tells the proofs of `run.json` (see `agentrl.disk.proofs`) in words, for doctor and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PROOFS = "proofs"
"""Key in `run.json`."""


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


def proof_rows(identity: Mapping[str, Any]) -> list[dict[str, str]]:
    """Proofs of `run.json` as a table, a row for each form; one that cannot be read has an `error`.

    Args:
        identity: as for `proof_lines`.
    """
    found = identity.get(PROOFS)
    rows: list[dict[str, str]] = []
    for name, proof in found.items() if isinstance(found, dict) else ():
        try:
            wider = [proof["widened"]] if proof.get("widened") else []
            rows += [row for each in (proof, *wider) for row in _rows(str(name), each)]
        except (KeyError, TypeError, ValueError, AttributeError):
            rows.append({"name": str(name), "error": "its proof in run.json cannot be read"})
    return rows


def _rows(name: str, proof: Mapping[str, Any]) -> list[dict[str, str]]:
    worst, allowed = proof.get("worst") or {}, proof.get("worst_tolerance")
    return [
        {
            "name": name,
            "model": str(proof["model"]),
            "form": str(form),
            "dtype": str(proof["dtype"]),
            "by": str(proof.get("attention") or ""),
            "mean": f"{mean:.2g}",
            "worst": f"{worst[form]:.2g}" if form in worst else "",
            "mean_allowed": f"{proof['tolerance']:.2g}",
            "worst_allowed": "" if allowed is None else f"{allowed:.2g}",
        }
        for form, mean in proof["forms"].items()
    ]


def _in_words(proof: Mapping[str, Any]) -> str:
    """As in `in bfloat16 by flex packed off by 0.004 on average, 0.02 at most (...)`."""
    worst = proof.get("worst") or {}
    forms = [
        f"{form} off by {mean:.2g} on average"
        + (f", {worst[form]:.2g} at most" if form in worst else "")
        for form, mean in proof["forms"].items()
    ]
    by = f" by {proof['attention']}" if proof.get("attention") else ""
    allowed = f"{proof['tolerance']:.2g} on average"
    if (most := proof.get("worst_tolerance")) is not None:
        allowed += f" and {most:.2g} at most"
    return f"in {proof['dtype']}{by} {'; '.join(forms)} (rounding explains {allowed})"
