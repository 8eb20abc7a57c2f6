"""Answers of served models on disk, by the content of the request.

One file an answer, whole or not there, so that processes share a folder without locks. A file holds
the answer and how many tokens it took, never the key or the headers of the request.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.machine.files import write_whole

logger = logging.getLogger(__name__)


class AnswerCache:
    """A folder of answers. What cannot be read is as if it were not there."""

    def __init__(self, folder: Path) -> None:
        """Use a folder; it is made with the first answer."""
        self.folder = folder
        self._warned = False

    def require_writable(self) -> None:
        """Make the folder and write into it.

        Raises:
            ConfigError: it cannot be made or written to.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / "about.txt", b"Answers of served models, one a file.\n")
        except OSError as error:
            raise ConfigError(
                f"cache: {self.folder} cannot be written to ({error}); name another folder, or "
                "leave it empty"
            ) from None

    def read(self, digest: str) -> str | None:
        """The text of an answer; None if there is none."""
        try:
            entry = json.loads(self._path(digest).read_bytes())
            text = entry["text"] if entry["digest"] == digest else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return text if isinstance(text, str) else None

    def write(self, digest: str, text: str, **more: Any) -> None:
        """Keep an answer; a full disk costs the entry, not the answer.

        Args:
            digest: of the request.
            text: of the answer.
            more: values for those who read the folder.
        """
        path = self._path(digest)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps({"digest": digest, "text": text, **more}).encode())
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning("answers are not kept in %s: %s (said once)", self.folder, error)

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / f"{digest}.json"


def digest_of(values: Mapping[str, Any]) -> str:
    """SHA-256 of a mapping as JSON with sorted keys, in hexadecimal."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
