"""Keys of what serves, moves weights and runs ahead: engines, syncs, schedule, Ray."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from agentrl.config.base import Section


class ServingSection(Section):
    """The inference engines."""

    engine: Literal["embedded", "vllm"] = "embedded"
    """`embedded` samples beside the trainer from the trainer's own weights; `vllm` starts vLLM
    servers, or uses those of `urls`."""
    replicas: int = Field(default=1, ge=1)
    """vLLM servers to start."""
    urls: tuple[str, ...] = ()
    """vLLM servers that already run, as `http://host:port`; none is started then. A run brings its
    own weights to them first, whatever they hold; give no two runs the same servers."""
    args: dict[str, Any] = Field(default_factory=dict)
    """More options of each vLLM server, as `tensor_parallel_size: 2`; win over ours. With `urls`,
    only `tensor_parallel_size` and `pipeline_parallel_size`, if those servers have them."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds a server may take until it answers."""
    transport: Literal["auto", "http", "lean"] = "auto"
    """How turns reach a vLLM server: `http` works with any; `lean` keeps one connection and sends
    only new tokens; `auto` is `lean` for the servers that are started here."""
    repin_alpha: float = Field(default=0.01, ge=0)
    """Requests in flight that one token to prefill again weighs as much as; decides whether a
    session leaves a crowded server."""
    repin_moves: int = Field(default=2, ge=0)
    """Times a session may leave its server because it is crowded; 0 keeps it for good."""
    max_batch_size: int = Field(default=64, ge=1)
    """Sequences decoded at once, by each engine."""
    max_prefill_tokens: int = Field(default=4096, ge=16)
    """Prompt tokens computed in one forward pass."""
    kv_cache_gb: float = Field(default=4.0, gt=0)
    """GiB for keys and values of each engine; bounds how many sequences of full length are held."""

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            try:
                parts = urlsplit(url)
                good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            except ValueError:  # no port, no address
                good = False
            if not good or any(character.isspace() for character in url):
                raise ValueError(f"{url!r} is not the address of a vLLM server: http://host:port")
        if len({url.rstrip("/") for url in urls}) < len(urls):
            raise ValueError("a server is named twice; each is one engine")
        return urls


class SyncSection(Section):
    """How new weights reach the engines."""

    backend: str = "auto"
    """`inprocess` (embedded: nothing moves), `shm` (one host), `disk` (a shared folder),
    `collective` (gloo or NCCL broadcast), `ipc` (CUDA, one device), `nccl` (vLLM's own engine);
    `auto` takes the fastest that reaches every engine. Or an import string of one's own."""
    bucket_mb: int = Field(default=64, ge=1)
    """MiB of one transfer buffer; there are two. For `collective` and `nccl`."""
    dense_every: int = Field(default=1, ge=1)
    """All weights go with every so many syncs, between them only those that changed; 1 always
    sends all. Lossless, for `disk` and `collective`."""
    directory: str | None = None
    """Folder of the `disk` backend that every engine can read; None takes one in the run."""


class ScheduleSection(Section):
    """How far rollouts may run ahead of training. The defaults are strictly on-policy."""

    trigger_parameter_sync_step: int = Field(default=1, ge=1)
    """Training steps between two weight syncs."""
    staleness_threshold: float = Field(default=0.0, ge=0)
    """Share of rollouts that may be begun beyond what the next sync consumes; 0 waits."""
    partial_rollout: bool = False
    """At a sync, interrupt rollouts in flight and go on with the new weights, instead of waiting
    for them to end."""
    one_step_off: bool = False
    """Roll out the next step while this one trains, and nothing beyond it."""
    max_version_lag: int | None = Field(default=None, ge=0)
    """Most versions between a sampled token and the weights it trains; what is older is dropped or
    masked. None waits for late rollouts instead, so that nothing exceeds the bound that the other
    keys imply."""
    stale: Literal["drop", "mask"] = "drop"
    """What happens beyond `max_version_lag`: `drop` the rollout, or `mask` the old tokens."""
    oversample: float = Field(default=1.0, ge=1)
    """Rollout groups begun per group trained; the slowest are put off and finished in rounds of
    their own, so every task still comes once an epoch. On-policy only."""


class RaySection(Section):
    """What `runtime: ray` starts, and where."""

    address: str | None = None
    """An existing cluster (`auto`, `host:port`); None starts one on this machine."""
    rollout_workers: int = Field(default=2, ge=1)
    """CPU processes that run agent loops, hundreds of them each."""
    trainer_ranks: int = Field(default=1, ge=1)
    """Processes that train, each on a part of every batch."""
    gpus_per_trainer: float = Field(default=0.0, ge=0)
    """GPUs of each trainer rank; 0 trains on the CPU."""
    gpus_per_engine: float = Field(default=0.0, ge=0)
    """GPUs of each engine; 0 samples on the CPU."""
    placement: Literal["disaggregated", "colocated"] = "disaggregated"
    """Engines on devices of their own, or on those of the trainer ranks."""
