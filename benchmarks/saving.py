"""Time that a save takes from the steps beside it, in one process or in FSDP2 ranks on gloo.

    OMP_NUM_THREADS=2 python benchmarks/saving.py              # 135M parameters, torch
    OMP_NUM_THREADS=1 python benchmarks/saving.py --ranks 2 --model 30M

Trains the same batch of a random bfloat16 model in rounds: a step alone, then a step that begins
with a save (weights and trainer state) and the steps after it until the save is on the disk. No
rollouts: they would only hide the writer. The extra time of all steps beside one save, over a
step alone, is what a save costs; the limit is 10 %. `held` and `settled` are the seconds of it in
which the step itself stands still, `extra CPU` is the same ratio of processor time, which other
work on the machine changes less. `no save` compares two steps alone: the noise.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import measured_with, options, show_table, spread
from memory import SHAPES

sys.path.append(str(Path(__file__).parent / "gpu"))

LIMIT = 0.10


def make_trainer(size: str, ranks: Any, rows: int) -> tuple[Any, Any]:
    """A trainer of a random model, and a batch of so many rows of 384 tokens."""
    import torch
    from parts.models import random_groups
    from parts.steps import algorithm
    from transformers import AutoModelForCausalLM, LlamaConfig

    from agentrl.batch import StepSettings, build_step
    from agentrl.config.training import TrainSection
    from agentrl.train.backends.choose import make_backend
    from agentrl.train.trainer import Trainer

    vocabulary, hidden, inner, layers, heads, keys, _ = SHAPES[size]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    train = TrainSection.model_validate({"backend": "torch" if ranks is None else "fsdp2"})
    backend = make_backend(model, train=train, gradient_checkpointing=False, ranks=ranks)
    trainer = Trainer(model, train=train, algorithm=algorithm(), backend=backend)
    groups = random_groups(
        vocabulary,
        [160] * (rows // 8),
        [[224] * 8] * (rows // 8),
        sampled=lambda _, answer: (-2.0,) * len(answer),
    )
    settings = StepSettings(algorithm=algorithm(), micro_batch_tokens=2048, seed=0)
    return trainer, build_step(groups, settings)


def measure(size: str, rounds: int, rows: int, ranks: Any = None) -> dict[str, list[float]]:
    """Seconds by what was measured, in each round."""
    from agentrl.machine.compute_threads import run_beside
    from agentrl.train.saving.held_trainer import hold_trained

    class Tokenizer:
        def save_pretrained(self, folder: Path) -> None:
            """Nothing: a few small files."""

    trainer, batch = make_trainer(size, ranks, rows)
    settled: list[float] = []
    settle = trainer.settle

    def timed_settle() -> None:
        began = time.perf_counter()
        settle()
        settled.append(time.perf_counter() - began)

    trainer.settle = timed_settle

    def step() -> float:
        trainer.backend.gather(None)
        began = time.perf_counter()
        trainer.step(batch)
        return time.perf_counter() - began

    found: dict[str, list[float]] = {}
    names = ("step", "no save", "held", "settled", "extra CPU", "steps beside", "extra", "save")
    step()
    for _ in range(rounds):
        cpu = time.process_time()
        alone, again = step(), step()
        usual, cpu = (time.process_time() - cpu) / 2, time.process_time()
        settled.clear()
        root = Path(tempfile.mkdtemp())
        began = time.perf_counter()
        trainer.backend.gather(None)
        write = hold_trained(trainer.backend._model, Tokenizer(), trainer)
        held = time.perf_counter() - began
        ended: list[float] = []

        def work(
            write: Callable[[Path], None] = write, root: Path = root, ended: list[float] = ended
        ) -> None:
            write(root)
            ended.append(time.perf_counter())

        writer = threading.Thread(target=lambda work=work: asyncio.run(run_beside(work)))
        writer.start()
        beside = [held + step()]
        while any(trainer.backend.gather(writer.is_alive())):
            beside.append(step())
        writer.join()
        spent = time.process_time() - cpu
        shutil.rmtree(root)
        values = (
            alone,
            again / alone - 1,
            held,
            settled[0],
            (spent - len(beside) * usual) / usual,
            len(beside),
            (sum(beside) - len(beside) * (alone + again) / 2) / ((alone + again) / 2),
            ended[0] - began,
        )
        for name, value in zip(names, values, strict=True):
            found.setdefault(name, []).append(value)
    return found


def _rank(
    pipe: Any, address: str, rank: int, world_size: int, size: str, rounds: int, rows: int
) -> None:
    import torch

    from agentrl.train.backends.ranks import Ranks

    torch.set_num_threads(1)
    device = torch.device("cpu")
    ranks = Ranks(address, rank=rank, world_size=world_size, device=device, timeout_s=600.0)
    pipe.send(measure(size, rounds, rows, ranks))
    ranks.close()


def in_ranks(count: int, size: str, rounds: int, rows: int) -> dict[str, list[float]]:
    """The numbers of rank 0."""
    from agentrl.train.backends.ranks import Meeting

    meeting, context = Meeting(), multiprocessing.get_context("spawn")
    pipes = []
    for rank in range(count):
        ours, theirs = context.Pipe()
        args = (theirs, meeting.address, rank, count, size, rounds, rows)
        context.Process(target=_rank, args=args, daemon=True).start()
        pipes.append(ours)
    answers = [pipe.recv() for pipe in pipes]
    return answers[0]


def main() -> int:
    from agentrl.machine.compute_threads import reserve_cores, run_computing

    chosen = options(__doc__, model="135M", ranks=1, rounds=5, rows=64)
    reserve_cores()
    if chosen.ranks > 1:
        found = in_ranks(chosen.ranks, chosen.model, chosen.rounds, chosen.rows)
    else:
        found = asyncio.run(run_computing(measure, chosen.model, chosen.rounds, chosen.rows))
    title = f"{chosen.model}, {chosen.ranks} rank(s), {chosen.rows} rows"
    show_table(title, tuple(found), [[spread(values, 3) for values in found.values()]])
    print(measured_with())
    return int(statistics.median(found["extra"]) > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
