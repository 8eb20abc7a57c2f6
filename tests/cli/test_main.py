"""The command line as a newcomer meets it: overview, mistakes, exit statuses."""

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from agentrl import __version__, cli
from agentrl.cli import main
from agentrl.cli.console import failures
from agentrl.errors import ConfigError
from agentrl.plugins.distribution import install_command


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


def test_the_overview_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from agentrl.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    began = time.process_time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert time.process_time() - began < 0.5
    names = "train eval rollout prove serve export simulate traj env config sandbox"
    for name in names.split():
        assert f" {name} " in done.stdout


def test_starting_a_command_does_not_import_torch(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys\n"
        "from agentrl.cli import main\n"
        "try:\n    main(['train', 'missing.yaml'])\n"
        "except SystemExit as stop:\n    assert stop.code == 2, stop.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("error: config missing.yaml does not exist")


def test_the_help_of_a_command_is_its_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    # Fails if the line of the overview stands there: it has no exit statuses.
    status, out, _ = run(capsys, "prove", "--help")
    assert status == 0
    assert "Ends with 1 if a proof fails." in " ".join(out.split())
    # Loaded or not, the overview has a line for each command.
    _, overview, _ = run(capsys, "--help")
    assert run(capsys, "--help", "prove")[1] == overview


@pytest.mark.parametrize("group", ["traj", "env", "tasks", "config", "sandbox"])
def test_every_group_is_mounted(capsys: pytest.CaptureFixture[str], group: str) -> None:
    status, out, _ = run(capsys, group, "--help")
    assert status == 0
    assert "Commands" in out


def test_a_mistake_in_a_key_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("env: {target: 'x.py:Y'}\ndataset: {source: x.jsonl}\n")
    status, out, err = run(capsys, "train", str(path), "train.learning_rat=1")
    assert (status, out) == (2, "")
    assert "train.learning_rat: unknown key" in err
    assert "did you mean 'learning_rate'" in err
    assert "Traceback" not in err
    assert [entry.name for entry in tmp_path.iterdir()] == ["my.yaml"]


def test_the_version_and_the_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--version")
    assert (status, out) == (0, f"agentrl {__version__} ({Path(cli.__file__).parents[1]})\n")
    for words in ((), ("prove",), ("traj", "show")):
        assert run(capsys, "help", *words) == run(capsys, *words, "--help")
    status, _, err = run(capsys, "help", "trian")
    assert status == 2
    assert "No such command 'trian'" in err


def test_what_is_written_goes_to_out_in_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if another word stands for it somewhere, or if a former word is not taken any more."""
    found, waiting = set[tuple[str, ...]](), [typer.main.get_command(cli._app("completion"))]
    while waiting:
        node: Any = waiting.pop()
        waiting += getattr(node, "commands", {}).values()
        found |= {tuple(option.opts) for option in node.params if not option.hidden}
    places = {names for names in found if re.search(r"(^-+|-)(out|output|dir|folder|o)$", names[0])}
    places |= {names for names in found if "-o" in names}
    assert places - {("--held-out",), ("--price-out",)} == {("--out", "-o")}
    assert run(capsys, "env", "new", "guess", f"--dir={tmp_path}/a")[0] == 0
    assert run(capsys, "env", "new", "guess", "--dir", f"{tmp_path}/b")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    for words in (("rollout", "no.yaml"), ("gateway", "serve", "no.yaml")):
        assert "config no.yaml does not exist" in run(capsys, *words, "--n", "2")[2]
        assert "config no.yaml does not exist" in run(capsys, *words, "--limit=2")[2]
    assert "Rollouts per task" in run(capsys, "eval", "--help")[1]


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "trian")
    assert status == 2
    assert "train" in err


def test_debug_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "train", "missing.yaml", "--debug")
    assert status == 2
    assert "Traceback" in err
    assert "ConfigError" in err


def test_a_defect_keeps_its_traceback_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ZeroDivisionError("a defect")
    except ZeroDivisionError as error:
        status = failures.report(error, debug=False)
    err = capsys.readouterr().err
    assert status == 1
    assert "unexpected error: ZeroDivisionError: a defect" in err
    assert "Traceback" not in err
    path = Path(next(word for word in err.split() if word.endswith(".log")))
    assert "ZeroDivisionError" in path.read_text()
    path.unlink()


def test_markup_in_a_message_is_not_interpreted(capsys: pytest.CaptureFixture[str]) -> None:
    # Fails if the message is given to rich as markup: "[red]" would vanish.
    assert failures.report(ConfigError("got '[red]'"), debug=False) == 2
    assert "[red]" in capsys.readouterr().err


def test_eval_without_anything_to_score(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "eval", "--model", "somewhere")
    assert status == 2
    assert "--env and --dataset" in err


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    error = ModuleNotFoundError("No module named 'torch'", name="torch")
    assert failures.report(error, debug=False) == 2
    assert f"run {install_command('train')}" in capsys.readouterr().err


def test_every_command_of_the_overview_is_in_a_panel(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--help")
    assert status == 0
    panels: dict[str, list[str]] = {}
    for line in out.splitlines():
        if title := re.match(r"╭─ (.+?) ─+╮", line):
            panels[title[1]] = []
        elif entry := re.match(r"│ (\w+) +\S", line):
            panels[list(panels)[-1]].append(entry[1])
    panels.pop("Options")
    assert "Commands" not in panels  # where typer puts a command without a panel
    assert all(len(commands) >= 2 for commands in panels.values())
    beside = Path(cli.__file__).parent.iterdir()
    modules = [path.stem for path in beside if path.is_dir() or path.suffix == ".py"]
    shown = {command for commands in panels.values() for command in commands}
    assert shown - {"help"} == {
        name for name in modules if name not in ("__init__", "__pycache__", "console")
    }
