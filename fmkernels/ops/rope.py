"""The norm of queries and keys and their rotary embedding, in one pass."""

import torch
from torch import Tensor

from fmkernels import checks, eager
from fmkernels.autograd import rope as gradients
from fmkernels.backend import Op


def _check_rope(q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim):
    op = "qk_norm_rope"
    if sequence_dim not in (1, 2):
        raise ValueError(f"{op}: sequence_dim must be 1 for (B, S, H, D) or 2 for (B, H, S, D), got {sequence_dim}")
    checks.number(op, "eps", eps)
    heads = 3 - sequence_dim
    for name, x, weight in (("q", q, q_weight), ("k", k, k_weight)):
        if x is None and name == "k":
            if weight is not None:
                raise ValueError(f"{op}: k_weight goes with k")
            continue
        checks.floating(op, name, x)
        checks.same_device(op, name, x, "q", q)
        if x.dim() != 4:
            raise ValueError(f"{op}: {name} must have four dimensions, got shape {tuple(x.shape)}")
        expected = tuple(n if i != heads else x.shape[heads] for i, n in enumerate(q.shape))
        checks.shape(op, name, x, expected, "q's, with any number of heads")
        if weight is None:
            continue
        if not norm:
            raise ValueError(f"{op}: {name}_weight goes with norm=True")
        checks.floating(op, f"{name}_weight", weight)
        checks.same_device(op, f"{name}_weight", weight, "q", q)
        width = x.shape[3]
        if weight.dim() != 1 or weight.shape[0] not in (width, x.shape[heads] * width):
            raise ValueError(
                f"{op}: {name}_weight must have shape ({width},), or ({x.shape[heads] * width},) to normalize all "
                f"heads together, got {tuple(weight.shape)}"
            )
    for name, table in (("cos", cos), ("sin", sin)):
        checks.floating(op, name, table)
        checks.same_device(op, name, table, "q", q)
        sizes = (q.shape[0], q.shape[sequence_dim])
        fits = table.dim() in (2, 3) and tuple(table.shape[:-1]) == sizes[3 - table.dim() :]
        if not fits or table.shape[-1] > q.shape[3] or table.shape[-1] % 2:
            raise ValueError(
                f"{op}: {name} must have shape ({sizes[1]}, R) or {(*sizes, 'R')} with an even R of at most "
                f"{q.shape[3]}, got {tuple(table.shape)}".replace("'R'", "R")
            )
    checks.shape(op, "sin", sin, cos.shape, "cos's")


def _check_rope_(q, k, q_weight, k_weight, cos, sin, *settings):
    _check_rope(q, k, q_weight, k_weight, cos, sin, *settings)
    read = {"q_weight": q_weight, "k_weight": k_weight, "cos": cos, "sin": sin}
    checks.writable("qk_norm_rope", "q", q, **read)
    if k is not None:  # q and k may be columns of one tensor
        checks.writable("qk_norm_rope", "k", k, **read)


_ROPE = Op("qk_norm_rope", eager.qk_norm_rope, _check_rope, gradients.qk_norm_rope)
_ROPE_ = Op("qk_norm_rope_", eager.qk_norm_rope_, _check_rope_)


def qk_norm_rope(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    eps: float = 1e-6,
    norm: bool = True,
    interleaved: bool = True,
    sequence_dim: int = 1,
    inplace: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """RMS-normalize q and k and apply rotary embeddings to both, in one pass with one rounding.

    ``h = x / sqrt(mean(x^2) + eps) * weight``, then on the first R columns of each head
    ``h * cos + turned(h) * sin``, where ``turned`` takes each pair (a, b) to (-b, a). Returns the new (q, k), or the
    new q if k is None, in their own dtypes. Gradients go to q, k and the weights.

    Args:
        q, k: (B, S, H, D) with ``sequence_dim=1`` or (B, H, S, D) with ``sequence_dim=2``; the numbers of heads may
            differ. Their last dimension should be contiguous; the others may have any strides.
        q_weight, k_weight: (D,); (H * D,) to normalize all heads of a token together; or None.
        cos, sin: (S, R) or (B, S, R), with an even R of at most D, without gradients. Both elements of a pair have
            their own entry: for complex ``freqs`` of shape (S, R / 2), ``freqs.real.repeat_interleave(2, -1)`` if
            interleaved, else ``freqs.real.repeat(1, 2)``. Embeddings with several axes join theirs in R.
        eps: added to the mean square inside the root.
        norm: False to rotate only.
        interleaved: pairs are adjacent elements (0, 1), (2, 3), ...; otherwise elements i and i + R / 2.
        inplace: write the results to q and k and return these. Without gradients only.
    """
    op = "qk_norm_rope"
    checks.flag(op, "norm", norm)  # here, because torch takes any number as a bool, and some tensors as an int
    checks.flag(op, "interleaved", interleaved)
    if type(eps) is not float:
        checks.number(op, "eps", eps)
    if not isinstance(sequence_dim, int):
        raise TypeError(f"{op}: sequence_dim must be an int, got {type(sequence_dim).__name__}")
    for name, table in (("cos", cos), ("sin", sin)):
        checks.tensor(op, name, table)
        if table.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{op}: {name} gets no gradient, but requires one; pass {name}.detach()")
    args = q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim
    if inplace:
        checks.no_gradient(op, "inplace", q, k, q_weight, k_weight)
        _ROPE_(*args)
        checks.written(q, k)
        return q if k is None else (q, k)
    new_q, new_k = _ROPE(*args)
    return new_q if k is None else (new_q, new_k)
