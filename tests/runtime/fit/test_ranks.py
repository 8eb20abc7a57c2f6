"""Fits over several processes end with the weights of one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from agentrl.config.fit import FitConfig
from tests.runtime.fit.fit_project import trained_steps, weights, write_fit
from tests.runtime.tiny_project import Agentrl, agentrl
from tests.train.tiny_llama import relative_error

CASES = [
    pytest.param("sft", "torch", 2, id="sft, 2 copies"),
    pytest.param("rm", "fsdp2", 2, id="rm, fsdp2 on 2"),
    pytest.param("dpo", "fsdp2", 1, id="dpo, fsdp2 on 1"),
    pytest.param("dpo", "deepspeed", 2, id="dpo, ZeRO on 2"),
]


def backend(kind: str) -> dict[str, object]:
    return {"kind": kind, "lanes": 1} if kind == "torch" else {"kind": kind}


@pytest.mark.parametrize(("kind", "name", "ranks"), CASES)
def test_ranks_train_as_one_process_does(tmp_path: Path, kind: str, name: str, ranks: int) -> None:
    """Fails if a rank trains on other examples, or a checkpoint holds the weights of one rank."""
    if name == "deepspeed":
        pytest.importorskip("deepspeed")
    runs = []
    for folder, settings in (
        ("one", {"train__backend": backend("torch")}),
        ("all", {"train__backend": backend(name), "ranks": ranks}),
    ):
        path = write_fit(tmp_path / folder, kind, **settings)
        status, text = agentrl(tmp_path / f"{folder}.txt", "fit", path)
        assert status == 0, text
        runs.append(path.parent / "runs" / "fit")
    one, every = runs
    assert relative_error(weights(every), weights(one)) < 1e-4
    losses = [[loss for _, loss, _ in trained_steps(run)] for run in runs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_a_rank_that_dies_ends_the_fit_and_leaves_nothing(tmp_path: Path) -> None:
    path = write_fit(tmp_path / "p", data__epochs=4000, ranks=2)
    run = path.parent / "runs" / "fit"
    process = Agentrl(tmp_path / "out.txt", "fit", path)
    process.wait_for("step 3/", 90)
    children = psutil.Process(process.pid).children(recursive=True)
    ranks = [child for child in children if "child_main" in " ".join(child.cmdline())]
    os.kill(ranks[-1].pid, signal.SIGKILL)
    assert process.wait(90) == 2
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

from agentrl.train.fit.pair_losses import sigmoid

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

from agentrl.train.fit.pair_losses import sigmoid as loss

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


def test_what_cannot_be_divided_is_refused() -> None:
    data = {"data": {"source": "x"}, "train": {"backend": "deepspeed", "lora": 4}}
    with pytest.raises(ValueError, match=r"cannot train train\.lora"):
        FitConfig.model_validate(data)
