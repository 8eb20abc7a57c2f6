"""A real chat format over a tokenizer of bytes."""

from __future__ import annotations

import pytest

from agentrl.chat import ChatFormat, build_chat
from agentrl.config.schema import ChatSection
from agentrl.testing import ByteTokenizer


@pytest.fixture(scope="session")
def chat() -> ChatFormat:
    return build_chat(ByteTokenizer(), ChatSection(tool_parser="hermes"))
