"""Every public op as one row: how to call it and what shapes it takes, for tests that hold for all of them."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import fmkernels as fk

compiled = pytest.mark.kernels("cpu", "cuda")  # the compiled kernels; the host execution of CUDA also runs as "cpp"
cpu_only = pytest.mark.kernels("cpu")
triton = pytest.mark.kernels("triton")  # its interpreter is slow: fewer and smaller rows
B = 3  # samples
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Against the same op in float64: (absolute, relative), forward and gradients.
TOLERANCE = {
    torch.float64: (1e-12, 1e-10),
    torch.float32: (1e-6, 1e-5),
    torch.float16: (1e-4, 1.5e-3),
    torch.bfloat16: (1e-3, 1.2e-2),
}
# Tables for parametrize.
BACKENDS = [*(pytest.param(name, marks=compiled) for name in ("cpp", "eager")), pytest.param("triton", marks=triton)]
DTYPE_ROWS = [pytest.param(torch.float64, marks=compiled), *DTYPES[1:]]  # Triton leaves float64 to eager
# Zero, odd, prime, a tile, a tile and one, two tiles and some.
SIZES = [0, 1, 7, 31, 1025, 2053, *(pytest.param(n, marks=compiled) for n in (2, 127, 1024))]
LARGE = [pytest.param(100003, marks=compiled), pytest.param(9001, marks=triton)]  # wider than a norm keeps in registers


def assert_close(got, expected, atol=1e-6, rtol=1e-5):
    """Equal to the tolerance of an op in fp32."""
    torch.testing.assert_close(got, expected, atol=atol, rtol=rtol)


@dataclass(frozen=True)
class Case:
    """fn takes tensors of ``shapes(n)`` and returns tensors; ``grads`` are the indices that get gradients."""

    name: str
    fn: Callable
    shapes: Callable[[int], list[tuple[int, ...]]]
    grads: tuple[int, ...] = ()
    smooth: int = 1  # how many of the outputs are differentiable

    def inputs(self, n: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [
            torch.randn(s, generator=generator, dtype=torch.float64, device="cpu").to(dtype) for s in self.shapes(n)
        ]

    def outputs(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        out = self.fn(*inputs)
        return list(out) if isinstance(out, (tuple, list)) else [out]

    def gradients(self, inputs: list[torch.Tensor], seed: int = 1) -> list[torch.Tensor]:
        """d sum(out * g) / d input for every input of ``grads``, g random but the same in every dtype."""
        leaves = [x.detach().clone().requires_grad_(i in self.grads) for i, x in enumerate(inputs)]
        outputs = self.outputs(leaves)[: self.smooth]
        generator = torch.Generator().manual_seed(seed)
        weights = [
            torch.randn(o.shape, generator=generator, dtype=torch.float64, device="cpu").bfloat16().to(o)
            for o in outputs
        ]
        return list(torch.autograd.grad(outputs, [leaves[i] for i in self.grads], weights))


def _rows(n):
    return (B, 2, n)


def _step(x, v, u, low, prev=None):
    """A step on a master copy of x: the new x, its low-precision copy and the statistics."""
    state = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32, copy=True)
    low, stats = torch.empty_like(low), torch.empty(x.shape[0], 5)
    if prev is None:
        fk.euler_step_(state, v, 0.125, v_uncond=u, guidance=3.0, gain=1.5, low=low, stats=stats)
    else:
        fk.multistep_step_(state, v, prev, 0.125, 1.5, -0.5, v_uncond=u, guidance=3.0, low=low, stats=stats)
    return state, low, stats


def _velocity(v, x0, x1):
    stats = fk.velocity_stats(v, x0, x1, t=torch.linspace(0, 1, v.shape[0]))
    return stats.sums, *stats.by_t(3).values(), stats.gain if v.shape[0] else stats.sums.sum()


def _loss(v, x0, x1):
    weight = torch.linspace(0.5, 2, v.shape[0])
    loss, stats = fk.flow_loss(v, x0, x1, weight=weight, reduction="none", return_stats=True)
    return loss, stats.sums


def _group(*tensors):
    *params, times = tensors
    return fk.tdp_group(fk.TdpGroup([params[:4], params[4:]]), times)


def _head(mu, logvar, eps):
    z, kl, stats = fk.reparameterize(mu, logvar, eps=eps, clamp=(-1.0, 1.0))
    return z, kl, stats.values


def _gated_add_in_place(x, gate, y):
    return fk.gated_add(x.clone(), gate, y, inplace=True)


def _rope(q, k, *others, **settings):
    """Columns of tables of full width: an even number."""
    *weights, cos, sin = others
    width = cos.shape[-1] // 2 * 2
    return fk.qk_norm_rope(q, k, *(weights or (None, None)), cos[..., :width], sin[..., :width], **settings)


def _rope_in_place(q, k, *others):
    return _rope(q.clone(), k.clone(), *others, inplace=True)


_T = torch.tensor([0.0, 0.3, 1.0])

CASES = [
    Case("tdp", lambda *a: fk.tdp(*a, weight_offset=1.0), lambda n: [(n,)] * 4 + [(5,)], (0, 1, 2, 3, 4)),
    Case("tdp_2d", fk.tdp, lambda n: [(2, n)] * 4 + [(1,)], (0, 1, 2, 3, 4)),
    Case("tdp_group", _group, lambda n: [(n,)] * 4 + [(2, 3)] * 4 + [(4,)], tuple(range(9)), 2),
    Case("td_rms_norm", fk.td_rms_norm, lambda n: [_rows(n), (n,)], (0, 1)),
    Case("td_rms_norm_rows", fk.td_rms_norm, lambda n: [_rows(n), (B, n), (B, n)], (0, 1, 2)),
    Case(
        "td_rms_norm_residual",
        lambda x, s, r: fk.td_rms_norm(x, s, residual=r),
        lambda n: [_rows(n), (1, n), _rows(n)],
        (0, 1, 2),
        2,
    ),
    Case("td_layer_norm", fk.td_layer_norm, lambda n: [_rows(n), (B, n), (B, n)], (0, 1, 2)),
    Case(
        "td_layer_norm_residual",
        lambda x, w, b, r: fk.td_layer_norm(x, w, b, residual=r),
        lambda n: [_rows(n), (n,), (n,), _rows(n)],
        (0, 1, 2, 3),
        2,
    ),
    Case(
        "td_layer_norm_list",
        lambda x, y, w, b: fk.td_layer_norm([x, y, x], w, b),
        lambda n: [_rows(n), _rows(5), (B, 2 * n + 5), (B, 2 * n + 5)],
        (0, 1, 2, 3),
    ),
    Case("gelu_mul", fk.gelu_mul, lambda n: [_rows(n)] * 2, (0, 1)),
    Case("gelu_mul_halves", fk.gelu_mul, lambda n: [(B, 2 * n)], (0,)),
    Case(
        "norm_modulate", lambda *a: fk.norm_modulate(*a, eps=1e-4), lambda n: [_rows(n), (B, n), (B, 1, n)], (0, 1, 2)
    ),
    Case(
        "norm_modulate_rms_tokens",
        lambda *a: fk.norm_modulate(*a, kind="rms", eps=0.1),
        lambda n: [_rows(n), _rows(n), (B, n), (n,), (n,)],
        (0, 1, 2, 3, 4),
    ),
    Case("norm_modulate_plain", lambda x: fk.norm_modulate(x, eps=1e-4), lambda n: [_rows(n)], (0,)),
    Case(
        "norm_modulate_residual",
        lambda x, s, t, r, g: fk.norm_modulate(x, s, t, residual=r, gate=g, eps=1e-4),
        lambda n: [_rows(n), (B, n), (n,), _rows(n), (B, 1, n)],
        (0, 1, 2, 3, 4),
        2,
    ),
    Case(
        "norm_modulate_residual_rms",
        lambda x, w, r, g: fk.norm_modulate(x, weight=w, residual=r, gate=g, kind="rms", eps_outside=True),
        lambda n: [_rows(n), (n,), _rows(n), (n,)],
        (0, 1, 2, 3),
        2,
    ),
    Case("gate_mul_silu", lambda a: fk.gate_mul(a, act="silu", gate_first=False), lambda n: [(B, 2 * n)], (0,)),
    Case(
        "gate_mul_tanh",
        lambda a, b: fk.gate_mul(a, b, "gelu_tanh", gate_first=False),
        lambda n: [_rows(n)] * 2,
        (0, 1),
    ),
    Case("gated_add", fk.gated_add, lambda n: [_rows(n), (B, n), _rows(n)], (0, 1, 2)),
    Case("gated_add_shared", fk.gated_add, lambda n: [_rows(n), (n,), _rows(n)], (0, 1, 2)),
    Case("gated_add_in_place", _gated_add_in_place, lambda n: [_rows(n), _rows(n), _rows(n)]),
    Case(
        "qk_norm_rope",
        _rope,
        lambda n: [(B, 2, 2, n), (B, 2, 1, n), (n,), (n,), (2, n), (2, n)],
        (0, 1, 2, 3),
        2,
    ),
    Case(
        "qk_norm_rope_heads_first",
        lambda *a: _rope(*a, interleaved=False, sequence_dim=2),
        lambda n: [(B, 1, 2, n), (B, 2, 2, n), (n,), (2 * n,), (B, 2, n // 2), (B, 2, n // 2)],
        (0, 1, 2, 3),
        2,
    ),
    Case(
        "qk_norm_rope_all_heads",
        lambda q, w, cos, sin: _rope(q, None, w, None, cos, sin, eps=0.1),
        lambda n: [(B, 2, 2, n), (2 * n,), (B, 2, n), (B, 2, n)],
        (0, 1),
    ),
    Case(
        "qk_norm_rope_in_place",
        _rope_in_place,
        lambda n: [(B, 2, 2, n), (B, 2, 1, n), (n,), (n,), (2, n), (2, n)],
    ),
    Case(
        "qk_norm_rope_rotate",
        lambda *a: _rope(*a, norm=False),
        lambda n: [(B, 2, 2, n), (B, 2, 1, n), (2, n), (2, n)],
        (0, 1),
        2,
    ),
    Case("psi", lambda x0, x1: fk.psi(_T, x0, x1, 0.1, 0.9), lambda n: [_rows(n)] * 2, (0, 1)),
    Case("Dt_psi", lambda x0, x1: fk.Dt_psi(_T, x0, x1, 0.1, 0.9), lambda n: [_rows(n)] * 2, (0, 1)),
    Case("flow_pair", lambda x0, x1: fk.flow_pair(_T, x0, x1, 0.1), lambda n: [_rows(n)] * 2, (0, 1)),
    Case("velocity_stats", _velocity, lambda n: [_rows(n)] * 3),
    Case("flow_loss", _loss, lambda n: [_rows(n)] * 3, (0,)),
    Case("flow_loss_target", lambda v, t: fk.flow_loss(v, v_target=t), lambda n: [_rows(n)] * 2, (0,)),
    Case("euler_step_", _step, lambda n: [_rows(n)] * 4),
    Case("multistep_step_", _step, lambda n: [_rows(n)] * 5),
    Case("reparameterize", _head, lambda n: [_rows(n)] * 3, (0, 1), 2),
]
WITH_GRADIENTS = [case for case in CASES if case.grads]
