"""Weight sync on one host: shared memory against memcpy and gloo, the pause, and sparse patches.

    .venv/bin/python benchmarks/sync/weight_sync.py   # quiet: about three minutes
    .venv/bin/python benchmarks/sync/weight_sync.py --quick   # small tensors
    .venv/bin/python benchmarks/sync/weight_sync.py --only vllm

The weights have the names and shapes of SmolLM2-135M, in float32: 538 MB. Two receiver processes.

    memcpy      torch copy_ of the same tensors, the same threads, into memory touched before
    shm         ShmSender.send: one copy, every byte hashed; and how long two receivers check it
    gloo        the bucketed broadcast to two receivers, patches off
    vllm        a real server of a random model in bfloat16, or of --vllm MODEL_DIR: from pause to
                resume, no token produced, against a copy of the same weights; the parts of a sync
    patches     bfloat16 weights, float32 masters, AdamW at 1e-6 after a warm-up: bytes and bits

The issue asks for shm >= 90 % of memcpy, >= 6 x gloo, pause <= 2 x copy, patches >= 20 x smaller.
Repeats are interleaved; printed are medians with their range.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "gpu"))

from harness import Choice, spread
from harness import options as command_options
from parts.models import SHAPE, random_llama

from agentrl.config.fleet import VllmServing
from agentrl.engine import WeightTicket
from agentrl.serving.client import TokenClient
from agentrl.sync import make_receiver
from agentrl.sync.collective.sender import GroupSender
from agentrl.sync.coordinator import WeightSync
from agentrl.sync.shm.shm import ShmSender
from agentrl.sync.transfer import WeightSender
from agentrl.sync.wire.patches import PatchBase, PatchDecoder, PatchEncoder
from agentrl.types import SamplingParams

Weights = list[tuple[str, torch.Tensor]]
RECEIVERS = 2
PARTS = ("moves", "vllm", "patches")


def make_model(quick: bool) -> Any:
    small = {"vocab_size": 4915, "hidden_size": 144, "intermediate_size": 384}
    shape = {**SHAPE, **small, "num_hidden_layers": 4} if quick else SHAPE
    return random_llama(shape).eval()


def weights_of(model: Any) -> Weights:
    return [(name, tensor.detach()) for name, tensor in model.named_parameters()]


def size_of(weights: Weights) -> int:
    return sum(tensor.nbytes for _, tensor in weights)


def timed(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def show(name: str, seconds: list[float], size: int) -> None:
    times = spread([1e3 * one for one in seconds], 1)
    print(f"  {name:28s} {times:>24s} ms  {size / statistics.median(seconds) / 1e9:6.2f} GB/s")


# -- receivers in processes of their own ------------------------------------------------------


def receive_for_ever(backend: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    receiver = make_receiver(backend)
    while (order := pipe.recv()) is not None:
        what, value = order
        if what == "connect":
            receiver.connect(value)
            pipe.send(0.0)
            continue
        started = time.perf_counter()
        count = sum(1 for _ in receiver.receive(value))
        pipe.send(time.perf_counter() - started if count else None)
    receiver.close()


class Receivers:
    def __init__(self, sender: WeightSender) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(RECEIVERS)]
        self._pipes = [ours for ours, _ in pairs]
        self._processes = [
            context.Process(target=receive_for_ever, args=(sender.backend, theirs), daemon=True)
            for _, theirs in pairs
        ]
        for process in self._processes:
            process.start()
        for pipe, info in zip(self._pipes, sender.connect(RECEIVERS), strict=True):
            pipe.send(("connect", info))
        for pipe in self._pipes:
            pipe.recv()

    def begin(self, ticket: WeightTicket) -> None:
        for pipe in self._pipes:
            pipe.send(("receive", ticket))

    def finish(self) -> float:
        """Seconds of the slowest."""
        return max(pipe.recv() for pipe in self._pipes)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)


def measure_moves(weights: Weights, repeats: int) -> None:
    size = size_of(weights)
    targets = [torch.zeros_like(tensor) for _, tensor in weights]
    shm, gloo = ShmSender(), GroupSender(bucket_bytes=64 << 20, timeout_s=60)
    by_shm, by_gloo = Receivers(shm), Receivers(gloo)
    versions = iter(range(1, 10_000))
    times: dict[str, list[float]] = {
        name: [] for name in ("memcpy", "shm", "shm receivers", "gloo")
    }

    def copy() -> None:
        for target, (_, tensor) in zip(targets, weights, strict=True):
            target.copy_(tensor)

    def by_memory() -> tuple[float, float]:
        started = time.perf_counter()
        ticket = shm.send(weights, next(versions))
        staged = time.perf_counter() - started
        by_shm.begin(ticket)
        return staged, by_shm.finish()

    def by_network() -> None:
        version = next(versions)
        by_gloo.begin(gloo.announce(version))
        gloo.send(weights, version)
        by_gloo.finish()

    first = timed(by_memory)
    for _ in range(2):  # both segments, the group
        by_memory()
        by_network()
    for _ in range(repeats):
        times["memcpy"].append(timed(copy))
        staged, received = by_memory()
        times["shm"].append(staged)
        times["shm receivers"].append(received)
        times["gloo"].append(timed(by_network))
    for name, seconds in times.items():
        show(name, seconds, size)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    print(f"  first shm sync, which allocates: {first * 1e3:.0f} ms")
    print(f"  shm / memcpy (target >= 90 %): {medians['memcpy'] / medians['shm']:.1%}")
    print(f"  shm / gloo   (target >= 6 x):  {medians['gloo'] / medians['shm']:.1f} x")
    whole = medians["shm"] + medians["shm receivers"]
    print(f"  with the receivers' check:     {medians['gloo'] / whole:.1f} x gloo")
    for receivers in (by_shm, by_gloo):
        receivers.close()
    shm.close()
    gloo.close()


# -- the pause --------------------------------------------------------------------------------


TIMELINE = {
    "stage": "1 send, the server samples",
    "prepare": "2 stage, the server samples",
    "stop": "3 the server comes to a stop",
    "load": "4 load, and the cache reset",
    "resume": "5 the server goes on",
}
"""Parts of a sync in their order, as `sync/NAME_s` in the metrics."""


async def report_pause(name: str, copies: list[float], pauses: list[float], size: int) -> None:
    show(f"copy into the {name} model", copies, size)
    show(f"pause of the {name} engine", pauses, size)
    ratio = statistics.median(pauses) / statistics.median(copies)
    print(f"  pause / copy (target <= 2): {ratio:.2f}")


def write_random_model(folder: Path, quick: bool) -> Path:
    """Save the random model in bfloat16, with a tokenizer of bytes, so that vLLM serves it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(folder)
    make_model(quick).bfloat16().save_pretrained(folder)
    return folder


async def measure_vllm(folder: Path, repeats: int) -> None:
    from transformers import AutoModelForCausalLM

    from agentrl.serving.vllm import VllmEngine
    from agentrl.serving.vllm.command import server_command
    from agentrl.serving.vllm.launcher import VllmServer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    weights = weights_of(model)
    targets = [torch.zeros_like(tensor) for _, tensor in weights]
    section = VllmServing(max_batch_size=4, kv_cache_gb=0.5)
    command = server_command(section, model_path=folder, max_context_tokens=2048)
    server = VllmServer(command, name="vllm-0", log=Path("/tmp/weight_sync_vllm.log"))
    await server.start()
    engine = VllmEngine(server.url, name="vllm-0")
    sync = WeightSync(TokenClient([engine]), ShmSender())
    try:
        await engine.connect()
        await sync.connect()
        copies, pauses = [], []
        parts: dict[str, list[float]] = {name: [] for name in TIMELINE}
        for version in range(1, repeats + 3):
            turn = asyncio.create_task(
                engine.generate([1, 2, 3], SamplingParams(max_tokens=16), f"s{version}")
            )
            await asyncio.sleep(0.1)
            result = (await sync.push(lambda: weights, version)).result()
            await turn
            pairs = list(zip(targets, weights, strict=True))
            seconds = timed(lambda pairs=pairs: [t.copy_(w) for t, (_, w) in pairs])
            timeline = ", ".join(f"{part} {result[f'sync/{part}_s']:.3f}" for part in TIMELINE)
            print(f"  sync {version}: {timeline}; copy {seconds:.3f} s", flush=True)
            if version > 2:
                pauses.append(result["sync/pause_s"])
                for name, seconds_of in parts.items():
                    seconds_of.append(result[f"sync/{name}_s"])
                copies.append(seconds)
        await report_pause("vLLM", copies, pauses, size_of(weights))
        for name, seconds_of in parts.items():
            show(TIMELINE[name], seconds_of, size_of(weights))
    finally:
        await engine.close()
        await sync.close()
        await server.stop()


# -- patches ----------------------------------------------------------------------------------


def measure_patches(model: Any, steps: int) -> None:
    """Real AdamW steps on float32 masters of bfloat16 weights; gradients of a real loss."""
    masters = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-6, weight_decay=0.0)
    model.bfloat16()
    encoder, decoder = PatchEncoder(1_000), PatchDecoder()
    torch.manual_seed(1)
    for step in range(steps + 1):
        weights = [(name, tensor.detach()) for name, tensor in model.named_parameters()]
        base, version = encoder.base, step + 1
        seconds = time.perf_counter()
        moved = [(name, tensor.clone()) for name, tensor in encoder.encode(weights, version)]
        seconds = time.perf_counter() - seconds
        new = PatchBase(version=version, checksum=encoder.checksum)
        arrived = functools.partial(lambda new: new, new)
        got = (
            decoder.dense(moved, arrived, keep=True)
            if base is None
            else decoder.apply(moved, base, arrived)
        )
        exact = all(
            torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
            for (_, ours), (_, theirs) in zip(got, weights, strict=True)
        )
        size, dense = sum(tensor.nbytes for _, tensor in moved), size_of(weights)
        what = "all weights" if base is None else f"patch of step {step}"
        print(
            f"  {what:16s} {size:>12,d} bytes, {dense / size:6.1f} x smaller (target >= 20), "
            f"bit-exact: {exact}, made in {seconds:.2f} s"
        )
        ids = torch.randint(0, model.config.vocab_size, (2, 64))
        model(ids, labels=ids).loss.backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
            parameter.grad = None
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)


def main() -> None:
    options = command_options(
        __doc__, quick=False, repeats=0, model=Path, vllm=Path, only=Choice(PARTS), threads=1
    )
    repeats = options.repeats or (3 if options.quick else 15)
    torch.set_num_threads(options.threads)
    model: Any = make_model(options.quick)
    size = size_of(weights_of(model))
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, {options.threads} thread(s), "
        f"{size / 1e6:.0f} MB float32, {RECEIVERS} receivers, medians of {repeats} [min-max]"
    )
    chosen = (options.only,) if options.only else PARTS
    if "moves" in chosen:
        measure_moves(weights_of(model), repeats)
    if options.vllm or options.only == "vllm":
        with tempfile.TemporaryDirectory() as folder:
            served = options.vllm or write_random_model(Path(folder), options.quick)
            asyncio.run(measure_vllm(served, repeats))
    if "patches" in chosen:
        if options.model:
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        measure_patches(model, steps=3)


if __name__ == "__main__":
    main()
