"""An interaction as one writes it for verl; loaded unchanged by the tests."""

from typing import Any

from verl.interactions.base import BaseInteraction


class Again(BaseInteraction):
    def __init__(self, config: dict):
        super().__init__(config)
        self.open: dict[str, Any] = {}
        self.seen: list[Any] = []

    async def start_interaction(self, instance_id=None, ground_truth=None, **kwargs) -> str:
        self.open[instance_id] = ground_truth
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        self.seen = [(said["role"], said["content"]) for said in messages]
        right = messages[-1]["content"] == self.open[instance_id]
        return right, self.config.get("words", "Again."), float(right), {"asked": 1.0}

    async def finalize_interaction(self, instance_id, **kwargs) -> None:
        del self.open[instance_id]


class WithoutEnd(BaseInteraction):
    async def start_interaction(self, instance_id=None, **kwargs) -> str:
        return "x"

    async def generate_response(self, instance_id, messages, **kwargs):
        return True, "", 0.5, {}


class Short(Again):
    async def generate_response(self, instance_id, messages, **kwargs):
        return True
