"""Parts for tests and examples: they run for real, without a model."""

from agentrl.testing.byte_tokenizer import ByteTokenizer
from agentrl.testing.scripted_engine import ScriptedEngine, ScriptedRequest

__all__ = ["ByteTokenizer", "ScriptedEngine", "ScriptedRequest"]
