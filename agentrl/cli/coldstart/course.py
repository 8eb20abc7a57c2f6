"""The course of a cold start: solutions, a measure before, the fit, a measure after, a run file.

Each stage has a folder of its own below `--out` and is skipped where that is whole, so a start that
was stopped goes on with the stage that was under way; the fit goes on with its last step.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from rich.console import Console

from agentrl.cli.coldstart.measure import HeldOutMeasure, measured
from agentrl.cli.coldstart.solutions import ColdStartTeacher, require_paid, teacher_solutions
from agentrl.cli.console.options import watched
from agentrl.cli.console.owner import owned
from agentrl.cli.fit import run_fit
from agentrl.config import RunConfig, parse_config
from agentrl.config.keys import dotted
from agentrl.config.plan import plan_run
from agentrl.config.yaml_text import dump_yaml
from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.errors import ConfigError, RunError
from agentrl.fit.data.conversations.from_runs import conversations_of_run
from agentrl.machine.files import write_whole

__all__ = ["ColdStart", "ColdStartSettings", "ColdStartTeacher"]

_EXAMPLES_PER_STEP = 8
_LEAST_STEPS = 16
"""Steps that a fit takes unless it is told how many epochs. With 4 the quickstart's model still
called no tool of `examples/my_tools.py`; with 8 it did in 37 of 48 rollouts."""
_KEPT = ("teacher", "before", "fit")
"""Stages that took time, so that they are only gone on with as they were begun."""
_STOPPED = "stopped; the same command goes on"
_OWN_OF_RL = {"steps", "max_minutes", "epochs_per_batch", "minibatches", "learning_rate"}
"""Keys of `train` that a run has and its fit must not take over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartSettings:
    """Options of a cold start, beside the run file."""

    tasks: int | None
    """Training tasks that are solved; None for all."""
    epochs: int | None
    """Passes over the solutions; None for one, or as many as take `_LEAST_STEPS` steps."""
    learning_rate: float
    """Of the fit."""
    min_score: float
    """Least score of an episode that is learned from."""
    n: int
    """Rollouts of each held-out task."""
    limit: int | None
    """Tasks of each held-out set that are measured; None for all."""
    teacher: ColdStartTeacher | None
    """A served model whose episodes are learned from; None for the environment's solutions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """One cold start and its folder."""

    config: RunConfig
    """The run file that RL is to begin with."""
    base: Path
    """Folder that its relative paths start from."""
    out: Path
    """Folder of everything; absolute."""
    settings: ColdStartSettings
    """What was asked for beside the run file."""

    def run(self, console: Console) -> int:
        """Go through all stages that are not done; gives the exit status.

        Raises:
            AgentrlError: whatever does not fit, or solutions that are not paid.
            typer.Exit: stopped by a signal; what is done is kept.
        """
        if not self.config.eval.datasets:
            raise ConfigError(
                "coldstart: eval.datasets is empty, so nothing says what the model has learned; "
                "name tasks that are not trained on, as eval: {datasets: {held_out: {source: "
                "held_out.jsonl}}}"
            )
        with owned(self.out):
            return self._run(console)

    def _run(self, console: Console) -> int:
        self._adopt()
        say = partial(console.print, markup=False, soft_wrap=True)
        say(f"coldstart {self.out}; the same command goes on with it")
        self._solutions(console)
        before = self._measured(console, "before", model=None)
        status = self._fit()
        if status:
            return status
        fitted = self.out / "fit"
        after = self._measured(console, "after", model=str(fitted))
        found = latest_checkpoint(fitted / "checkpoints")
        if found is None:
            raise RunError(f"{fitted} holds no checkpoint; remove {self.out} and start again")
        run_file = self._write_run(fitted)
        doubts = [*after.doubts(before, calls=self._calls_tools())]
        after.report(before, console)
        for doubt in doubts:
            say(f"warning: {doubt}")
        document = {"before": before.as_dict(), "after": after.as_dict(), "doubts": doubts}
        write_whole(self.out / "result.json", json.dumps(document, indent=1).encode())
        say(f"go on with RL:  agentrl train {run_file}")
        return int(bool(doubts))

    def _adopt(self) -> None:
        """Begin the folder, or refuse one that was begun otherwise."""
        file = self.out / "coldstart.json"
        asked = {
            "run": self.config.model_dump(mode="json"),
            "settings": dataclasses.asdict(self.settings),
        }
        asked = json.loads(json.dumps(asked, default=str))
        if not file.exists() and self.out.exists() and any(self.out.iterdir()):
            raise ConfigError(f"{self.out} holds something else; choose another --out")
        if not any((self.out / stage).exists() for stage in _KEPT):
            # Nothing has been sampled or learned yet: an author mends solutions and limits here.
            shutil.rmtree(self.out / "solutions", ignore_errors=True)
            self.out.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(asked, indent=1).encode())
            return
        try:
            there = dotted(json.loads(file.read_bytes()))
        except ValueError as error:
            raise ConfigError(f"{file} cannot be read ({error}); choose another --out") from None
        mine = dotted(asked)
        for key in sorted(mine.keys() | there.keys()):
            if mine.get(key) != there.get(key):
                raise ConfigError(
                    f"{self.out} was begun with {key} {there.get(key)!r}, now it is "
                    f"{mine.get(key)!r}; choose another --out, or the same settings"
                )

    def _solutions(self, console: Console) -> None:
        """Episodes that are learned from, in `solutions`."""
        out = self.out / "solutions"
        if not (out / "trajectories").is_dir():
            self._record(out, console)
        text = require_paid(
            out,
            min_score=self.settings.min_score,
            own=self.settings.teacher is None,
            parser=self.config.chat.tool_parser,
        )
        console.print(text, markup=False, soft_wrap=True)

    def _record(self, out: Path, console: Console) -> None:
        from agentrl.preflight.reward.recorded_solutions import record_solutions

        given = None
        if self.settings.teacher is not None:
            given = teacher_solutions(
                plan_run(self.config, self.base),
                self.settings.teacher,
                tasks=self.settings.tasks,
                min_score=self.settings.min_score,
                out=self.out / "teacher",
                console=console,
            )
        watched(
            console,
            lambda progress: record_solutions(
                self.config,
                base=self.base,
                tasks=self.settings.tasks,
                out=out,
                progress=progress,
                solutions=given,
            ),
            stopped=_STOPPED,
        )

    def _calls_tools(self) -> bool:
        """True if the solutions call tools."""
        return measured(self.out / "solutions", policy="solutions", kind="train").calls > 0

    def _measured(self, console: Console, name: str, *, model: str | None) -> HeldOutMeasure:
        """The held-out tasks, with the model of the run or another."""
        from agentrl.data.run.paths import RunPaths
        from agentrl.runtime.sampling.sample import evaluate

        out = self.out / name
        if not RunPaths(out).evaluation_file.is_file():
            data: dict[str, Any] = self.config.model_dump(mode="json")
            data["eval"]["n_samples"] = self.settings.n
            data["train"]["steps"] = 0
            for section in data["eval"]["datasets"].values():
                section["limit"] = self.settings.limit or section["limit"]
            config = parse_config(data, where="coldstart")
            watched(
                console,
                lambda progress: evaluate(
                    config, base=self.base, model_path=model, out=out, progress=progress
                ),
                stopped=_STOPPED,
            )
        return measured(out, policy=name)

    def _fit(self) -> int:
        """The model that learned the solutions, in `fit`; gives the exit status of the fit."""
        file, done = self.out / "fit.yaml", self.out / "fitted"
        if done.exists():
            return 0
        write_whole(file, dump_yaml(self._fit_file()).encode())
        status = run_fit(file, [], resume=True, dry_run=False)
        if not status:
            done.touch()
        return status

    def _fit_file(self) -> Mapping[str, Any]:
        run = self.config.model_dump(mode="json", exclude_unset=True)
        epochs = self.settings.epochs
        if epochs is None:
            least = self.settings.min_score
            learned = len(conversations_of_run(self.out / "solutions", min_score=least))
            epochs = ceil(_LEAST_STEPS / ceil(learned / _EXAMPLES_PER_STEP))
        train = {k: v for k, v in run.get("train", {}).items() if k not in _OWN_OF_RL}
        return {
            "run": {"name": "fit", "dir": str(self.out), "seed": self.config.run.seed},
            "model": run.get("model", {}) | {"path": self.config.model.path},
            "chat": run.get("chat", {}),
            "data": {
                "source": f"run:{self.out / 'solutions'}",
                "min_score": self.settings.min_score,
                "examples_per_step": _EXAMPLES_PER_STEP,
                "epochs": epochs,
            },
            "objective": "sft",
            "train": train | {"learning_rate": self.settings.learning_rate},
            "checkpoint": {"every_steps": 4, "keep_last": 1},
        }

    def _write_run(self, fitted: Path) -> Path:
        """The run file that begins with the fitted model; paths in it are absolute."""
        data = self.config.model_dump(mode="json", exclude_unset=True)
        data["run"] = data.get("run", {}) | {"name": f"{self.config.run.name}-rl"}
        data["run"]["dir"] = str(Path(self.config.run.dir).expanduser().absolute())
        data["model"] = data.get("model", {}) | {"path": str(fitted)}
        file = self.out / f"{self.config.run.name}-rl.yaml"
        head = f"# Goes on with RL where the cold start in {self.out} ended.\n"
        write_whole(file, (head + dump_yaml(data)).encode())
        return file
