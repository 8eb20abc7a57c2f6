"""A child that copies the present model instead of training it, and says what it is told to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

from agentrl.config.schema import CheckpointSection
from agentrl.disk.checkpoint import CheckpointState, save_checkpoint
from agentrl.machine.processes.child_main import ChildChannel


def serve(channel: ChildChannel) -> None:
    channel.end_with_parent()
    job = channel.receive().head
    base = Path(job["base"])
    told = json.loads((base / "behaviour.json").read_text())
    with (base / "jobs.jsonl").open("a") as file:
        file.write(json.dumps(job) + "\n")
    root = Path(job["models"]) / f"v{job['version']}" / "checkpoints"

    def write(folder: Path) -> None:
        shutil.copytree(job["current"], folder, dirs_exist_ok=True)
        (folder / "state.json").unlink(missing_ok=True)

    state = CheckpointState(step=1, version=1, cursor={}, elapsed_s=0.0)
    if told["do"] == "die":
        root.mkdir(parents=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if told["do"] == "hang":
        root.mkdir(parents=True)
        channel.send({"note": "hanging"})
        time.sleep(600)
    if told["do"] == "error":
        channel.send({"error": "the loss is not finite"})
        return
    save_checkpoint(root, state, write, CheckpointSection())
    channel.send({"step": 1, "steps": 1, "loss": 0.5})
    outcome = {"before": told["before"], "after": told["after"], "old_pairs": 0, "loss": 0.5,
               "scale": "as before", "temperature": 1.0, "temperature_kept": True}  # fmt: skip
    channel.send({"outcome": outcome})
