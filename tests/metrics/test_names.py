from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import agentrl
from agentrl.cli.config import app
from agentrl.metrics.catalog import CATALOG
from agentrl.metrics.names import find_metric, verl_name, verl_names

SOURCE = Path(agentrl.__file__).parent
NUMBERS = {"mean", "sum", "max", "min"}


def logged_names() -> Iterator[tuple[str, str]]:
    """Every name that a bag is given or a loss returns, as a pattern, and where."""
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name == "bag.py":
            continue
        losses = path.parent.name == "losses"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[ast.expr | None] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                names = [*node.args[:1]] if node.func.attr in NUMBERS else []
            elif losses and isinstance(node, ast.Dict):
                names = [*node.keys]
            elif losses and isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                names = [node.slice]
            for name in map(pattern_of, names):
                marked = "/" in name or not losses
                if marked and re.match(r"[a-z_]+(/|$)", name):
                    yield name.partition("@")[0], f"{path.relative_to(SOURCE)}:{node.lineno}"


def pattern_of(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else ".+" for part in node.values
        )
    return ""


def test_the_catalog_knows_every_name_that_the_code_logs() -> None:
    found = list(logged_names())
    assert len(found) > 90
    names = [entry.name for entry in CATALOG]
    unknown = [
        (name, where)
        for name, where in found
        if not find_metric(name) and not any(re.fullmatch(name, known) for known in names)
    ]
    assert not unknown


def test_the_catalog_names_each_metric_and_each_name_of_verl_once() -> None:
    names = Counter(entry.name for entry in CATALOG)
    theirs = Counter(entry.verl for entry in CATALOG if entry.verl)
    assert [name for name, n in names.items() if n > 1] == []
    assert [name for name, n in theirs.items() if n > 1] == []


def test_no_name_of_verl_is_the_name_of_another_metric_of_ours() -> None:
    for entry in CATALOG:
        if entry.verl:
            claimed = find_metric(entry.verl)
            assert claimed is None or claimed.name == entry.name, entry


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("reward", "reward"),
        ("eval/held/out/score", "eval/NAME/score"),
        ("eval/held_out/score_low", "eval/NAME/score_low"),
        ("eval/a/pass@16_high", "eval/NAME/pass@K_high"),
        ("batch/groups_singleton", "batch/groups_singleton"),
        ("batch/groups_too_easy", "batch/groups_REASON"),
        ("staleness/share_lag_12", "staleness/share_lag_N"),
        ("staleness/share_lag_x", None),
        ("my/own", None),
        ("rewards", None),
    ],
)
def test_a_name_is_found_by_its_pattern(name: str, entry: str | None) -> None:
    found = find_metric(name)
    assert (found.name if found else None) == entry


def test_names_of_verl_take_over_the_parts_of_ours() -> None:
    assert verl_name("entropy") == "actor/entropy"
    assert verl_name("eval/a/b/score", n_samples=3) == "val-core/a/b/reward/mean@3"
    assert verl_name("eval/a/pass@8", n_samples=3) == "val-core/a/reward/best@8/mean"
    assert verl_name("env/NAME") == "env/NAME"


def test_renaming_loses_no_value() -> None:
    values = {"reward": 1.0, "critic/score/mean": 2.0, "my/own": 3.0, "entropy": 4.0}
    assert verl_names(values) == {
        "reward": 1.0,
        "critic/score/mean": 2.0,
        "my/own": 3.0,
        "actor/entropy": 4.0,
    }


def test_the_command_lists_every_metric_with_its_unit_and_the_name_of_verl() -> None:
    listed = CliRunner().invoke(app, ["metrics"])
    assert listed.exit_code == 0
    lines = listed.output.splitlines()
    assert "entropy [nats]  -> actor/entropy" in lines
    assert "    entropy of the policy at sampled tokens" in lines
    found = json.loads(CliRunner().invoke(app, ["metrics", "--json"]).output)
    assert [entry["name"] for entry in found] == [entry.name for entry in CATALOG]
