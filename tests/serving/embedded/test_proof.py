"""An engine decodes what the own forward of its model reads, or refuses the model."""

from __future__ import annotations

import pytest
import torch

from agentrl.config.fleet import EmbeddedServing
from agentrl.errors import ConfigError
from agentrl.serving.embedded import EmbeddedEngine
from agentrl.serving.embedded.forward import RowModel
from agentrl.serving.embedded.kv_cache import KvCache
from agentrl.serving.embedded.proof import prove_decoding
from tests.models.vision.tiny_seeing import seeing_model
from tests.train.model.mutants import endless, far_window, model, odd, restless, scaled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_right_model_is_within_what_rounding_explains(dtype):
    proof = prove_decoding(RowModel(far_window(dtype)))
    assert set(proof.forms) == {"decoded", "decoded with a window of 5"}
    assert proof.tolerance < (0.1 if dtype == torch.bfloat16 else 1e-4)


@pytest.mark.parametrize(
    ("mutant", "wrong"),
    [
        (scaled, "decoded by"),
        (restless, "decoded by"),
        (endless, r"decoded with a window of 5 by .*\(decoded agrees\)"),
        (odd, "cannot be computed decoded: KeyError: 'layer_mask'"),
    ],
)
def test_mutants_are_refused_before_a_request_is_taken(mutant, wrong):
    """The first request would have found some of them, and nobody the others."""
    made = mutant(far_window())
    before = made.config._attn_implementation
    with pytest.raises(ConfigError, match=rf"^serving.engine is embedded: Mistral.*{wrong}"):
        EmbeddedEngine(made, section=EmbeddedServing(max_batch_size=2), max_context_tokens=64)
    assert made.config._attn_implementation == before


class LateRows(RowModel):
    """Decoded tokens are written one position behind where they belong."""

    def step(self, cache, ids_N, segments, offsets_N=()):
        lengths = list(cache.lengths)
        for row in range(len(ids_N)):
            cache.lengths[row] += 1
        try:
            return super().step(cache, ids_N, segments, offsets_N)
        finally:
            cache.lengths[:] = lengths


class ForeignRows(RowModel):
    """Rows that continue a copied prefix find another row there."""

    def step(self, cache: KvCache, ids_N, segments, offsets_N=()):
        for segment in segments:
            if segment.start:
                cache.data[:, :, segment.row, :, : segment.start] = 0.5
        return super().step(cache, ids_N, segments, offsets_N)


@pytest.mark.parametrize("rows", [LateRows, ForeignRows])
def test_a_cache_that_is_off_is_refused(rows):
    with pytest.raises(ConfigError, match="decoded by"):
        prove_decoding(rows(model("llama")))


def test_an_image_is_decoded_behind(tmp_path):
    seeing = seeing_model("qwen2_5_vl", tmp_path / "images")
    assert prove_decoding(RowModel(seeing)).forms["decoded with an image"] < 1e-5

    class NoOffsets(RowModel):
        """Tokens behind an image have the position of their place in the row."""

        def step(self, cache, ids_N, segments, offsets_N=()):
            return super().step(cache, ids_N, segments, [0] * len(ids_N))

    with pytest.raises(ConfigError, match=r"decoded with an image by .*\(decoded agrees\)"):
        prove_decoding(NoOffsets(seeing))
