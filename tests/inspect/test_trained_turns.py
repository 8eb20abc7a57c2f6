"""Counts of trained tokens by turn are those of the token view."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from agentrl.inspect.pages.groups import group_answer, step_answer
from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.pages.tokens import tokens_answer
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.runs import FoundRun


def test_turns_count_trained_tokens_as_the_token_view_does(recorded_run: Path) -> None:
    reader = RunReader(FoundRun(id="r", path=recorded_run))
    seen = Counter[str]()
    for kind in ("train", "eval/held"):
        step = step_answer(reader, kind, None)
        for group in step["groups"]:
            siblings = group_answer(reader, kind, step["step"], group["group_id"])["siblings"]
            for rollout in (sibling["rollout_id"] for sibling in siblings):
                place = (kind, step["step"], rollout)
                for row in rollout_answer(reader, *place)["rows"]:
                    tokens = tokens_answer(reader, *place, row["row_index"])
                    legend, codes = tokens["why"]["legend"], tokens["why"]["codes"]
                    assert tokens["turn_names"] == [turn["name"] for turn in row["turns"]]
                    for turn in row["turns"]:
                        span = slice(*(tokens["n_prompt"] + turn[end] for end in ("start", "end")))
                        wanted = Counter(legend[code] for code in codes[span])
                        seen += wanted
                        assert turn["trained"] == wanted.pop("trained", 0)
                        assert turn["others"] == wanted
    assert min(seen["trained"], seen["environment"], seen["not in a batch (evaluation)"]) > 0
