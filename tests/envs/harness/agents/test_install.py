"""Installing an agent: with the real pip and npm, from packages that are made here."""

from __future__ import annotations

import asyncio
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from agentrl_envs.harness.agents import HarnessAgent, agents, install, installed

from agentrl.cli import main
from agentrl.errors import ConfigError

MINE = HarnessAgent(
    name="mine",
    wire="chat",
    installer="pip",
    packages=("mine-agent==1.2",),
    version_command="{bin}/mine --version",
    command="{bin}/mine",
)
AGENT_FILE = """
from agentrl_envs.harness.agents import HarnessAgent
mine = HarnessAgent(
    name="mine", wire="chat", installer="pip", packages=("mine-agent==1.2",),
    version_command="{bin}/mine --version", command="{bin}/mine",
)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder of wheels instead of the registry."""
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache with space"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path / "cache with space"


def make_wheel(folder: Path, *, says: str = "mine 1.2") -> None:
    info = "mine_agent-1.2.dist-info"
    with zipfile.ZipFile(folder / "mine_agent-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("mine_agent.py", f"def main():\n    print({says!r})\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: mine-agent\nVersion: 1.2")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\nmine = mine_agent:main\n")
        wheel.writestr(f"{info}/RECORD", "")


def agentrl(*words: str, status: int = 0) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == status


async def test_two_at_once_install_one_whole_folder(cache: Path, tmp_path: Path) -> None:
    # Fails without the lock: both build the same folder, and one removes what the other has made.
    make_wheel(tmp_path)
    assert installed(MINE) is None
    (tmp_path / "mine.py").write_text(AGENT_FILE)
    code = (
        "from pathlib import Path; from agentrl_envs.harness.agents import find_agent, install; "
        f"print(install(find_agent('mine.py:mine', base=Path({str(tmp_path)!r}))))"
    )
    makers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(2)
    ]
    said = {(await maker.communicate())[0].decode().strip() for maker in makers}
    assert [maker.returncode for maker in makers] == [0, 0]
    folder = installed(MINE)
    assert said == {str(folder)}
    assert folder is not None
    assert folder.parent == cache / "agents"
    started = await asyncio.create_subprocess_exec(
        folder / MINE.bin_folder / "mine", stdout=asyncio.subprocess.PIPE
    )
    assert (await started.communicate())[0] == b"mine 1.2\n"


def test_half_an_installation_does_not_count(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A kill leaves a folder without its mark. Fails if it is taken, or kept and built upon.
    with pytest.raises(
        ConfigError, match=r"could not be installed: (?s:.*)No matching distribution"
    ):
        install(MINE)  # there is no such package yet
    (left,) = [path for path in (cache / "agents").iterdir() if path.is_dir()]
    (left / "left-over").write_text("")
    assert installed(MINE) is None
    make_wheel(tmp_path)
    (tmp_path / "mine.py").write_text(AGENT_FILE)
    agentrl("harness", "install", f"{tmp_path}/mine.py:mine")
    assert installed(MINE) == left
    assert not (left / "left-over").exists()
    agentrl("harness", "install", f"{tmp_path}/mine.py:mine")
    said = capsys.readouterr().out.splitlines()
    assert said == [f"installed mine 1.2 in {left}", f"mine 1.2 is installed in {left}"]


def test_a_program_that_says_another_version_is_refused(cache: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path, says="mine 3")
    with pytest.raises(ConfigError, match=r"does not print '1\.2': 'mine 3"):
        install(MINE)
    assert installed(MINE) is None


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_npm_installs_and_says_why_it_could_not(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = HarnessAgent(
        name="mine", wire="chat", installer="npm", packages=("mine-agent@1.2.0",),
        version_command="{bin}/mine --version", command="{bin}/mine",
    )  # fmt: skip
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(ConfigError, match=r"(?s)could not be installed: .*ECONNREFUSED"):
        install(agent)
    assert installed(agent) is None
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(ConfigError, match="npm, which is not on the PATH; install Node"):
        install(agent)


def test_an_agent_of_the_sandbox_is_not_installed_here(cache: Path) -> None:
    agent = HarnessAgent(name="there", wire="chat", command="there {prompt_file}")
    with pytest.raises(ConfigError, match="'there' has no packages: it is expected in the sandbox"):
        install(agent)


def test_list_shows_what_is_there(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agentrl("harness", "list")
    shown = capsys.readouterr().out
    for name, agent in agents().items():
        (row,) = [line for line in shown.splitlines() if f" {name} " in line]
        assert agent.wire in row
        assert agent.version in row
        assert " no " in row
    agentrl("harness", "install", "pie", status=2)
    assert "did you mean 'pi'" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="AGENTRL_CACHE names another one"):
        install(MINE)
