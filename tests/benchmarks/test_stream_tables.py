"""The tables of streams in `benchmarks/health`: what their formulas and labels name exists."""

from __future__ import annotations

import ast
import builtins
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "health"))

from blind import draws, edits, texts
from blind.draws import Draw
from blind.formulas import Row, rows
from blind.labels import NAMED_BY, STREAMS
from onset import edits as onset_edits
from onset.labels import ONSET_STREAMS

from agentrl.health import DETECTORS

GIVEN = {*vars(builtins), "np", "Run", "d", "n", "rng", "between", "one_of", "plan", "run"}
TIMES = {"onset", "second", "since", "on", "ramp", "held", "texts"}
PARTS = ("let", "plan", "agent", "then", "after")


def _formulas(row: Row) -> dict[str, object]:
    whole = {key: row[key] for key in ("texts", "history") if key in row}
    return {target: value for part in PARTS for target, value in row.get(part, {}).items()} | whole


@pytest.mark.parametrize(
    ("table", "known"),
    [
        ("blind", {*GIVEN, "curves", *vars(draws), *vars(texts), *vars(edits)}),
        ("onset", {*GIVEN, "curves", *TIMES, *vars(draws), *vars(texts), *vars(onset_edits)}),
    ],
)
def test_formulas_name_what_there_is(table: str, known: set[str]) -> None:
    """Fails if a name in a formula is misspelt, or a helper was renamed under a table."""
    folder = Path(draws.__file__).parents[1]
    for row in rows(folder / table / "streams.yaml"):
        found = _formulas(row)
        for formula in found.values():
            if not isinstance(formula, str):
                continue
            nodes = list(ast.walk(ast.parse(formula, mode="eval")))
            given = {node.arg for node in nodes if isinstance(node, ast.arg)}
            names = [node for node in nodes if isinstance(node, ast.Name)]
            given |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
            used = {node.id for node in names}
            assert used <= known | given | set(found), (row["shape"], formula)


def test_labels_are_detectors_and_names_are_seeds_of_their_own() -> None:
    named = {name for stream in STREAMS for name in (stream.fault, *stream.also)}
    named |= {name for stream in ONSET_STREAMS for name in (stream.fault, *stream.expected)}
    assert named - {""} <= {*DETECTORS, *NAMED_BY}
    for streams in (STREAMS, ONSET_STREAMS):
        assert len({stream.name for stream in streams}) == len(streams) > 100


def test_a_row_is_drawn_again_alike_and_another_seed_differs() -> None:
    (stream,) = (one for one in STREAMS if one.name == "sound: a run of eight steps so far")
    first, again, other = (
        stream.make(Draw(seed, stream.name, fresh=False)).metrics["reward"].values
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert len(first) == 8
    assert np.isfinite(first).all()
