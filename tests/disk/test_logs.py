"""What `run.log` holds of text that an environment or a model wrote."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

from agentrl.disk.logs import log_to

HOSTILE = "boom \x1b[2J\x1b]0;x\x07\r\x85\u202e\n2026-01-01 00:00:00,000 INFO    x: all is well"


def test_no_library_draws_bars_into_a_file() -> None:
    """Fails if a bar of a library or of ours is drawn where no terminal is, also with colours."""
    program = """
from agentrl.disk.logs import quiet_libraries
quiet_libraries()
import sys, tqdm, tqdm.auto, datasets
from rich.console import Console
from agentrl.cli.console.live import watch
from huggingface_hub.utils import tqdm as hub_tqdm
from transformers.utils.logging import tqdm as their_tqdm
for bar in (tqdm.tqdm, tqdm.auto.tqdm, hub_tqdm, their_tqdm):
    for _ in bar(range(300), mininterval=0):
        pass
datasets.Dataset.from_dict({"a": list(range(30))}).map(lambda row: row)
with Console(stderr=True).status("working") as status:
    for number in range(30):
        status.update(f"working {number}")
with watch(Console()) as view:
    for number in range(30):
        view.phase(f"phase {number}")
"""
    env = {**os.environ, "FORCE_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    env = {name: value for name, value in env.items() if not name.startswith(("TQDM", "TTY"))}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert not re.search(r"\d+%|it/s|working|phase", done.stdout + done.stderr)


def test_run_log_cannot_be_forged_or_command_a_terminal(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    logger = logging.getLogger("agentrl.some.part")
    with log_to(file):
        logger.warning("failed: %s", HOSTILE)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logger.exception("step 3, gr\u00fc\u00dfe")
    text = file.read_bytes().decode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "failed: boom \\x1b[2J\\x1b]0;x\\x07\\r\\x85\\u202e\n" in text
    # Two records, whatever the text says.
    assert len(re.findall(r"^\d{4}-", text, re.MULTILINE)) == 2
    # A traceback is still one.
    assert "ERROR   agentrl.some.part: step 3, gr\u00fc\u00dfe\n| Traceback (most recent" in text
    assert f'|   File "{__file__}", line ' in text
    assert "| ValueError: boom \\x1b[2J" in text
