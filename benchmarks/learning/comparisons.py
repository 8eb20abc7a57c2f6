"""The comparisons of learning curves: what their sides are, and how a side is run and scored."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from snapshot_transfer import RUN, SnapshotTransfer

from agentrl.config import RunConfig

FOLDER = Path(__file__).parent
AGENTRL = (sys.executable, "-c", "from agentrl.cli import main; main()")
TRL_VERSION = "1.16.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Something with a name, and the overrides of the run file that make it."""

    name: str
    """Short, for files and tables."""
    overrides: tuple[str, ...] = ()
    """`section.key=value`, after those of the comparison."""
    trl: bool = False
    """Trained by TRL instead of agentrl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides that train with the same budget, and what their weights are scored on."""

    title: str
    """What is compared."""
    unit: str
    """Unit of the budget: `seconds` or `tokens`."""
    sides: tuple[Variant, ...]
    """What trains; the difference is that of the first from the second."""
    scores: tuple[Variant, ...]
    """Evaluations of the weights."""


def comparison(name: str, config: RunConfig) -> Comparison:
    """The comparison of a name.

    Args:
        name: `trl`, `turns` or `schedule`.
        config: the run file without overrides.
    """
    one = Variant(name="one try", overrides=single_turn(config))
    tries = config.rollout.max_assistant_turns
    several = Variant(name=f"{tries} tries")
    if name == "trl":
        return Comparison(
            title="agentrl and TRL at equal minutes, one try",
            unit="seconds",
            sides=(
                Variant(name="agentrl", overrides=one.overrides),
                Variant(name="TRL", overrides=one.overrides, trl=True),
            ),
            scores=(one,),
        )
    if name == "turns":
        return Comparison(
            title=f"Training with {tries} tries and with one at equal sampled tokens",
            unit="tokens",
            sides=(
                Variant(name=f"trained with {tries} tries"),
                Variant(name="trained with one", overrides=one.overrides),
            ),
            scores=(one, several),
        )
    ahead = ("schedule.staleness_threshold=1", "schedule.partial_rollout=true")
    behind = ("schedule.staleness_threshold=0", "schedule.partial_rollout=false")
    return Comparison(
        title="Asynchronous and synchronous training at equal minutes",
        unit="seconds",
        sides=(
            Variant(name="asynchronous", overrides=ahead),
            Variant(name="synchronous", overrides=(*behind, "schedule.max_version_lag=null")),
        ),
        scores=(several,),
    )


def single_turn(config: RunConfig) -> tuple[str, ...]:
    """Overrides that leave one try, and a response no longer than it."""
    return (
        "env.args.max_turns=1",
        "rollout.max_assistant_turns=1",
        f"rollout.max_response_tokens={config.rollout.max_turn_tokens}",
    )


def train_command(
    side: Variant, config: Path, folder: Path, *, seed: int, overrides: Sequence[str] = ()
) -> list[str]:
    """The command that trains a side until the last mark of the plan in `folder`."""
    if side.trl:
        words = [sys.executable, str(FOLDER / "trl_side.py"), str(config), str(folder)]
        return [*words, *overrides, *side.overrides, "--seed", str(seed)]
    return [
        *AGENTRL, "train", str(config), *overrides, *side.overrides,
        f"run.dir={folder}", f"run.name={RUN}", f"run.seed={seed}",
        # It is ended from outside, after the last mark; nothing else takes time of its own.
        "train.steps=1000000", "train.max_minutes=null", "checkpoint.every_steps=1000000",
        "eval.datasets={}", "health.rules=[]",
        f"sync.backend={SnapshotTransfer.__module__}:{SnapshotTransfer.__name__}",
        f"sync.directory={folder}",
    ]  # fmt: skip


def score_command(
    score: Variant,
    config: Path,
    *,
    model: str,
    out: Path,
    samples: int,
    dataset: str,
    overrides: Sequence[str] = (),
) -> list[str]:
    """The command that scores weights; its draws are the same for all of them."""
    return [
        *AGENTRL, "eval", str(config), *overrides, *score.overrides, f"eval.datasets={dataset}",
        "--model", model, "--out", str(out), "--n", str(samples),
    ]  # fmt: skip


def environment(trl: Path | None) -> dict[str, str]:
    """Environment of the processes, which import the files of this folder, and TRL."""
    paths = [str(FOLDER), *([str(trl.resolve())] if trl else [])]
    known = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, *([known] if known else [])]),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
    }


def pieces(sides: Sequence[Variant], seeds: int) -> list[tuple[Variant, int]]:
    """Sides and seeds in turn: A B, B A, A B, so that neither is always the later one."""
    return [
        (side, seed)
        for seed in range(seeds)
        for side in (sides if seed % 2 == 0 else tuple(reversed(sides)))
    ]
