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
    "tiny": (49152, 192, 512, 8, 3, 3, 4), "30M": (16384, 384, 1024, 12, 6, 2, 4),
    "135M": (49152, 576, 1536, 30, 9, 3, 4), "360M": (49152, 960, 2560, 32, 15, 5, 2),
    "0.5B": (65536, 1024, 3072, 24, 16, 8, 1), "1B": (65536, 1536, 6144, 24, 12, 4, 1),
}  # fmt: skip
"""Vocabulary, width, width of the MLP, layers, heads, key heads, and rows of a micro-batch."""
CASES = (
    "tiny,float32", "tiny,bfloat16,lora", "30M,float32", "30M,bfloat16", "30M,float32,lora",
    "30M,bfloat16,lora", "135M,float32", "135M,float32,saving", "135M,float32,checkpointing",
    "135M,bfloat16", "135M,float32,lora", "135M,bfloat16,nf4", "360M,float32", "360M,bfloat16",
    "360M,float32,lora", "360M,bfloat16,lora", "360M,bfloat16,nf4", "0.5B,float32,checkpointing",
    "0.5B,bfloat16,lora", "1B,bfloat16,lora,checkpointing", "1B,bfloat16,nf4,checkpointing",
)  # fmt: skip
PROMPT, ANSWER = 128, 384


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
    from agentrl.config import parse_config
    from agentrl.config.plan import plan_run
    from agentrl.preflight.memory.estimate import Room, estimate
    from agentrl.preflight.memory.shape import demand_of
    from agentrl.train.backends.choose import make_backend
    from agentrl.train.model.adapters.four_bit import keep_in_four_bits
    from agentrl.train.model.lora import add_adapters
    from agentrl.train.saving.snapshot import StateSnapshot
    from agentrl.train.trainer import Trainer

    name, dtype, *more = case.split(",")
    vocabulary, hidden, inner, layers, heads, keys, rows = SHAPES[name]
    shape = LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=keys,
        max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    row = PROMPT + ANSWER
    lora = {"rank": 16, "base": "nf4" if "nf4" in more else None}
    run = plan_run(
        parse_config({
            "env": {"target": "x:Y"}, "dataset": {"source": "x.jsonl"},
            "serving": {"engine": "external", "urls": ["http://10.0.0.1:8000"]},
            "model": {"dtype": dtype, "gradient_checkpointing": "checkpointing" in more},
            "rollout": {"max_context_tokens": row, "max_response_tokens": ANSWER,
                        "max_turn_tokens": ANSWER},
            "train": {
                "micro_batch_tokens": rows * row, "backend": {"kind": "torch", "lanes": 1},
                "lora": lora if {"lora", "nf4"} & set(more) else None,
            },
        }),
        Path(),
    )  # fmt: skip
    plan = run.trainer
    demand = demand_of(plan, shape, on_gpu=False)
    model: Any = AutoModelForCausalLM.from_config(shape, dtype=getattr(torch, dtype)).eval()
    if plan.train.lora is not None:
        add_adapters(model, plan.train.lora, base="")
    if plan.train.lora is not None and plan.train.lora.base:
        keep_in_four_bits(model, torch.device("cpu"))
    backend = make_backend(
        model,
        train=plan.train,
        gradient_checkpointing=plan.model.gradient_checkpointing,
        ranks=None,
    )
    trainer = Trainer(model, train=plan.train, algorithm=algorithm(), backend=backend)
    answers = [[ANSWER] * rows, [ANSWER] * rows]
    groups = random_groups(
        vocabulary, [PROMPT] * 2, answers, sampled=lambda _, answer: (-2.0,) * len(answer)
    )
    settings = StepSettings(
        algorithm=algorithm(), micro_batch_tokens=rows * row, seed=0, prefix_sharing=False
    )
    batch = build_step(groups, settings)
    for _ in range(2):
        trainer.step(batch)
        if "saving" in more:  # a save that nobody has begun to write when the next update comes
            held = StateSnapshot()
            trainer.hold(held)
            for name, weight in trainer.weights():
                held.keep(name, weight)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (process, *_) = estimate(
        plan, run.engines.serving, demand, on_gpu=False, room=Room(), saves="saving" in more
    )
    return peak, process.size, demand.activations


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
