"""Learning curves against TRL, of several tries against one, and of two schedules: one command.

    pip install --no-deps --target FOLDER trl==1.16.0
    .venv/bin/python benchmarks/learning/compare.py trl --minutes 6 --seeds 3 --trl FOLDER
    .venv/bin/python benchmarks/learning/compare.py turns --tokens 100000 --seeds 3
    .venv/bin/python benchmarks/learning/compare.py schedule --minutes 6 --seeds 3

Both sides of a comparison train the model of the run file on its tasks with the same budget, one
process for each seed, in turn (A B, B A, A B). The clock runs while they sample, judge and train;
it stands while a process starts, and while weights are copied or written. At every mark of the
budget the weights after the last complete step are kept. When the training has ended `agentrl eval`
scores them on the held-out tasks of the run file, with the same draws for all.

`--out` names a table (.md) and a plot (.svg). Finished pieces are kept in `--work`: the same
command goes on after Ctrl-C, and more `--seeds` add to those that are there.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from comparisons import (
    TRL_VERSION,
    Comparison,
    Variant,
    comparison,
    environment,
    pieces,
    score_command,
    train_command,
)
from harness import Choice, measured_with, options
from score_tables import Point, Scores, plot, score_table
from snapshot_transfer import RUN
from snapshots import FINISHED_FILE, SnapshotPlan

from agentrl.config import RunConfig, load_config
from agentrl.config.paths import QUICKSTART
from agentrl.data import TrajectoryStore
from agentrl.disk.stored_groups import stored_groups
from agentrl.machine.files import write_whole
from agentrl.models.quickstart import quickstart_checkpoint
from agentrl.runtime.scoring.evaluate import summarise
from agentrl.runtime.stages import report_of

HELD_OUT = "held_out"
TRAINED_FILE = "trained"
"""Made in the folder of a piece when its training has ended as it should."""


class Pieces:
    """Trains and scores the pieces of one comparison, those that are not there yet."""

    def __init__(self, chosen: Comparison, config: RunConfig, args: argparse.Namespace) -> None:

        self._chosen, self._args = chosen, args
        path = config.model.path
        self._model = str(quickstart_checkpoint()) if path == QUICKSTART else path
        self._dtype = config.model.dtype
        section = config.eval.datasets[HELD_OUT]
        self._dataset = json.dumps({HELD_OUT: section.model_dump(mode="json")})
        self._environment = environment(args.trl)
        budget = args.tokens if chosen.unit == "tokens" else args.minutes * 60
        self._marks = tuple(budget * (n + 1) / args.marks for n in range(args.marks))
        self._work: Path = args.work.resolve()

    def check_settings(self, config: RunConfig) -> None:
        """Refuse a work folder of other settings; results of both would be mixed."""
        found = {
            "marks": list(self._marks),
            "samples": self._args.samples,
            "config": config.model_dump(mode="json"),
        }
        file = self._work / "settings.json"
        if file.is_file() and json.loads(file.read_text()) != found:
            raise SystemExit(
                f"{self._work} holds results of another budget, run file or number of samples; "
                "delete it, or name another folder with --work"
            )
        self._work.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(found).encode())

    def start(self, score: Variant) -> Scores:
        """Scores of the weights that training begins with."""
        return self._scored(self._work / "start", score, self._model)

    def train(self, side: Variant, seed: int) -> None:
        """Train one side with one seed, unless that is done."""
        folder = self._folder(side, seed)
        if (folder / TRAINED_FILE).is_file():
            return
        shutil.rmtree(folder, ignore_errors=True)  # an attempt that was stopped
        folder.mkdir(parents=True)
        plan = SnapshotPlan(
            unit=self._chosen.unit, marks=self._marks, model=self._model, dtype=self._dtype
        )
        plan.write(folder)
        say(f"{side.name}, seed {seed}: training")
        command = train_command(
            side, self._args.config.resolve(), folder, seed=seed, overrides=self._args.overrides
        )
        log = folder / "train.log"
        with running(command, self._environment, log) as process:
            while process.poll() is None and not (folder / FINISHED_FILE).is_file():
                time.sleep(0.5)
        if not (folder / FINISHED_FILE).is_file():
            raise SystemExit(f"{side.name}, seed {seed}: ended before its budget; see {log}")
        shutil.rmtree(folder / RUN / "checkpoints", ignore_errors=True)
        (folder / TRAINED_FILE).touch()

    def points(self, side: Variant, seed: int, score: Variant) -> list[Point]:
        """Score the weights of every mark, unless that is done."""
        folder = self._folder(side, seed)
        found = []
        for index, mark in enumerate(self._marks):
            facts = json.loads((folder / f"mark-{index}.json").read_text())
            scores = self._scored(folder / f"score-{index}", score, facts["model"])
            found.append(
                Point(
                    side=side.name,
                    seed=seed,
                    mark=mark,
                    position=facts["position"],
                    step=facts["step"],
                    scores=scores,
                )
            )
        return found

    def drop_weights(self, side: Variant, seed: int) -> None:
        """Delete the weights of a piece; all of its scores are there."""
        for index in range(len(self._marks)):
            shutil.rmtree(self._folder(side, seed) / f"mark-{index}", ignore_errors=True)

    def _folder(self, side: Variant, seed: int) -> Path:
        return self._work / f"{side.name.replace(' ', '-')}-seed-{seed}"

    def _scored(self, folder: Path, score: Variant, model: str) -> Scores:
        file = folder / f"{score.name.replace(' ', '-')}.json"
        if file.is_file():
            return json.loads(file.read_text())
        if model == self._model and folder.name != "start":
            return self.start(score)
        say(f"{folder.relative_to(self._work)}: scoring, {score.name}")
        out = folder / "rollouts"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        command = score_command(
            score,
            self._args.config.resolve(),
            model=model,
            out=out,
            samples=self._args.samples,
            dataset=self._dataset,
            overrides=self._args.overrides,
        )
        log = folder / "score.log"
        with running(command, self._environment, log) as process:
            if process.wait() != 0:
                raise SystemExit(f"{' '.join(command)} failed; see {log}")
        scores = read_scores(out, samples=self._args.samples)
        write_whole(file, json.dumps(scores).encode())
        shutil.rmtree(out)
        return scores


def read_scores(out: Path, *, samples: int) -> Scores:
    """Mean score of each held-out task, from the rollouts of `agentrl eval`."""
    groups = stored_groups(TrajectoryStore(out / "trajectories"), f"eval/{HELD_OUT}", 0)
    summary = summarise(HELD_OUT, 0, [report_of(group) for group in groups], n_samples=samples)
    return dict(summary.by_task)


@contextlib.contextmanager
def running(
    command: Sequence[str], env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a session of its own, so that it and its children end with the block."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=dict(env), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Let a process clean up; what is left of its session is killed after a minute, or at once
    where Ctrl-C is pressed again."""
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def report(
    chosen: Comparison, found: Mapping[str, tuple[Scores, Sequence[Point]]], args: Any
) -> str:
    """The text of the results, and a plot for each evaluation.

    Args:
        chosen: what was compared.
        found: name of an evaluation to the scores at the start and at the marks.
        args: of the command line.
    """
    sides = [side.name for side in chosen.sides]
    parts = [
        f"# {chosen.title}\n",
        f"    {shown_command(args)}\n",
        f"{measured_with(f'TRL {TRL_VERSION}')}.\n",
    ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for number, (name, (start, points)) in enumerate(found.items()):
        suffix = "" if number == 0 else f"_{name.replace(' ', '_')}"
        picture = args.out.with_name(f"{args.out.name}{suffix}.svg")
        plot(points, sides, picture, start=start, unit=chosen.unit, title=f"scored with {name}")
        seeds = len({point.seed for point in points})
        parts.append(
            f"Held-out tasks solved with {name}: mean over {seeds} seeds and {len(start)} tasks "
            f"with {args.samples} rollouts each, [95 % over seeds and tasks], training steps. "
            f"Plot: `{picture.name}`.\n"
        )
        parts.append(score_table(points, sides, start=start, unit=chosen.unit))
    return "\n".join(parts)


def shown_command(args: argparse.Namespace) -> str:
    """The command without the folders of this machine."""
    budget = f"--tokens {args.tokens}" if args.what == "turns" else f"--minutes {args.minutes:g}"
    words = f"{args.what} {budget} --seeds {args.seeds} --marks {args.marks}"
    command = f"python benchmarks/learning/compare.py {words} --samples {args.samples}"
    return " ".join([command, *args.overrides])


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def check_trl(folder: Path | None) -> None:
    """Refuse to begin without TRL."""
    there = (folder / "trl").is_dir() if folder else importlib.util.find_spec("trl") is not None
    if not there:
        raise SystemExit(
            f"TRL is not in {folder or 'the path of Python'}; install it with 'pip install "
            f"--no-deps --target FOLDER trl=={TRL_VERSION}' and add --trl FOLDER"
        )


def parse() -> argparse.Namespace:
    args = options(
        __doc__, what_=Choice(("trl", "turns", "schedule")), overrides_=[str],
        config=Path("configs/quickstart.yaml"), minutes=6.0, tokens=100_000, seeds=3, marks=4,
        samples=2, trl=Path, work=Path, out=Path,
    )  # fmt: skip
    args.work = args.work or Path("runs/learning") / args.what
    args.out = args.out or Path("benchmarks/results") / f"learning_{args.what}"
    return args


def main() -> None:
    args = parse()
    if args.what == "trl":
        check_trl(args.trl)
    config = load_config(args.config, args.overrides)
    chosen = comparison(args.what, config)
    work = Pieces(chosen, config, args)
    work.check_settings(config)
    # A shell that ends this command ends it as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = collect(work, chosen, seeds=args.seeds)
    except KeyboardInterrupt:
        say(f"stopped; finished pieces are in {args.work}, and the same command goes on")
        sys.exit(130)
    text = report(chosen, found, args)
    args.out.with_suffix(".md").write_text(text)
    print(text)


def collect(
    work: Pieces, chosen: Comparison, *, seeds: int
) -> dict[str, tuple[Scores, list[Point]]]:
    """Train and score every piece; the weights of one at a time are on the disk."""
    found = {score.name: (work.start(score), list[Point]()) for score in chosen.scores}
    for side, seed in pieces(chosen.sides, seeds):
        work.train(side, seed)
        for score in chosen.scores:
            found[score.name][1].extend(work.points(side, seed, score))
        work.drop_weights(side, seed)
    return found


if __name__ == "__main__":
    main()
