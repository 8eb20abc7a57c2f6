"""A whole run whose environment is an agent program: it trains, and what it printed is kept."""

from __future__ import annotations

from pathlib import Path

from agentrl.data import TrajectoryStore
from agentrl.metrics.sinks import read_metrics
from tests.runtime.tiny_project import agentrl, write_project

AGENT = '''
from agentrl_envs.harness.agents import HarnessAgent

SOURCE = """
import json, os, urllib.request
for turn in range(2):
    body = {"model": "policy", "seed": turn, "messages": [{"role": "user", "content": "Vowels!"}]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["KEY"]})
    json.load(urllib.request.urlopen(request))
print("all asked")
"""
MINE = HarnessAgent(
    name="mine",
    wire="chat",
    command="python3 {home}/agent.py",
    environment={"OPENAI_BASE_URL": "{base_url}/v1", "KEY": "{key}"},
    files={"agent.py": SOURCE},
)
'''


def test_a_program_trains_from_end_to_end(tmp_path: Path) -> None:
    env = {
        "target": "agentrl_envs.harness:HarnessTask",
        "args": {"agent": f"{tmp_path}/mine.py:MINE", "grade": f"{tmp_path}/vowels.py:Vowels"},
    }
    path = write_project(
        tmp_path, train__steps=2, env=env, rollout__max_assistant_turns=3,
        sandbox={"backend": "auto"},
    )  # fmt: skip
    (tmp_path / "mine.py").write_text(AGENT)
    status, text = agentrl(tmp_path / "log", "train", path)
    assert status == 0, text
    run = tmp_path / "runs" / "tiny"
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "train/loss" in line]
    assert len(lines) == 2
    assert lines[0]["env/agent_crashed"] == 0.0
    stored = [item.trajectory for item in TrajectoryStore(run / "trajectories").read("train")]
    assert {row.rule.reward_trusted for row in stored} == {True}
    assert all(row.explanation and "all asked" in row.explanation.grader_output for row in stored)
