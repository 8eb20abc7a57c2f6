"""Cost of the metrics over rows that are not trained, as a share of a step.

    OMP_NUM_THREADS=1 python benchmarks/untrained_rows.py --groups 8 --open 1

A model of the size of SmolLM2-135M (random weights, bfloat16) samples `--groups` groups of eight
rollouts with the embedded engine; all but `--open` of them are flat. Then a training step without
the sample of the untrained rows, and with it. CPU seconds of the process, so that other work on the
machine does not count; "share" is the sample over sampling and training together. Environments,
evaluations and checkpoints, which a run has besides, are not in it: the share of a run is smaller.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from agentrl.batch import StepSettings, build_step
from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.fleet import EmbeddedServing
from agentrl.config.schema import TrainSection
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.train.trainer import Trainer
from agentrl.train.untrained import UntrainedMeter
from agentrl.types import SamplingParams, Termination, Trajectory, TrajectoryGroup

SIBLINGS = 8


def make_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=4096,
        tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


async def sample(
    model: Any, prompts: Sequence[list[int]], tokens: int
) -> tuple[list[tuple[list[int], list[float]]], float]:
    """Ids and log-probabilities of `SIBLINGS` answers to each prompt, and CPU seconds."""
    engine = EmbeddedEngine(
        model,
        section=EmbeddedServing(max_batch_size=32),
        max_context_tokens=len(prompts[0]) + tokens,
    )
    began = time.process_time()
    every = [ids for ids in prompts for _ in range(SIBLINGS)]
    outputs = await asyncio.gather(
        *(
            engine.generate(ids, SamplingParams(max_tokens=tokens), f"s{index}")
            for index, ids in enumerate(every)
        )
    )
    spent = time.process_time() - began
    await engine.close()
    return [(list(out.ids), list(out.log_probs)) for out in outputs], spent


def groups_of(
    answers: Sequence[tuple[list[int], list[float]]], prompts: Sequence[list[int]], opened: int
) -> list[TrajectoryGroup]:
    groups = []
    for number, prompt in enumerate(prompts):
        own = answers[number * SIBLINGS : (number + 1) * SIBLINGS]
        rows = [
            Trajectory(
                task_id=f"g{number}",
                group_id=f"g{number}",
                rollout_id=f"g{number}/{index}",
                prompt_ids=tuple(prompt),
                response_ids=tuple(ids),
                response_mask=(1,) * len(ids),
                rollout_log_probs=tuple(log_probs),
                policy_versions=(0,) * len(ids),
                reward=float(index % 2) if number < opened else 0.0,
                termination=Termination.ENV_DONE,
            )
            for index, (ids, log_probs) in enumerate(own)
        ]
        groups.append(TrajectoryGroup(group_id=f"g{number}", task_id="t", trajectories=tuple(rows)))
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--open", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--response", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    model = make_model()
    generator = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(3, 49152, (options.prompt,), generator=generator).tolist()
        for _ in range(options.groups)
    ]
    answers, sampling = asyncio.run(sample(model, prompts, options.response))
    algorithm = AlgorithmSection(preset="grpo").resolved(horizon=options.response)
    table = Table("open groups", "sampling s", "training s", "rows read", "measure s", "share")
    for opened in options.open:
        step = build_step(
            groups_of(answers, prompts, opened),
            StepSettings(algorithm=algorithm, micro_batch_tokens=4096, seed=0, prefix_sharing=True),
        )
        trainer = Trainer(model, train=TrainSection(learning_rate=1e-9), algorithm=algorithm)
        meter = UntrainedMeter(trainer.backend, algorithm)
        began = time.process_time()
        trainer.step(replace(step, untrained=None))
        training = time.process_time() - began
        spent: list[float] = []
        for _ in range(1 + options.repeats):
            with trainer.backend.running():
                began = time.process_time()
                meter.measure(step, old_known=False)
                spent.append(time.process_time() - began)
        read = (
            0
            if step.untrained is None
            else sum(len(micro.rows) for micro in step.untrained.micro_batches)
        )
        measuring = statistics.median(spent[1:])  # the first one warms up
        table.add_row(
            f"{opened} of {options.groups}", f"{sampling:.2f}", f"{training:.2f}", str(read),
            f"{measuring:.3f}", f"{measuring / (sampling + training):.1%}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
