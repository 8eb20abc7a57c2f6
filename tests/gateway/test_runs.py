"""Whole runs whose environment is an agent: its conversation trains, and its side calls, too."""

from __future__ import annotations

from pathlib import Path

import yaml

from agentrl.config import load_config
from agentrl.data import TrajectoryStore, load_tasks
from agentrl.gateway import load_env
from agentrl.metrics.sinks import read_metrics
from tests.runtime.tiny_project import agentrl, write_project

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

AGENT = '''
"""Pays for vowels, as the environment of the tiny project does; asks for a title first."""


async def agent(task, client):
    await client.chat.completions.create(model="policy", messages=[
        {"role": "system", "content": "Title."}, {"role": "user", "content": task.prompt}])
    messages = [{"role": "user", "content": task.prompt}]
    text = ""
    for _ in range(2):
        turn = await client.chat.completions.create(model="policy", messages=messages)
        message = turn.choices[0].message
        text += message.content or ""
        messages += [message.model_dump(exclude_none=True), {"role": "user", "content": "more"}]
    return sum(c in "aeiouAEIOU" for c in text) / max(1, len(text))
'''


def test_an_agent_trains_from_end_to_end(tmp_path: Path) -> None:
    path = write_project(
        tmp_path, train__steps=2, env={"target": "agent.py:agent"}, rollout__max_assistant_turns=3
    )
    (tmp_path / "agent.py").write_text(AGENT)
    status, text = agentrl(tmp_path / "log", "train", path)
    assert status == 0, text
    run = tmp_path / "runs" / "tiny"
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "train/loss" in line]
    assert len(lines) == 2
    stored = [item.trajectory for item in TrajectoryStore(run / "trajectories").read("train")]
    assert {row.rule.reward_trusted for row in stored} == {True}
    by_rollout: dict[str, int] = {}
    for row in stored:
        by_rollout[row.rollout_id] = by_rollout.get(row.rollout_id, 0) + 1
    assert set(by_rollout.values()) == {2}  # the conversation, and the title
    assert yaml.safe_load(path.read_text())["env"]["target"] == "agent.py:agent"


def test_the_example_loads() -> None:
    config = load_config(EXAMPLES / "my_agent.yaml")
    load_env(config.env.target, side_calls=config.rollout.side_calls, base=EXAMPLES)()
    assert len(load_tasks(config.dataset, base=EXAMPLES)) == 64
