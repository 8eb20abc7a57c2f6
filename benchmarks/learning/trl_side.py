"""TRL's `GRPOTrainer` on the tasks, prompts and judge of an agentrl run file, in one turn.

    python benchmarks/learning/trl_side.py CONFIG FOLDER [section.key=value ...] --seed 0

`FOLDER` holds the plan of the snapshots. The same: model, tokens of the prompts (checked), tasks,
tokens that end an answer, temperature, group size, groups in a step, optimizer, learning rate,
clipping, loss (`dr_grpo` without a KL term), and the judge: each answer goes through agentrl's own
rollout loop as if an engine had sampled it, with its parser, environment and sandboxes.

TRL is left as it comes on a CPU; its other settings were not timed: `generate()` of
transformers for the whole step at once, float32 masters with bfloat16 autocast where the processor
has instructions for it, and no gradient checkpointing (TRL's default, which costs a forward pass).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from harness import options
from snapshots import SnapshotPlan, Snapshots, copy_weights, snapshots_in

from agentrl.chat import ChatFormat, build_chat
from agentrl.config import RunConfig, load_config
from agentrl.config.plan import plan_run
from agentrl.runtime.assembly.parts import load_task_sets, make_worker, open_sandboxes
from agentrl.runtime.drivers.groups import sampling_of
from agentrl.types import FinishReason, Generation, Message, SamplingParams, Task


class GivenAnswers:
    """A `Generator` that says what was sampled elsewhere; one answer for each session."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, ...]] = {}

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session_id: str
    ) -> Generation:
        ids = self.answers[session_id.partition("#")[0]]  # another attempt is of the same answer
        ended = ids[-1] in sampling.stop_token_ids
        return Generation(
            ids=ids,
            log_probs=(0.0,) * len(ids),
            finish_reason=FinishReason.STOP if ended else FinishReason.LENGTH,
            policy_versions=(0,) * len(ids),
        )

    async def end_session(self, session_id: str) -> None:
        """Forget nothing: the answers of a step are replaced together."""


class Judge:
    """The reward of answers, as a run with this config would give it."""

    def __init__(
        self, config: RunConfig, tokenizer: Any, tasks: Sequence[Task], base: Path
    ) -> None:
        self._config, self._tokenizer, self._tasks, self._base = config, tokenizer, tasks, base
        self._given = GivenAnswers()
        self._worker: Any = None
        self._steps = 0

    async def __call__(
        self, completion_ids: Sequence[Sequence[int]], task: Sequence[int], **_: Any
    ) -> list[float | None]:
        """A reward function of TRL, with None where a sandbox failed; `task` is a column."""
        if self._worker is None:
            await self._open()
        self._steps += 1
        names = [f"{self._steps}-{index}" for index in range(len(task))]
        self._given.answers = {
            f"{name}/0": tuple(ids) for name, ids in zip(names, completion_ids, strict=True)
        }
        section = self._config.rollout
        sampling = sampling_of(section, section.temperature, self._chat.stop_token_ids)
        groups = await asyncio.gather(
            *(
                self._worker.run_group(
                    self._tasks[number], group_id=name, n=1, sampling=sampling, seed=0
                )
                for name, number in zip(names, task, strict=True)
            )
        )
        last = [group.trajectories[-1] for group in groups]
        return [row.reward if row.rule.reward_trusted else None for row in last]

    async def _open(self) -> None:
        sandboxes = await open_sandboxes(self._config.sandbox, base=self._base)
        await sandboxes.probe()
        self._worker, self._chat = make_worker(
            plan_run(self._config, self._base).rollouts,
            generator=self._given,
            tokenizer=self._tokenizer,
            sandboxes=sandboxes,
            tools=(),
        )


def prompts_of(tasks: Sequence[Task], chat: ChatFormat, tokenizer: Any) -> list[str]:
    """Texts that TRL turns into the very tokens that agentrl shows the model.

    Raises:
        SystemExit: it does not.
    """
    texts = []
    for task in tasks:
        content = task.prompt
        if isinstance(content, str):
            content = (Message(role="user", content=content),)
        ids = chat.render_prompt(content)
        text = chat.decode_raw(ids)
        if tuple(tokenizer(text)["input_ids"]) != ids:
            raise SystemExit(f"task {task.id}: TRL would tokenise its prompt in another way")
        texts.append(text)
    return texts


def settings(config: RunConfig, *, seed: int, rows: int, horizon: int) -> dict[str, Any]:
    """Arguments of `GRPOConfig` that say what the run file says.

    Args:
        config: of the run, in one turn.
        seed: of order and sampling.
        rows: answers of one forward and backward pass.
        horizon: constant that `dr_grpo` divides by; TRL takes the longest answer for it.
    """
    rollout, train = config.rollout, config.train
    algorithm = config.resolved_algorithm()
    batch = rollout.prompts_per_step * rollout.n_samples_per_prompt
    rows = min(rows, batch)
    if batch % rows:
        raise SystemExit(f"--rows is {rows}, expected a divisor of the {batch} answers of a step")
    same = {
        "preset": (config.algorithm.preset, "dr_grpo"),
        "horizon": (algorithm.horizon, horizon),
        "train.schedule": (train.schedule, "constant"),
        "train.epochs_per_batch": (train.epochs_per_batch, 1),
        "train.minibatches": (train.minibatches, 1),
    }
    for name, (got, expected) in same.items():
        if got != expected:
            raise SystemExit(f"{name} is {got}, expected {expected} for a comparison with TRL")
    return {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": batch // rows,
        "num_generations": rollout.n_samples_per_prompt,
        "max_completion_length": rollout.max_turn_tokens,
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "learning_rate": train.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": train.warmup_steps,
        "weight_decay": train.weight_decay,
        "adam_beta1": train.betas[0],
        "adam_beta2": train.betas[1],
        "max_grad_norm": train.max_grad_norm,
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "beta": 0.0,
        "epsilon": algorithm.eps_clip_low,
        "epsilon_high": algorithm.eps_clip_high,
        "seed": seed,
    }


def train(config: RunConfig, folder: Path, args: argparse.Namespace) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    plan = SnapshotPlan.read(folder)
    base = args.config.resolve().parent
    tokenizer = AutoTokenizer.from_pretrained(plan.model)
    chat = build_chat(tokenizer, config.chat)
    tasks = load_task_sets(plan_run(config, base).tasks).train
    data = Dataset.from_dict(
        {"prompt": prompts_of(tasks, chat, tokenizer), "task": list(range(len(tasks)))}
    )
    model = AutoModelForCausalLM.from_pretrained(plan.model, dtype=torch.float32)
    model.generation_config.eos_token_id = [*chat.stop_token_ids, *chat.action_stop_ids]

    class Marks(TrainerCallback):
        """Takes the weights of every step; training ends when the last mark has its own."""

        snapshots: Snapshots

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.snapshots = snapshots_in(folder)

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self.snapshots.add(
                lambda: copy_weights(given["model"].named_parameters(), dtype=plan.dtype),
                step=state.global_step,
                position=self.snapshots.seconds,
            )
            control.should_training_stop = self.snapshots.finished

    judge = Judge(config, tokenizer, tasks, base)

    async def reward(completion_ids: Any, task: Any, **_: Any) -> list[float | None]:
        return await judge(completion_ids, task)

    trainer = GRPOTrainer(
        model,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no",
            max_steps=1_000_000, logging_steps=1, bf16=not args.no_bf16, disable_tqdm=True,
            gradient_checkpointing=False,
            use_transformers_continuous_batching=args.continuous_batching,
            **settings(
                config, seed=args.seed, rows=args.rows, horizon=config.rollout.max_turn_tokens
            ),
        ),
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[Marks()],
    )  # fmt: skip
    trainer.train()


def main() -> None:
    args = options(
        __doc__, config_=Path, folder_=Path, overrides_=[str], seed=0, rows=16, no_bf16=False,
        continuous_batching=False,
    )  # fmt: skip
    train(load_config(args.config, args.overrides), args.folder, args)


if __name__ == "__main__":
    main()
