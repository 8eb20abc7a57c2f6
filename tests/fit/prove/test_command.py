"""The command `agentrl prove` on objectives of a fit of one's own, right and wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.cli import main

FILE = """
from agentrl.fit.losses.pair_losses import sigmoid

def right(inputs):
    return 2.0 * sigmoid(inputs)

def wrong(inputs):
    return sigmoid(inputs) / len(inputs.chosen_P)
"""


@pytest.mark.parametrize(("name", "status"), [("right", 0), ("wrong", 1)])
def test_the_command_proves_an_own_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, status: int
) -> None:
    (tmp_path / "own.py").write_text(FILE)
    path = tmp_path / "fit.yaml"
    path.write_text(f"data: {{source: a.jsonl}}\nobjective: {{kind: dpo, loss: own.py:{name}}}\n")
    with pytest.raises(SystemExit) as left:
        main(["prove", str(path), "train.micro_batch_tokens=1024"])
    assert left.value.code == status
    text = capsys.readouterr().out
    # Long paths are folded.
    assert f"/own.py:{name}: 18 checks" in text.replace("\n", "")
    assert ("FAIL" in text) == bool(status)
