"""Keys of what serves, moves weights and runs ahead: engines, syncs, schedule, processes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from agentrl.config.base import (
    KindSection,
    Names,
    OneOf,
    Section,
    is_count,
    is_named_count,
)

WIDTHS = ("tensor_parallel_size", "pipeline_parallel_size")
"""Options of a vLLM server that make it several processes, which all receive weights."""


def _plain(name: str) -> str:
    """An option of vLLM in its plain spelling."""
    return name.lstrip("-").replace("-", "_")


CacheSize = Annotated[float, Field(gt=0)] | Literal["auto"]
"""GiB of a cache, or what is there."""


class EmbeddedServing(KindSection):
    """The engine that samples beside the trainer, from the trainer's own weights."""

    bare: ClassVar[str] = "engine"

    engine: Literal["embedded"] = "embedded"
    """`embedded` samples beside the trainer from the trainer's own weights."""
    max_batch_size: int = Field(default=64, ge=1)
    """Sequences decoded at once, by each engine."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds a server, and with `runtime: ray` any process, may take until it answers."""
    kv_cache_gb: CacheSize = 4.0
    """GiB for keys and values of each engine; bounds how many sequences of full length are held.
    `auto` is a quarter of the memory that is free at the start."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of servers that already run: none."""
        return ()


class VllmServing(KindSection):
    """vLLM servers that the run starts."""

    bare: ClassVar[str] = "engine"

    engine: Literal["vllm"] = "vllm"
    """`vllm` starts vLLM servers."""
    replicas: int = Field(default=1, ge=1)
    """vLLM servers to start."""
    args: dict[str, Any] = Field(default_factory=dict)
    """More options of each vLLM server, as `tensor_parallel_size: 2`; win over ours."""
    max_batch_size: int = Field(default=64, ge=1)
    """Sequences decoded at once, by each engine."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds a server, and with `runtime: ray` any process, may take until it answers."""
    kv_cache_gb: CacheSize = "auto"
    """GiB for keys and values of each device of a server. `auto` on a GPU is what vLLM finds free
    within `gpu_memory_utilization` of `args` (0.92), and 4 beside the trainer on the same GPU; on
    a CPU a quarter of the memory that is free at the start, divided among the servers."""
    outage_limit_s: float = Field(default=900.0, gt=0)
    """Seconds that a run waits while no server takes requests; then it ends with an error, and
    `--resume` goes on with the tasks it was at."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        share = next((k for k in self.args if _plain(k) == "gpu_memory_utilization"), None)
        if share is not None and self.kv_cache_gb != "auto":
            raise ValueError(
                f"kv_cache_gb is {self.kv_cache_gb:g} and args.{share} is {self.args[share]}, but "
                "vLLM ignores the share of a card where it is given a number of bytes; remove "
                "one of the two (kv_cache_gb: auto takes what is free within the share)"
            )
        return self

    @field_validator("args")
    @classmethod
    def _widths(cls, args: dict[str, Any]) -> dict[str, Any]:
        for key, value in args.items():
            if _plain(key) not in WIDTHS:
                continue
            if isinstance(value, bool) or not str(value).isdecimal() or int(value) < 1:
                raise ValueError(f"{key} is {value!r}, but it is a number of devices: 1, 2, 4, ...")
        return args

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of servers that already run: none."""
        return ()


class ExternalServing(KindSection):
    """vLLM servers that already run."""

    bare: ClassVar[str] = "engine"

    engine: Literal["external"] = "external"
    """`external` uses the vLLM servers of `urls`, which already run."""
    urls: tuple[str, ...] = Field(min_length=1)
    """vLLM servers that already run, as `http://host:port`. A run brings its own weights to them
    first, whatever they hold; give no two runs the same servers."""
    args: dict[Literal["tensor_parallel_size", "pipeline_parallel_size"], int] = Field(
        default_factory=dict
    )
    """The `tensor_parallel_size` and `pipeline_parallel_size` that these servers were started
    with; 1 each where they are not said."""
    max_batch_size: int = Field(default=64, ge=1)
    """Sequences decoded at once, by each engine."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds a server, and with `runtime: ray` any process, may take until it answers."""
    outage_limit_s: float = Field(default=900.0, gt=0)
    """Seconds that a run waits while no server takes requests; then it ends with an error, and
    `--resume` goes on with the tasks it was at."""

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


ServingSection = Annotated[
    EmbeddedServing | VllmServing | ExternalServing,
    OneOf(EmbeddedServing, VllmServing, ExternalServing),
]
"""The inference engines."""


class SyncSection(Section):
    """Transfer of new weights to the engines."""

    backend: Annotated[str, Names.CODE] = "auto"
    """`inprocess` (embedded: nothing moves), `shm` (one host), `disk` (a shared folder),
    `collective` (engine to engine over TCP, NCCL between GPUs), `ipc` (CUDA, one device), `nccl`
    (vLLM's own engine); `auto` takes the fastest that reaches all. Or one's own import string."""
    dense_every: int = Field(default=1, ge=1)
    """All weights go with every so many syncs, between them only those that changed; 1 always
    sends all. Lossless, for `disk` and `collective`."""
    directory: Annotated[str | None, Names.OWN_FOLDER] = None
    """Folder of the `disk` backend that every engine can read; None takes one in the run."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Seconds without progress after which a sync by `collective` or `nccl` ends, and engines that
    made none are quarantined. The meeting and the last layers have the same limit."""


class ScheduleSection(Section):
    """Limits on how far rollouts run ahead of training. The defaults are strictly on-policy."""

    trigger_parameter_sync_step: int = Field(default=1, ge=1)
    """Training steps between two weight syncs."""
    staleness_threshold: float = Field(default=0.0, ge=0)
    """Share of rollouts that may be begun beyond what the next sync consumes; 0 waits, 1 rolls out
    the next step while this one trains."""
    partial_rollout: bool = False
    """At a sync, interrupt rollouts in flight and go on with the new weights, instead of waiting
    for them to end."""
    max_version_lag: int | dict[str, int] | None = None
    """Most versions between a sampled token and the weights it trains: a rollout with an older one
    is dropped; `{mask: N}` masks the older tokens instead. None waits for late rollouts, so that
    nothing exceeds the bound that the other keys imply."""
    oversample: float = Field(default=1.0, ge=1)
    """Rollout groups begun per group trained; the slowest are put off and finished in rounds of
    their own, so every task still comes once an epoch. They first take the places of groups that
    `reward.dynamic_filtering` drops. On-policy only."""

    @field_validator("max_version_lag", mode="before")
    @classmethod
    def _dropped_or_masked(cls, lag: Any) -> Any:
        named = is_named_count(lag) and lag.keys() <= {"drop", "mask"}
        if lag is None or is_count(lag) or named:
            return lag
        raise ValueError(
            f"max_version_lag is {lag}; expected a number of versions, or one of {{drop: N}} and "
            "{mask: N}"
        )

    @property
    def lag_limit(self) -> int | None:
        """Most versions of `max_version_lag`, whatever is done with older tokens."""
        lag = self.max_version_lag
        return next(iter(lag.values())) if isinstance(lag, dict) else lag

    @property
    def masks_stale(self) -> bool:
        """True if tokens beyond `lag_limit` are masked; their rollout is not dropped then."""
        return isinstance(self.max_version_lag, dict) and "mask" in self.max_version_lag


OffloadPart = Literal["optimizer", "gradients", "weights"]
"""State of a trainer that can leave its device."""


class LocalRuntime(KindSection):
    """The trainer in this process, and rollouts beside it."""

    kind: Literal["local"] = "local"
    """`local` trains in this process, and uses this machine alone."""
    worker_processes: int = Field(default=0, ge=0)
    """Child processes that run agent loops, hundreds of them each, with vLLM servers; 0 runs them
    on the event loop of this process, which is enough for a few hundred at once."""
    colocated: Literal["auto"] | bool = "auto"
    """Trainer and vLLM servers use one GPU in turn: servers sleep while the trainer works, and its
    state is in main memory while they sample (`runtime.offload`). `auto` does so where
    `serving.engine: vllm` leaves the trainer no GPU of its own; false keeps both on it."""
    offload: tuple[OffloadPart, ...] | None = None
    """State of a colocated trainer that is in main memory while servers sample: `optimizer`
    (masters, moments and the models beside the policy), `gradients`, `weights`. None moves the
    first two; with the third, weights go through main memory and not by CUDA IPC."""

    @field_validator("offload")
    @classmethod
    def _each_once(cls, offload: tuple[OffloadPart, ...] | None) -> tuple[OffloadPart, ...] | None:
        if offload is not None and len(set(offload)) < len(offload):
            raise ValueError(f"offload is {list(offload)}; name each part once")
        return offload


class RayRuntime(KindSection):
    """Processes of their own for agent loops, engines and trainer ranks."""

    kind: Literal["ray"] = "ray"
    """`ray` gives them processes of their own, on one machine or many."""
    address: str | None = None
    """An existing cluster (`auto`, `host:port`); None starts one on this machine."""
    rollout_workers: int = Field(default=2, ge=1)
    """CPU processes that run agent loops, hundreds of them each."""
    trainer_ranks: int = Field(default=1, ge=1)
    """Processes that train, each on a part of every batch."""
    gpus: float | dict[str, float] = 0.0
    """GPUs of each trainer rank, and of each engine that is started here: one number for both, or
    `{trainer: 1, engine: 2}`. Without any it trains, or samples, on the CPU."""
    placement: Literal["disaggregated", "colocated"] = "disaggregated"
    """Engines on devices of their own, or on those of the trainer ranks."""
    rank_restarts: int = Field(default=3, ge=0)
    """Times in a row that a run which lost a trainer rank goes on by itself from its last stored
    step; the row ends with each further step. 0 ends the run, for `--resume`."""
    hang_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds without a sign of life after which a rollout worker or a trainer rank is ended as if
    it had died: longer than anything blocks its event loop. Waiting is a sign of life."""

    @field_validator("gpus", mode="before")
    @classmethod
    def _of_ranks_and_engines(cls, gpus: Any) -> Any:
        named = isinstance(gpus, dict) and gpus.keys() <= {"trainer", "engine"}
        numbers = list(gpus.values()) if named else [gpus]
        if all(isinstance(n, int | float) and not isinstance(n, bool) and n >= 0 for n in numbers):
            return gpus
        raise ValueError(
            f"gpus is {gpus}; expected a number of at least 0, or one for each of trainer and "
            "engine, as {trainer: 1, engine: 2}"
        )

    @property
    def gpus_per_trainer(self) -> float:
        """GPUs of each trainer rank."""
        return self.gpus.get("trainer", 0.0) if isinstance(self.gpus, dict) else self.gpus

    @property
    def gpus_per_engine(self) -> float:
        """GPUs of each engine that is started here."""
        return self.gpus.get("engine", 0.0) if isinstance(self.gpus, dict) else self.gpus


RuntimeSection = Annotated[LocalRuntime | RayRuntime, OneOf(LocalRuntime, RayRuntime)]
"""The processes of a run."""
