"""A model loaded in parts by FSDP2, one rank a GPU, beside ranks that each load all of it.

Both ways in fresh processes, and every rank must end with the same bits. Not run on a GPU yet.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from parts.readings import Reading, Setting

sys.path.append(str(Path(__file__).resolve().parents[2]))
import loading as ranks

SIZES = {"width": 2048, "layers": 6}
"""1.7 GB in float32."""
SMALL = {"width": 128, "layers": 2}
MOST_RANKS = 4


def measure(setting: Setting) -> Iterator[Reading]:
    """Peaks of device and host, seconds of both ways, and ranks whose weights differ."""
    assert setting.folder is not None, "the runner gives every part a folder"
    folder = setting.folder / "model"
    folder.mkdir()
    layer = ranks.write_model(folder, **(SMALL if setting.small else SIZES))
    size = min(torch.cuda.device_count(), MOST_RANKS) if setting.on_gpu else 2
    digests: dict[bool, list[str]] = {}
    for in_parts in (True, False):
        found = ranks.measure(str(folder), "fsdp2", in_parts, size, on=setting.device.type)
        digests[in_parts] = [one.digest for one in found]
        way = f"{size} ranks, {'in parts' if in_parts else 'the whole each'}"
        seconds = max(one.seconds for one in found)
        yield Reading(name=f"{way}: to load", value=seconds, unit="s")
        peak = max(one.peak for one in found)
        yield Reading(name=f"{way}: a host process at its peak", value=peak / 2**30, unit="GiB")
        if setting.on_gpu:
            limit = ranks.limit_bytes(found[0].numbers, layer, size)
            yield Reading(
                name=f"{way}: a GPU at its peak",
                value=max(one.device_peak for one in found) / 2**30,
                unit="GiB",
                bound=limit / 2**30 if in_parts else None,
            )
    differ = sum(one != other for one, other in zip(digests[True], digests[False], strict=True))
    yield Reading(name="ranks whose weights differ", value=float(differ), bound=0)
