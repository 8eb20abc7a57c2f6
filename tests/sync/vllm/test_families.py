"""Families whose weights a running vLLM must take in another way than a plain dense model's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.tiny_vllm import require_vllm

pytestmark = [
    pytest.mark.slow(reach=["agentrl.sync.vllm", "agentrl.models", "agentrl.train.model.lora"]),
    pytest.mark.fleet,
]


def test_a_running_vllm_samples_from_what_was_sent(tmp_path: Path) -> None:
    """Fails if packed experts stay as they were or are overwritten unpacked (gaps of 4 to 6), if
    names of transformers go where those of the files are known (Mixtral), if the bias of a router
    is left out (GLM, Dots, whose layers have two names here), if a head is taken for untied since
    its files hold a copy, or if weights that never reach their layer pass for loaded (gpt-oss)."""
    require_vllm()
    command = [sys.executable, "-m", "tests.sync.vllm.family_reloads", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    start, refusal = found.pop("gpt_oss")
    assert start < 5e-5
    assert "serving.engine: embedded" in refusal
    assert "layers.0.attn.sinks" in refusal
    for family, gaps in found.items():
        assert len(gaps) == (4 if family == "qwen3" else 3), (family, gaps)
        assert max(gaps) < 5e-5, (family, gaps)
