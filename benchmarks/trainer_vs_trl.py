"""One training step against TRL's `GRPOTrainer`: forward, backward, clip and optimizer.

    pip install --no-deps --target /somewhere trl==1.16
    OMP_NUM_THREADS=1 PYTHONPATH=/somewhere python benchmarks/trainer_vs_trl.py smollm-512-128

One group of eight answers to one prompt, random weights of the named shape; where lengths are
ragged, four groups with prompts of a half to the full length and answers of one token to the full
length. TRL runs twice: as it
is on a CPU ("default": its head scores every position) and with the positions compacted as it does
on a GPU ("compact"). All three hold the same weights and the same advantages; the benchmark stops
if their gradients differ. Rounds are interleaved, each figure is a median of CPU seconds on one
thread. "limit" is the ratio of floating-point operations in matrix products: what sharing the
prompt and leaving out padding can give when everything else is equal.

`--memory` measures the peak of resident memory instead, every variant in a process of its own; the
part above what the model and its optimizer hold is what a step needs. `--checkpointing` is for all
variants; run without it for TRL's figures without.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import Choice, in_own_process, in_turns, options, process_bytes, show_table

sys.path.append(str(Path(__file__).with_name("gpu")))

from parts.models import SHAPE as SMOLLM
from parts.models import random_groups, random_llama

GROUP = 8
SMALL = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is trained on. TRL pads every prompt and every answer to the longest."""

    shape: dict[str, int]
    """Of the model."""
    prompts: tuple[int, ...]
    """Tokens of each group's prompt."""
    answers: tuple[tuple[int, ...], ...]
    """Tokens of each answer, by group."""

    @property
    def padded(self) -> int:
        """Tokens of a row in TRL."""
        return max(self.prompts) + self.longest

    @property
    def longest(self) -> int:
        """Tokens TRL pads every answer to."""
        return max(map(max, self.answers))

    @property
    def scored(self) -> int:
        """Tokens of all answers."""
        return sum(map(sum, self.answers))


def even(shape: dict[str, int], prompt: int, answer: int) -> Case:
    return Case(shape=shape, prompts=(prompt,), answers=((answer,) * GROUP,))


def ragged(prompt: int, answer: int, *, groups: int) -> Case:
    """One group has the full lengths, so that the padded size is the name of the case."""
    rng = random.Random(prompt + answer)
    prompts = [rng.randint(prompt // 2, prompt) for _ in range(groups)]
    answers = [[rng.randint(1, answer) for _ in range(GROUP)] for _ in range(groups)]
    prompts[0], answers[0][0] = prompt, answer
    return Case(shape=SMALL, prompts=tuple(prompts), answers=tuple(map(tuple, answers)))


CASES = {
    "smollm-512-128": even(SMOLLM, 512, 128),
    "smollm-128-512": even(SMOLLM, 128, 512),
    "small-ragged-512-128": ragged(512, 128, groups=4),
    "small-ragged-128-512": ragged(128, 512, groups=4),
    "small-ragged-512-128-one-group": ragged(512, 128, groups=1),
    "small-ragged-128-512-one-group": ragged(128, 512, groups=1),
}
VARIANTS = ("agentrl", "compact", "default")


def products(case: Case, variant: str) -> float:
    """Matrix products of a variant's step."""
    padded = 0 if variant == "agentrl" else case.padded
    rows = GROUP * len(case.prompts)
    return matrix_products(
        case.shape,
        case.prompts,
        case.answers,
        padded=padded,
        scored=rows * padded if variant == "default" else None,
    )


def make_model(case: Case, dtype: torch.dtype, device: str) -> Any:
    return random_llama(case.shape).to(dtype).to(device)


def make_groups(case: Case, model: Any = None) -> list[Any]:
    """Random tokens, as if `model` had sampled them."""
    return random_groups(
        case.shape["vocab_size"], case.prompts, case.answers, sampled=partial(sampled_with, model)
    )


@torch.no_grad()
def sampled_with(model: Any, prompt: tuple[int, ...], answer: tuple[int, ...]) -> tuple[float, ...]:
    if model is None:
        return (-1.0,) * len(answer)
    ids = torch.tensor([prompt + answer], device=model.device)
    logits = model(ids).logits[0, len(prompt) - 1 : -1]
    log_probs = torch.log_softmax(logits.float(), -1)
    return tuple(log_probs[range(len(answer)), list(answer)].tolist())


class Ours:
    """`Trainer.step` on a batch made before."""

    def __init__(self, case: Case, args: argparse.Namespace) -> None:
        from agentrl.batch import StepSettings, build_step
        from agentrl.config.schema import AlgorithmSection, TrainSection
        from agentrl.train.trainer import Trainer

        algorithm = AlgorithmSection(
            advantage_estimator="grpo", loss_agg_mode="token-mean", horizon=case.longest
        ).resolved(horizon=case.longest)
        self.model = make_model(case, args.dtype, args.device)
        self._trainer = Trainer(
            self.model,
            train=TrainSection(learning_rate=1e-30, max_grad_norm=1.0, weight_decay=0.0),
            algorithm=algorithm,
            gradient_checkpointing=args.checkpointing,
        )
        self._batch = build_step(
            make_groups(case, self.model),
            StepSettings(
                algorithm=algorithm,
                micro_batch_tokens=args.micro_batch_tokens,
                seed=0,
                prefix_sharing=not args.no_sharing,
            ),
        )
        self.advantages = self._batch.advantages

    def step(self) -> float:
        """Returns the gradient norm before clipping."""
        return self._trainer.step(self._batch).result()["train/grad_norm"]


class Trl:
    """`GRPOTrainer.training_step` on prepared inputs, then what `Trainer` does after it."""

    def __init__(self, case: Case, args: argparse.Namespace, *, compact: bool) -> None:
        import trl.trainer.utils
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        class PreparedInputs(GRPOTrainer):
            def _prepare_inputs(self, generation_batch: Any) -> Any:
                return generation_batch

        self._head, self._compact = trl.trainer.utils, compact
        mixed = args.dtype == torch.bfloat16
        self.model = make_model(case, torch.float32, args.device)
        rows = GROUP * len(case.prompts)
        prompts = Dataset.from_dict({"prompt": ["a"] * rows})
        config = GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=args.device == "cpu", report_to=[], bf16=mixed,
            gradient_checkpointing=args.checkpointing, per_device_train_batch_size=rows,
            num_generations=GROUP, max_completion_length=case.longest, learning_rate=1e-30,
        )  # fmt: skip
        self._trainer = PreparedInputs(
            self.model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config,
            train_dataset=prompts, processing_class=tokenizer(),
        )  # fmt: skip
        self._trainer.create_optimizer()
        if args.checkpointing:
            # `train()` would do it, which is not called here.
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self._trainer.current_gradient_accumulation_steps = 1
        self._inputs = {name: t.to(args.device) for name, t in trl_inputs(case).items()}

    def set_advantages(self, advantages: list[float]) -> None:
        """One for each answer."""
        like = self._inputs["completion_ids"]
        self._inputs["advantages"] = torch.tensor(advantages, device=like.device)

    def step(self) -> float:
        """Returns the gradient norm before clipping."""
        on_gpu = self._head._use_triton
        # Where positions are compacted the kernel itself stays the one for this device.
        self._head._use_triton = (lambda device: True) if self._compact else on_gpu
        try:
            trainer = self._trainer
            trainer.training_step(trainer.model, dict(self._inputs), None)
        finally:
            self._head._use_triton = on_gpu
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return float(norm)


def tokenizer() -> Any:
    """The trainer wants one; nothing here is text."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"[PAD]": 0, "[BOS]": 1, "[EOS]": 2, "a": 3}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", eos_token="[EOS]")


def trl_inputs(case: Case) -> dict[str, Any]:
    rows = [row for group in make_groups(case) for row in group.trajectories]
    completions = torch.zeros(len(rows), case.longest, dtype=torch.int64)
    mask = torch.zeros_like(completions)
    prompts = torch.zeros(len(rows), max(case.prompts), dtype=torch.int64)
    prompt_mask = torch.zeros_like(prompts)
    for index, row in enumerate(rows):
        completions[index, : len(row.response_ids)] = torch.tensor(row.response_ids)
        mask[index, : len(row.response_ids)] = 1
        prompts[index, -len(row.prompt_ids) :] = torch.tensor(row.prompt_ids)
        prompt_mask[index, -len(row.prompt_ids) :] = 1
    return {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": completions,
        "completion_mask": mask,
        "num_items_in_batch": mask.sum(),
    }


def make(variant: str, case: Case, args: argparse.Namespace) -> Any:
    if variant == "agentrl":
        return Ours(case, args)
    made = Trl(case, args, compact=variant == "compact")
    rewards = [float(index % 3) for index in range(GROUP)]
    mean, spread = statistics.mean(rewards), statistics.stdev(rewards)
    advantages = [(reward - mean) / (spread + 1e-4) for reward in rewards]
    made.set_advantages(advantages * len(case.prompts))
    return made


def clock_of(device: str) -> Callable[[], float]:
    """CPU seconds of this process, or seconds of a GPU."""

    def of_gpu() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return time.process_time if device == "cpu" else of_gpu


def timed(steppers: dict[str, Any], rounds: int, *, device: str = "cpu") -> dict[str, list[float]]:
    """Seconds of each; ends the program where gradient norms differ."""

    def check(norms: dict[str, float]) -> None:
        reference = next(iter(norms.values()))
        if any(abs(norm - reference) > 0.02 * reference for norm in norms.values()):
            raise SystemExit(f"gradient norms differ: {norms}")

    work = {name: stepper.step for name, stepper in steppers.items()}
    return in_turns(work, rounds, clock=clock_of(device), check=check)


def peak_bytes(stepper: Any, parameters: int) -> dict[str, int]:
    """The most resident memory in a second step; the first one makes the optimizer."""
    stepper.step()
    Path("/proc/self/clear_refs").write_text("5")
    stepper.step()
    return {"peak": process_bytes("VmHWM"), "held": 16 * parameters}


def show_memory(names: Sequence[str]) -> None:
    """Each variant's peak, by this command with `--peak-of NAME`."""
    found = {name: in_own_process("--peak-of", name) for name in names}
    ours = found["agentrl"]
    rows = []
    for name, peak in found.items():
        above = peak["peak"] - peak["held"]
        ratio = f"{ours['peak'] / peak['peak']:.2f}, {(ours['peak'] - ours['held']) / above:.2f}"
        rows.append((name, f"{peak['peak'] / 2**30:.2f}", f"{above / 2**30:.2f}", ratio))
    columns = ("variant", "peak GiB", "above weights and optimizer GiB", "ours / this")
    show_table(" ".join(sys.argv[1:]), columns, rows)


def matrix_products(
    shape: dict[str, int],
    prompts: Sequence[int],
    answers: Sequence[Sequence[int]],
    *,
    padded: int = 0,
    scored: int | None = None,
) -> float:
    """Multiplications and additions of a step's matrix products, without recomputation.

    Args:
        shape: of the model.
        prompts: tokens of each prompt, read once.
        answers: tokens of each answer, by prompt.
        padded: tokens of a row where each is read with its prompt and padded; 0 for none.
        scored: positions that have logits; None for those of the answers.
    """
    width, layers = shape["hidden_size"], shape["num_hidden_layers"]
    kv = width * shape["num_key_value_heads"] // shape["num_attention_heads"]
    weights = layers * (2 * width * (width + kv) + 3 * width * shape["intermediate_size"])
    if padded:
        rows = sum(map(len, answers))
        tokens, pairs = rows * padded, rows * padded**2 / 2
    else:
        tokens = sum(prompts) + sum(map(sum, answers))
        pairs = sum(
            p * p / 2 + sum(n * p + n * n / 2 for n in of)
            for p, of in zip(prompts, answers, strict=True)
        )
    scored = sum(map(sum, answers)) if scored is None else scored
    return 6 * (
        tokens * weights + scored * width * shape["vocab_size"] + 2 * pairs * width * layers
    )


def main() -> None:
    args = options(
        __doc__, case_=Choice(CASES), rounds=3, variants=",".join(VARIANTS), checkpointing=False,
        bf16=False, layers=int, micro_batch_tokens=8192, no_sharing=False, memory=False,
        peak_of=Choice(VARIANTS),
    )  # fmt: skip
    args.dtype = torch.bfloat16 if args.bf16 else torch.float32
    args.device = "cpu"  # a GPU is measured by benchmarks/gpu
    torch.set_num_threads(1)
    case = CASES[args.case]
    if args.layers:
        case.shape["num_hidden_layers"] = args.layers
    if args.peak_of:
        stepper = make(args.peak_of, case, args)
        parameters = sum(p.numel() for p in stepper.model.parameters())
        print(json.dumps(peak_bytes(stepper, parameters)))
        return
    names = args.variants.split(",")
    if args.memory:
        show_memory(names)
        return
    seconds = timed({name: make(name, case, args) for name in names}, args.rounds)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    rows = []
    for name, median in medians.items():
        limit = products(case, name) / products(case, "agentrl")
        rows.append((name, f"{median:.2f}", f"{median / medians['agentrl']:.2f}", f"{limit:.2f}"))
    columns = ("variant", "CPU s", "agentrl is faster by", "limit")
    show_table(" ".join(sys.argv[1:]), columns, rows)


if __name__ == "__main__":
    main()
