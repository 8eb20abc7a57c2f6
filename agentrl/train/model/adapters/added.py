"""The sum of a layer and its adapter in one product, without tensors in between.

peft forms B A x, then s B A x, then the sum: three tensors of the size of the output, of which two
are freed at once. On a CPU each leaves a hole that glibc fills with the small A x, which stays for
the backward pass, and the next output no longer fits there: steps of a model of 135M with adapters
took 6.2 GiB where the tensors that live at the same time are 2.4.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class AddedProduct:
    """LoRA variant, as peft calls it: the formula of plain LoRA, rounded once."""

    @staticmethod
    def forward(
        module: Any, active_adapter: str, x: Tensor, result: Tensor, **kwargs: Any
    ) -> Tensor:
        """Add the adapter: W x + s B A x.

        Args:
            module: an adapted layer of peft.
            active_adapter: name of the adapter.
            x: [..., in], in the dtype of the adapter.
            result: [..., out], W x; it is written over where nobody else can have kept it.
            kwargs: of the layer below, which has had them.
        """
        inner = module.lora_A[active_adapter](module.lora_dropout[active_adapter](x))
        up, scale = module.lora_B[active_adapter].weight, module.scaling[active_adapter]
        if result.dtype != up.dtype:
            return result + nn.functional.linear(inner, up) * scale
        flat, inner = result.flatten(0, -2), inner.flatten(0, -2)
        base = module.base_layer
        # Hooks, as those of ZeRO-3, may hand on a view that must not be written to.
        fresh = type(base) is nn.Linear and not base._forward_hooks
        add = flat.addmm_ if fresh else flat.addmm
        return add(inner, up.t(), alpha=scale).view(result.shape)


def add_in_one_product(layers: list[Any], name: str) -> None:
    """Give adapted layers this forward pass, for the adapter of this name."""
    for layer in layers:
        layer.lora_variant[name] = AddedProduct
