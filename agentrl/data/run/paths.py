"""The names of everything in a run directory; no other module spells them."""

from __future__ import annotations

from pathlib import Path


class RunPaths:
    """Paths of the files and folders of one run; nothing is opened or made.

    Example:
        >>> RunPaths(Path("runs/my-run")).metrics_file
        PosixPath('runs/my-run/metrics.jsonl')
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config_file(self) -> Path:
        """Path of the resolved config."""
        return self.path / "config.yaml"

    @property
    def identity_file(self) -> Path:
        """Path of the run's identity: base folder, model, versions."""
        return self.path / "run.json"

    @property
    def chosen_file(self) -> Path:
        """Which tasks the run began with; there only if `pass_rate` chose them."""
        return self.path / "tasks.json"

    @property
    def task_labels_file(self) -> Path:
        """Labels of the tasks, one JSON object a line; there only if the data sets have any."""
        return self.path / "task_labels.jsonl"

    @property
    def metrics_file(self) -> Path:
        """One JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def trajectories(self) -> Path:
        """Folder of the trajectory store."""
        return self.path / "trajectories"

    @property
    def images(self) -> Path:
        """Folder of the files of images, each under its digest."""
        return self.path / "images"

    @property
    def tokens(self) -> Path:
        """Folder of the trainer's numbers of every trained token."""
        return self.path / "tokens"

    @property
    def examples(self) -> Path:
        """Folder of the examples that a fit measures, token by token."""
        return self.path / "examples"

    @property
    def tokenizer_file(self) -> Path:
        """Path of the tokenizer, there from the start."""
        return self.path / "tokenizer.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of `step-N` folders."""
        return self.path / "checkpoints"

    @property
    def log_file(self) -> Path:
        """Path of the log, tracebacks included."""
        return self.path / "run.log"

    @property
    def logs(self) -> Path:
        """Output of servers and of other processes."""
        return self.path / "logs"

    @property
    def weights(self) -> Path:
        """Of the `disk` backend."""
        return self.path / "weights"

    @property
    def live_file(self) -> Path:
        """State of the run while it runs, at most a second old; gone when it has ended."""
        return self.path / "live.json"

    @property
    def health_file(self) -> Path:
        """Path of the journal of verdicts and decisions."""
        return self.path / "health.jsonl"

    @property
    def control_file(self) -> Path:
        """Path of the answer that a paused run waits for."""
        return self.path / "control"

    @property
    def labels_file(self) -> Path:
        """Path of the labels and comments of reviewers."""
        return self.path / "labels.jsonl"

    @property
    def result_file(self) -> Path:
        """Path of the final scores."""
        return self.path / "result.json"

    @property
    def evaluation_file(self) -> Path:
        """Path of the policy, scores and cost of a folder that `agentrl eval` wrote."""
        return self.path / "evaluation.json"

    @property
    def lock_file(self) -> Path:
        """Held (flock) by the one process that writes here."""
        return self.path / ".lock"

    @property
    def marks(self) -> tuple[Path, ...]:
        """Any of these makes a folder a run directory."""
        return self.metrics_file, self.config_file, self.trajectories
