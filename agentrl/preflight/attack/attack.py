"""An attack on an environment: the turns of a model that wants to be paid for nothing.

Attacks come in classes by what they want. An attack writes whole episodes, for any task of any
environment: text, fenced programs, and calls of the tools that are offered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentrl.env import Solution
from agentrl.types import Task, ToolCall

NO_WALLS = "an attack was run outside of a sandbox"
"""Raised by a program that sees the processes of this machine."""


class AttackClass(StrEnum):
    """Aim of an attack."""

    FORGE = "forge"
    """Make the verdict: claim it, print it, patch or replace what gives it."""
    READ = "read"
    """Find the answer where it must not be: in frames, memory, files, processes."""
    FREEZE = "freeze"
    """Hold up the event loop that all rollouts share."""
    EXHAUST = "exhaust"
    """Use up memory, processes, disk or descriptors."""
    INFRASTRUCTURE = "become infrastructure"
    """Fail in a way that is taken for a failure of ours, so that the reward is dropped."""
    SPECIAL_CASE = "special-case"
    """Answer the same whatever is asked."""
    LEAK = "leak between turns"
    """Keep something from one turn or rollout for the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedTask:
    """A task, and what an attacker knows of it: the prompt and the tools, not the label."""

    task: Task
    """Task under attack."""
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """JSON schemas of the offered tools, by name."""
    mark: str = "ATTACK-MARK"
    """Text that a leak carries from one place to another."""
    reached: str = ""
    """File of this machine that is made by whatever runs there; no sandbox can make it."""
    host_namespace: str = ""
    """The process namespace of this machine, in which no program of an attack does anything; empty
    where the machine may come to harm."""

    def walled(self, program: str) -> str:
        """A program that ends at once where no walls are: it kills what it can reach."""
        if not self.host_namespace:
            return program
        # Judges that run code in their own process replace `open` and functions of `os` first.
        return (
            "import posix as _os\n"
            f"if _os.readlink('/proc/self/ns/pid') == {self.host_namespace!r}:\n"
            f"    _os.close(_os.open({self.reached!r}, _os.O_CREAT | _os.O_WRONLY))\n"
            f"    raise RuntimeError({_in_parts(NO_WALLS)})\n{program}"
        )

    def filled(self, text: str) -> str:
        """A text with its places filled: the prompt, the mark, the file that nobody can reach."""
        for place, value in (
            ("{prompt}", self.prompt),
            ("{mark}", self.mark),
            ("{reached}", self.reached),
        ):
            text = text.replace(place, value)
        return text

    @property
    def prompt(self) -> str:
        """The words of the task."""
        prompt = self.task.prompt
        return prompt if isinstance(prompt, str) else "\n".join(part.content for part in prompt)

    @property
    def function(self) -> str:
        """Name of the function that the task asks for; `main` if it names none."""
        for pattern in (r"def\s+(\w+)\s*\(", r"function\s+(?:called\s+|named\s+)?`?(\w+)`?"):
            if found := re.search(pattern, self.prompt):
                return found[1]
        return "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One way to be paid, dropped or waited for without solving anything."""

    name: str
    """In words, unique in the library."""
    aim: AttackClass
    """Class of the attack."""
    episodes: Callable[[AttackedTask], Iterable[Solution]]
    """Whole episodes of it on one task, in order. Turns that a rollout ended before are sent in
    another one, if they are words."""
    leaks: bool = False
    """Whether the mark in something that the model is shown means that the attack got through."""


def text_attack(aim: AttackClass, name: str, *turns: str, leaks: bool = False) -> Attack:
    """Turns that are sent as they are, but for the markers of `AttackedTask.filled`."""

    def episodes(on: AttackedTask) -> Iterable[Solution]:
        yield [on.filled(turn) for turn in turns]

    return Attack(name=name, aim=aim, episodes=episodes, leaks=leaks)


def program_attack(aim: AttackClass, name: str, *programs: str, leaks: bool = False) -> Attack:
    """Programs that run wherever the environment runs programs, one a turn.

    A program defines `attack(*args)`, which stands for the function the task asks for; `MARK` in it
    is an expression that gives the mark, so that who is shown the program is not shown the mark.
    They go as fenced code, and through each offered tool that takes code or commands.
    """

    def episodes(on: AttackedTask) -> Iterable[Solution]:
        mark = _in_parts(on.mark)
        sources = [on.walled(source.strip("\n").replace("MARK", mark)) for source in programs]
        yield [_fenced(source, on.function) for source in sources]
        for tool, schema in on.tools.items():
            if vehicle := _vehicle(tool, schema):
                calls = [vehicle(source) for source in sources]
                yield [*calls, *_last_turns(on.tools)]

    return Attack(name=name, aim=aim, episodes=episodes, leaks=leaks)


def call_attack(aim: AttackClass, name: str, values: Mapping[str, Any]) -> Attack:
    """Every offered tool in turn, with an extreme value for every argument.

    Args:
        aim: class of the attack.
        name: of the attack.
        values: by JSON type; a type that is not in it gets the value of `""`.
    """

    def episodes(on: AttackedTask) -> Iterable[Solution]:
        calls: list[str | ToolCall] = []
        for tool, schema in list(on.tools.items())[:60]:
            fields: Mapping[str, Any] = schema.get("properties") or {}
            arguments = {
                key: values.get(str(kind.get("type", "")), values[""])
                for key, kind in fields.items()
                if isinstance(kind, Mapping)
            }
            for key, value in arguments.items():
                if isinstance(value, str):
                    arguments[key] = on.filled(value)
            calls.append(ToolCall(id="", name=tool, arguments=arguments, raw=""))
        if calls:
            yield [*calls, *_last_turns(on.tools)]

    return Attack(name=name, aim=aim, episodes=episodes)


def _in_parts(text: str) -> str:
    """An expression that gives the text, which the source that it stands in does not contain."""
    return f"{text[:3]!r} + {text[3:]!r}"


def _fenced(source: str, function: str) -> str:
    # A program that is run as it is calls the attack itself; one that is imported defines it.
    called = f"def {function}(*args, **kwargs):\n    return attack(*args, **kwargs)"
    main = "if __name__ == '__main__':\n    print(attack())"
    return f"```python\n{source}\n\n\n{called}\n\n\n{main}\n```"


def _vehicle(tool: str, schema: Mapping[str, Any]) -> Callable[[str], ToolCall] | None:
    """The call of a tool that a program is put into; None if the tool takes none."""
    fields: Mapping[str, Any] = schema.get("properties") or {}
    if "code" in fields:
        return lambda source: _call(tool, "code", f"{source}\nprint(attack())")
    if "command" in fields and "path" not in fields:
        end = "END-OF-ATTACK"
        return lambda source: _call(
            tool, "command", f"python3 - <<'{end}'\n{source}\nprint(attack())\n{end}"
        )
    return None


def _call(tool: str, key: str, text: str) -> ToolCall:
    return ToolCall(id="", name=tool, arguments={key: text}, raw="")


def _last_turns(tools: Mapping[str, Mapping[str, Any]]) -> Sequence[str | ToolCall]:
    if "submit" in tools:
        return [ToolCall(id="", name="submit", arguments={}, raw=""), "Done."]
    return ["Done."]
