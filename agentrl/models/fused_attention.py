"""Which of torch's fused attention kernels a GPU may choose, for engine and trainer alike."""

from __future__ import annotations

import torch


def without_plans(device: torch.device) -> None:
    """Keep `scaled_dot_product_attention` from kernels of cuDNN in this process.

    cuDNN makes a plan for each shape that it has not seen, and here every turn and every row has a
    length of its own: on an H200 each new length took 70 ms, against 10 ms for the whole decoding
    step of a model of 135 M weights. The other kernels take every length as it comes.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
