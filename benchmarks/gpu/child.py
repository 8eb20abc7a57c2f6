"""Inside the process of a part: makes the setting, measures, and writes the answer."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import platform
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from children import CHECKPOINT, end_with_parent
from parts.readings import PartSkipped, Reading, Setting

from agentrl.models.quickstart import dequantise


def serve(options: argparse.Namespace) -> int:
    """Measure one part; its answer goes to `options.out`, which is rewritten by every reading."""
    end_with_parent()
    if options.child == "facts":
        answers: Iterable[dict[str, Any]] = [facts(options)]
    elif options.child == "model":
        answers = [model_of(options.model, options.out.with_name(CHECKPOINT))]
    else:
        answers = measured(options)
    for answer in answers:
        beside = options.out.with_suffix(".part")
        beside.write_text(json.dumps(answer))
        beside.replace(options.out)
    return 0


def facts(options: argparse.Namespace) -> dict[str, Any]:
    """The machine and the weights, as far as figures depend on them; `model` is where those lie."""
    device, model = options.device, options.model or left_checkpoint(small=options.small)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("transformers", "triton"):
        try:
            versions[name] = importlib.import_module(name).__version__
        except ImportError:
            versions[name] = "none"
    name, reason = platform.processor() or platform.machine(), ""
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            reason = "torch sees no CUDA device; --device cpu --small tries the parts without one"
        else:
            properties = torch.cuda.get_device_properties(torch.device(device))
            name = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
            versions["cuda"] = str(torch.version.cuda)
    if model is not None and not model.exists():
        reason = f"--model is {model}, where nothing is; give a checkpoint folder or a .gguf file"
    found = {"device": name if device.startswith("cuda") else f"CPU ({name})", **versions}
    if not reason:
        found["weights"] = weights_name(model)
    answer = record("failed" if reason else "passed", reason, ())
    return {**answer, "facts": found, "model": str(model.resolve()) if model else None}


def left_checkpoint(*, small: bool) -> Path | None:
    """The quickstart's checkpoint where an earlier run has left it; never for a small run."""
    if small:
        return None
    from agentrl.machine.files import cache_dir

    folder = cache_dir() / "SmolLM2-135M-Instruct"
    return folder if (folder / "config.json").is_file() else None


def weights_name(model: Path | None) -> str:
    """As in `SmolLM2-135M-Instruct 1f0c6e2a`: a name, and a digest of the files of weights."""
    if model is None:
        return "random"
    digest = hashlib.sha256()
    for path in [model] if model.is_file() else sorted(model.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"{model.resolve().name} {digest.hexdigest()[:8]}"


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The record of a part after each of its readings; the last one is its outcome."""
    readings: list[Reading] = []
    state, reason = "running", ""
    with tempfile.TemporaryDirectory(prefix="agentrl-gpu-part-") as scratch:
        try:
            setting = Setting(
                device=torch.device(options.device),
                model=options.model,
                small=options.small,
                folder=Path(scratch),
            )
            for reading in importlib.import_module(f"parts.{options.child}").measure(setting):
                readings.append(reading)
                print(reading.text())
                yield record(state, reason, readings)
            state = "passed" if all(reading.holds for reading in readings) else "failed"
        except PartSkipped as skipped:
            state, reason = "skipped", str(skipped)
        except Exception:  # the boundary of a part: its record has the traceback
            state, reason = "crashed", traceback.format_exc()[-4000:]
        yield record(state, reason, readings)


def record(state: str, reason: str, readings: Sequence[Reading]) -> dict[str, Any]:
    """A part as it goes into the results."""
    rows = [{**reading.to_json(), "text": reading.text()} for reading in readings]
    return {"state": state, "reason": reason, "readings": rows}


def model_of(gguf: Path, folder: Path) -> dict[str, Any]:
    """The record of making a checkpoint in `folder`; a failure is the crash of its process."""

    dequantise(gguf.resolve(), folder)
    return record("passed", "", ())
