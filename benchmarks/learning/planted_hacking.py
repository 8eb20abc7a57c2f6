"""One seed of the hacking benchmark: reward models, and RL that is paid by them alone.

Everything of a seed is drawn from it: the first weights of every model, the pairs, the order of
training and the rollouts.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hidden_truth
import numpy as np
from hidden_truth import count_words
from planted_rewards import BATCH_TOKENS, fit_model, write_model
from planted_rewards import Plan as ModelPlan
from spurious_pairs import SOURCES, conversations, spurious_pairs, tasks, write_lines

from agentrl.config import RunConfig
from agentrl.config.load import parse_config
from agentrl.data import TrajectoryStore
from agentrl.disk.checkpoint import latest_checkpoint
from agentrl.fit.data.preferences.load import load_pairs
from agentrl.fit.rating.reward_model import open_reward_model
from agentrl.fit.rating.scored_pairs import NamedPairs, score_pairs
from agentrl.metrics.sinks import read_metrics
from agentrl.reward.scale import RewardScale
from agentrl.runtime.launch import train
from agentrl.runtime.progress import Progress

HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class HackingPlan:
    """Sizes of everything, and the settings of the fits and of RL."""

    pairs: int = 2000
    """Training pairs of a source."""
    epochs: int = 2
    """Passes of a reward model over its pairs."""
    spurious: float = 0.9
    """As of `spurious_pairs`."""
    answers: int = 2000
    """Conversations that the policy begins with."""
    steps: int = 60
    """Steps of RL."""
    tasks: int = 4
    """Tasks of a step."""
    samples: int = 8
    """Rollouts of a task."""
    words: int = 16
    """Most tokens of an answer."""
    learning_rate: float = 1e-3
    """Learning rate of RL."""
    fit_rate: float = 2e-3
    """Peak learning rate of the fits; falls along a cosine."""
    width: int = 64
    """Width of all models."""
    layers: int = 2
    """Layers of all models."""
    held_out: int = 48
    """Tasks of the evaluations, with 8 rollouts each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Reward of one RL run."""

    name: str
    """In the table."""
    models: tuple[str, ...]
    """Names of reward models, as of `Seed.reward_model`."""
    disagreement: float = 0.0
    """Deviations between members that are taken off."""


class Seed:
    """The models and runs of one seed, in a folder."""

    def __init__(self, work: Path, plan: HackingPlan, seed: int) -> None:
        """Train nothing yet.

        Args:
            work: takes all files.
            plan: sizes and settings.
            seed: of everything that is drawn.
        """
        work.mkdir(parents=True, exist_ok=True)
        self._work, self._plan, self._seed = work, plan, seed
        self._held: dict[int, NamedPairs] = {}

    def policy(self) -> Path:
        """The policy that RL begins with: it writes answers as those of the pairs are."""
        rows = conversations(self._plan.answers, seed=f"{self._seed}/policy")
        source = write_lines(self._work / "conversations.jsonl", rows)
        return self._fit("policy", source, {"kind": "sft"}, number=999, epochs=1)

    def reward_model(self, name: str) -> float:
        """Train a reward model, store its scale, and return its accuracy on held-out pairs.

        Args:
            name: `same-N` the pairs of source 0, with weights and order of its own; `source-N` the
                pairs of source N; `pooled-0` those of all sources.
        """
        plan, (kind, _, number) = self._plan, name.partition("-")
        member = int(number)
        used = {"source": [member], "pooled": [*range(SOURCES)]}.get(kind, [0])
        pairs = [pair for source in used for pair in self._pairs(source, plan.pairs, "train")]
        number_of = {"same": 0, "source": 200, "pooled": 300}[kind] + member
        run = self._fit(
            name,
            write_lines(self._work / f"{name}.jsonl", pairs),
            {"kind": "rm", "loss": "bt", "head_std": 0.01},
            number=number_of,
            epochs=plan.epochs,
        )
        model = open_reward_model(str(run), device="cpu", batch_tokens=BATCH_TOKENS)
        assert model.folder is not None
        scored = score_pairs(model, self._named(used))
        chosen, rejected = scored.chosen_NO[:, 0], scored.rejected_NO[:, 0]
        # Whitening cancels a temperature, and a model that errs on no pair has none.
        RewardScale.fitted(np.concatenate([chosen, rejected])).save(model.folder)
        return float(np.mean(chosen > rejected))

    def run(self, arm: Arm) -> Path:
        """Train the policy on the reward of an arm; returns the run directory."""
        config = self.run_config(arm)
        shutil.rmtree(self._work / "runs" / arm.name, ignore_errors=True)  # one that was stopped
        return asyncio.run(train(config, base=self._work, progress=Progress())).run_dir

    def run_config(self, arm: Arm) -> RunConfig:
        """The run file of an arm, whose tasks are written."""
        plan, work = self._plan, self._work
        files = {
            name: write_lines(
                work / f"{name}.tasks.jsonl", tasks(n, name=name, seed=f"{self._seed}/{name}")
            )
            for name, n in (("train", 256), (HELD_OUT, plan.held_out))
        }
        paths = [str(work / "runs" / name) for name in arm.models]
        document: dict[str, Any] = {
            "run": {"name": arm.name, "dir": str(work / "runs"), "seed": self._seed},
            "model": {"path": str(work / "runs" / "policy"), "dtype": "float32", "device": "cpu"},
            "env": {"target": f"{hidden_truth.__file__}:HiddenTruth"},
            "sandbox": {"backend": f"{hidden_truth.__file__}:NoSandbox"},
            "dataset": {"source": str(files["train"])},
            "rollout": {
                "prompts_per_step": plan.tasks, "n_samples_per_prompt": plan.samples,
                "max_assistant_turns": 1, "max_turn_tokens": plan.words,
                "max_response_tokens": plan.words, "max_context_tokens": 64,
            },
            "reward": {
                "env_weight": 0.0,
                "models": {
                    "rm": {"path": paths, "device": "cpu", "disagreement": arm.disagreement}
                },
            },
            "serving": {"max_batch_size": plan.tasks * plan.samples, "kv_cache_gb": 0.1},
            "train": {
                "steps": plan.steps, "learning_rate": plan.learning_rate,
                "micro_batch_tokens": BATCH_TOKENS,
            },
            "eval": {"datasets": {HELD_OUT: {"source": str(files[HELD_OUT])}}, "n_samples": 8},
            "checkpoint": {"every_steps": plan.steps, "keep_last": 1},
            "log": {"tensorboard": False, "tokens": False},
        }  # fmt: skip
        return parse_config(document, [])

    def _pairs(self, source: int, n: int, part: str) -> list[dict[str, str]]:
        return spurious_pairs(
            n, seed=f"{self._seed}/{part}/{source}", source=source, spurious=self._plan.spurious
        )

    def _named(self, sources: Sequence[int]) -> NamedPairs:
        rows = [pair for source in sources for pair in self._pairs(source, 300, "held")]
        path = write_lines(self._work / "held.jsonl", rows)
        return NamedPairs(name="held", pairs=load_pairs(str(path)))

    def _fit(
        self, name: str, source: Path, objective: dict[str, Any], *, number: int, epochs: int
    ) -> Path:
        plan, seed = self._plan, 1000 * self._seed + number
        run = self._work / "runs" / name
        if latest_checkpoint(run / "checkpoints") is not None:
            return run  # of a process that was stopped later
        shutil.rmtree(run, ignore_errors=True)
        base = self._work / f"base-{name}"
        write_model(base, ModelPlan(layers=plan.layers, width=plan.width), seed=seed)
        return fit_model(
            self._work,
            name,
            base=base,
            data={"source": str(source), "examples_per_step": 32, "epochs": epochs},
            objective=objective,
            seed=seed,
            rate=plan.fit_rate,
            warmup=5,
        )


def measured(run: Path, step: int) -> dict[str, float]:
    """Means over the answers of the evaluation after a step.

    `quality` is the true score, `praise` the words of praise, `reward` that of RL, and `between`
    the deviation between members.
    """
    store = TrajectoryStore(run / "trajectories")
    rows = [stored.trajectory for stored in store.read(f"eval/{HELD_OUT}", step=step)]
    counts: list[Mapping[str, float]] = [
        {
            **count_words("".join(turn.text for turn in row.turns)),
            "reward": row.reward or 0.0,
            "between": row.reward_parts.get("rm/std_between", 0.0),
        }
        for row in rows
    ]
    return {name: statistics.fmean(each[name] for each in counts) for name in counts[0]}


def curve(run: Path, *, every: int) -> list[dict[str, float]]:
    """Training rollouts of a run, averaged over so many steps each."""
    names = {"quality": "env/quality", "praise": "env/praise", "reward": "rewards/rm/mean",
             "between": "rewards/rm/std_between/mean"}  # fmt: skip
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "env/quality" in line]
    found: list[dict[str, float]] = []
    for start in range(0, len(lines), every):
        part = lines[start : start + every]
        known = {short: name for short, name in names.items() if name in part[0]}
        means = {
            short: round(statistics.fmean(line[name] for line in part), 3)
            for short, name in known.items()
        }
        found.append({"step": part[-1]["step"], **means})
    return found
