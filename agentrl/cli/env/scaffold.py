"""The files `agentrl env new` writes: a working environment to change, its tasks, a run file."""

from __future__ import annotations

import json

_ENV = '''"""{title}: write a word in capital letters and nothing else, in a few tries."""

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.types import Task


class {class_name}(AgentInstance):
    reward_range = (0.0, 1.0)

    def __init__(self, max_turns: int = 2) -> None:
        self.max_turns = max_turns

    async def reset(self, task: Task) -> Observation:
        self.answer = str(task.label)
        self.turns = 0
        return Observation(content=task.prompt)

    async def step(self, action: Action) -> StepResult:
        self.turns += 1
        right = action.text.strip().strip('".') == self.answer
        if right or action.last or self.turns >= self.max_turns:
            return StepResult(rewards=float(right), scores=float(right), done=True)
        return StepResult(environment_feedback="Write only the word, in capital letters.")
'''

_RUN = """run: {{name: {name}}}
env:
  target: {name}.py:{class_name}
  args: {{max_turns: 2}}
dataset:
  source: tasks.jsonl
rollout:
  prompts_per_step: 4
  n_samples_per_prompt: 8
  max_turn_tokens: 24
  max_response_tokens: 96
  max_context_tokens: 256
train:
  steps: 10
  learning_rate: 1.0e-5
eval:
  datasets: {{{name}: {{source: tasks.jsonl, limit: 8}}}}
"""

TASKS_FILE = "tasks.jsonl"
"""Its name is the same for every environment, so a folder holds one scaffold."""
_WORDS = ("cat", "sun", "tree", "book", "red", "moon", "fish", "bird", "hat", "cup", "star", "ice")


def scaffold(name: str) -> dict[str, str]:
    """File names and their texts for an environment called `name`, a Python name."""
    class_name = "".join(part[:1].upper() + part[1:] for part in name.split("_") if part) or "Env"
    rows = [
        {
            "id": word,
            "prompt": f'Write the word "{word}" in capital letters.',
            "label": word.upper(),
        }
        for word in _WORDS
    ]
    return {
        f"{name}.py": _ENV.format(title=class_name, class_name=class_name),
        f"{name}.yaml": _RUN.format(name=name, class_name=class_name),
        TASKS_FILE: "".join(json.dumps(row) + "\n" for row in rows),
    }
