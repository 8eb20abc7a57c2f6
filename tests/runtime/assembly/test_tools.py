"""What may stand under `env.tools`, and what is said of what may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import dump_config, parse_config
from agentrl.config.schema import EnvSection
from agentrl.errors import ConfigError
from agentrl.runtime.assembly.tools import make_tools, open_tools

TOOLS = '''
from agentrl.tool import FunctionTool, Tool, ToolSet
from agentrl.errors import ConfigError

async def ping(word: str) -> str:
    """Say it back."""
    return word

class Shout(FunctionTool):
    def __init__(self, *, loud: int = 1):
        super().__init__(ping, name=f"shout{loud}")

def pair(first: str, second: str):
    return [FunctionTool(ping, name=first), FunctionTool(ping, name=second)]

ready = Shout(loud=7)
number = 3
log = []

class Set(ToolSet):
    def __init__(self, *, fail: bool = False):
        self.fail = fail
    async def open(self):
        log.append("open")
        if self.fail:
            raise ConfigError("no server at port 1; start it")
        return [FunctionTool(ping, name="a"), FunctionTool(ping, name="b")]
    async def close(self):
        log.append("close")
'''


@pytest.fixture
def section(tmp_path: Path):
    (tmp_path / "mine.py").write_text(TOOLS)

    def make(*entries):
        return EnvSection.model_validate({"target": "x.py:X", "tools": entries})

    make.base = tmp_path
    return make


async def names(section, *entries) -> list[str]:
    async with open_tools(section(*entries), base=section.base) as tools:
        return [tool.name for tool in tools]


async def test_every_form_of_a_tool(section):
    assert await names(
        section,
        "mine.py:ping",
        "mine.py:Shout",
        "mine.py:ready",
        {"target": "mine.py:Shout", "args": {"loud": 3}},
        {"target": "mine.py:pair", "args": {"first": "x", "second": "y"}},
        {"target": "mine.py:Set"},
    ) == ["ping", "shout1", "shout7", "shout3", "x", "y", "a", "b"]


async def test_sets_are_opened_once_and_always_closed(section):
    """Fails if a set that could not be opened, or one opened before it, is left open."""
    from agentrl.config import resolve

    made = section("mine.py:Set", {"target": "mine.py:Set", "args": {"fail": True}})
    make_tools(made, base=section.base)
    log = resolve("mine.py:log", base=section.base)
    assert log == []
    with pytest.raises(ConfigError, match="no server at port 1"):
        async with open_tools(made, base=section.base):
            pass
    assert log == ["open", "open", "close", "close"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("mine.py:number", "'mine.py:number' gives a int; expected a Tool, a ToolSet"),
        ({"target": "mine.py:ready", "args": {"x": 1}}, "'args' can only be given to a class"),
        (
            {"target": "mine.py:Shout", "args": {"lowd": 1}},
            r"env.tools.0: .*unexpected keyword argument 'lowd'; .*signature is Shout\(\*, loud",
        ),
        ({"target": "mine.py:number"}, "names a int"),
    ],
)
def test_what_is_not_a_tool_is_named(section, entry, message):
    with pytest.raises(ConfigError, match=message):
        make_tools(section(entry), base=section.base)


async def test_two_tools_of_one_name_are_refused(section):
    with pytest.raises(ConfigError, match="two tools are called ping"):
        make_tools(section("mine.py:ping", "mine.py:ping"), base=section.base)
    with pytest.raises(ConfigError, match="two tools are called a, b"):
        await names(section, "mine.py:Set", "mine.py:Set")


def test_both_forms_come_back_from_a_dump():
    data = {
        "env": {"target": "a:B", "tools": ["m:f", {"target": "m:C", "args": {"x": 1}}]},
        "dataset": {"source": "x.jsonl"},
    }
    config = parse_config(data)
    import yaml

    assert parse_config(yaml.safe_load(dump_config(config))) == config
    data["env"]["tools"] = [{"target": "m:C", "arg": {}}]
    with pytest.raises(ConfigError, match=r"env\.tools\.0.*arg"):
        parse_config(data)
