"""The data of every agent, and what a record refuses."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from agentrl_envs.harness.agents import AgentValues, HarnessAgent, agents, find_agent
from agentrl_envs.harness.agents.record import PLACEHOLDERS

from agentrl.config import load_config
from agentrl.config.fit import FitConfig
from agentrl.errors import ConfigError

VALUES = AgentValues(
    base_url="http://127.0.0.1:4123/s",
    key="secret",
    model="policy",
    prompt_file="/tmp/a b/prompt.txt",
    workdir="/work dir",
    home="/home/it's",
    bin="/opt/agents/x/bin",
    context="54321",
    reply="987",
)
ALL = sorted(agents())
README = Path(__file__).parents[4] / "envs/agentrl_envs/harness/agents/README.md"


@pytest.mark.parametrize("name", ALL)
def test_an_agent_is_whole(name: str) -> None:
    # Fails if an agent is listed under another name, was never tried in the version that is
    # installed, or does not get the gateway, the secret, the model and the task.
    agent = agents()[name]
    assert agent.name == name
    assert agent.version in agent.versions_tried
    texts = [agent.command, *agent.environment.values(), *agent.files.values()]
    asked = {found for text in texts for found in re.findall(r"\{([a-z_]+)\}", text)}
    assert asked <= set(PLACEHOLDERS)
    assert asked >= {"base_url", "key", "model", "prompt_file", "bin"}
    assert "{bin}" in agent.version_command


@pytest.mark.parametrize("name", ALL)
def test_values_reach_command_variables_and_files(name: str) -> None:
    agent = agents()[name]
    left = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")
    command = agent.started(VALUES)
    texts = [command, *agent.variables(VALUES).values(), *agent.written(VALUES).values()]
    assert not any(left.search(text) for text in texts)
    assert shlex.quote(VALUES.prompt_file) in command
    assert any(VALUES.key in text for text in texts)


@pytest.mark.parametrize("name", ALL)
def test_settings_files_can_be_read(name: str) -> None:
    for path, text in agents()[name].written(VALUES).items():
        if path.endswith(".json"):
            assert isinstance(json.loads(text), dict)
        else:
            assert path.endswith(".toml")
            assert tomllib.loads(text)


@pytest.mark.parametrize("name", ALL)
def test_the_page_has_an_agent_as_it_is(name: str) -> None:
    # Fails if an agent or its version changes and the table of the README does not.
    agent = agents()[name]
    row = next(line for line in README.read_text().splitlines() if line.startswith(f"| `{name}` "))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == agent.wire
    assert cells[2].split(", ") == list(agent.versions_tried)


def _context_told(name: str) -> tuple[Any, ...]:
    """Context and reply as the settings of an agent say them."""
    agent = agents()[name]
    texts = agent.written(VALUES)
    if name == "claude-code":
        names = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS")
        return tuple(int(agent.variables(VALUES)[one]) for one in names)
    if name == "codex":
        return (tomllib.loads(texts[".codex/config.toml"])["model_context_window"],)
    if name == "opencode":
        settings = json.loads(texts[".config/opencode/opencode.json"])
        limit = settings["provider"]["agentrl"]["models"][VALUES.model]["limit"]
        return limit["context"], limit["output"]
    if name == "pi":
        (model,) = json.loads(texts[".pi/agent/models.json"])["providers"]["agentrl"]["models"]
        reserve = json.loads(texts[".pi/agent/settings.json"])["compaction"]["reserveTokens"]
        assert reserve == model["maxTokens"]
        return model["contextWindow"], model["maxTokens"]
    settings = json.loads(texts[".qwen/settings.json"])
    return (settings["model"]["generationConfig"]["contextWindowSize"],)


@pytest.mark.parametrize("name", [name for name in ALL if name != "mini-swe-agent"])
def test_an_agent_knows_the_real_context(name: str) -> None:
    # Fails if an agent compacts at a context that it guesses from the name of the model.
    # mini-swe-agent has no setting for it, and never compacts.
    told = _context_told(name)
    assert told == (int(VALUES.context), int(VALUES.reply))[: len(told)]


def mine(**fields: Any) -> HarnessAgent:
    usual: dict[str, Any] = {
        "name": "mine", "wire": "chat", "command": "{bin}/mine {prompt_file}", "installer": "npm",
        "packages": ("@me/mine@1.2.3",), "version_command": "{bin}/mine --version",
    }  # fmt: skip
    return HarnessAgent(**(usual | fields))


def test_only_known_placeholders_are_filled_in() -> None:
    agent = mine(
        command='run {prompt_file} "$(cat {prompt_file})" {other} ${HOME}',
        environment={"URL": "{base_url}/v1", "ODD": "{{key}}"},
        files={"a/b.json": '{"model": "{model}", "options": {}}'},
    )
    assert agent.started(VALUES) == (
        "run '/tmp/a b/prompt.txt' \"$(cat '/tmp/a b/prompt.txt')\" {other} ${HOME}"
    )
    assert agent.variables(VALUES) == {"URL": "http://127.0.0.1:4123/s/v1", "ODD": "{secret}"}
    assert agent.written(VALUES) == {"a/b.json": '{"model": "policy", "options": {}}'}


def test_a_value_that_looks_like_a_placeholder_stays() -> None:
    values = replace(VALUES, key="{model}")
    assert mine(environment={"KEY": "{key}"}).variables(values) == {"KEY": "{model}"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "Mine!"}, r"name is 'Mine!', expected small letters"),
        ({"wire": "chatt"}, r"did you mean 'chat'.*messages, responses"),
        ({"command": " "}, r"command is ' ', expected shell text"),
        ({"installer": "pipx"}, r"did you mean 'pip'"),
        ({"installer": None}, r"installer is None, expected 'npm' or 'pip'"),
        ({"packages": ()}, r"at least one, as name@1.2.3"),
        ({"packages": ("mine",)}, r"packages is 'mine', expected an exact version"),
        ({"packages": ("mine@latest",)}, r"expected an exact version"),
        ({"packages": ("--registry=x",)}, r"expected an exact version"),
        ({"installer": "pip", "packages": ("mine>=1",)}, r"exact version, as name==1.2.3"),
        ({"version_command": ""}, r"version_command is '', expected shell text that prints"),
        ({"files": {"/etc/passwd": ""}}, r"files is '/etc/passwd', expected a path below"),
        ({"files": {"a/../../b": ""}}, r"expected a path below the home folder"),
        ({"environment": {"A=B": ""}}, r"environment is 'A=B', expected the name of a variable"),
    ],
)
def test_a_record_that_cannot_work_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        mine(**fields)
    assert str(caught.value).startswith("agent '")


def test_an_agent_of_the_user_is_named_by_import_string(tmp_path: Path) -> None:
    (tmp_path / "my_agents.py").write_text(
        "from agentrl_envs.harness.agents import HarnessAgent\n"
        "my_agent = HarnessAgent(name='mine', wire='chat', command='./agent {prompt_file}')\n"
        "other = 3\n"
    )
    found = find_agent("my_agents.py:my_agent", base=tmp_path)
    assert (found.name, found.packages, found.version) == ("mine", (), "")
    with pytest.raises(ConfigError, match="expected a HarnessAgent, got int"):
        find_agent("my_agents.py:other", base=tmp_path)
    with pytest.raises(ConfigError, match=r"did you mean 'claude-code'.*my_agents\.py:my_agent"):
        find_agent("claude-cod")


def test_the_run_file_of_an_agent_is_whole() -> None:
    # Fails if its keys are refused, its agent is not known, or the fit before it has other calls.
    folder = Path(__file__).parents[4] / "configs"
    config = load_config(folder / "harness_code.yaml")
    agent = find_agent(config.env.args["agent"])
    command = replace(agent, command=f"{agent.command} {config.env.args['options']}")
    words = shlex.split(command.started(VALUES))
    assert words[words.index("--tools") + 1] == "write"
    fit = FitConfig.model_validate(yaml.safe_load((folder / "sft_harness.yaml").read_text()))
    assert fit.chat == config.chat
