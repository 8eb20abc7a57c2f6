"""A whole project in a temporary folder: random 2-layer Llama, byte tokenizer, tasks, environment.

A run of it takes seconds on one core. The environment pays for vowels, so a random model has
groups with different rewards from the first step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.chat.byte_level import chatml_tokenizer
from tests.warm_processes import warm_context

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

ENV = '''
"""Pays for vowels: two turns, no tools, no sandbox."""

import asyncio

from agentrl import AgentInstance, Observation, StepResult


class Vowels(AgentInstance):
    def __init__(self, fail: str = "", delay_s: float = 0.0):
        self.fail = fail
        self.delay_s = delay_s

    async def reset(self, task):
        if self.fail == "reset":
            raise ValueError("this environment never resets")
        await asyncio.sleep(self.delay_s)
        return Observation(content=str(task.prompt))

    async def step(self, action):
        if self.fail == "step":
            raise KeyError("no such answer")
        share = sum(c in "aeiouAEIOU" for c in action.text) / max(1, len(action.text))
        return StepResult(rewards=share, environment_feedback="more", done=action.turn >= 1,
                          scores=min(1.0, 4 * share), extra_logs={"share": share})
'''

BACKEND = '''
"""A sandbox backend for environments that need none."""

from agentrl import SandboxBackend
from agentrl.errors import SandboxError
from agentrl.sandbox import Isolation, Probe


class Nothing(SandboxBackend):
    name = "nothing"

    async def probe(self):
        return Probe(available=True, isolation=Isolation.NAMESPACES, detail="runs nothing")

    async def create(self, limits, snapshot=None):
        raise SandboxError("this backend makes no sandboxes")

    async def close(self):
        pass
'''


def write_model(folder: Path, *, seed: int = 0) -> Path:
    """Save a random Llama and its tokenizer in Hugging Face format."""
    import torch

    tokenizer = chatml_tokenizer(CHATML)
    torch.manual_seed(seed)
    tokenizer.save_pretrained(folder)
    _save_llama(folder, tokenizer, hidden_size=32, num_attention_heads=4, num_key_value_heads=2)
    return folder


def resize_ids(folder: Path, count: int) -> Path:
    """Give a model more ids than its tokenizer has, as heads that are padded have; or fewer."""
    from transformers import AutoModelForCausalLM

    from agentrl.models.hub_format import save_pretrained

    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(count)
    save_pretrained(model, folder)
    return folder


def write_larger_model(folder: Path) -> None:
    """Replace the model of `folder`: the smallest heads that vLLM computes with on a CPU."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    _save_llama(folder, tokenizer, hidden_size=64, num_attention_heads=2, num_key_value_heads=1)


def _save_llama(
    folder: Path,
    tokenizer: Any,
    *,
    hidden_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from agentrl.models.hub_format import save_pretrained

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        num_attention_heads=num_attention_heads,
        num_key_value_heads=num_key_value_heads,
    )
    save_pretrained(LlamaForCausalLM(config), folder)


def write_project(folder: Path, **changes: Any) -> Path:
    """Write model, environment, tasks and run file; returns the run file.

    Args:
        folder: made if needed.
        changes: dotted keys with `__` for `.`, as in `train__steps=3`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model").exists():
        write_model(folder / "model")
    (folder / "vowels.py").write_text(ENV)
    (folder / "nothing.py").write_text(BACKEND)
    for name, count in (("train", 12), ("held", 3)):
        rows = [{"id": f"{name}-{i}", "prompt": f"say {i}"} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data: dict[str, Any] = {
        "run": {"name": "tiny", "dir": str(folder / "runs"), "seed": 3},
        "model": {"path": str(folder / "model"), "dtype": "float32", "device": "cpu"},
        "env": {"target": "vowels.py:Vowels"},
        "sandbox": {"backend": "nothing.py:Nothing"},
        "dataset": {"source": "train.jsonl"},
        "rollout": {
            "prompts_per_step": 3,
            "n_samples_per_prompt": 4,
            "max_assistant_turns": 2,
            "max_turn_tokens": 8,
            "max_response_tokens": 48,
            "max_context_tokens": 128,
        },
        "serving": {"max_batch_size": 16, "kv_cache_gb": 0.1},
        "train": {"steps": 4, "learning_rate": 1e-3, "micro_batch_tokens": 512},
        "eval": {"datasets": {"held": {"source": "held.jsonl"}}, "n_samples": 2},
        "checkpoint": {"every_steps": 2},
    }
    return write_changed(folder / "tiny.yaml", data, changes)


def write_changed(path: Path, data: dict[str, Any], changes: Mapping[str, Any]) -> Path:
    """Write a config with other values of keys, as `train__steps`."""
    for dotted, value in changes.items():
        *sections, leaf = dotted.split("__")
        node = data
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = value
    path.write_text(yaml.safe_dump(data))
    return path


def _child(words: tuple[str, ...], out: str, environment: dict[str, str]) -> None:
    """Runs in the child: `agentrl WORDS`, with both streams going to a file.

    The environment is the caller's: the server was forked from an earlier test, with its own.
    """
    os.environ.clear()
    os.environ.update(environment)
    run_agentrl(words, out)


def run_agentrl(words: tuple[str, ...], out: str) -> None:
    """Run `agentrl WORDS` in this process, with both streams going to a file."""
    with Path(out).open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from agentrl.cli import main

    sys.argv = ["agentrl", *words]
    main()


class Agentrl:
    """A real `agentrl` process, forked from a server that has torch imported already."""

    def __init__(self, out: Path, *words: object) -> None:
        self.out = out
        self._process = warm_context().Process(
            target=_child, args=(tuple(map(str, words)), str(out), dict(os.environ))
        )
        self._process.start()

    def wait_for(self, text: str, timeout_s: float = 240) -> None:
        """Wait until the output holds `text`, or the process has ended."""
        deadline = time.monotonic() + timeout_s
        while text not in self.text() and self._process.is_alive():
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        """Process id; 0 once it has been waited for."""
        return self._process.pid or 0

    def send(self, number: int) -> None:
        """Send a signal."""
        if self._process.is_alive() and self._process.pid:
            os.kill(self._process.pid, number)

    def wait(self, timeout_s: float = 600) -> int:
        """The exit status; negative for a signal."""
        self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            raise AssertionError(f"still running after {timeout_s} s:\n{self.text()}")
        status = self._process.exitcode
        self._process.close()
        assert status is not None
        return status

    def text(self) -> str:
        """What it has printed so far."""
        return self.out.read_text(encoding="utf-8") if self.out.exists() else ""


def agentrl(out: Path, *words: object) -> tuple[int, str]:
    """Run `agentrl WORDS` to its end: exit status and output."""
    process = Agentrl(out, *words)
    status = process.wait()
    return status, process.text()
