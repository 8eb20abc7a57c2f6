"""The name and the folder that `agentrl train --again` gives a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.cli.train import _new_name
from agentrl.config import parse_config


@pytest.mark.parametrize("folder", ["my runs #2", "lr: high", "x\udcff", "😀"])
def test_any_folder_is_taken_as_it_is_called(tmp_path: Path, folder: str) -> None:
    """Fails if the run is made elsewhere, as overrides are YAML."""
    run = tmp_path / folder / "tiny"
    run.mkdir(parents=True)
    minimal = {"env": {"target": "a:B"}, "dataset": {"source": "a.jsonl"}}
    config = parse_config(minimal, _new_name(run, []))
    assert (config.run.dir, config.run.name) == (str(tmp_path / folder), "tiny-2")
