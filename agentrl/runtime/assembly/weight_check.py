"""Checks that servers which run already have the weights that are to be scored.

A run brings its own weights to its servers; who only samples takes what they hold. So that is
compared, by the log-probabilities of a few tokens. A few updates of a policy move them less than
another kernel does, so servers to which any run has brought weights are refused outright.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrl.config.schema import ModelSection
from agentrl.errors import ConfigError
from agentrl.serving.vllm.check import Score
from agentrl.serving.vllm.http import Http

ANSWER_S = 60.0
"""Seconds a server has to report which weights it holds."""
_OF_THE_START = ("default", "")
"""Names vLLM gives to weights of its own start; a run gives every other name."""


async def require_first_weights(urls: Sequence[str], *, path: str) -> None:
    """Do nothing if no run has brought weights to any server of `serving.urls`.

    Args:
        urls: of the servers.
        path: of the model that is to be scored, for the message.

    Raises:
        ConfigError: one has.
        EngineError: a server does not answer.
    """
    named = await asyncio.gather(*map(_weight_version, urls))
    lines = [
        f"{url} holds weights of a training run (version {version})"
        for url, version in zip(urls, named, strict=True)
        if version not in _OF_THE_START
    ]
    if lines:
        raise ConfigError(
            "serving.urls: "
            + "; ".join(lines)
            + f", so nobody can say that it would be {path} what is scored; restart "
            "it with that model, or set serving.engine: vllm to have servers started"
        )


async def _weight_version(url: str) -> str:
    http = Http(url)
    try:
        answer = (await http.send("GET", "/weight_info", limit_s=ANSWER_S)).json()
    finally:
        await http.close()
    return str(answer.get("weight_version", "")) if isinstance(answer, dict) else ""


def load_score(section: ModelSection) -> Score:
    """Log-probabilities by the model of `model.path`; on the CPU, since servers fill the GPUs.

    Raises:
        ConfigError: it cannot be loaded.
    """
    import torch

    from agentrl.train.model.pretrained import load_pretrained

    model = load_pretrained(section.model_copy(update={"device": "cpu"})).model

    def score(prompt: Sequence[int], ids: Sequence[int], temperature: float) -> Sequence[float]:
        with torch.inference_mode():
            logits_TV = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
            table_TV = torch.log_softmax(logits_TV.float() / temperature, dim=-1)
        return table_TV[torch.arange(len(ids)), torch.tensor(list(ids))].tolist()

    return score
