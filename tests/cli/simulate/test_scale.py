"""`agentrl simulate scale` as it is typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.cli import main
from tests.cli.simulate.fleet.tiny_tokenizer import save_tokenizer


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", "scale", *words])
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


def test_it_prints_what_a_turn_costs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--servers", "4", "--conversations", "16", "--turns", "2", "--turn-s", "0.05")
    tokenizer = str(save_tokenizer(tmp_path))
    status, out, err = run(capsys, *words, "--result-chars", "300", "--tokenizer", tokenizer)
    assert (status, err) == (0, "")
    assert out.startswith("servers: 4, 16 conversations of 2 turns, 0.05 s a turn\n")
    cpu = re.search(r"driver's CPU a turn +([0-9.]+) ms", out)
    assert cpu is not None, out
    assert float(cpu[1]) > 0
    assert "ideal 0.10 s" in out


def test_conversations_that_make_no_whole_groups_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, _, err = run(capsys, "--conversations", "12")
    assert status == 2
    assert "take a multiple of 8" in err
