"""Fits over several processes end with the weights of one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil
import pytest

from tests.fit.fit_project import trained_steps, weights, write_fit
from tests.runtime.tiny_project import Agentrl, agentrl
from tests.train.tiny_llama import relative_error

CASES = [
    pytest.param("sft", "torch", 2, id="sft, 2 copies"),
    pytest.param("rm", "fsdp2", 1, id="rm, fsdp2 on 1"),
    pytest.param("dpo", "fsdp2", 2, id="dpo, fsdp2 on 2"),
    pytest.param("dpo", "deepspeed", 2, id="dpo, ZeRO on 2"),
]


def backend(kind: str) -> dict[str, object]:
    return {"kind": kind, "lanes": 1} if kind == "torch" else {"kind": kind}


def finished(folder: Path, kind: str, **settings: object) -> Path:
    """The run directory of a fit that has come to its end."""
    path = write_fit(folder, kind, **settings)
    status, text = agentrl(folder / "out.txt", "fit", path)
    assert status == 0, text
    return path.parent / "runs" / "fit"


@pytest.fixture(scope="module")
def fit_of_one(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By kind, the run directory of a fit of one process; each is made once."""

    @cache
    def made(kind: str) -> Path:
        return finished(tmp_path_factory.mktemp(kind), kind, train__backend=backend("torch"))

    return made


@pytest.mark.parametrize(("kind", "name", "ranks"), CASES)
def test_ranks_train_as_one_process_does(
    fit_of_one: Callable[[str], Path], tmp_path: Path, kind: str, name: str, ranks: int
) -> None:
    """Fails if a rank trains on other examples, or a checkpoint holds the weights of one rank."""
    if name == "deepspeed":
        pytest.importorskip("deepspeed")
    one = fit_of_one(kind)
    every = finished(tmp_path, kind, train__backend=backend(name), ranks=ranks)
    assert relative_error(weights(every), weights(one)) < 1e-4
    losses = [[loss for _, loss, _ in trained_steps(run)] for run in (one, every)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_a_rank_that_dies_ends_the_fit_and_leaves_nothing(tmp_path: Path) -> None:
    path = write_fit(tmp_path / "p", data__epochs=4000, ranks=2)
    run = path.parent / "runs" / "fit"
    process = Agentrl(tmp_path / "out.txt", "fit", path)
    process.wait_for("step 3/", 120)
    children = psutil.Process(process.pid).children(recursive=True)
    ranks = [child for child in children if "child_main" in " ".join(child.cmdline())]
    os.kill(ranks[-1].pid, signal.SIGKILL)
    assert process.wait(120) == 2
    text = (tmp_path / "out.txt").read_text()
    assert "rank" in text
    assert "Traceback" not in text
    assert not [child for child in children if child.is_running()]
    status, text = agentrl(
        tmp_path / "again.txt", "fit", run, "--resume", "train.steps=6", "ranks=1"
    )
    assert status == 0, text


LOSS = """
import torch

from agentrl.fit.losses.pair_losses import sigmoid

calls = 0


def loss(inputs):
    global calls
    calls += torch.is_grad_enabled()
    if calls > 4:
        raise RuntimeError("boom here")
    return sigmoid(inputs)
"""


def test_an_error_in_a_step_is_the_one_that_is_shown(tmp_path: Path) -> None:
    """Fails if the save behind it hides it, or waits for ranks that have left."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "own.py").write_text(LOSS)
    path = write_fit(
        tmp_path / "p", "dpo", data__epochs=8, ranks=2, objective__loss="own.py:loss",
        train__backend={"kind": "fsdp2"}, checkpoint__every_steps=100,
    )  # fmt: skip
    status, text = agentrl(tmp_path / "out.txt", "fit", path)
    assert status == 2
    assert "boom here" in text


FULL = """
import resource

from agentrl.fit.losses.pair_losses import sigmoid as loss

resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))
"""


def test_a_full_disk_keeps_no_rank_waiting(tmp_path: Path) -> None:
    """Fails if ranks wait for one that could not write: the fit goes on to its last step."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "own.py").write_text(FULL)
    path = write_fit(
        tmp_path / "p", "dpo", ranks=2, objective__loss="own.py:loss",
        train__backend={"kind": "fsdp2"},
    )  # fmt: skip
    status, text = agentrl(tmp_path / "out.txt", "fit", path)
    assert status == 2, text
    assert text.count("could not be written") == 3
    assert "step 6/6" in text
