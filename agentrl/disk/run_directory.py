"""The run directory: everything one run leaves on disk, and who may write it.

    RUN/config.yaml       the resolved config
    RUN/run.json          where relative paths of the config start, which model it began with and
                          which other models (`agentrl.disk.pinned_models`), how they compare with
                          their own forward passes (`agentrl.disk.proofs`), and of each start the
                          command, commits, versions and digests of data and code (`disk.origin`)
    RUN/tasks.json        ids of the tasks that dataset.difficulty left when the run began
    RUN/task_labels.jsonl labels of the tasks (family, level, tags), by which the inspector filters
    RUN/metrics.jsonl     one line a step
    RUN/tensorboard/      the same numbers for TensorBoard
    RUN/images/           files of the images that a vision-language model was shown, by digest
    RUN/trajectories/     every rollout; also the log that `--resume` trains from again
    RUN/tokens/           what the trainer made of every trained token, by step and rank
    RUN/tokenizer.json    by which tokens are read as text, from the start
    RUN/checkpoints/      step-N, Hugging Face format plus trainer state
    RUN/run.log           everything that was logged, tracebacks too
    RUN/result.json       final scores
    RUN/health.jsonl      changes of verdicts, and what rules decided
    RUN/live.json         what the run does at this moment; there while it runs, see
                          `agentrl.runtime.live_state`
    RUN/control           there while a rule pauses the run; see `agentrl.disk.pause`
    RUN/requests/         servers that shall join or leave; see `agentrl.disk.server_requests`
    RUN/rolled-back/N/    what a rollback moved aside; see `agentrl.disk.rollback`
    RUN/refresh/          refreshes of a reward model; see `agentrl.fit.refresh.records`
    RUN/reward_models/    NAME/vK, the fits that made the versions of a refreshed reward model
    RUN/logs/             output of servers and of other processes of the run
    RUN/sinks/            what trackers of experiments keep: the id of this run there, and runs
                          that are offline
    RUN/weights/          what the `disk` backend passes to the engines
    RUN/reference.parquet log-probabilities of the reference of `agentrl fit`
    RUN/examples/         tokens of some held-out examples at every evaluation of `agentrl fit`
    RUN/.lock             held (flock) by the one process that writes here

The lock dies with its process, so a `kill -9` never leaves a run locked.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import agentrl
from agentrl.config import RunConfig, dump_config
from agentrl.config.fit import FitConfig
from agentrl.config.load import FIT_FILE, RUN_FILE, is_fit_file
from agentrl.data.run.paths import RunPaths
from agentrl.disk.origin import origin_of
from agentrl.disk.pinned_models import (
    MODEL,
    PinnedModel,
    check_pinned,
    moved_models,
    pin_models,
    pinned_json,
    read_pinned,
    with_pinned,
)
from agentrl.disk.run_name import (
    IDENTITY_FILE,
    REFERENCE_FILE,
    empty,
    free_name,
    holds_a_run,
    run_path,
)
from agentrl.errors import ConfigError, RunError, UntrustedFile
from agentrl.machine.files import write_whole
from agentrl.machine.inside import refuse_links

logger = logging.getLogger(__name__)

Config = TypeVar("Config", bound=RunConfig | FitConfig)
Read = TypeVar("Read")

_STARTS = 19
"""Starts before the present one that `run.json` keeps."""

_MAY_CHANGE = (
    "train.steps",
    "train.max_minutes",
    "train.micro_batch_tokens",
    "train.micro_batch_image_tokens",
    "train.lora.sync",
    "train.backend",
    "train.prefix_sharing",
    "eval.",
    "checkpoint.",
    "log.",
    "health.",
    "serving.",
    "sync.",
    "runtime",
    "ranks",
    "sandbox.",
    "run.dir",
    "run.name",
    "run.grace_s",
)
"""Keys a resumed run may change: they do not alter what a finished step was trained on.

`schedule` is not among them: groups that one schedule has begun or deferred are not those that
another would go on with."""


_LOST_IN_SILENCE = (
    *_MAY_CHANGE,
    "algorithm.distill.teacher.",
    "rollout.turn_limit_s",
    "schedule.dispatch",
)
"""Keys whose removal does not alter what later steps are trained on either."""


class RunDir(RunPaths):
    """A locked run directory. Make one with `create`, `resume` or `open_or_create`."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        super().__init__(path)
        self._lock = lock
        self.changed: Mapping[str, tuple[Any, Any]] = {}
        """By key, the values before and after `adopt`, where it took another config."""

    @classmethod
    def create(cls, config: RunConfig | FitConfig, *, base: Path) -> RunDir:
        """Begin a run in `run.dir`/`run.name`.

        Args:
            config: written out with every default.
            base: where relative paths of the config start; remembered for `--resume`.

        Raises:
            RunError: another process runs there, it already holds a run, or it is not writable; or
                a path of a model names a run without a checkpoint.
        """
        path = run_path(config.run)
        run = cls._locked(path)
        try:
            if holds_a_run(path):
                raise RunError(
                    f"run directory {path} already holds a run; continue it with --resume, or "
                    f"start another with run.name={free_name(path)}"
                )
            empty(path, but=(REFERENCE_FILE,))
            run._write_identity(config, base, pinned=pin_models(config, base))
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def resume(cls, path: Path) -> tuple[RunDir, RunConfig, Path]:
        """Take over the run at `path`: its lock, its config, and where relative paths start.

        Raises:
            RunError: it is not a run directory, or another process runs there.
            ConfigError: an older agentrl trained it with a setting that cannot be had any more.
        """
        config, base = read_identity(path)
        _refuse_lost(path)
        return cls._locked(path), config, base

    @classmethod
    def resume_fit(cls, path: Path) -> tuple[RunDir, FitConfig, Path]:
        """As `resume`, of a run directory of `agentrl fit`."""
        config, base = read_fit_identity(path)
        _refuse_lost(path)
        return cls._locked(path), config, base

    def adopt(self, config: RunConfig | FitConfig, *, base: Path) -> None:
        """Go on with `config` instead of the stored one, if finished steps stay what they were.

        Raises:
            RunError: a key differs that decides what finished steps were trained on, or a model
                that the run began with is gone or another one.
        """
        old = _flatten(read_any_identity(self.path)[0].model_dump(mode="json"))
        if isinstance(config, FitConfig):
            config = FIT_FILE.whole(config, base)
        else:
            config = RUN_FILE.whole(config, base)
        new = _flatten(config.model_dump(mode="json"))
        identity = json.loads((self.path / IDENTITY_FILE).read_bytes())
        pinned = read_pinned(identity)
        pinned |= (moved := moved_models(pinned, config, base))
        changed = {
            key: (old.get(key), new.get(key))
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
        }
        wrong = [
            f"  {key}: {before!r} in the run, {now!r} now"
            for key, (before, now) in changed.items()
            if not key.startswith(_MAY_CHANGE) and key not in moved
        ]
        if wrong:
            raise RunError(
                f"--resume: the config does not fit the run in {self.path}:\n"
                + "\n".join(wrong)
                + "\nundo the change, or start another run with another run.name"
            )
        check_pinned(pinned)
        # What an older make did not keep, or a run without steps had no need of.
        if MODEL in moved:
            identity["model"] = moved[MODEL][0].path
        whole = resolved_models(config, {**identity, "models": pinned_json(pinned)})
        pinned = pin_models(whole, base) | pinned
        self._write_identity(config, base, pinned=pinned, starts=identity.get("starts", []))
        self.changed = changed

    def resolve_models(self, config: Config) -> Config:
        """`config` with the models that this run began with, whatever their names stand for now.

        A path that names another run stands for the latest checkpoint there, and that run may go
        on.
        """
        return models_of_run(self.path, config)

    def write_result(self, result: dict[str, Any]) -> None:
        """Write the final scores."""
        write_whole(self.result_file, json.dumps(result, indent=2).encode() + b"\n")

    def discard(self) -> None:
        """Delete a run that failed before it produced anything, and release the lock.

        Logs of servers stay, because errors name them; the next run of this name replaces them. So
        does what a fit computed of its reference, which takes long.
        """
        if not holds_a_run(self.path):
            if any(self.logs.glob("*")) or (self.path / REFERENCE_FILE).exists():
                empty(self.path, but=(IDENTITY_FILE, "logs", REFERENCE_FILE))
            else:
                shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Release the lock. Idempotent."""
        self._lock.close()

    @classmethod
    def _locked(cls, path: Path) -> RunDir:
        try:
            path.mkdir(parents=True, exist_ok=True)
            refuse_links(path)
            lock = (path / ".lock").open("a+")
        except UntrustedFile:
            raise
        except OSError as error:
            raise RunError(f"run directory {path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "another process"
            lock.close()
            raise RunError(
                f"run directory {path} is in use by {owner}; wait for it, stop it, or start "
                f"another run with run.name={free_name(path)}"
            ) from None
        if not _same_file(lock, path / ".lock"):
            lock.close()
            raise RunError(f"run directory {path} was deleted by another process; try again")
        try:
            _forget_requests(path)
        except OSError as error:
            lock.close()
            raise RunError(f"{path}/requests cannot be written: {error.strerror}") from error
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {platform.node()}")
        lock.flush()
        return cls(path, lock)

    def _write_identity(
        self,
        config: RunConfig | FitConfig,
        base: Path,
        *,
        pinned: Mapping[str, Sequence[PinnedModel]],
        starts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        origin = origin_of(config, base)
        identity = {
            "base": str(base.resolve()),
            "model": pinned[MODEL][0].path,
            "models": pinned_json(pinned),
            "agentrl": agentrl.__version__,
            "python": platform.python_version(),
            "written": origin["at"],
            "starts": [*starts[-_STARTS:], origin],
        }
        write_whole(self.path / IDENTITY_FILE, json.dumps(identity, indent=1).encode())
        write_whole(self.config_file, dump_config(config).encode())


def _refuse_lost(path: Path) -> None:
    """Refuse a run whose later steps would be trained with another setting than its finished ones.

    Raises:
        ConfigError: such a setting, and why it is gone.
    """
    lost = RUN_FILE.lost(path / "config.yaml")
    lines = [
        f"  {key} {text}"
        for key, text in lost.items()
        if not key.startswith(_LOST_IN_SILENCE) and not key.endswith(".batch_tokens")
    ]
    if lines:
        raise ConfigError(
            f"--resume: the run in {path} was begun by an older agentrl:\n"
            + "\n".join(lines)
            + "\nstart another run without it, or go on with the agentrl that began this one "
            "(run.json names its version)"
        )


def _forget_requests(path: Path) -> None:
    """Throw away what a process that has ended left unanswered; see `server_requests`.

    With the lock and not later: a command that finds the lock held waits for an answer.
    """
    for file in (path / "requests").glob("*.a*"):
        file.unlink(missing_ok=True)


def read_identity(path: Path) -> tuple[RunConfig, Path]:
    """The config of the run at `path`, and where its relative paths start.

    Raises:
        RunError: it is not a run directory.
        ConfigError: its config is of another make.
    """
    return _identity(path, RUN_FILE.load_stored)


def resolved_models(config: Config, identity: Mapping[str, Any]) -> Config:
    """`config` with the models that a run began with.

    Args:
        config: of the run.
        identity: contents of its `run.json`; one of an older make knows `model.path` alone.
    """
    path = identity.get("model") or config.model.path
    section = config.model.model_copy(update={"path": path})
    return with_pinned(config.model_copy(update={"model": section}), read_pinned(identity))


def models_of_run(path: Path, config: Config) -> Config:
    """`config` with the models that the run at `path` began with."""
    return resolved_models(config, json.loads((path / IDENTITY_FILE).read_bytes()))


def read_fit_identity(path: Path) -> tuple[FitConfig, Path]:
    """As `read_identity`, of a run directory of `agentrl fit`."""
    return _identity(path, FIT_FILE.load_stored)


def read_any_identity(path: Path) -> tuple[RunConfig | FitConfig, Path]:
    """As `read_identity`, of a run directory of either command."""

    def load(file: Path, base: Path) -> RunConfig | FitConfig:
        kind = FIT_FILE if is_fit_file(file) else RUN_FILE
        return kind.load_stored(file, base)

    return _identity(path, load)


def _identity(path: Path, load: Callable[[Path, Path], Read]) -> tuple[Read, Path]:
    if not (path / "config.yaml").is_file():
        what = "holds no config.yaml" if path.is_dir() else "is not a directory"
        raise RunError(f"{path} {what}, so it is not a run directory")
    try:
        identity = json.loads((path / IDENTITY_FILE).read_bytes())
        base = Path(identity["base"])
        return load(path / "config.yaml", base), base
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path}/run.json cannot be read: {error}") from error


def _same_file(lock: IO[str], path: Path) -> bool:
    """Whether the file we locked is still the one others would open."""
    try:
        return os.fstat(lock.fileno()).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat.update(_flatten(item, f"{prefix}.{key}" if prefix else key))
    return flat
