"""Writes the table of `docs/families.md` from what the sweep finds: `python .../page.py`."""

from __future__ import annotations

import ast
import importlib.util
import logging
import sys
import warnings
from pathlib import Path

import transformers
from sweep import REFUSED, RIGHT, ROWS, Found, look_at
from tiny_models import architecture
from trained import TRAINED

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
_HEAD = "| `model_type` | models | trainer | embedded engine | vLLM | chat template | tool parser |"
_WORDS = {RIGHT: "packed, shared", ROWS: "row by row", REFUSED: "refused"}


def vllm_architectures() -> frozenset[str] | None:
    """Architectures in the registry of the installed vLLM, which is read and not imported."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).parent / "model_executor" / "models" / "registry.py"
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)):
            continue
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id.endswith("_GENERATION_MODELS"):
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            names |= {key for key in keys if isinstance(key, str)}
    return frozenset(names)


def cells(found: Found, architectures: frozenset[str] | None) -> list[str]:
    """Cells of the table row of a family."""
    family = TRAINED[found.kind]
    served = "not installed"
    if architectures is not None:
        served = "yes" if architecture(found.kind) in architectures else "not in its registry"
    return [
        f"`{found.kind}`",
        family.models,
        _WORDS.get(found.trainer, found.trainer),
        "yes" if found.engine == RIGHT else _WORDS.get(found.engine, found.engine),
        served,
        f"`{family.template}`",
        f"`{family.parser}`",
    ]


def table_rows(page: str) -> dict[str, list[str]]:
    """Cells of the page by family."""
    text = page.partition(_HEAD)[2].partition("\n\n")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    rows = [line.strip("| ").split(" | ") for line in lines]
    return {row[0].strip("`"): row for row in rows if len(row) == _HEAD.count(" | ") + 1}


def main() -> None:
    """Rewrite the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    known = vllm_architectures()
    rows = ["| " + " | ".join(cells(look_at(kind), known)) + " |" for kind in TRAINED]
    before, _, rest = PAGE.read_text().partition(_HEAD)
    after = rest.partition("\n\n")[2]
    line = "| " + " | ".join(["---"] * len(rows[0].strip("| ").split(" | "))) + " |"
    PAGE.write_text("\n".join([before + _HEAD, line, *rows]) + "\n\n" + after)


if __name__ == "__main__":
    sys.exit(main())
