"""The call with which a model declares that it is done.

The tool only passes the answer on. An environment that offers it sees a result with the name
`submit` in `Action.tool_results` and answers with `StepResult(done=True, ...)`.
"""

from __future__ import annotations

from agentrl.types import ToolResult


async def submit(answer: str = "") -> ToolResult:
    """Hand in your work and end the task. Call it once, when everything is done.

    Args:
        answer: the final answer, if the task asks for one in words
    """
    # `data` is for the environment: it separates a call that ran from a refused one.
    return ToolResult(text="Submitted.", data={"submitted": True, "answer": answer})
