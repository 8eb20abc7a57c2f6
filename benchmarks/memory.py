"""Compare preflight's estimate of memory with measured peaks on this machine's CPU.

    python benchmarks/memory.py                    # steps of random models, each in its own process
    python benchmarks/memory.py 0.5B,bfloat16      # some of them
    python benchmarks/memory.py configs/quickstart.yaml train.steps=1 dataset.limit=8

The first form builds a random model, trains two steps of full micro-batches, and compares the peak
of resident memory, as the kernel counts it, with the sum of the estimate. The last one trains as a
config says (evaluation left out). The exit status is 1 where an estimate is off by more than 15 %.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "gpu"))

OFF = 0.15
"""Largest error of an estimate."""
GIB = 2**30
SHAPES = {
    "tiny": (49152, 192, 512, 8, 3, 3), "30M": (16384, 384, 1024, 12, 6, 2),
    "135M": (49152, 576, 1536, 30, 9, 3), "360M": (49152, 960, 2560, 32, 15, 5),
    "0.5B": (65536, 1024, 3072, 24, 16, 8),
    "1B": (65536, 1536, 6144, 24, 12, 4),
}  # fmt: skip
"""Vocabulary, width, width of the MLP, layers, heads and key heads."""
CASES = (
    "tiny,float32", "30M,float32", "30M,bfloat16", "135M,float32", "135M,float32,checkpointing",
    "135M,bfloat16", "135M,float32,lora", "360M,bfloat16", "360M,bfloat16,lora",
    "0.5B,float32,checkpointing", "0.5B,bfloat16,lora",
    "1B,bfloat16,lora,checkpointing",
)  # fmt: skip
PROMPT, ANSWER, ROWS = 128, 384, 4


def main(*words: str) -> int:
    if words and words[0] == "--one":
        print(json.dumps(_step(words[1])))
        return 0
    if words and Path(words[0]).suffix in (".yaml", ".yml"):
        return _run(*words)
    print("| model | measured, GiB | estimated, GiB | error | of that passes, GiB |")
    print("| --- | --- | --- | --- | --- |")
    worst = 0.0
    for case in words or CASES:
        command = (sys.executable, __file__, "--one", case)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"| {case} | failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]} |")
            worst = 1.0
            continue
        peak, expected, passes = json.loads(done.stdout.splitlines()[-1])
        worst = max(worst, abs(expected / peak - 1))
        cells = (f"{peak / GIB:.2f}", f"{expected / GIB:.2f}", f"{expected / peak - 1:+.0%}")
        print(
            f"| {case.replace(',', ', ')} | {' | '.join(cells)} | {passes / GIB:.2f} |", flush=True
        )
    return int(worst > OFF)


def _step(case: str) -> tuple[int, int, int]:
    """Peak and estimate of one random model, and the part of passes."""
    import torch
    from parts.models import random_groups
    from parts.steps import algorithm
    from transformers import AutoModelForCausalLM, LlamaConfig

    from agentrl.batch import StepSettings, build_step
    from agentrl.config.schema import ModelSection
    from agentrl.config.training import LoraSection, TrainSection
    from agentrl.preflight.memory.activations import measured
    from agentrl.preflight.memory.estimate import PROCESS, trained_bytes
    from agentrl.preflight.memory.shape import shape_of
    from agentrl.train.backends.choose import make_backend
    from agentrl.train.model.lora import add_adapters
    from agentrl.train.trainer import Trainer

    name, dtype, *more = case.split(",")
    vocabulary, hidden, inner, layers, heads, keys = SHAPES[name]
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=keys,
        max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    row = PROMPT + ANSWER
    train = TrainSection.model_validate({
        "micro_batch_tokens": ROWS * row, "backend": {"kind": "torch", "lanes": 1},
        "lora": LoraSection(rank=16) if "lora" in more else None,
    })  # fmt: skip
    checkpointing = "checkpointing" in more
    section = ModelSection(dtype=dtype, gradient_checkpointing=checkpointing)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
    shape = shape_of(model)
    if train.lora is not None:
        add_adapters(model, train.lora, base="")
    backend = make_backend(model, train=train, gradient_checkpointing=checkpointing, ranks=None)
    trainer = Trainer(model, train=train, algorithm=algorithm(), backend=backend)
    answers = [[ANSWER] * ROWS, [ANSWER] * ROWS]
    groups = random_groups(
        vocabulary, [PROMPT] * 2, answers, sampled=lambda _, answer: (-2.0,) * len(answer)
    )
    settings = StepSettings(
        algorithm=algorithm(), micro_batch_tokens=ROWS * row, seed=0, prefix_sharing=False
    )
    batch = build_step(groups, settings)
    for _ in range(2):
        trainer.step(batch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    moving = shape.parameters if train.lora is None else shape.adapters * train.lora.rank
    state, sums = trained_bytes(train, section, moving, kept=1)
    width = 2 if dtype == "bfloat16" else 4
    passes = measured(config, train, section, row=row, response=ANSWER, on_gpu=False)
    assert passes is not None
    held = shape.parameters * width + (4 * moving if train.lora else 0)
    return peak, PROCESS + held + state + sums + passes, passes


def _run(file: str, *overrides: str) -> int:
    from agentrl.config import load_config
    from agentrl.config.plan import plan_run
    from agentrl.disk.model_source import policy_config
    from agentrl.machine.free_memory import available_bytes
    from agentrl.preflight.memory.estimate import Room, estimate
    from agentrl.preflight.memory.shape import demand_of
    from agentrl.runtime.launch import train
    from agentrl.runtime.progress import Progress

    with tempfile.TemporaryDirectory() as folder:
        usual = (f"run.dir={folder}", "eval.datasets={}", "train.steps=1")
        config = load_config(Path(file), (*usual, *overrides))
        plan = plan_run(config, Path(file).parent)
        demand = demand_of(plan.trainer, policy_config(config.model), on_gpu=False)
        room = Room(host=available_bytes() or 0)
        processes = estimate(plan.trainer, plan.engines.serving, demand, on_gpu=False, room=room)
        for process in processes:
            print("expected:", process.text())
        started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        asyncio.run(train(config, base=Path(file).resolve().parent, progress=Progress()))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    expected = processes[0].size
    print(f"measured: {peak / GIB:.2f} GiB at the peak, {started / GIB:.2f} before the model")
    print(f"error of the estimate: {expected / peak - 1:+.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
