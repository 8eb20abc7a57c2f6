"""The tokenizer of a run, by which its tokens are read as text before there is a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.data.store.atomic import atomic_file


def write_tokenizer(path: Path, tokenizer: Any) -> None:
    """Write a tokenizer as `tokenizer.json`, where there is none yet.

    Args:
        path: of the file, as `RunPaths.tokenizer_file`.
        tokenizer: of `transformers`; one without a Rust tokenizer has no such file.

    Raises:
        DataError: the disk is full.
    """
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None or path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(fast.to_str().encode("utf-8", "surrogatepass"))
