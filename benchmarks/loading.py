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

import json
import math
import multiprocessing
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from harness import measured_with, options, process_bytes, show_table

GIB = 2**30
LIMIT_S = 900.0


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


def load(folder: str, kind: str, in_parts: bool, address: str, rank: int, size: int) -> Any:
    """Start one rank; [seconds, its peak, what it held before, numbers of the model]."""
    import torch
    from transformers import AutoModelForCausalLM

    from agentrl.config.training import TrainSection
    from agentrl.models.parts import load_weights
    from agentrl.train.backends.choose import make_backend
    from agentrl.train.backends.ranks import Ranks

    torch.set_num_threads(1)
    backend: Any = {"kind": "deepspeed", "zero_stage": 3} if kind == "zero3" else kind
    device = torch.device("cpu")
    ranks = Ranks(address, rank=rank, world_size=size, device=device, timeout_s=LIMIT_S)
    before = peak = process_bytes("RssAnon")
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
    ranks.gather(None)
    seconds = time.perf_counter() - began
    done.set()
    watching.join()
    del made
    ranks.close()
    return seconds, peak, before, numbers


def _rank(pipe: Any, *args: Any) -> None:
    # DeepSpeed imports it, wherever it is installed, for a tuner that nothing here uses.
    sys.modules["mlflow"] = None  # type: ignore[assignment]
    pipe.send(load(*args))


def measure(folder: str, kind: str, in_parts: bool, size: int) -> tuple[float, int, int]:
    """(seconds, the largest peak of a rank, numbers of the model)."""
    from agentrl.train.backends.ranks import Meeting

    meeting, context = Meeting(), multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        args = (theirs, folder, kind, in_parts, meeting.address, rank, size)
        processes.append(context.Process(target=_rank, args=args))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        found = [pipe.recv() for pipe in pipes]
    finally:
        for process in processes:
            process.join(30)
            process.kill()
        meeting.close()
    return max(one[0] for one in found), max(one[1] for one in found), found[0][3]


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
                whole = None if chosen.parts_only else measure(folder, kind, False, size)
                parts = measure(folder, kind, True, size)
                limit = 14 * parts[2] / size + 4 * layer + 0.7 * GIB
                above += parts[1] > limit
                rows.append(
                    (
                        kind,
                        size,
                        f"{parts[1] / GIB:.2f}",
                        f"{limit / GIB:.2f}",
                        f"{whole[1] / GIB:.2f}" if whole else "",
                        f"{parts[1] / whole[1]:.2f}" if whole else "",
                        f"{parts[0]:.1f}",
                        f"{whole[0]:.1f}" if whole else "",
                    )
                )
    peaks = ("peak GiB", "limit GiB", "whole: peak GiB", "ratio")
    title = f"a rank of {parts[2] / 1e6:.0f}M parameters, {size_gb:.1f} GB on the disk"
    show_table(title, ("kind", "ranks", *peaks, "seconds", "whole: seconds"), rows)
    print(measured_with())
    return 1 if above else 0


if __name__ == "__main__":
    raise SystemExit(main())
