"""Head and tail of a stream that may be far longer than memory allows."""

from __future__ import annotations


class Capture:
    """Head and tail of a stream of bytes, in memory bounded by three times `limit`."""

    def __init__(self, limit: int) -> None:
        self.head_size = limit - limit // 2
        self.tail_size = limit // 2
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        room = self.head_size - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        if len(self.tail) > 4 * self.tail_size + 4096:
            del self.tail[: len(self.tail) - self.tail_size]

    def parts(self) -> tuple[bytes, bytes, int]:
        """Head, tail and how many bytes between them are missing."""
        tail = bytes(self.tail[max(0, len(self.tail) - self.tail_size) :])
        return bytes(self.head), tail, self.total - len(self.head) - len(tail)
