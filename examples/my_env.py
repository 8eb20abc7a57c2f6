"""Say something in exactly so many words; the environment counts them and says how many it got."""

import random

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.types import Task


class ExactWords(AgentInstance):
    async def reset(self, task: Task) -> Observation:
        self.goal, self.tries = int(task.label), 0
        return Observation(content=task.prompt)

    async def step(self, action: Action) -> StepResult:
        self.tries += 1
        got = len(action.text.split())
        if got == self.goal or self.tries >= 3 or action.last:
            reward = max(0.0, 1.0 - abs(got - self.goal) / self.goal)
            return StepResult(rewards=reward, scores=float(got == self.goal), done=True)
        return StepResult(environment_feedback=f"That was {got} words. Use {self.goal}.")


def tasks(split: str = "train", n: int = 64) -> list[Task]:
    draw = random.Random(split)
    rows = [(draw.choice(["a cat", "the sea", "rain"]), draw.randint(3, 9)) for _ in range(n)]
    text = "Describe {} in exactly {} words."
    return [
        Task(id=f"{split}-{i}", prompt=text.format(*row), label=row[1], split=split)
        for i, row in enumerate(rows)
    ]
