"""The seeded tiny runs of `same_numbers.py`: drivers, backends on two ranks, presets, options.

Whatever goes through `agentrl train` is read from the files of its run directory alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))

from agentrl.data import TrajectoryStore
from agentrl.metrics import read_metrics
from tests.runtime.drivers.virtual_runs import virtual_run
from tests.runtime.tiny_project import Agentrl, write_project
from tests.train.backends.sharded_trainers import KINDS, section, train_together
from tests.train.crew import Crew
from tests.train.tiny_llama import algorithm, make_groups, make_step, tiny_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The results of one run of a case."""

    before: Mapping[str, Any]
    """The first weights, by name."""
    weights: Mapping[str, Any]
    """The last weights."""
    metrics: list[Mapping[str, float]]
    """By step."""
    rollouts: list[Any]
    """Stored rollouts with their advantages, without wall times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One seeded run."""

    name: str
    run: Callable[[Path], Made]
    """Makes it in an empty folder."""


def stored_rollouts(run: Path) -> list[Any]:
    """Every stored rollout of a run directory, in order."""
    store = TrajectoryStore(run / "trajectories")
    rows: list[Any] = []
    for kind in ("train", "eval/held"):
        for step in store.steps(kind):
            for stored in store.read(kind, step=step):
                row = stored.trajectory
                rows.append(
                    [
                        kind, step, row.rollout_id, row.row_index, row.task_id,
                        row.prompt_ids, row.response_ids, row.response_mask,
                        row.rollout_log_probs, row.policy_versions, row.reward, row.score,
                        row.termination.value, stored.advantage,
                    ]
                )  # fmt: skip
    return sorted(rows, key=lambda row: row[:4])


# Through `agentrl train`


def talk_less(model: Path) -> None:
    """Make the end of a turn likely, so that rollouts differ in turns, lengths and endings."""
    from safetensors.torch import load_file, save_file

    path = model / "model.safetensors"
    end = json.loads((model / "config.json").read_text())["eos_token_id"]
    weights = load_file(path)
    weights["model.embed_tokens.weight"][end] *= 40
    save_file(weights, path, metadata={"format": "pt"})


def command_run(folder: Path, *, steps: Iterable[int], changes: Mapping[str, Any]) -> Made:
    """`agentrl train` of a tiny project; every further number of steps resumes the run."""
    from safetensors.torch import load_file

    more: tuple[str, ...] = ()
    for upto in steps:
        if not (folder / "model").exists():
            write_project(folder)
            talk_less(folder / "model")
        path = write_project(folder, train__steps=upto, **changes)
        process = Agentrl(folder / f"output-{upto}.log", "train", path, *more)
        status = process.wait(timeout_s=600)
        if status:
            raise RuntimeError(f"agentrl train ended with {status}:\n{process.text()}")
        more = ("--resume",)
    run = folder / "runs" / "tiny"
    last = max(
        run.glob("checkpoints/*/model.safetensors"), key=lambda path: int(path.parent.name[5:])
    )
    return Made(
        before=load_file(folder / "model" / "model.safetensors"),
        weights=load_file(last),
        metrics=list(read_metrics(run / "metrics.jsonl")),
        rollouts=stored_rollouts(run),
    )


def _keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as `write_project` takes them."""
    return {name.replace(".", "__"): value for name, value in settings.items()}


_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
RUN = _keys(_TABLE["run"])
PRESETS: list[str] = _TABLE["presets"]
OPTIONS = {name: _keys(changes) for name, changes in _TABLE["options"].items()}
SCHEDULES: dict[str, tuple[dict[str, Any], str]] = _TABLE["schedules"]


def command_case(name: str, changes: Mapping[str, Any], steps: Iterable[int] = (3,)) -> Case:
    every = {**RUN, **changes}
    return Case(name=name, run=lambda folder: command_run(folder, steps=steps, changes=every))


# In virtual time


def virtual_case(name: str, schedule: Mapping[str, Any], engine: str) -> Case:
    def run(folder: Path) -> Made:
        path, before, weights = virtual_run(folder, schedule=schedule, engine=engine)
        return Made(
            before=before,
            weights=weights,
            metrics=list(read_metrics(path / "metrics.jsonl")),
            rollouts=stored_rollouts(path),
        )

    return Case(name=f"driver: {name}", run=run)


# Two ranks

BACKENDS: dict[str, dict[str, Any]] = {
    "torch data parallel": {"backend": "torch"},
    **{name: KINDS[name] for name in ("fsdp2", "zero0", "zero1", "zero2", "zero3")},
}


class TwoRanks:
    """Two processes that all backend cases share, started by the first of them."""

    def __init__(self) -> None:
        self._crew: Crew | None = None

    def run(self, *args: Any) -> list[Any]:
        self._crew = self._crew or Crew(2)
        return self._crew.run(2, *args)

    def close(self) -> None:
        if self._crew is not None:
            self._crew.close()
            self._crew = None


two_ranks = TwoRanks()


def backend_case(name: str, settings: Mapping[str, Any]) -> Case:
    def run(folder: Path) -> Made:
        import torch

        chosen = algorithm(old_log_probs="recompute", kl_coef=0.3, loss_agg_mode="token-mean")
        cut = {"micro_batch_tokens": 32, "epochs": 2, "minibatches": 2}
        steps = [make_step(make_groups(seed), algorithm=chosen, **cut) for seed in (0, 1)]
        options = {"train": section(**settings), "algorithm": chosen, "tied": False}
        ranks = two_ranks.run(train_together, steps, torch.float32, options)
        for rank in ranks[1:]:
            assert rank["metrics"] == ranks[0]["metrics"], "ranks differ in their metrics"
            assert all(
                torch.equal(tensor, ranks[0]["weights"][key])
                for key, tensor in rank["weights"].items()
            ), "ranks differ in their weights"
        before = dict(tiny_model(torch.float32, tied=False).named_parameters())
        return Made(
            before={key: tensor.detach() for key, tensor in before.items()},
            weights=ranks[0]["weights"],
            metrics=ranks[0]["metrics"],
            rollouts=[],
        )

    return Case(name=f"backend: {name}, two ranks", run=run)


def all_cases() -> dict[str, Case]:
    """Every case by name."""
    cases = [
        *(virtual_case(name, *settings) for name, settings in SCHEDULES.items()),
        command_case("driver: synchronous, agentrl train, resumed", {}, (2, 3)),
        *(backend_case(name, settings) for name, settings in BACKENDS.items()),
        *(
            command_case(f"preset: {name}", {"algorithm__preset": name, "algorithm__kl_coef": 0.05})
            for name in PRESETS
        ),
        *(command_case(f"option: {name}", changes) for name, changes in OPTIONS.items()),
    ]
    return {case.name: case for case in cases}
