"""The run file that `agentrl train --data --reward` writes: a data set and reward functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from agentrl.config.yaml_text import dump_yaml
from agentrl.data.tasks.files import file_kind
from agentrl.errors import ConfigError
from agentrl.machine.number_types import has_gpu

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?")
_TEXT = """\
# A data set and reward functions: each rollout is one answer to the prompt of a row.
# `agentrl config schema` lists every key; `agentrl train {file} --dry-run` checks the file.
run: {{name: {name}}}
model: {{path: {model}}}
dataset: {{source: {source}}}
reward:
  functions:
{functions}
rollout:  # sizes for {machine}
  prompts_per_step: {prompts}
  n_samples_per_prompt: 8
  max_turn_tokens: {tokens}
  max_response_tokens: {tokens}
  max_context_tokens: {context}
train:
  steps: 20
  learning_rate: {rate}
  micro_batch_tokens: {pass_tokens}
"""


def write_first_file(data: str, rewards: Sequence[str], model: str) -> Path:
    """Write the run file into the current folder, and return where it is.

    A file that already says the same is left as it is.

    Args:
        data: file, folder, `hf:NAME`, import string of a function, or name of a data set of the
            hub where no file has it.
        rewards: import strings of functions, at least one.
        model: as `model.path`.

    Raises:
        ConfigError: a reward without the name of a function, or another file of that name.
    """
    source = data
    there = Path(data).expanduser().exists() or file_kind(Path(data)) is not None
    if not there and _HUB_NAME.fullmatch(data):
        source = f"hf:{data}"
    stem = re.split(r"[/:]", data.rstrip("/").removeprefix("hf:").partition(":")[0])[-1]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", stem.partition(".")[0]).strip("-") or "run"
    functions: dict[str, str] = {}
    for target in rewards:
        function = target.rpartition(":")[2]
        if function == target or not function.isidentifier():
            raise ConfigError(
                f"--reward is {target!r}, which names no function; expected FILE.py:FUNCTION or "
                "package.module:FUNCTION"
            )
        if function in functions:
            raise ConfigError(f"--reward names two functions called {function!r}; rename one")
        functions[function] = target
    path, gpu = Path(f"{name}.yaml"), has_gpu()
    text = _TEXT.format(
        file=path,
        name=name,
        model=_flow(model),
        source=_flow(source),
        functions="\n".join(f"    {key}: {_flow(value)}" for key, value in functions.items()),
        machine="a machine with a GPU" if gpu else "a machine without a GPU",
        prompts=16 if gpu else 4,
        tokens=1024 if gpu else 128,
        context=4096 if gpu else 1024,
        pass_tokens=8192 if gpu else 2048,
        rate="1.0e-6" if gpu else "1.0e-5",
    )
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise ConfigError(
            f"{path} is there already and says something else; train it with `agentrl train "
            f"{path}`, or move it away and give --data and --reward again"
        )
    path.write_text(text, encoding="utf-8")
    return path


def _flow(value: str) -> str:
    """A text as one YAML value on its line."""
    return dump_yaml([value]).removeprefix("- ").strip()
