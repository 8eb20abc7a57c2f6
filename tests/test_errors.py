from __future__ import annotations

import inspect
import pickle
import re

import pytest

from agentrl import errors
from agentrl.errors import AgentrlError, choices, some_of

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, AgentrlError)
]


def parents(kind: type[BaseException]) -> set[str]:
    return {base.__name__ for base in kind.__mro__} - {kind.__name__, "object", "BaseException"}


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_cross_processes(kind: type[AgentrlError]) -> None:
    # Fails if a class takes arguments of its own in __init__ without saying how to pickle them.
    error = pickle.loads(pickle.dumps(kind("what, got, expected")))
    assert type(error) is kind
    assert str(error) == "what, got, expected"


def test_the_tree_is_the_one_that_is_drawn() -> None:
    drawn = errors.__doc__ or ""
    names = re.findall(r"(?:-- |^    )([A-Z]\w+)", drawn, flags=re.MULTILINE)
    assert sorted(names) == sorted(kind.__name__ for kind in CLASSES)
    assert all(kind.__doc__ for kind in CLASSES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ConfigError", {"AgentrlError", "ValueError", "Exception"}),
        ("DataError", {"AgentrlError", "ValueError", "Exception"}),
        ("GraderError", {"EnvError", "AgentrlError", "Exception"}),
        ("ToolError", {"AgentrlError", "Exception"}),
        ("SandboxUnavailable",
         {"SandboxError", "ConfigError", "AgentrlError", "ValueError", "Exception"}),
        ("RunError", {"AgentrlError", "Exception"}),
    ],
)  # fmt: skip
def test_what_an_error_also_is(name: str, expected: set[str]) -> None:
    assert parents(getattr(errors, name)) == expected


@pytest.mark.parametrize(
    ("got", "valid", "text"),
    [
        ("hermez", ["hermes", "mistral"],
         "got 'hermez'; did you mean 'hermes'? valid: hermes, mistral"),
        ("zzz", ["b", "a"], "got 'zzz'; valid: a, b"),
        ("x", [], "got 'x'; valid: (none)"),
        # As like gspo as grpo to difflib, but with the letters of grpo.
        ("gpro", ["grpo", "gspo"], "got 'gpro'; did you mean 'grpo'? valid: grpo, gspo"),
        ("PPO", ["ppo", "rloo"], "got 'PPO'; did you mean 'ppo'? valid: ppo, rloo"),
        ("loss", ["gamma", "policy_loss"],
         "got 'loss'; did you mean 'policy_loss'? valid: gamma, policy_loss"),
    ],
)  # fmt: skip
def test_choices_names_the_nearest_and_all(got: str, valid: list[str], text: str) -> None:
    assert choices(got, valid) == text


def test_some_of_many_names_are_shown_and_the_rest_counted() -> None:
    assert some_of("abcdef") == "a, b, c, d and 2 more"
    assert some_of(iter("abc"), 3) == "a, b, c"
    assert some_of([]) == ""
