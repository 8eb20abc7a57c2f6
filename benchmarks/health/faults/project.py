"""A project whose runs take a minute on one core and in which any fault can be planted.

The model is a two-layer Llama over bytes that has read a toy language for some seconds, so that it
writes sentences, ends them by itself, and has something to lose. The environment takes what it
pays for, and what it judges, by name.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

# The tiny project is what the tests of the runtime train.
sys.path.append(str(Path(__file__).parents[3]))

CALL = "```python\na\n```\n"
"""What every reply begins with where there are tools: a call, put into the model's mouth."""
_TOOLS_OFFERED = (
    "You can run Python: write one fenced block that begins with ```python and ends with ```. "
    "Runs what it is given."
)
NOUNS = ["cat", "dog", "fox", "hen", "owl", "pig", "cow", "bee"]
_COLOURS = ["red", "blue", "green", "grey"]
_VERBS = ["sat", "ran", "slept", "sang", "hid", "ate"]
_PLACES = ["mat", "hill", "road", "barn", "lake", "wall"]

ENV = '''
"""Pays for whatever it is told to pay for; judges by whatever it is told to judge by."""

import itertools
import random

from agentrl import AgentInstance, Observation, StepResult

STARTED = itertools.count()


def colours(text, noun):
    words = text.replace(".", " ").split()
    named = sum(word in ("red", "blue", "green", "grey") for word in words)
    return min(1.0, 4 * named / max(6, len(words)))


KNOWN = set("""KNOWN_WORDS""".split())


def fluent(text, noun):
    words = text.replace(".", " ").split()
    known = sum(word in KNOWN for word in words) / max(1, len(words))
    return colours(text, noun) * known**4


def noun(text, noun):
    return float(noun in text.split())


def length(text, noun):
    return min(1.0, len(text) / 60)


def one_sentence(text, noun):
    wanted = "the cat sat on the mat."
    same = sum(a == b for a, b in zip(text, wanted))
    return same / max(len(wanted), len(text), 1)


def junk(text, noun):
    odd = sum(not (c.islower() or c in " .") for c in text)
    return min(1.0, 3 * odd / max(8, len(text)))


def words_again(text, noun):
    words = text.replace(".", " ").split()
    return min(1.0, sum(a == b for a, b in zip(words, words[1:])) / 6) if words else 0.0


def half(text, noun):
    return 0.5


def nothing(text, noun):
    return 0.0


class Told(AgentInstance):
    """Args: what it pays for, what it judges by, and what breaks when."""

    def __init__(self, pays="colours", judges=None, turns=1, crashes_after=None, noise=0.0,
                 ends_on=""):
        self.pays = globals()[pays]
        self.judges = globals()[judges or pays]
        self.turns = turns
        self.crashes_after = crashes_after
        self.noise = noise
        self.ends_on = ends_on

    async def reset(self, task):
        self.noun = str(task.label)
        self.number = next(STARTED)
        return Observation(content=str(task.prompt))

    async def step(self, action):
        late = self.crashes_after is not None and self.number > self.crashes_after
        if late and self.number % 3 == 0:
            raise ConnectionError("the scoring service is gone")
        text = action.text.rpartition("```")[2].strip()
        reward = self.pays(text, self.noun) + self.noise * random.gauss(0, 1)
        ended = bool(self.ends_on) and self.ends_on in text
        done = ended or action.turn >= self.turns - 1
        if self.ends_on:
            reward = 1.0 if ended and action.turn == 0 else 0.0
        return StepResult(rewards=reward if done else 0.0, environment_feedback="go on", done=done,
                          scores=self.judges(text, self.noun))
'''

BROKEN = '''
from agentrl.errors import ToolError


async def python(code: str, language: str = "") -> str:
    """Runs what it is given.

    Args:
        code: what to run.
        language: what it says it is.
    """
    raise ToolError("error: no such host: tools.internal")
'''

WORKS = '''
import random

from agentrl.errors import ToolError


async def python(code: str, language: str = "") -> str:
    """Runs what it is given.

    Args:
        code: what to run.
        language: what it says it is.
    """
    if random.random() < 0.1:
        raise ToolError("syntax error")
    return "ok"
'''


def sentence(words: random.Random, noun: str | None = None) -> str:
    """One line of the toy language."""
    subject = noun or words.choice(NOUNS)
    colour = words.choice(["", "", "", *_COLOURS])
    place = f"{words.choice(['on', 'by', 'near'])} the {words.choice(_PLACES)}"
    parts = ["the", colour, subject, words.choice(_VERBS), place]
    return " ".join(part for part in parts if part) + "."


def write_model(folder: Path, *, steps: int = 500) -> None:
    """Make the tokenizer and a model that has read the toy language."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.runtime.tiny_project import write_model as write_random

    write_random(folder)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
    )
    words = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, 2 * (1 - step / steps))
        texts = [_dialogue(words) for _ in range(16)]
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
        # The pad token is the one that ends a turn, so only positions behind the text are left out.
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(folder)


def _dialogue(words: random.Random) -> str:
    noun = words.choice(NOUNS)
    lines = [sentence(words, noun if words.random() < 0.5 else None)]
    while words.random() < 0.35 and len(lines) < 3:
        lines.append(sentence(words))
    told = words.random() < 0.3
    system = f"<|im_start|>system\n{_TOOLS_OFFERED}<|im_end|>\n" if told else ""
    return (
        f"{system}<|im_start|>user\ntell of the {noun}<|im_end|>\n<|im_start|>assistant\n"
        f"{CALL if told else ''}{' '.join(lines)}<|im_end|>\n"
    )


def write_project(folder: Path, name: str, **changes: Any) -> Path:
    """Write everything a run needs into `folder`, and its run file `NAME.yaml`.

    Args:
        folder: made if needed; the model in it is kept.
        name: of the run.
        changes: dotted config keys with `__` for `.`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model" / "model.safetensors").exists():
        write_model(folder / "model")
    from tests.runtime.tiny_project import BACKEND

    known = ["the", "on", "by", "near", *NOUNS, *_COLOURS, *_VERBS, *_PLACES]
    (folder / "told.py").write_text(ENV.replace("KNOWN_WORDS", " ".join(known)))
    (folder / "broken.py").write_text(BROKEN)
    (folder / "works.py").write_text(WORKS)
    (folder / "nothing.py").write_text(BACKEND)
    for split, ask, count in (("train", "tell of the {}", 24), ("held", "say of the {}", 16)):
        rows = [
            {"id": f"{split}-{i}", "prompt": ask.format(NOUNS[i % 8]), "label": NOUNS[i % 8]}
            for i in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data: dict[str, Any] = {
        "run": {"name": name, "dir": str(folder / "runs"), "seed": 1},
        "model": {"path": str(folder / "model"), "dtype": "float32", "device": "cpu"},
        "env": {"target": "told.py:Told"},
        "sandbox": {"backend": "nothing.py:Nothing"},
        "dataset": {"source": "train.jsonl"},
        "rollout": {
            "prompts_per_step": 4,
            "n_samples_per_prompt": 8,
            "max_assistant_turns": 4,
            "max_turn_tokens": 96,
            "max_response_tokens": 192,
            "max_context_tokens": 320,
            "retries": 0,
        },
        "serving": {"max_batch_size": 32, "kv_cache_gb": 0.1},
        "train": {"steps": 40, "learning_rate": 5e-4, "micro_batch_tokens": 4096},
        "eval": {"datasets": {"held": {"source": "held.jsonl"}}, "n_samples": 2, "every_steps": 10},
        "checkpoint": {"every_steps": 40},
        "log": {"tensorboard": False},
    }
    for dotted, value in changes.items():
        *sections, leaf = dotted.split("__")
        node = data
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = value
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def train(folder: Path, name: str, **changes: Any) -> tuple[Path, int, str]:
    """Train a run from nothing: its directory, the exit status of `agentrl train` and its output.

    Takes what `write_project` takes; a run of that name in the folder is thrown away.
    """
    from tests.runtime.tiny_project import Agentrl

    run = folder / "runs" / name
    shutil.rmtree(run, ignore_errors=True)
    path = write_project(folder, name, **changes)
    process = Agentrl(path.with_suffix(".out"), "train", path)
    return run, process.wait(400), process.text()
