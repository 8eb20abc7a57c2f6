"""Answer a question about a table with SQL: an environment whose model calls a tool."""

import random
import sqlite3

from agentrl.env import Action, AgentInstance, Observation, Solution, StepResult
from agentrl.errors import ToolError
from agentrl.types import Task, ToolCall

CITIES = {"Oslo": 709, "Lyon": 522, "Porto": 231, "Ghent": 265, "Turin": 841, "Graz": 292}
MAY_DO = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)


class CityQuestions(AgentInstance):
    async def reset(self, task: Task) -> Observation:
        self.answer, self.table = str(task.label), sqlite3.connect(":memory:")
        self.table.execute("create table cities (name text, thousands int)")
        self.table.executemany("insert into cities values (?, ?)", CITIES.items())
        self.table.set_authorizer(lambda action, *_: action not in MAY_DO)  # a model only reads,
        self.table.set_progress_handler(lambda: 1, 100_000)  # and not without end
        return Observation(content=task.prompt)

    async def run_sql(self, query: str) -> str:
        """Run a query on the table cities(name, thousands) and return its first rows."""
        try:
            return str(self.table.execute(query).fetchmany(20))
        except sqlite3.Error as error:
            raise ToolError(str(error)) from error  # the model reads this and tries again

    tools = (run_sql,)

    async def step(self, action: Action) -> StepResult:
        if action.tool_calls and not action.last:
            return StepResult()  # the model has read what the tool returned, and goes on
        right = float(self.answer in action.text.split())
        return StepResult(rewards=right, scores=right, done=True)

    def solution(self, task: Task) -> Solution:  # what an expert does, for `agentrl coldstart`
        names = tuple(name for name in CITIES if name in task.prompt)
        query = f"select sum(thousands) from cities where name in {names}"
        return [ToolCall("run_sql", {"query": query}), f"Together {task.label}"]


def tasks(split: str = "train", n: int = 64) -> list[Task]:
    draw = random.Random(split)
    pairs = [draw.sample(sorted(CITIES), 2) for _ in range(n)]
    text = "How many thousand people live in {} and {} together? End with the number."
    answers = [str(CITIES[one] + CITIES[other]) for one, other in pairs]
    return [
        Task(id=f"{split}-{i}", prompt=text.format(*pair), label=answer, split=split)
        for i, (pair, answer) in enumerate(zip(pairs, answers, strict=True))
    ]
