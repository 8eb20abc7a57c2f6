"""The names of everything in a run directory; no other module spells them."""

from __future__ import annotations

from pathlib import Path

from agentrl.machine.inside import within


class RunPaths:
    """Paths of the files and folders of one run; nothing is opened or made.

    A path that a link leads out of the run raises `UntrustedFile` where it is asked for: somebody
    else may have made the run, and what is read or written there is of that folder alone.

    Example:
        >>> RunPaths(Path("runs/my-run")).metrics_file
        PosixPath('runs/my-run/metrics.jsonl')
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def _inside(self, name: str) -> Path:
        return within(self.path, self.path / name)

    @property
    def config_file(self) -> Path:
        """Path of the resolved config."""
        return self._inside("config.yaml")

    @property
    def identity_file(self) -> Path:
        """Path of the run's identity: base folder, model, versions."""
        return self._inside("run.json")

    @property
    def chosen_file(self) -> Path:
        """Which tasks the run began with; there only if `pass_rate` chose them."""
        return self._inside("tasks.json")

    @property
    def task_labels_file(self) -> Path:
        """Labels of the tasks, one JSON object a line; there only if the data sets have any."""
        return self._inside("task_labels.jsonl")

    @property
    def metrics_file(self) -> Path:
        """One JSON object a line."""
        return self._inside("metrics.jsonl")

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self._inside("tensorboard")

    @property
    def trajectories(self) -> Path:
        """Folder of the trajectory store."""
        return self._inside("trajectories")

    @property
    def images(self) -> Path:
        """Folder of the files of images, each under its digest."""
        return self._inside("images")

    @property
    def tokens(self) -> Path:
        """Folder of the trainer's numbers of every trained token."""
        return self._inside("tokens")

    @property
    def examples(self) -> Path:
        """Folder of the examples that a fit measures, token by token."""
        return self._inside("examples")

    @property
    def tokenizer_file(self) -> Path:
        """Path of the tokenizer, there from the start."""
        return self._inside("tokenizer.json")

    @property
    def checkpoints(self) -> Path:
        """Folder of `step-N` folders."""
        return self._inside("checkpoints")

    @property
    def log_file(self) -> Path:
        """Path of the log, tracebacks included."""
        return self._inside("run.log")

    @property
    def logs(self) -> Path:
        """Output of servers and of other processes."""
        return self._inside("logs")

    @property
    def weights(self) -> Path:
        """Of the `disk` backend."""
        return self._inside("weights")

    @property
    def live_file(self) -> Path:
        """State of the run while it runs, at most a second old; gone when it has ended."""
        return self._inside("live.json")

    @property
    def health_file(self) -> Path:
        """Path of the journal of verdicts and decisions."""
        return self._inside("health.jsonl")

    @property
    def control_file(self) -> Path:
        """Path of the answer that a paused run waits for."""
        return self._inside("control")

    @property
    def labels_file(self) -> Path:
        """Path of the labels and comments of reviewers."""
        return self._inside("labels.jsonl")

    @property
    def result_file(self) -> Path:
        """Path of the final scores."""
        return self._inside("result.json")

    @property
    def evaluation_file(self) -> Path:
        """Path of the policy, scores and cost of a folder that `agentrl eval` wrote."""
        return self._inside("evaluation.json")

    @property
    def lock_file(self) -> Path:
        """Held (flock) by the one process that writes here."""
        return self._inside(".lock")

    @property
    def marks(self) -> tuple[Path, ...]:
        """Any of these makes a folder a run directory; to look for, not to read."""
        return tuple(self.path / name for name in ("metrics.jsonl", "config.yaml", "trajectories"))
