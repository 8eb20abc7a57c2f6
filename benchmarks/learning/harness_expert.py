"""Conversations of a scripted expert inside the agent of a run file, for `agentrl fit`.

    python benchmarks/learning/harness_expert.py configs/harness_code.yaml --out runs/expert.jsonl

The expert is a server of chat completions that knows the reference solutions of
`agentrl_envs.code`: its first turn calls the tool `write`, its second says that it is done.
`agentrl eval --api` lets it be the model of the agent, so the conversations are those that the
gateway has with the real agent, with its own system prompt, tools and results.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from agentrl_envs.code import make_tasks
from agentrl_envs.code.env import reference_of
from harness import answering, options

FILE = "solution.py"
LAST_WORDS = "Done."


def references(seed: int, n: int) -> dict[str, str]:
    """Solutions of the train tasks, by the text of the task."""
    return {str(task.prompt): reference_of(task) for task in make_tasks("train", n=n, seed=seed)}


def reply(body: Mapping[str, Any], solutions: Mapping[str, str]) -> dict[str, Any]:
    """The next message of the expert in a conversation."""
    messages = body["messages"]
    if any(message["role"] == "tool" for message in messages):
        return {"role": "assistant", "content": LAST_WORDS}
    asked = next(message["content"] for message in messages if message["role"] == "user")
    text = asked if isinstance(asked, str) else "".join(part["text"] for part in asked)
    code = next(code for prompt, code in solutions.items() if prompt in text)
    call = {
        "id": "call_0",
        "type": "function",
        "function": {"name": "write", "arguments": json.dumps({"path": FILE, "content": code})},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def expert(solutions: Mapping[str, str], out: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Answers chat completions, and writes finished conversations to a file."""
    lock = threading.Lock()  # of the file

    def completion(asked: dict[str, Any]) -> dict[str, Any]:
        message = reply(asked, solutions)
        calls = bool(message.get("tool_calls"))
        if not calls:
            line = {"messages": [*asked["messages"], message], "tools": asked.get("tools")}
            with lock, out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        finish = "tool_calls" if calls else "stop"
        return {
            "id": "expert",
            "object": "chat.completion",
            "model": "expert",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }

    return completion


def evaluate(config: Path, url: str, *, seed: int, n: int, out: Path) -> int:
    """Let the expert be the model of the agent on the first train tasks of a seed."""
    start = "import sys; from agentrl.cli import main; sys.exit(main())"
    data = "eval.datasets.held_out"
    command = [sys.executable, "-c", start, "eval", str(config), "--out", str(out)]
    command += ["--api", url, "--model", "expert", "model.path=quickstart"]
    command += [f"{data}.split=train", f"{data}.args={{seed: {seed}, n: {n}, levels: null}}"]
    return subprocess.run(command).returncode


def main() -> int:
    """Write the conversations, and beside them the rollouts that they were."""
    given = options(__doc__, config_=Path, out=Path("runs/expert.jsonl"), seed=7, n=48)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.unlink(missing_ok=True)
    with answering(expert(references(given.seed, given.n), given.out)) as url:
        rollouts = given.out.with_suffix("")
        return evaluate(given.config, url, seed=given.seed, n=given.n, out=rollouts)


if __name__ == "__main__":
    sys.exit(main())
