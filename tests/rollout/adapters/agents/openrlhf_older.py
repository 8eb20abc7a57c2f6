"""The older form: the executor wants arguments, and the file calls the agent by its usual name."""

from openrlhf.utils.agent import AgentExecutorBase, AgentInstanceBase


class AgentInstance(AgentInstanceBase):
    def __init__(self, *args, **kwargs):
        pass

    async def reset(self, states: dict, **kwargs):
        return {"observation": states["prompt"]}

    async def step(self, states: dict, **kwargs):
        return {"rewards": 1, "environment_feedback": None, "done": True}


class AgentExecutor(AgentExecutorBase):
    def __init__(self, max_steps, max_length, llm_engine, result_queue):
        super().__init__(AgentInstance, max_steps, max_length, llm_engine, result_queue)


class OwnLoop(AgentExecutorBase):
    async def execute(self, *args):
        return {}


class Neither:
    pass
