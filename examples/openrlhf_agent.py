"""An agent file as one writes it for OpenRLHF; agentrl runs it unchanged.

    env: {target: examples/openrlhf_agent.py:AgentExecutor}

It speaks dictionaries and raw text: the prompt arrives with the chat template applied, and what it
returns as feedback is appended as it is, markers included. Rewards are tensors.
"""

import re
from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

MAX_TRIES = 3


class AgentInstance(AgentInstanceBase):
    """Asks for a number and says whether it is too small or too large."""

    def __init__(self, *args, **kwargs):
        self.tries = 0

    async def reset(self, states: dict, **kwargs) -> dict[str, Any]:
        self.tries = 0
        return {"observation": states["observation"]}

    async def step(self, states: dict, **kwargs) -> dict[str, Any]:
        self.tries += 1
        wanted = float(states["label"])
        # Real agents meet numbers of any length; float() takes them all.
        found = re.findall(r"-?\d{1,15}(?:\.\d{1,5})?", states["action_text"][-500:])
        guess = float(found[-1]) if found else None
        reward = torch.tensor(1.0 if guess == wanted else 0.0)
        done = guess == wanted or self.tries >= MAX_TRIES
        if guess is None:
            hint = "Answer with a number."
        else:
            hint = "That is too small." if guess < wanted else "That is too large."
        turn = f"\n<|im_start|>user\n{hint}<|im_end|>\n<|im_start|>assistant\n"
        return {
            "rewards": reward,
            "scores": reward,
            "environment_feedback": "" if done else turn,
            "done": done,
            "sampling_params": states.get("sampling_params"),
            "extra_logs": {"tries": torch.tensor(float(self.tries))},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
