"""Memory and time of ranks that load a model in parts, beside ranks that each load all of it.

    python benchmarks/loading.py --ranks 2 4

Writes a random model (float32 in shards of a layer, 3.4 GB as it comes) into a temporary folder,
and starts the backends of `--kinds` on gloo ranks of this machine, both ways in turn, in fresh
processes, with the passes that compare the model with its own forward, as at the start of a run
(`--parts-only` leaves out the ranks that load all of it). Memory is the peak of a rank's private
pages (RssAnon): what the kernel keeps of files is not counted. The limit is a rank's share of
weights, masters and moments (14 bytes a number), one layer and 0.7 GiB. Ends with 1 where a rank in
parts is above it.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import measured_with, options, process_bytes, show_table

GIB = 2**30
LIMIT_S = 900.0
_MODULES = ("agentrl.models.parts", "agentrl.train.backends.choose", "agentrl.train.backends.fsdp")
"""What takes a rank seconds to import."""


def write_model(folder: Path, *, width: int, layers: int) -> int:
    """Write random weights, one shard a layer; returns the numbers of a layer."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        architectures=["LlamaForCausalLM"],
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shards: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, param in model.named_parameters():
        shard = name.split(".")[2] if ".layers." in name else "rest"
        shards.setdefault(f"model-{shard}.safetensors", {})[name] = tuple(param.shape)
    for file, shapes in shards.items():
        made = {name: torch.randn(shape) * 0.02 for name, shape in shapes.items()}
        save_file(made, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {n: file for file, s in shards.items() for n in s}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config.save_pretrained(folder)
    return sum(math.prod(shape) for shape in shards["model-0.safetensors"].values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """What one rank measured while it loaded."""

    seconds: float
    peak: int
    """Bytes of private pages of the process at their peak."""
    device_peak: int
    """Bytes of its GPU that torch held at the peak; 0 on a CPU."""
    numbers: int
    """Numbers of the whole model."""
    digest: str
    """Of the weights that the rank keeps."""


def load(
    folder: str, kind: str, in_parts: bool, on: str, address: str, rank: int, size: int
) -> RankLoad:
    """Start one rank, on the CPU or on the GPU of its number."""
    import torch
    from transformers import AutoModelForCausalLM

    from agentrl.config.training import TrainSection
    from agentrl.models.parts import load_weights
    from agentrl.train.backends.choose import make_backend
    from agentrl.train.backends.ranks import Ranks

    torch.set_num_threads(1)
    backend: Any = {"kind": "deepspeed", "zero_stage": 3} if kind == "zero3" else kind
    device = torch.device(on, rank) if on == "cuda" else torch.device(on)
    if on == "cuda":
        torch.cuda.set_device(device)
    ranks = Ranks(address, rank=rank, world_size=size, device=device, timeout_s=LIMIT_S)
    peak = process_bytes("RssAnon")
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.003):
            peak = max(peak, process_bytes("RssAnon"))

    watching = threading.Thread(target=watch)
    watching.start()
    ranks.gather(None)
    began = time.perf_counter()
    model = load_weights(
        AutoModelForCausalLM,
        folder,
        who="the model",
        dtype=torch.bfloat16,
        device=device,
        in_parts=in_parts,
    )
    numbers = sum(param.numel() for param in model.parameters())
    made = make_backend(
        model, train=TrainSection(backend=backend), gradient_checkpointing=False, ranks=ranks
    )
    if on == "cuda":
        torch.cuda.synchronize(device)
    ranks.gather(None)
    seconds = time.perf_counter() - began
    done.set()
    watching.join()
    found = RankLoad(
        seconds=seconds,
        peak=peak,
        device_peak=torch.cuda.max_memory_allocated(device) if on == "cuda" else 0,
        numbers=numbers,
        digest=digest_of(model),
    )
    del made
    ranks.close()
    return found


def digest_of(model: Any) -> str:
    """Digest of a rank's own share of the weights, tensor by tensor."""
    import torch

    digest = hashlib.sha256()
    for name, param in model.named_parameters():
        share = getattr(param, "ds_tensor", param)  # of ZeRO-3
        share = share.to_local() if hasattr(share, "to_local") else share
        digest.update(f"{name} {tuple(share.shape)}".encode())
        digest.update(share.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _rank(pipe: Any, *args: Any) -> None:
    # DeepSpeed imports it, wherever it is installed, for a tuner that nothing here uses.
    sys.modules["mlflow"] = None  # type: ignore[assignment]
    pipe.send(load(*args))


def _context(on: str) -> Any:
    """How ranks are started; those of a CPU are forked off one process with all modules."""
    if on == "cuda":
        return multiprocessing.get_context("spawn")  # a fork of a process that met CUDA is refused
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transformers.models.llama.modeling_llama", *_MODULES])
    return context


def measure(
    folder: str, kind: str, in_parts: bool, size: int, *, on: str = "cpu"
) -> list[RankLoad]:
    """What each rank measured; `on` is `cpu`, or `cuda` for a GPU each."""
    from agentrl.train.backends.ranks import Meeting

    meeting, context = Meeting(), _context(on)
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        args = (theirs, folder, kind, in_parts, on, meeting.address, rank, size)
        processes.append(context.Process(target=_rank, args=args))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        return [pipe.recv() for pipe in pipes]
    finally:
        for process in processes:
            process.join(30)
            process.kill()
        meeting.close()


def limit_bytes(numbers: int, layer: int, size: int) -> float:
    """A rank's share of weights, masters and moments, one layer in float32, and 0.7 GiB."""
    return 14 * numbers / size + 4 * layer + 0.7 * GIB


def main() -> int:
    """Measure and print; 1 where a rank is above its limit."""
    chosen = options(
        __doc__, ranks=[2], kinds=["fsdp2", "zero3"], width=2048, layers=14, parts_only=False
    )
    rows, above = [], 0
    with tempfile.TemporaryDirectory() as folder:
        layer = write_model(Path(folder), width=chosen.width, layers=chosen.layers)
        size_gb = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors")) / 1e9
        for kind in chosen.kinds:
            for size in chosen.ranks:
                whole = [] if chosen.parts_only else measure(folder, kind, False, size)
                parts = measure(folder, kind, True, size)
                numbers = parts[0].numbers
                limit = limit_bytes(numbers, layer, size)
                peak = max(one.peak for one in parts)
                peak_whole = max((one.peak for one in whole), default=0)
                above += peak > limit
                rows.append(
                    (
                        kind,
                        size,
                        f"{peak / GIB:.2f}",
                        f"{limit / GIB:.2f}",
                        f"{peak_whole / GIB:.2f}" if whole else "",
                        f"{peak / peak_whole:.2f}" if whole else "",
                        f"{max(one.seconds for one in parts):.1f}",
                        f"{max(one.seconds for one in whole):.1f}" if whole else "",
                    )
                )
    peaks = ("peak GiB", "limit GiB", "whole: peak GiB", "ratio")
    title = f"a rank of {numbers / 1e6:.0f}M parameters, {size_gb:.1f} GB on the disk"
    show_table(title, ("kind", "ranks", *peaks, "seconds", "whole: seconds"), rows)
    print(measured_with())
    return 1 if above else 0


if __name__ == "__main__":
    raise SystemExit(main())
