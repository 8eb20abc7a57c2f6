"""The quickstart on the device: the whole loop, its curve on held-out tasks and its seconds.

Without a checkpoint a model with random weights and a tokenizer of single bytes goes
through the same loop for two steps, which shows that it runs and nothing of what it learns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parts.models import SHAPE, TINY, random_llama
from parts.readings import Reading, Setting

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "configs" / "quickstart.yaml"
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_GAP = "sampling/sampling_logp_difference/mean"
FEW = (
    "rollout.prompts_per_step=2", "rollout.n_samples_per_prompt=2", "rollout.max_turn_tokens=16",
    "eval.datasets.held_out.args.n=2", "dataset.limit=4",
)  # fmt: skip
"""Sizes of a test."""
READ = (
    ("held-out score", "eval/held_out/score", ""),
    ("reward", "reward", ""),
    ("step", "timing_s/step", "s"),
    ("gap of sampler and trainer, mean", _GAP, "nats"),
)
"""Name, key and unit of the metrics that are readings."""
NAME = "gpu"
"""Of the run."""


def random_checkpoint(folder: Path, *, small: bool) -> Path:
    """Write a model with random weights and a tokenizer of bytes; returns `folder`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens(list(_SPECIALS))
    words.add_tokens(["```"])  # the quickstart stops there, which takes one token
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)
    shape = {**(TINY if small else SHAPE), "vocab_size": len(tokenizer)}
    made = random_llama(shape, eos=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)
    made.to(torch.bfloat16).save_pretrained(folder)
    return folder


def command(setting: Setting, model: Path) -> list[str]:
    """The words of `agentrl train` for a model."""
    words = [sys.executable, "-c", "from agentrl.cli import main; main()", "train", str(CONFIG)]
    words += [f"run.dir={setting.folder}", f"run.name={NAME}", f"model.path={model}"]
    words += [f"model.device={setting.device}", "train.max_minutes=1"]
    if setting.model is None:
        words += ["train.steps=2", "chat.template=generic", "rollout.max_context_tokens=2048"]
    return [*words, *(FEW if setting.small else ())]


def rows(metrics: Path, process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """The lines of a file of metrics as the process writes them, until it has ended."""
    done = 0
    ended = False
    while not ended:
        # Looked at before the file is: what is written in between is still read.
        ended = process.poll() is not None
        text = metrics.read_bytes()[done:] if metrics.is_file() else b""
        whole = text[: text.rfind(b"\n") + 1]
        done += len(whole)
        yield from map(json.loads, whole.splitlines())
        if not ended:
            time.sleep(0.2)


def lines_of(words: list[str], metrics: Path) -> Iterator[dict[str, Any]]:
    """The lines of metrics of a training command, until it has ended; it ends with the caller.

    Raises:
        RuntimeError: it ended with another exit status than 0.
    """
    process = subprocess.Popen(words, cwd=ROOT)
    try:
        yield from rows(metrics, process)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise RuntimeError(f"agentrl train ended with {process.returncode}; see its output")


def measure(setting: Setting) -> Iterator[Reading]:
    """Held-out score by step, gap of sampler and trainer, seconds of the steps and of the whole."""
    folder = setting.folder
    assert folder is not None, "the runner gives every part a folder"
    model = setting.model or random_checkpoint(folder / "random", small=setting.small)
    began, trained = time.monotonic(), False
    for row in lines_of(command(setting, model.resolve()), folder / NAME / "metrics.jsonl"):
        trained |= _GAP in row
        for name, key, unit in READ:
            if key in row:
                label = f"{name} after {row['step']} steps"
                yield Reading(name=label, value=row[key], unit=unit)
    yield Reading(name="the whole command", value=time.monotonic() - began, unit="s")
    yield Reading(name="runs without a trained step", value=float(not trained), bound=0)
