"""Problem texts as a user of the library would write them, made from what the defect really does.

    failing test --> script (`scripts`) --> run with the defect and without it (`observe`)
      --> the first step that differs --> the few lines that show it (`snippet`), run again on both
      --> words (`words`), or those of a served model (`writer`) if they give nothing away (`leaks`)

What a text says came back did come back, and what it says is expected is what the unbroken library
gives. The text names no test, no changed file and no line; the copy that the model gets does not
hold the failing tests (`hide`).
"""

from agentrl_envs.swe.make.issue.desk import (
    Defect,
    IssueFinder,
    WrittenIssue,
    choose_symptoms,
    kept_symptoms,
    symptoms_to_keep,
    write_issue,
)
from agentrl_envs.swe.make.issue.hide import hide_tests
from agentrl_envs.swe.make.issue.leaks import Secrets
from agentrl_envs.swe.make.issue.words import Story
from agentrl_envs.swe.make.issue.writer import ServedWriter

__all__ = [
    "Defect",
    "IssueFinder",
    "Secrets",
    "ServedWriter",
    "Story",
    "WrittenIssue",
    "choose_symptoms",
    "hide_tests",
    "kept_symptoms",
    "symptoms_to_keep",
    "write_issue",
]
