"""`serving.args` beside a parser: what is refused, and in which words."""

from __future__ import annotations

import argparse
import stat
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.serving.vllm.command import user_words
from agentrl.serving.vllm.options import check_options, refusals


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--max-num-seqs", type=int)
    made.add_argument("--kv-cache-dtype", choices=["auto", "fp8"])
    made.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
    return made


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"max_num_seqs": 4, "enforce_eager": False, "kv-cache-dtype": "fp8"}, []),
        ({"max_num_seq": 4}, []),  # argparse takes a beginning, and so does vLLM
        ({"max_nun_seqs": 4}, ["--max-nun-seqs (did you mean --max-num-seqs?)"]),
        ({"warp_drive": True}, ["--warp-drive"]),
        ({"max_num_seqs": "many"}, ["argument --max-num-seqs: invalid int value: 'many'"]),
    ],
)
def test_what_a_parser_does_not_take(args: dict[str, object], said: list[str]) -> None:
    """Fails if the value of an unknown option is taken for one more, or a type is not looked at."""
    assert refusals(parser(), user_words(args)) == said


def test_options_that_are_read_here_need_no_vllm() -> None:
    assert check_options({}) == ""
    assert check_options({"tensor-parallel-size": 2, "gpu_memory_utilization": 0.5}) == ""
    with pytest.raises(ConfigError, match="this option comes from"):
        check_options({"port": 1})


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_what_was_taken_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if every check starts a child, or a refusal, or other options, count as taken."""
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    asked = tmp_path / "asked"

    def child(wrong: str) -> None:
        script = tmp_path / "python"
        answer = f'{{"version": "7.0", "wrong": [{wrong}]}}'
        script.write_text(f"#!/bin/sh\ncat >> {asked}\necho >> {asked}\necho '{answer}'\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(script))

    child('"--max-num-seqs"')
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"7\.0 does not take --max-num-seqs"):
            check_options({"max_num_seqs": 4})
    child("")
    for _ in range(2):
        assert check_options({"max_num_seqs": 4}) == "; vLLM 7.0 takes all serving.args"
    check_options({"max_num_seqs": 5})
    assert [line[-4:] for line in asked.read_text().splitlines()] == ['"4"]'] * 3 + ['"5"]']


@pytest.mark.fleet
def test_the_installed_vllm_is_asked() -> None:
    with pytest.raises(ConfigError, match=r"--enable-prefix-cashing .*--enable-prefix-caching"):
        check_options({"enable_prefix_cashing": True})
