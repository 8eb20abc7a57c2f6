"""What `run.log` holds of text that an environment or a model wrote."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from agentrl.disk.logs import log_to

HOSTILE = "boom \x1b[2J\x1b]0;x\x07\r\x85\u202e\n2026-01-01 00:00:00,000 INFO    x: all is well"


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
