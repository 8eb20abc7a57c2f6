"""Completion in bash, by the script that `agentrl completion bash` prints."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from agentrl.cli import main

_ASK = r"""
source "$1"; shift
for line in "$@"; do
  read -ra COMP_WORDS <<< "$line"
  [[ $line == *" " ]] && COMP_WORDS+=("")
  COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); COMPREPLY=()
  _agentrl; echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    with pytest.raises(SystemExit) as end:
        main(["completion", "bash"])
    assert not end.value.code
    path = tmp_path / "agentrl.bash"
    path.write_text(capsys.readouterr().out)
    return path


def test_commands_options_values_keys_and_files_are_completed(script: Path, tmp_path: Path) -> None:
    """Fails if a word that may stand there is missing, or one stands where it may not."""
    (tmp_path / "trial.yaml").touch()
    wanted = {
        "agentrl tra": "train traj",
        "agentrl help traj sh": "show",
        "agentrl traj sh": "show",
        "agentrl traj show runs/x --st": "--step",
        "agentrl traj show runs/x --step ": "first last",
        "agentrl traj export runs/x --format p": "parquet",
        "agentrl traj export runs/x --out t": "",  # bash goes on with files
        "agentrl --debug eval --ou": "--out",
        "agentrl control runs/x st": "stop",
        "agentrl completion z": "zsh",
        "agentrl train tr": "train. trial.yaml",
        "agentrl train x.yaml train.st": "train.steps=",
        "agentrl train x.yaml eval.datasets": "eval.datasets.",
        "agentrl fit x.yaml objective.be": "objective.beta=",
        "agentrl doctor runs/x train.st": "",
    }
    words = ["bash", "-c", _ASK, "bash", str(script), *wanted]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert dict(zip(wanted, done.stdout.split("\n"), strict=False)) == wanted
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_same_words(
    script: Path, shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["completion", shell])
    other = capsys.readouterr().out
    for words in re.findall(r"\) echo (.+) ;;", script.read_text()):
        assert f" {words} ;;" in other if shell == "zsh" else f"\\n' {words}\n" in other
