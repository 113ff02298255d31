"""What a tower computes in: everything in half precision but what can't be."""

from __future__ import annotations

import torch
from torch import nn

from lgip_ort.errors import UsageFault

LARGEST = 65_504.0
"""Largest finite fp16 number."""

STAYS_FP32 = ["normalisation of the embedding: the sum of squares of a long vector overflows fp16"]
"""What `to_half` leaves in fp32, and why. Token ids are integers from end to end, in no floating-point type at all."""


def to_half(tower: nn.Module) -> list[str]:
    """Turn the tower's tensors into fp16, in place; returns what stayed in fp32 and why.

    Raises UsageFault naming the tensor that fp16 can't hold.
    """
    for name, tensor in [*tower.named_parameters(), *tower.named_buffers()]:
        if tensor.is_floating_point() and tensor.numel():
            largest = float(tensor.abs().max())
            if not largest <= LARGEST:  # also catches NaN
                raise UsageFault(
                    f"tensor {name}: largest |value| {largest:.6g} found, at most {LARGEST:g} fits fp16; "
                    "use --precision fp32"
                )
    with torch.no_grad():
        tower.half()
    return list(STAYS_FP32)
