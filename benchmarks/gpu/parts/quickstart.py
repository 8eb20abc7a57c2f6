"""The quickstart on the device: the whole loop, its curve on held-out tasks and its seconds.

Without a checkpoint (`--model`) a model with random weights and a tokenizer of single bytes goes
through the same loop for two steps, which shows that it runs and nothing of what it learns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from parts.models import SHAPE, TINY
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


def random_checkpoint(folder: Path, *, small: bool) -> Path:
    """Write a model with random weights and a tokenizer of bytes; returns `folder`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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
    torch.manual_seed(0)
    shape = {**(TINY if small else SHAPE), "vocab_size": len(tokenizer)}
    config = LlamaConfig(
        **shape, max_position_embeddings=8192, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def train(setting: Setting, model: Path, folder: Path) -> tuple[list[dict[str, Any]], float]:
    """Run `agentrl train`; the lines of its metrics, and the seconds of the whole.

    Raises:
        RuntimeError: it did not end well; with the end of its output.
    """
    words = [f"run.dir={folder}", "run.name=gpu", f"model.path={model}"]
    words += [f"model.device={setting.device}", "train.max_minutes=4"]
    if setting.model is None:
        words += ["train.steps=2", "chat.template=generic", "rollout.max_context_tokens=2048"]
    words += FEW if setting.small else ()
    command = [sys.executable, "-c", "from agentrl.cli import main; main()", "train", str(CONFIG)]
    began = time.monotonic()
    done = subprocess.run(
        [*command, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(
            f"agentrl train ended with {done.returncode}:\n"
            f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
    lines = (folder / "gpu" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], time.monotonic() - began


def measure(setting: Setting) -> list[Reading]:
    """Held-out score by step, gap of sampler and trainer, seconds of the steps and of the whole."""
    folder = setting.folder
    assert folder is not None, "the runner gives every part a folder"
    model = setting.model or random_checkpoint(folder / "random", small=setting.small)
    rows, seconds = train(setting, model.resolve(), folder)
    found = [Reading(name="the whole command", value=seconds, unit="s")]
    for row in rows:
        found += [
            Reading(name=f"{name} after {row['step']} steps", value=row[key], unit=unit)
            for name, key, unit in (
                ("held-out score", "eval/held_out/score", ""),
                ("reward", "reward", ""),
                ("step", "timing_s/step", "s"),
                ("gap of sampler and trainer, mean", _GAP, "nats"),
            )
            if key in row
        ]
    trained = [row for row in rows if _GAP in row]
    found.append(Reading(name="runs without a trained step", value=float(not trained), bound=0))
    return found
