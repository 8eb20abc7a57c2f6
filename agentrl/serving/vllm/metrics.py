"""The few numbers of a vLLM server's `/metrics` that we use, read from Prometheus text.

Labels split a number by engine core and by reason; a sum over them is the number of the server.
"""

from __future__ import annotations

from collections.abc import Mapping

_NAMES: Mapping[str, str] = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:generation_tokens_total": "generated_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:iteration_tokens_total_count": "steps",
}
"""Requests being decoded and waiting, the used share of the KV cache (0-1, the largest of several
engine cores), prompt tokens looked up and found in the prefix cache, sampled tokens, prompt tokens
taken, requests thrown out of a full cache, steps of the engine core that sampled a token.

A step that computes a piece of a prompt but not its end samples none: of all these numbers only the
used share of the cache is recorded for it."""


_CACHE = "vllm:cache_config_info{"
_KEEPS = 'enable_prefix_caching="True"'


def keeps_prefixes(text: str) -> bool:
    """True if the server reports that it keeps the prefixes of turns."""
    return any(line.startswith(_CACHE) and _KEEPS in line for line in text.splitlines())


def read_metrics(text: str) -> dict[str, float]:
    """Our names and their values; a number that the server does not report is left out.

    Example:
        >>> read_metrics('vllm:num_requests_running{engine="0"} 3.0')
        {'running': 3.0}
    """
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        # Neither our names nor our values hold a blank or a brace; label values may hold both.
        ours = _NAMES.get(line.partition("{")[0].partition(" ")[0])
        if ours is None:
            continue
        value = float(line.rpartition("}")[2].split()[0] if "}" in line else line.split()[1])
        before = found.get(ours, 0.0)
        found[ours] = max(before, value) if ours == "kv_cache_usage" else before + value
    return found
