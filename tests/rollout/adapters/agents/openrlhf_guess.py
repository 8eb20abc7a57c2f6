"""An agent file as one writes it for OpenRLHF; loaded unchanged by the tests."""

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class AgentInstance(AgentInstanceBase):
    async def __init__(self, *args, **kwargs):
        self.turns = 0
        self.seen = []

    async def reset(self, states: dict, **kwargs):
        self.seed = kwargs.get("seed")
        return {"observation": states["observation"]}

    async def step(self, states: dict, **kwargs):
        self.turns += 1
        self.seen.append((states["observation_text"], states["action_text"]))
        right = str(states["label"]) in states["action_text"]
        done = right or self.turns == 3
        reward = torch.tensor(1.0) if right else torch.zeros(1)
        feedback = "<|im_start|>user\nwrong<|im_end|>\n<|im_start|>assistant\n"
        if "<|im_end|>" not in states["action_text"]:
            feedback = "<|im_end|>\n" + feedback
        sampling_params = states["sampling_params"]
        sampling_params.top_p = 0.9
        return {
            "rewards": reward,
            "scores": reward,
            "environment_feedback": "\n" + feedback if not done else "",
            "done": torch.tensor(done),
            "sampling_params": sampling_params,
            "extra_logs": {"turns": torch.tensor(self.turns)},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
