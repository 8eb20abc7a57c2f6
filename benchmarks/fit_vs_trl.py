"""One step of a fit against TRL's trainers: forward, backward, clip and optimizer.

    pip install --no-deps --target /somewhere trl==1.16
    OMP_NUM_THREADS=1 PYTHONPATH=/somewhere python benchmarks/fit_vs_trl.py dpo smollm-512-128
    OMP_NUM_THREADS=1 PYTHONPATH=/somewhere python benchmarks/fit_vs_trl.py rm small-ragged-128-512

Pairs (`sft`: the chosen answers alone) of the named shape and lengths with random weights and
tokens: `smollm-P-A` has 4 pairs of P and A tokens, `small-ragged-P-A` 16 pairs of prompts of a half
to the full length and answers of one token to the full length, `small-rows-L-H` 16 pairs of rows of
L to H tokens. Both sides hold the same weights in
float32, and for `dpo` the same log-probabilities of the reference, known before. The benchmark
stops if losses differ by 1e-4 of themselves or gradient norms by 2 %. Rounds are interleaved; each
figure is a median of CPU seconds on one thread, with its quartiles. "limit" is the ratio of
floating-point operations in matrix products. `--memory` takes two steps of each side in
a process of its own instead, and prints the most memory that the second step held.
"""

from __future__ import annotations

import copy
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import Choice, in_turns, options, show_table

sys.path.append(str(Path(__file__).with_name("gpu")))

from parts.models import SHAPE as SMOLLM
from parts.models import random_llama
from trainer_vs_trl import SMALL, matrix_products, peak_bytes, show_memory, tokenizer

from agentrl.batch.examples import AnswerTokens, Example
from agentrl.config.fit import FitConfig

PAD = 0
SIDES = ("agentrl", "TRL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Pairs that one step is trained on."""

    shape: dict[str, int]
    """Of the model."""
    prompts: tuple[int, ...]
    """Tokens of each pair's prompt."""
    answers: tuple[tuple[int, int], ...]
    """Tokens of the chosen and the rejected answer."""


def even(prompt: int, answer: int) -> Case:
    return Case(shape=SMOLLM, prompts=(prompt,) * 4, answers=((answer, answer),) * 4)


def ragged(prompt: int, answer: int) -> Case:
    rng = random.Random(prompt + answer)
    return Case(
        shape=SMALL,
        prompts=(prompt, *(rng.randint(prompt // 2, prompt) for _ in range(15))),
        answers=(
            (answer, 1),
            *((rng.randint(1, answer), rng.randint(1, answer)) for _ in range(15)),
        ),
    )


def spread_out(shortest: int, longest: int) -> Case:
    """Sixteen pairs whose rows have any length between the two, prompt and answer alike."""
    rng = random.Random(longest)

    def part() -> int:
        return rng.randint(shortest // 2, longest // 2)

    half = longest // 2
    return Case(
        shape=SMALL,
        prompts=(half, *(part() for _ in range(15))),
        answers=((half, part()), *((part(), part()) for _ in range(15))),
    )


CASES = {
    "smollm-512-128": even(512, 128),
    "smollm-128-512": even(128, 512),
    "small-ragged-512-128": ragged(512, 128),
    "small-ragged-128-512": ragged(128, 512),
    "small-rows-128-1024": spread_out(128, 1024),
}


def make_examples(case: Case, *, answers: int) -> list[Example]:
    """Random tokens, none of which pads or ends."""
    rng = random.Random(0)
    words = range(4, case.shape["vocab_size"])

    def drawn(count: int) -> tuple[int, ...]:
        return tuple(rng.choices(words, k=count))

    return [
        Example(
            id=str(index),
            prompt_ids=drawn(prompt),
            answers=tuple(
                AnswerTokens(ids=drawn(length), mask=(1,) * length) for length in lengths[:answers]
            ),
        )
        for index, (prompt, lengths) in enumerate(zip(case.prompts, case.answers, strict=True))
    ]


def weights(case: Case) -> Any:
    return random_llama(case.shape, pad=PAD)


class Ours:
    """`Fitter.step` on an update made before."""

    def __init__(self, objective: str, case: Case, budget: int) -> None:
        from agentrl.batch.examples import pair_update
        from agentrl.fit.losses.fitter import Fitter
        from agentrl.fit.losses.objectives import LikelihoodLoss, PreferenceLoss
        from agentrl.fit.losses.pair_registry import find_pair_loss
        from agentrl.fit.losses.reward_objective import RewardLoss
        from agentrl.fit.updates import make_update
        from agentrl.train.backends.choose import make_backend
        from agentrl.train.model.value_head import ValueModel
        from agentrl.train.reference import Reference

        config = FitConfig.model_validate(
            {
                "data": {"source": "none"},
                "objective": objective,
                "train": {"learning_rate": 1e-30, "micro_batch_tokens": budget, "steps": 1},
            }
        )
        examples = make_examples(case, answers=1 if objective == "sft" else 2)
        model, loss = weights(case), LikelihoodLoss()
        self.reference: dict[Any, float] = {}
        if objective == "dpo":
            update = pair_update(examples, micro_batch_tokens=budget)
            known = Reference(copy.deepcopy(model), lanes=1).row_log_probs(update.micro_batches)
            self.reference = {key: float(numbers.sum()) for key, numbers in known.items()}
            spec = find_pair_loss("sigmoid")
            loss = PreferenceLoss(config.objective, spec, reference=self.reference)
        elif objective == "rm":
            model = ValueModel(model.model)
            model.value_head.bias.requires_grad_(False)
            with torch.no_grad():
                model.value_head.weight.copy_(score_head(case))
            loss = RewardLoss(config.objective, {example.id: example for example in examples})
        backend = make_backend(model, train=config.train, gradient_checkpointing=False, ranks=None)
        self.parameters = sum(p.numel() for p in model.parameters())
        self._fitter = Fitter(backend, loss, train=config.train, prefix="x")
        self._update = make_update(config, examples)

    def step(self) -> tuple[float, float]:
        """Loss, and gradient norm before clipping."""
        found = self._fitter.step(self._update).result()
        return found["x/loss"], found["train/grad_norm"]


def score_head(case: Case) -> torch.Tensor:
    torch.manual_seed(1)
    return 0.02 * torch.randn(1, case.shape["hidden_size"])


class Trl:
    """`training_step` on prepared inputs, then what `Trainer` does after it."""

    def __init__(self, objective: str, case: Case, reference: dict[Any, float]) -> None:
        import trl
        from datasets import Dataset
        from transformers import AutoModelForSequenceClassification

        model, words = weights(case), tokenizer()
        settings: dict[str, Any] = {
            "output_dir": tempfile.mkdtemp(), "use_cpu": True, "report_to": [], "bf16": False,
            "gradient_checkpointing": False, "learning_rate": 1e-30, "max_length": None,
            "per_device_train_batch_size": len(case.prompts),
        }  # fmt: skip
        if objective == "rm":
            config = copy.deepcopy(model.config)
            config.num_labels, config.pad_token_id = 1, PAD
            scored: Any = AutoModelForSequenceClassification.from_config(config)
            scored.model.load_state_dict(model.model.state_dict())
            with torch.no_grad():
                scored.score.weight.copy_(score_head(case))
            data = Dataset.from_dict({"chosen": ["a a"], "rejected": ["a"]})
            args, kind, model = trl.RewardConfig(**settings), trl.RewardTrainer, scored
        elif objective == "dpo":
            data = Dataset.from_dict({"prompt": ["a"], "chosen": ["a a"], "rejected": ["a"]})
            args = trl.DPOConfig(**settings, precompute_ref_log_probs=True)
            kind = trl.DPOTrainer
        else:
            data = Dataset.from_dict({"prompt": ["a"], "completion": ["a a"]})
            args, kind = trl.SFTConfig(**settings), trl.SFTTrainer
        self._trainer = kind(model, args=args, train_dataset=data, processing_class=words)
        self._trainer.create_optimizer()
        self._trainer.current_gradient_accumulation_steps = 1
        self._trainer.model.train()
        self._inputs = trl_inputs(objective, case, reference)

    def step(self) -> tuple[float, float]:
        """Loss, and gradient norm before clipping."""
        trainer = self._trainer
        loss = trainer.training_step(trainer.model, dict(self._inputs), None)
        norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return float(loss), float(norm)


def trl_inputs(objective: str, case: Case, reference: dict[Any, float]) -> dict[str, Any]:
    """Padded to the longest row, the chosen answers first, as TRL's collators make them."""
    examples = make_examples(case, answers=1 if objective == "sft" else 2)
    rows = [(example, number) for number in range(len(examples[0].answers)) for example in examples]
    longest = max(len(e.prompt_ids) + len(e.answers[n].ids) for e, n in rows)
    ids = torch.full((len(rows), longest), PAD)
    mask, completion = torch.zeros_like(ids), torch.zeros_like(ids)
    for index, (example, number) in enumerate(rows):
        row = (*example.prompt_ids, *example.answers[number].ids)
        ids[index, : len(row)] = torch.tensor(row)
        mask[index, : len(row)] = 1
        completion[index, len(example.prompt_ids) : len(row)] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if objective == "sft":
        inputs["labels"] = ids.masked_fill(completion == 0, -100)
    if objective == "dpo":
        inputs["completion_mask"] = completion
        for number, name in enumerate(("chosen", "rejected")):
            known = {k.rollout_id: v for k, v in reference.items() if k.row_index == number}
            inputs[f"ref_{name}_logps"] = torch.tensor([known[e.id] for e in examples])
    return inputs


def products(case: Case, objective: str, *, ours: bool) -> float:
    """Matrix products of a step."""
    answers = [pair[: 1 if objective == "sft" else 2] for pair in case.answers]
    longest = max(p + max(of) for p, of in zip(case.prompts, answers, strict=True))
    return matrix_products(
        case.shape,
        case.prompts,
        answers,
        padded=0 if ours else longest,
        scored=0 if objective == "rm" else None,
    )


def check_same(found: dict[str, tuple[float, float]]) -> None:
    """Ends the program where losses or gradient norms differ."""
    (loss, norm), (other_loss, other_norm) = found.values()
    if abs(loss - other_loss) > 1e-4 * abs(loss) or abs(norm - other_norm) > 0.02 * norm:
        raise SystemExit(f"loss and gradient norm differ: {found}")


def quartiles(found: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(found, n=4)
    return f"{middle:.2f} [{low:.2f}-{high:.2f}]"


def main() -> None:
    args = options(
        __doc__, objective_=Choice(("sft", "dpo", "rm")), case_=Choice(CASES), rounds=5,
        layers=int, micro_batch_tokens=8192, memory=False, peak_of=Choice(SIDES),
    )  # fmt: skip
    torch.set_num_threads(1)
    case = CASES[args.case]
    if args.layers:
        case.shape["num_hidden_layers"] = args.layers
    if args.memory and not args.peak_of:
        show_memory(SIDES)
        return
    ours = Ours(args.objective, case, args.micro_batch_tokens)
    if args.peak_of:
        stepper: Any = ours
        parameters = ours.parameters
        if args.peak_of == "TRL":
            stepper = Trl(args.objective, case, ours.reference)
            del ours
        print(json.dumps(peak_bytes(stepper, parameters)))
        return
    steppers = {"agentrl": ours, "TRL": Trl(args.objective, case, ours.reference)}
    work = {name: stepper.step for name, stepper in steppers.items()}
    seconds = in_turns(work, args.rounds, check=check_same)
    own = statistics.median(seconds["agentrl"])
    least = products(case, args.objective, ours=True)
    rows = []
    for name, found in seconds.items():
        limit = products(case, args.objective, ours=name == "agentrl") / least
        ratio = statistics.median(found) / own
        rows.append((name, quartiles(found), f"{ratio:.2f}", f"{limit:.2f}"))
    columns = ("", "CPU s [quartiles]", "agentrl is faster by", "limit")
    show_table(" ".join(sys.argv[1:]), columns, rows)


if __name__ == "__main__":
    main()
