"""A whole agent in a hundred lines of the standard library: one tool, bash, over chat completions.

It runs inside a sandbox with nothing installed, as `python3 program.py PROMPT_FILE`, and ends when
the model calls no tool. It is there to try sandboxes and environments with, and to be read.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

MOST_CHARS = 4000
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a shell command in the current directory and return what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The shell command."}},
            "required": ["command"],
        },
    },
}
SYSTEM = "You work in a directory with the tool bash. When you are done, answer without a call."


def ask(messages):
    """One turn of the model."""
    body = {"model": os.environ["AGENT_MODEL"], "messages": messages, "tools": [TOOL]}
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        data=json.dumps(body).encode(),
        headers={
            "content-type": "application/json",
            "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        },
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        said = json.load(error)["error"]
        sys.stderr.write(f"the model refuses: {said['message']}\n")
        # No turn comes any more: what there is counts.
        sys.exit(0 if said.get("code") == "rollout_limit" else 1)


def run(call):
    """The result of one call, as a message."""
    try:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(
            ["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        if len(said) > MOST_CHARS:
            said = f"{said[: MOST_CHARS // 2]}\n[...]\n{said[-MOST_CHARS // 2 :]}"
        text = f"{said}[exit status {done.returncode}]"
    except (ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
        text = f"The call failed: {type(error).__name__}: {error}"
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def main(prompt):
    """Ask and act until the model calls nothing."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    while True:
        message = ask(messages)
        messages.append(message)
        calls = message.get("tool_calls") or []
        sys.stdout.write(f"{message.get('content') or ''}\n")
        if not calls:
            return
        for call in calls:
            result = run(call)
            sys.stdout.write(f"$ {call['function']['arguments']}\n{result['content']}\n")
            messages.append(result)


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(encoding="utf-8"))
