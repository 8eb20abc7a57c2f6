"""Trainer and a real vLLM server on one GPU in turn: the quickstart, as a run does it by default.

The server sleeps while the trainer works; what it frees stands in its log. Not run on a GPU yet.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.serving.vllm.command import vllm_device
from parts.quickstart import NAME, command, lines_of, random_checkpoint
from parts.readings import PartSkipped, Reading, Setting

STEPS = 4
READ = (
    ("step", "timing_s/step", "s"),
    ("training in it", "timing_s/train", "s"),
    ("weights and both turns in it", "timing_s/sync", "s"),
    ("gap of sampler and trainer, mean", "sampling/sampling_logp_difference/mean", "nats"),
)
"""Name, key and unit of the metrics that are readings."""
MORE = (
    "serving.engine=vllm", "runtime.colocated=true", "serving.kv_cache_gb=4",
    "serving.args.enforce_eager=true", f"train.steps={STEPS}", "train.max_minutes=3",
    "eval.datasets.held_out.args.n=2",
)  # fmt: skip
"""Keys beside those of the part `quickstart`; compiling would take the time of the part."""
_FREED = re.compile(r"Sleep mode freed ([0-9.]+) GiB memory, ([0-9.]+) GiB memory is still in use")


def why_not(setting: Setting) -> str:
    """Reason for which no server can sleep here; empty if one can."""
    if not setting.on_gpu:
        return "it needs a GPU: vLLM's servers sleep on GPUs alone"
    try:
        return "" if vllm_device() == "cuda" else "the vLLM that is installed is one for CPUs"
    except ConfigError as error:
        return str(error)


def freed(log: Path) -> list[tuple[float, float]]:
    """GiB that each sleep freed, and GiB of the device in use then, from a server's log."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    return [(float(a), float(b)) for a, b in _FREED.findall(text)]


def words(setting: Setting, model: Path) -> list[str]:
    """The words of `agentrl train`, in which those of this part take the place of others."""
    own = {word.partition("=")[0] for word in MORE}
    return [w for w in command(setting, model) if w.partition("=")[0] not in own] + [*MORE]


def measure(setting: Setting) -> Iterator[Reading]:
    """Seconds of steps and of turns, the gap of both sides, and what sleeping frees."""
    if why := why_not(setting):
        raise PartSkipped(why)
    folder = setting.folder
    assert folder is not None, "the runner gives every part a folder"
    model = setting.model or random_checkpoint(folder / "random", small=setting.small)
    began, steps = time.monotonic(), 0
    for row in lines_of(words(setting, model.resolve()), folder / NAME / "metrics.jsonl"):
        steps += "timing_s/train" in row
        for name, key, unit in READ:
            if key in row:
                label = f"{name}, step {row['step']}"
                yield Reading(name=label, value=row[key], unit=unit)
    yield Reading(name="the whole command", value=time.monotonic() - began, unit="s")
    yield Reading(name="steps that are missing", value=float(STEPS - steps), bound=0)
    slept = freed(folder / NAME / "logs" / "vllm-0.log")
    yield Reading(name="sleeps that are missing", value=float(STEPS + 1 - len(slept)), bound=0)
    if slept:
        yield Reading(name="freed by the last sleep", value=slept[-1][0], unit="GiB")
        yield Reading(name="in use while the server slept", value=slept[-1][1], unit="GiB")
