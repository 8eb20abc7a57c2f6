"""The view of a hacked reward in the terminal: the answer, and clusters of alike answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.text import Text

from agentrl.inspect.pages.hacking.answer import hacking_answer
from agentrl.inspect.pages.hacking.clusters import clusters_answer
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_terminal import number, visible
from agentrl.inspect.terminal.view import TableView, View, reader_of

_COLOURS = {"fail": "bold red", "warn": "bold yellow", "watch": "bold blue", "ok": "green"}
_RISEN = 3
"""Parts of the reward named above the clusters."""


class HackingView(TableView):
    """The answer above the clusters; Enter opens the rollout that stands for one."""

    columns = ("rollouts", "tasks", "reward", "score", "steps", "answer")

    def __init__(
        self, reader: RunReader, open_rollout: Callable[[RunReader, str, int, str], View]
    ) -> None:
        super().__init__()
        self.reader = reader
        self._open_rollout = open_rollout

    def read(self, width: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Judge the curves and compare the answers of all steps of training."""
        reader = reader_of(self)
        told = hacking_answer(reader)
        return told, clusters_answer(reader) if told["rewards"] else {"clusters": (), "rollouts": 0}

    def show(self, answer: Any) -> None:
        """One line a cluster."""
        told, alike = answer
        lines = [visible(told["answer"], _COLOURS.get(told["level"], "bold"))]
        if told["paid_wrong"]:
            lines.append(visible(told["paid_wrong"]["text"], "dim"))
        for one in told["parts"][:_RISEN]:
            if one["change"] is not None:
                moved = f"{number(one['change']['start'])} -> {number(one['change']['end'])}"
                lines.append(visible(f"{one['name']} {moved}", "dim"))
        count = len(alike["clusters"])
        found = f"{count or 'no'} clusters of near-identical answers to different tasks"
        self.head(*lines, Text(f"{found}, of {alike['rollouts']} rollouts"))
        self.fill(
            [
                ((alike["kind"], one["step"], one["rollout_id"]), _cells(one))
                for one in alike["clusters"]
            ]
        )

    def open(self, key: Any) -> View:
        """The rollout whose answer stands for the cluster."""
        return self._open_rollout(reader_of(self), *key)


def _cells(one: Mapping[str, Any]) -> list[Text | str]:
    first, last = one["steps"]
    colour = "yellow" if one["paid_wrong"] else ""
    return [
        str(one["rollouts"]),
        str(one["tasks"]),
        Text(number(one["reward"]), style=colour),
        Text(number(one["score"]), style=colour),
        str(first) if first == last else f"{first}-{last}",
        " ".join(one["text"].split())[:100],
    ]
