"""The dtype rules every op shares: arithmetic in fp32 (fp64 if an input is), one rounding at the end."""

import math

import torch


def compute_dtype(*tensors: torch.Tensor | None) -> torch.dtype:
    """fp64 if any of the tensors is, else fp32."""
    wide = any(x is not None and x.dtype == torch.float64 for x in tensors)
    return torch.float64 if wide else torch.float32


def promoted(*tensors: torch.Tensor) -> torch.dtype:
    """torch's promotion of the tensors' dtypes, their shapes left aside."""
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    return dtype


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x in its final dtype and dense, as the native ops return it."""
    return x.to(dtype).contiguous()


def per_sample(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(B,) reshaped to broadcast against (B, ...)."""
    return values.reshape(-1, *([1] * (like.dim() - 1)))


def samples(x: torch.Tensor) -> torch.Tensor:
    """(B, ...) as (B, n), for any B and n, zero included."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))
