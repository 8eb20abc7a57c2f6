"""Only the adapters on the way to an engine, which merges them into the model that it has on disk.

    trainer   AdapterWeights()     a header, then A and B of every adapted layer
    engine    Merger.whole(...)    every weight of the model, W + scale B A where adapted

Both ends are streams of `(name, tensor)`, so every backend carries them and none knows of them. The
header holds the digest of the weights that the adapters were trained on: an engine whose folder
holds others refuses them. Rejected: adapters in the engine's own LoRA kernels (every token would
pay for them, and requests and caches would have to name them), and the merged weights as patches
(nearly all of their bits change).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import orjson
import torch
from torch import Tensor

from agentrl.errors import SyncError
from agentrl.sync.wire.checksum import WeightDigest, described
from agentrl.sync.wire.tensors import torch_dtype

HEADER = "agentrl.adapters"
"""Name of the first tensor of such a stream: JSON as uint8."""

_REMEDY = "set train.lora.sync: merged, which sends all weights"


class Adapter(Protocol):
    """One adapted layer; its weight is called NAME.weight."""

    @property
    def name(self) -> str:
        """Name of the layer."""
        ...

    @property
    def down(self) -> Tensor:
        """The matrix A, [rank, in]."""
        ...

    @property
    def up(self) -> Tensor:
        """The matrix B, [out, rank]."""
        ...

    @property
    def scale(self) -> float:
        """The factor of the product B A."""
        ...

    @property
    def transposed(self) -> bool:
        """True if the weight is [in, out]."""
        ...


class AdapterWeights:
    """The stream that a trainer of adapters passes to a sender in place of its weights."""

    def __init__(
        self,
        base: Callable[[], Iterable[tuple[str, Tensor]]],
        adapters: Callable[[], Iterable[Adapter]],
        *,
        own: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the two.

        Args:
            base: every weight without what the adapters add; never changes.
            adapters: as they are now.
            own: by the name of a weight, another one that files of the model may have for it.
        """
        self._base, self._adapters, self._own = base, adapters, dict(own or {})
        self._header: Tensor | None = None

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """The stream of one version; the same names and shapes on every call."""
        adapters = list(self._adapters())
        if self._header is None:
            self._header = self._describe(adapters)
        yield HEADER, self._header
        for adapter in adapters:
            yield f"{adapter.name}.lora_A.weight", adapter.down.detach()
            yield f"{adapter.name}.lora_B.weight", adapter.up.detach()

    def _describe(self, adapters: Iterable[Adapter]) -> Tensor:
        dtypes: dict[str, str] = {}
        digest = WeightDigest()
        for name, tensor in self._base():
            record = described(name, tensor.detach().cpu().contiguous())
            dtypes[name] = record.dtype
            digest.add(record)
        layers = {item.name: [item.scale, item.transposed] for item in adapters}
        text = orjson.dumps(
            {
                "dtypes": dtypes,
                "digest": digest.hexdigest(),
                "layers": layers,
                "own": self._own,
            }
        )
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)


class Merger:
    """In an engine: makes whole weights of adapters and the folder the engine was started with."""

    def __init__(self, model: str) -> None:
        """Remember the folder or hub name; nothing is read yet."""
        self._model = model
        self._files: dict[str, Path] = {}
        self._checked = ""

    def whole(self, weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Every weight of the model; a stream that holds no adapters comes out as it is.

        Raises:
            SyncError: the folder holds other weights than the adapters were trained on, or none.
        """
        first = next(weights, None)
        if first is None or first[0] != HEADER:
            if first is not None:
                yield first
                yield from weights
            return
        header = orjson.loads(first[1].cpu().numpy().tobytes())
        # To the end before the first is used: by then every digest of the ticket was compared.
        sent = {name: tensor.cpu().clone() for name, tensor in weights}
        self._check(header)
        for name, weight in self._base(header):
            layer = name.removesuffix(".weight")
            if layer in header["layers"]:
                scale, transposed = header["layers"][layer]
                down, up = sent[f"{layer}.lora_A.weight"], sent[f"{layer}.lora_B.weight"]
                weight = with_delta(weight, down, up, scale=scale, transposed=transposed)
            yield name, weight

    def _check(self, header: dict[str, Any]) -> None:
        """Compare the folder with the digest of the trainer, once."""
        if self._checked == header["digest"]:
            return
        digest = WeightDigest()
        for name, tensor in self._base(header):
            digest.add(described(name, tensor))
        if digest.hexdigest() != header["digest"]:
            raise SyncError(
                f"the adapters were trained on other weights than this engine has in "
                f"{self._model}; start it with the model that the run began with, or {_REMEDY}"
            )
        self._checked = header["digest"]

    def _base(self, header: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
        from safetensors import safe_open

        files = self._files or self._find()
        for name, dtype in header["dtypes"].items():
            there = name if name in files else header["own"].get(name, name)
            if there not in files:
                raise SyncError(f"{self._model} has no weight {name!r}; {_REMEDY}")
            with safe_open(files[there], framework="pt") as file:
                yield name, file.get_tensor(there).to(torch_dtype(dtype))

    def _find(self) -> dict[str, Path]:
        from safetensors import safe_open

        folder = Path(self._model)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(self._model, local_files_only=True))
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self._files.update(dict.fromkeys(file.keys(), path))
        return self._files


@torch.no_grad()
def with_delta(
    weight: Tensor, down: Tensor, up: Tensor, *, scale: float, transposed: bool
) -> Tensor:
    """W + scale B A, in float32 at least, rounded once to the dtype of W.

    The same arithmetic as `agentrl.train.model.lora`, which knows nothing of engines.
    """
    kind = torch.promote_types(weight.dtype, torch.float32)
    delta = up.to(kind) @ down.to(kind) * scale
    return (weight.to(kind) + (delta.T if transposed else delta)).to(weight.dtype)
