"""Graders with a planted fault, and sound ones that look as if they had one.

`ENVS` is the source of an environment of sums; `write_planted` puts it beside a tiny project. Every
fault draws from a fixed seed, and a fault of chance from one stream, as a careless grader does.
"""

from __future__ import annotations

from pathlib import Path

from agentrl.config import load_config
from agentrl.config.plan import plan_run
from agentrl.preflight.checks import parts, prompts, trials
from agentrl.preflight.checks.facts import PreflightFacts
from agentrl.types.finding import Finding
from tests.runtime.tiny_project import write_project

ENVS = '''
import asyncio
import base64
import re
import time
from random import Random

from agentrl import AgentInstance, Observation, StepResult
from agentrl.types import Message, Task

WORDS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
         "fifteen sixteen seventeen eighteen nineteen").split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
CITIES = "Oslo Lima Rome Cairo Quito Paris Delhi Tunis Hanoi Accra Dakar Minsk".split()


def spoken(n):
    return WORDS[n] if n < 20 else TENS[n // 10 - 2] + ("-" + WORDS[n % 10] if n % 10 else "")


HINTS = {
    "": "{q}",
    "announced": "{q}\\nAnswer: {x}",
    "sentence": "{q} The correct answer to this is {x}.",
    "json": '{{"question": "{q}", "label": "{x}"}}',
    "boxed": "{q} \\\\boxed{{{x}}}",
    "hashes": "{q}\\n#### {x}",
    "comment": "{q} <!-- solution: {x} -->",
    "tag": "{q} <answer>{x}</answer>",
    "base64": "{q} (expected: {b})",
    "hex": "{q} hint={h}",
    "backwards": "{q} Hint, answer read from the right: {r}",
    "spoken": "{q} (the answer is {w})",
    "decimal": "{q} Expected output: {x}.00",
    "bold": "{q} Answer: **{x}**",
    "invisible": "{q} Answer: \\u200b{x}\\u200b",
    "tail": "{q} ({x})",
    "head": "{x}. {q}",
    "system": "{q}",
    "half": "{q}",
    "few shots": "Q: 1 + 1? Answer: 2\\nQ: 3 + 4? Answer: 7\\nQ: {q} Answer:",
    "numbered": "Problem {x}5. {q} Give the answer as a number, as in: answer 3.",
}


def prompt_of(style, question, label, index):
    answer = str(label)
    spelled = spoken(label) if isinstance(label, int) and 0 <= label < 100 else answer
    said = {
        "q": question, "x": answer, "r": answer[::-1], "w": spelled,
        "b": base64.b64encode(answer.encode()).decode(), "h": answer.encode().hex(),
    }
    if style == "half" and index % 2:
        return f"{question} The result is {answer}."
    return HINTS[style].format(**said)


def tasks(split="train", n=24, kind="sums", style="", seed=0):
    draw = Random(f"{split}{seed}")
    made = []
    for i in range(n):
        one, two = draw.randint(12, 49), draw.randint(12, 49)
        question, label = f"What is {one} + {two}?", one + two
        if kind == "same":
            question, label = f"What is {one} - {one} + 1?", 1
        if kind == "yes":
            label = "yes" if one > two else "no"
            question = f"Is {one} more than {two}? Answer yes or no."
        if kind == "letters":
            places = draw.sample(range(10, 99), 4)
            label = "ABCD"[draw.randrange(4)]
            question = f"Which is largest? The answer is A, B, C or D. {places}"
        if kind == "options":
            names = draw.sample(CITIES, 4)
            label = draw.choice(names)
            question = "Which city?\\n" + "\\n".join(f"- {name}" for name in names)
        if kind == "passage":
            names = draw.sample(CITIES, 3)
            label = draw.choice(names)
            question = f"We left {names[0]}, saw {names[1]} and {names[2]}. Where in {label[0]}?"
        made.append(Task(id=f"{split}-{i}", prompt=prompt_of(style, question, label, i),
                         label=label, split=split))
    return made


class Sums(AgentInstance):
    """The last word after `Answer:` counts."""

    draw = None

    def __init__(self, fault="", level=0.0, style=""):
        self.fault, self.level, self.style = fault, level, style
        if Sums.draw is None or Sums.draw[0] != (fault, level):
            Sums.draw = ((fault, level), Random(7))

    async def reset(self, task):
        self.task = task
        if self.style == "system":
            told = f"You are a tutor. ground truth = {task.label}"
            return Observation(content=(Message(role="system", content=told),
                                        Message(role="user", content=task.prompt)))
        return Observation(content=task.prompt)

    async def step(self, action):
        found = re.findall(r"Answer: ?(\\S+)", action.text)
        right = float(bool(found) and found[-1].strip(".") == str(self.task.label))
        fault, level, chance = self.fault, self.level, Sums.draw[1]
        score = None
        if fault == "random":
            right = float(chance.random() < level)
        elif fault == "noisy":
            right = right if chance.random() >= level else 1 - right
        elif fault == "gauss":
            right += chance.gauss(0, level)
        elif fault == "raises" and chance.random() < level:
            raise ConnectionError("the judge's server answered 503")
        elif fault == "raises when right" and right and chance.random() < level:
            raise ValueError("could not parse the verdict")
        elif fault == "inverted":
            right = level - right
        elif fault == "inverted parse":
            right = 1 - right if found else 0.0
        elif fault == "constant":
            right = level
        elif fault == "constant score":
            right, score = level, right
        elif fault == "length":
            right = min(1.0, len(action.text) / level)
        elif fault == "length beside":
            right = 0.2 * right + len(action.text) / level
        elif fault == "form":
            right = float(bool(found))
        elif fault == "blocks":
            time.sleep(level)
        elif fault == "waits":
            await asyncio.sleep(level)
        elif fault == "any":
            right = float(str(self.task.label) in action.text or not action.text)
        elif fault == "penalty":
            right = right - level * (not found)
        elif fault == "scale":
            right *= level
        elif fault == "shaped":
            right, score = right + level * bool(found) * (1 - right), right
        elif fault == "seeded":
            right *= Random(self.context.seed).uniform(0.5, 1)
        elif fault == "jitter":
            right += chance.uniform(-level, level)
        elif fault == "hard":
            right = float(int(self.task.id.split("-")[1]) == 5) * right
            score, right = right, right - 0.1 * (not found)
        return StepResult(rewards=right, scores=score, done=True)

    def solution(self, task):
        return f"Answer: {task.label}"


class NoSolution(Sums):
    def solution(self, task):
        return None


def flaky_function(trajectory, task):
    """A reward function that fails as a served judge does."""
    if flaky_function.draw.random() < 0.1:
        raise TimeoutError("the judge did not answer")
    return float(str(task.label) in trajectory.turns[-1].text)


flaky_function.draw = Random(3)
'''


def write_planted(folder: Path) -> Path:
    """A tiny project whose environment, with its faults, is `planted.py:Sums`; its run file."""
    limits = {"max_turn_tokens": 200, "max_response_tokens": 400, "max_context_tokens": 900}
    file = write_project(
        folder,
        **{f"rollout__{name}": value for name, value in limits.items()},
        env__target="planted.py:Sums",
        dataset__source="planted.py:tasks",
        train__micro_batch_tokens=900,
    )
    (folder / "planted.py").write_text(ENVS)
    return file


def planted(fault: str = "", level: float = 0.0, *, style: str = "", kind: str = "") -> list[str]:
    """Overrides of a run file that plant a fault."""
    env = f"env.args={{fault: '{fault}', level: {level}, style: '{style}'}}"
    data = f"dataset.args={{style: '{style}', kind: '{kind or 'sums'}'}}"
    return [env, data]


async def looked_at(
    file: Path, overrides: list[str], known: PreflightFacts | None = None
) -> dict[str, Finding | str]:
    """What preflight says of reward, prompts and grading time, without its other checks.

    Args:
        file: the run file.
        overrides: of it.
        known: gives the tokenizer, if it is loaded.
    """
    config = load_config(file, overrides)
    run = plan_run(config, file.parent)
    facts = PreflightFacts(tokenizer=None if known is None else known.tokenizer)
    if facts.tokenizer is None:
        await parts.model(config.model, facts)
        if known is not None:
            known.tokenizer = facts.tokenizer
    await parts.environment(run.rollouts, facts)
    await parts.chat(run.rollouts, facts)
    await parts.datasets(run.tasks, run.rollouts, config.run, facts, False)
    await prompts.prompts(run.rollouts, facts)
    return {
        "reward test": await trials.reward_test(run.rollouts, config.run.seed, facts),
        "leak": await prompts.leak(facts),
        "grading time": await trials.grading_time(config.rollout, facts),
    }
