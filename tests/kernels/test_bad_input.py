"""A table of wrong calls: each raises, names its argument, and leaves every tensor as it was."""

import re

import pytest
import torch
from support.cases import compiled, triton

import fmkernels as fk
from fmkernels import backend as backends

NAN, INF = float("nan"), float("inf")


def r(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, dtype=torch.float32).to(dtype).to(device)


def ints(*shape):
    return torch.ones(shape, dtype=torch.int64)


def meta(*shape):
    return torch.empty(shape, device="meta")


p = lambda n=8: [r(n) for _ in range(4)]  # noqa: E731
half = {"dtype": torch.bfloat16}
x, v = lambda: r(2, 6), lambda: r(2, 6)

# (the argument the message must name, the call with one thing wrong, the tensors it is given)
WRONG = {
    # tdp
    "tdp: param1 of another shape": ("param1", lambda a, t: fk.tdp(a[0], r(7), a[2], a[3], t), lambda: [p(), r(3)]),
    "tdp: bias that would broadcast": ("bias", lambda a, t: fk.tdp(*a[:3], r(1), t), lambda: [p(), r(3)]),
    "tdp: weight of integers": ("weight", lambda a, t: fk.tdp(*a[:2], ints(8), a[3], t), lambda: [p(), r(3)]),
    "tdp: param0 not a tensor": ("param0", lambda a, t: fk.tdp([1.0], *a[1:], t), lambda: [p(), r(3)]),
    "tdp: times of two dimensions": ("times", lambda a, t: fk.tdp(*a, t), lambda: [p(), r(3, 1)]),
    "tdp: times a number": ("times", lambda a: fk.tdp(*a, 0.5), lambda: [p()]),
    "tdp: times of integers": ("times", lambda a: fk.tdp(*a, ints(3)), lambda: [p()]),
    "tdp: times elsewhere": ("times", lambda a: fk.tdp(*a, meta(3)), lambda: [p()]),
    "tdp: bias elsewhere": ("bias", lambda a, t: fk.tdp(*a[:3], meta(8), t), lambda: [p(), r(3)]),
    "tdp: weight_offset a string": (
        "weight_offset",
        lambda a, t: fk.tdp(*a, t, weight_offset="1"),
        lambda: [p(), r(3)],
    ),
    "tdp: weight_offset a tensor": (
        "weight_offset",
        lambda a, t: fk.tdp(*a, t, weight_offset=r(1)),
        lambda: [p(), r(3)],
    ),
    "tdp: float8 bias": ("bias", lambda a, t: fk.tdp(*a[:3], a[3].to(torch.float8_e4m3fn), t), lambda: [p(), r(3)]),
    "tdp: sparse bias": ("bias", lambda a, t: fk.tdp(*a[:3], a[3].to_sparse(), t), lambda: [p(), r(3)]),
    "tdp: complex param1": ("param1", lambda a, t: fk.tdp(a[0], r(8) * 1j, *a[2:], t), lambda: [p(), r(3)]),
    "tdp: out of another shape": ("out", lambda a, t, o: fk.tdp(*a, t, out=o), lambda: [p(), r(3), r(2, 8)]),
    "tdp: out of another dtype": ("out", lambda a, t, o: fk.tdp(*a, t, out=o), lambda: [p(), r(3), r(3, 8, **half)]),
    "tdp: out expanded": ("out", lambda a, t, o: fk.tdp(*a, t, out=o.expand(3, 8)), lambda: [p(), r(3), r(1, 8)]),
    "tdp: out is an input": ("out", lambda a: fk.tdp(*a, r(1), out=a[0][None]), lambda: [p()]),
    "tdp: out overlaps an input": (
        "out",
        lambda m: fk.tdp(m[:8], r(8), r(8), r(8), r(1), out=m[4:12][None]),
        lambda: [r(16)],
    ),
    "tdp: out with gradients": (
        "out",
        lambda a, o: fk.tdp(*a[:3], a[3].clone().requires_grad_(), r(3), out=o),
        lambda: [p(), r(3, 8)],
    ),
    "tdp: out elsewhere": ("out", lambda a: fk.tdp(*a, r(3), out=meta(3, 8)), lambda: [p()]),
    "exported_tdp: weight of another shape": (
        "weight",
        lambda a, t: fk.exported_tdp(*a[:2], r(3), a[3], t, custom=False),
        lambda: [p(), r(3)],
    ),
    "tdp_group: empty": ("params", lambda t: fk.tdp_group([], t), lambda: [r(3)]),
    "tdp_group: three of four": ("params", lambda a, t: fk.tdp_group([a[:3]], t), lambda: [p(), r(3)]),
    "tdp_group: a number": ("params", lambda t: fk.tdp_group(5, t), lambda: [r(3)]),
    "tdp_group: weight_offset a string": (
        "weight_offset",
        lambda a: fk.TdpGroup([a], weight_offset="a"),
        lambda: [p()],
    ),
    "tdp_group: of numbers": ("param0", lambda t: fk.tdp_group([(1.0, 2.0, 3.0, 4.0)], t), lambda: [r(3)]),
    "tdp_group: one misshapen": (
        "bias",
        lambda a, b, t: fk.tdp_group([a, [*b[:3], r(9)]], t),
        lambda: [p(), p(), r(3)],
    ),
    "tdp_group: times of two dimensions": ("times", lambda a, t: fk.tdp_group([a], t), lambda: [p(), r(3, 3)]),
    "tdp_group: out a plain list": ("out", lambda a, t, o: fk.tdp_group([a], t, out=[o]), lambda: [p(), r(3), r(3, 8)]),
    "tdp_group: out for another T": (
        "out",
        lambda a, t: fk.tdp_group(g := fk.TdpGroup([a]), t, out=g.buffer(2)),
        lambda: [p(), r(3)],
    ),
    # norm
    "td_rms_norm: scale of another width": ("scale", lambda h, s: fk.td_rms_norm(h, s), lambda: [r(2, 3, 8), r(7)]),
    "td_rms_norm: scale of a wrong batch": ("scale", lambda h, s: fk.td_rms_norm(h, s), lambda: [r(2, 3, 8), r(3, 8)]),
    "td_rms_norm: offset of a wrong batch": (
        "offset",
        lambda h, s, o: fk.td_rms_norm(h, s, o),
        lambda: [r(2, 3, 8), r(2, 8), r(3, 8)],
    ),
    "td_rms_norm: eps a tensor": ("eps", lambda h, s: fk.td_rms_norm(h, s, eps=r(1)), lambda: [r(2, 8), r(8)]),
    "td_rms_norm: residual of another shape": (
        "residual",
        lambda h, s, q: fk.td_rms_norm(h, s, residual=q),
        lambda: [r(2, 3, 8), r(8), r(2, 1, 8)],
    ),
    "td_rms_norm: x without dimensions": ("x", lambda h, s: fk.td_rms_norm(h, s), lambda: [r(), r(1)]),
    "td_rms_norm: x of integers": ("x", lambda s: fk.td_rms_norm(ints(2, 8), s), lambda: [r(8)]),
    "td_rms_norm: eps nan": ("eps", lambda h, s: fk.td_rms_norm(h, s, eps=NAN), lambda: [r(2, 8), r(8)]),
    "td_layer_norm: weight missing": ("weight", lambda h, s: fk.td_layer_norm(h, None, s), lambda: [r(2, 8), r(8)]),
    "td_layer_norm: bias missing": ("bias", lambda h, s: fk.td_layer_norm(h, s, None), lambda: [r(2, 8), r(8)]),
    "td_layer_norm: empty list": ("x", lambda s: fk.td_layer_norm([], s, s), lambda: [r(8)]),
    "td_layer_norm: list that does not fit": (
        "x[1]",
        lambda h, k, s: fk.td_layer_norm([h, k], s, s),
        lambda: [r(2, 3, 4), r(2, 2, 4), r(8)],
    ),
    "td_layer_norm: list of two dtypes": (
        "x[1]",
        lambda h, k, s: fk.td_layer_norm([h, k], s, s),
        lambda: [r(2, 4), r(2, 4, **half), r(8)],
    ),
    "td_layer_norm: residual with a list": (
        "residual",
        lambda h, s, q: fk.td_layer_norm([h, h], s, s, residual=q),
        lambda: [r(2, 4), r(8), r(2, 8)],
    ),
    "td_rms_norm: out of another shape": (
        "out",
        lambda h, s, o: fk.td_rms_norm(h, s, out=o),
        lambda: [r(2, 3, 8), r(8), r(2, 3, 7)],
    ),
    "td_rms_norm: out of another dtype": (
        "out",
        lambda h, s, o: fk.td_rms_norm(h, s, out=o),
        lambda: [r(2, 8), r(8), r(2, 8, **half)],
    ),
    "td_rms_norm: out is x": ("out", lambda h, s: fk.td_rms_norm(h, s, out=h), lambda: [r(2, 8), r(8)]),
    "td_rms_norm: out with one place": (
        "out",
        lambda h, s, q, o: fk.td_rms_norm(h, s, residual=q, out=o),
        lambda: [r(2, 8), r(8), r(2, 8), r(2, 8)],
    ),
    "td_rms_norm: out with a place too many": (
        "out",
        lambda h, s, o: fk.td_rms_norm(h, s, out=(o, o)),
        lambda: [r(2, 8), r(8), r(2, 8)],
    ),
    "td_rms_norm: out with one memory for both": (
        "out[1]",
        lambda h, s, q, o: fk.td_rms_norm(h, s, residual=q, out=(o, o)),
        lambda: [r(2, 8), r(8), r(2, 8), r(2, 8)],
    ),
    "td_rms_norm: out with gradients": (
        "out",
        lambda h, s, o: fk.td_rms_norm(h.requires_grad_(), s, out=o),
        lambda: [r(2, 8), r(8), r(2, 8)],
    ),
    "td_layer_norm: out of one part's width": (
        "out",
        lambda h, s, o: fk.td_layer_norm([h, h.clone()], s, s, out=o),
        lambda: [r(2, 4), r(8), r(2, 4)],
    ),
    "gelu_mul: b of another shape": ("b", lambda a, b: fk.gelu_mul(a, b), lambda: [r(2, 8), r(2, 1)]),
    "gelu_mul: odd halves": ("a", lambda a: fk.gelu_mul(a), lambda: [r(2, 7)]),
    "gelu_mul: b elsewhere": ("b", lambda a: fk.gelu_mul(a, meta(2, 8)), lambda: [r(2, 8)]),
    # norm_modulate
    "norm_modulate: kind of a typo": ("kind", lambda h: fk.norm_modulate(h, kind="Layer"), lambda: [x()]),
    "norm_modulate: scale of another width": ("scale", lambda h, s: fk.norm_modulate(h, s), lambda: [x(), r(2, 5)]),
    "norm_modulate: shift of another batch": (
        "shift",
        lambda h, s, t: fk.norm_modulate(h, s, t),
        lambda: [r(2, 3, 8), r(2, 8), r(3, 8)],
    ),
    "norm_modulate: weight of too many dimensions": (
        "weight",
        lambda h, w: fk.norm_modulate(h, weight=w),
        lambda: [x(), r(1, 1, 6)],
    ),
    "norm_modulate: gate without residual": ("gate", lambda h, g: fk.norm_modulate(h, gate=g), lambda: [x(), r(6)]),
    "norm_modulate: residual of another shape": (
        "residual",
        lambda h, q: fk.norm_modulate(h, residual=q),
        lambda: [x(), r(1, 6)],
    ),
    "norm_modulate: bias elsewhere": ("bias", lambda h: fk.norm_modulate(h, bias=meta(6)), lambda: [x()]),
    "norm_modulate: gate of integers": (
        "gate",
        lambda h, q: fk.norm_modulate(h, residual=q, gate=ints(6)),
        lambda: [x(), x()],
    ),
    "norm_modulate: eps a tensor": ("eps", lambda h, e: fk.norm_modulate(h, eps=e), lambda: [x(), torch.tensor(0.1)]),
    "norm_modulate: eps infinite": ("eps", lambda h: fk.norm_modulate(h, eps=INF), lambda: [x()]),
    # gate
    "gate_mul: act of a typo": ("act", lambda a: fk.gate_mul(a, act="swish"), lambda: [r(2, 8)]),
    "gate_mul: odd halves": ("a", lambda a: fk.gate_mul(a, act="silu"), lambda: [r(2, 7)]),
    "gate_mul: gate_first a tuple": ("gate_first", lambda a: fk.gate_mul(a, gate_first=()), lambda: [r(2, 8)]),
    "gate_mul: b of another shape": ("b", lambda a, b: fk.gate_mul(a, b, "silu"), lambda: [r(2, 8), r(1, 8)]),
    "gated_add: y of another shape": ("y", lambda a, g, b: fk.gated_add(a, g, b), lambda: [x(), r(6), r(1, 6)]),
    "gated_add: gate that would broadcast": ("gate", lambda a, g, b: fk.gated_add(a, g, b), lambda: [x(), r(1), v()]),
    "gated_add: gate a number": ("gate", lambda a, b: fk.gated_add(a, 0.5, b), lambda: [x(), v()]),
    "gated_add: in place with gradients": (
        "inplace",
        lambda a, g, b: fk.gated_add(a, g.requires_grad_(), b, inplace=True),
        lambda: [x(), r(6), v()],
    ),
    "gated_add: in place over y": ("x", lambda a, g: fk.gated_add(a, g, a[:], inplace=True), lambda: [x(), r(6)]),
    "gated_add: in place on an expanded x": (
        "x",
        lambda a, g, b: fk.gated_add(a.expand(2, 6), g, b, inplace=True),
        lambda: [r(1, 6), r(6), v()],
    ),
    # rope
    "qk_norm_rope: q of three dimensions": (
        "q",
        lambda q, c: fk.qk_norm_rope(q, None, None, None, c, c),
        lambda: [r(2, 3, 8), r(3, 8)],
    ),
    "flow_pair: dtype a number, on meta": (
        "dtype",
        lambda: fk.flow_pair(meta(2), meta(2, 3), meta(2, 3), dtype=-3220396989988484663),
        lambda: [],
    ),
    "linear_int8: out_dtype a number, on meta": (
        "out_dtype",
        lambda: fk.linear_int8(meta(2, 3), meta(4, 3).to(torch.int8), meta(4), out_dtype=10**15),
        lambda: [],
    ),
    "qk_norm_rope: norm a number": (
        "norm",
        lambda q, c: fk.qk_norm_rope(q, None, None, None, c, c, norm=1),
        lambda: [r(1, 3, 2, 8), r(3, 8)],
    ),
    "qk_norm_rope: interleaved a string, in place": (
        "interleaved",
        lambda q, c: fk.qk_norm_rope(q, None, None, None, c, c, interleaved="x", inplace=True),
        lambda: [r(1, 3, 2, 8), r(3, 8)],
    ),
    "qk_norm_rope: sequence_dim a float": (
        "sequence_dim",
        lambda q, c: fk.qk_norm_rope(q, None, None, None, c, c, sequence_dim=1.0),
        lambda: [r(1, 3, 2, 8), r(3, 8)],
    ),
    "qk_norm_rope: k of another length": (
        "k",
        lambda q, k, c: fk.qk_norm_rope(q, k, None, None, c, c),
        lambda: [r(1, 3, 2, 8), r(1, 4, 2, 8), r(3, 8)],
    ),
    "qk_norm_rope: q_weight of another width": (
        "q_weight",
        lambda q, w, c: fk.qk_norm_rope(q, None, w, None, c, c),
        lambda: [r(1, 3, 2, 8), r(4), r(3, 8)],
    ),
    "qk_norm_rope: k_weight without k": (
        "k_weight",
        lambda q, w, c: fk.qk_norm_rope(q, None, None, w, c, c),
        lambda: [r(1, 3, 2, 8), r(8), r(3, 8)],
    ),
    "qk_norm_rope: q_weight without a norm": (
        "q_weight",
        lambda q, w, c: fk.qk_norm_rope(q, None, w, None, c, c, norm=False),
        lambda: [r(1, 3, 2, 8), r(8), r(3, 8)],
    ),
    "qk_norm_rope: cos of an odd width": (
        "cos",
        lambda q, c: fk.qk_norm_rope(q, None, None, None, c, c),
        lambda: [r(1, 3, 2, 8), r(3, 7)],
    ),
    "qk_norm_rope: cos wider than a head": (
        "cos",
        lambda q, c: fk.qk_norm_rope(q, None, None, None, c, c),
        lambda: [r(1, 3, 2, 8), r(3, 10)],
    ),
    "qk_norm_rope: cos of another length": (
        "cos",
        lambda q, c: fk.qk_norm_rope(q, None, None, None, c, c),
        lambda: [r(1, 3, 2, 8), r(2, 8)],
    ),
    "qk_norm_rope: cos with gradients": (
        "cos",
        lambda q, c, s: fk.qk_norm_rope(q, None, None, None, c.requires_grad_(), s),
        lambda: [r(1, 3, 2, 8), r(3, 8), r(3, 8)],
    ),
    "qk_norm_rope: sin of another shape": (
        "sin",
        lambda q, c, s: fk.qk_norm_rope(q, None, None, None, c, s),
        lambda: [r(1, 3, 2, 8), r(3, 8), r(3, 4)],
    ),
    "qk_norm_rope: sequence_dim of the width": (
        "sequence_dim",
        lambda q, c: fk.qk_norm_rope(q, None, None, None, c, c, sequence_dim=3),
        lambda: [r(1, 3, 2, 8), r(3, 8)],
    ),
    "qk_norm_rope: in place with gradients": (
        "inplace",
        lambda q, c: fk.qk_norm_rope(q.requires_grad_(), None, None, None, c, c, inplace=True),
        lambda: [r(1, 3, 2, 8), r(3, 8)],
    ),
    "qk_norm_rope: in place on an expanded q": (
        "q",
        lambda q, c: fk.qk_norm_rope(q.expand(1, 3, 2, 8), None, None, None, c, c, inplace=True),
        lambda: [r(1, 3, 1, 8), r(3, 8)],
    ),
    # path
    "psi: x1 that would broadcast": ("x1", lambda t, a, b: fk.psi(t, a, b), lambda: [r(2), r(2, 6), r(1, 6)]),
    "psi: t of another batch": ("t", lambda t, a, b: fk.psi(t, a, b), lambda: [r(3), r(2, 6), r(2, 6)]),
    "psi: t a number": ("t", lambda a, b: fk.psi(0.5, a, b), lambda: [r(2, 6), r(2, 6)]),
    "psi: t a row": ("t", lambda t, a, b: fk.psi(t, a, b), lambda: [r(1, 2), r(2, 6), r(2, 6)]),
    "psi: t without dimensions": ("t", lambda t, a, b: fk.psi(t, a, b), lambda: [r(), r(1, 6), r(1, 6)]),
    "psi: sigma_max vanishing": ("sigma_max", lambda t, a: fk.psi(t, a, a, 1.0, 1e-320), lambda: [r(2), r(2, 6)]),
    "Dt_psi: t a string": ("t", lambda a, b: fk.Dt_psi("x", a, b), lambda: [r(2, 6), r(2, 6)]),
    "psi: sigma_max zero": ("sigma_max", lambda t, a, b: fk.psi(t, a, b, 0.0, 0.0), lambda: [r(2), r(2, 6), r(2, 6)]),
    "Dt_psi: x0 of integers": ("x0", lambda t, b: fk.Dt_psi(t, ints(2, 6), b), lambda: [r(2), r(2, 6)]),
    "flow_pair: dtype of integers": (
        "dtype",
        lambda t, a, b: fk.flow_pair(t, a, b, dtype=torch.int32),
        lambda: [r(2), r(2, 6), r(2, 6)],
    ),
    "flow_pair: sigma_min nan": (
        "sigma_min",
        lambda t, a, b: fk.flow_pair(t, a, b, NAN),
        lambda: [r(2), r(2, 6), r(2, 6)],
    ),
    "velocity_stats: no target": ("x0", lambda a: fk.velocity_stats(a), lambda: [r(2, 6)]),
    "velocity_stats: x1 missing": ("x1", lambda a, b: fk.velocity_stats(a, b), lambda: [r(2, 6), r(2, 6)]),
    "velocity_stats: two targets": (
        "v_target",
        lambda a, b, c: fk.velocity_stats(a, b, b, v_target=c),
        lambda: [r(2, 6), r(2, 6), r(2, 6)],
    ),
    "velocity_stats: t of another batch": (
        "t",
        lambda a, b, t: fk.velocity_stats(a, b, b, t=t),
        lambda: [r(2, 6), r(2, 6), r(5)],
    ),
    "flow_loss: v_target of another shape": (
        "v_target",
        lambda a, b: fk.flow_loss(a, v_target=b),
        lambda: [r(2, 6), r(2, 5)],
    ),
    "flow_loss: t of another batch": (
        "t",
        lambda a, b, t: fk.flow_loss(a, v_target=b, t=t),
        lambda: [r(2, 6), r(2, 6), r(3)],
    ),
    "flow_loss: weight a column": (
        "weight",
        lambda a, b, w: fk.flow_loss(a, v_target=b, weight=w),
        lambda: [r(2, 6), r(2, 6), r(2, 1)],
    ),
    "flow_loss: unknown reduction": (
        "reduction",
        lambda a, b: fk.flow_loss(a, v_target=b, reduction="sum"),
        lambda: [r(2, 6), r(2, 6)],
    ),
    # step
    "euler_step_: bf16 state": ("x", lambda a, b: fk.euler_step_(a, b, 0.1), lambda: [r(2, 6, **half), v()]),
    "euler_step_: v of another shape": ("v", lambda a, b: fk.euler_step_(a, b, 0.1), lambda: [x(), r(2, 5)]),
    "euler_step_: v missing": ("v", lambda a: fk.euler_step_(a, None, 0.1), lambda: [x()]),
    "euler_step_: dt nan": ("dt", lambda a, b: fk.euler_step_(a, b, NAN), lambda: [x(), v()]),
    "euler_step_: dt infinite": ("dt", lambda a, b: fk.euler_step_(a, b, -INF), lambda: [x(), v()]),
    "euler_step_: dt tensor nan": (
        "dt",
        lambda a, b, d: fk.euler_step_(a, b, d),
        lambda: [x(), v(), torch.tensor(NAN)],
    ),
    "euler_step_: dt of two elements": ("dt", lambda a, b, d: fk.euler_step_(a, b, d), lambda: [x(), v(), r(2)]),
    "euler_step_: dt a string": ("dt", lambda a, b: fk.euler_step_(a, b, "0.1"), lambda: [x(), v()]),
    "euler_step_: guidance nan": (
        "guidance",
        lambda a, b, u: fk.euler_step_(a, b, 0.1, v_uncond=u, guidance=NAN),
        lambda: [x(), v(), v()],
    ),
    "euler_step_: gain infinite": ("gain", lambda a, b: fk.euler_step_(a, b, 0.1, gain=INF), lambda: [x(), v()]),
    "euler_step_: gain a bool": ("gain", lambda a, b: fk.euler_step_(a, b, 0.1, gain=True), lambda: [x(), v()]),
    "euler_step_: low with gradients": (
        "x",
        lambda a, b: fk.euler_step_(a, b, 0.1, low=torch.zeros(2, 6, requires_grad=True)),
        lambda: [x(), v()],
    ),
    "euler_step_: dt with gradients": (
        "x",
        lambda a, b: fk.euler_step_(a, b, torch.tensor(0.1, requires_grad=True)),
        lambda: [x(), v()],
    ),
    "euler_step_: overlapping rows": (
        "x",
        lambda m, b: fk.euler_step_(m.as_strided((3, 3), (1, 1)), b, 0.1),
        lambda: [r(9), r(3, 3)],
    ),
    "euler_step_: v_uncond of another shape": (
        "v_uncond",
        lambda a, b, u: fk.euler_step_(a, b, 0.1, v_uncond=u),
        lambda: [x(), v(), r(1, 6)],
    ),
    "euler_step_: stats of another shape": (
        "stats",
        lambda a, b, s: fk.euler_step_(a, b, 0.1, stats=s),
        lambda: [x(), v(), r(2, 4)],
    ),
    "euler_step_: stats in fp64": (
        "stats",
        lambda a, b, s: fk.euler_step_(a, b, 0.1, stats=s),
        lambda: [x(), v(), r(2, 5, dtype=torch.float64)],
    ),
    "euler_step_: stats expanded": (
        "stats",
        lambda a, b, s: fk.euler_step_(a, b, 0.1, stats=s.expand(2, 5)),
        lambda: [x(), v(), r(1, 5)],
    ),
    "euler_step_: low elsewhere": ("low", lambda a, b: fk.euler_step_(a, b, 0.1, low=meta(2, 6)), lambda: [x(), v()]),
    "euler_step_: low is the state": ("low", lambda a, b: fk.euler_step_(a, b, 0.1, low=a), lambda: [x(), v()]),
    "euler_step_: state is the velocity": ("x", lambda a: fk.euler_step_(a, a, 0.1), lambda: [x()]),
    "euler_step_: expanded state": ("x", lambda a, b: fk.euler_step_(a.expand(2, 6), b, 0.1), lambda: [r(1, 6), v()]),
    "euler_step_: velocity with gradients": (
        "x",
        lambda a, b: fk.euler_step_(a, b.clone().requires_grad_(), 0.1),
        lambda: [x(), v()],
    ),
    "multistep_step_: v_prev missing": (
        "v_prev",
        lambda a, b: fk.multistep_step_(a, b, None, 0.1, 1.5, -0.5),
        lambda: [x(), v()],
    ),
    "multistep_step_: v_prev of another shape": (
        "v_prev",
        lambda a, b, c: fk.multistep_step_(a, b, c, 0.1, 1.5, -0.5),
        lambda: [x(), v(), r(2, 7)],
    ),
    "multistep_step_: a nan": (
        "a",
        lambda s, b, c: fk.multistep_step_(s, b, c, 0.1, NAN, -0.5),
        lambda: [x(), v(), v()],
    ),
    # head
    "reparameterize: logvar of another shape": (
        "logvar",
        lambda m, s: fk.reparameterize(m, s),
        lambda: [r(2, 6), r(2, 5)],
    ),
    "reparameterize: eps of another shape": (
        "eps",
        lambda m, s, e: fk.reparameterize(m, s, eps=e),
        lambda: [r(2, 6), r(2, 6), r(6)],
    ),
    "reparameterize: clamp upside down": (
        "clamp",
        lambda m, s: fk.reparameterize(m, s, clamp=(6.0, -6.0)),
        lambda: [r(2, 6), r(2, 6)],
    ),
    "reparameterize: clamp a number": (
        "clamp",
        lambda m, s: fk.reparameterize(m, s, clamp=6.0),
        lambda: [r(2, 6), r(2, 6)],
    ),
    "reparameterize: clamp half empty": (
        "clamp",
        lambda m, s: fk.reparameterize(m, s, clamp=(None, 6.0)),
        lambda: [r(2, 6), r(2, 6)],
    ),
    "reparameterize: mu of integers": ("mu", lambda s: fk.reparameterize(ints(2, 6), s), lambda: [r(2, 6)]),
}
# A number too large for a float, in every argument that takes one.
norm = {"td_rms_norm": (r(8),), "td_layer_norm": (r(8), r(8))}
HUGE = {
    "tdp weight_offset": lambda n: fk.tdp(*p(), r(3), weight_offset=n),
    "tdp_group weight_offset": lambda n: fk.TdpGroup([p()], weight_offset=n),
    **{f"{op} eps": lambda n, op=op: getattr(fk, op)(r(2, 8), *norm[op], eps=n) for op in norm},
    **{
        f"{op} {name}": lambda n, op=op, name=name: getattr(fk, op)(r(2), x(), x(), **{name: n})
        for op in ("psi", "Dt_psi")
        for name in ("sigma_min", "sigma_max")
    },
    "euler_step_ dt": lambda n: fk.euler_step_(x(), v(), n),
    "euler_step_ gain": lambda n: fk.euler_step_(x(), v(), 0.1, gain=n),
    "euler_step_ guidance": lambda n: fk.euler_step_(x(), v(), 0.1, v_uncond=v(), guidance=n),
    "multistep_step_ a": lambda n: fk.multistep_step_(x(), v(), v(), 0.1, n, 0.5),
    "multistep_step_ b": lambda n: fk.multistep_step_(x(), v(), v(), 0.1, 0.5, n),
    "reparameterize clamp": lambda n: fk.reparameterize(x(), x(), clamp=(min(n, -6.0), max(n, 6.0))),
}
WRONG |= {
    f"{op}: {name} too large for a float, {sign}": (name, lambda call=call, n=n: call(n), list)
    for (op, name), call in ((what.split(), call) for what, call in HUGE.items())
    for sign, n in (("positive", 10**400), ("negative", -(10**5000)))
}
# Ops that torch has too: its own function, which serves where no kernel fits, would accept some of these.
grid, kernel = lambda: r(1, 4, 4, 3), lambda: r(3, 1, 3, 3)
WRONG_OF_TORCH = {
    "linear: weight missing": ("weight", lambda a: fk.linear(a, None), lambda: [x()]),
    "linear: x missing": ("x", lambda w: fk.linear(None, w), lambda: [v()]),
    "linear: x a number": ("x", lambda w: fk.linear(5, w), lambda: [v()]),
    "linear: x without parts": ("x", lambda w: fk.linear([], w), lambda: [v()]),
    "linear: a part missing": ("x[1]", lambda a, w: fk.linear([a, None], w), lambda: [x(), v()]),
    "linear: x without dimensions": ("x", lambda a, w: fk.linear(a, w), lambda: [r(), r(2, 1)]),
    "linear: x of booleans": ("x", lambda a, w: fk.linear(a > 0, w > 0), lambda: [x(), v()]),
    "linear: parts of two batches": ("x", lambda a, b, w: fk.linear([a, b], w), lambda: [x(), r(3, 6), r(2, 12)]),
    "linear: weight of one dimension": ("weight", lambda a, w: fk.linear(a, w), lambda: [x(), r(6)]),
    "linear: weight of another width": ("weight", lambda a, w: fk.linear(a, w), lambda: [x(), r(2, 5)]),
    "linear: weight of another dtype": ("weight", lambda a, w: fk.linear(a, w), lambda: [x(), v().double()]),
    "linear: weight elsewhere": ("weight", lambda a: fk.linear(a, meta(2, 6)), lambda: [x()]),
    "linear: bias a number": ("bias", lambda a, w: fk.linear(a, w, 5), lambda: [x(), v()]),
    "linear: bias that would broadcast": ("bias", lambda a, w, b: fk.linear(a, w, b), lambda: [x(), v(), r(1)]),
    "linear: bias of two dimensions": ("bias", lambda a, w, b: fk.linear(a, w, b), lambda: [x(), v(), r(2, 2)]),
    "depthwise: x missing": ("x", lambda w: fk.depthwise(None, w), lambda: [kernel()]),
    "depthwise: x of three dimensions": ("x", lambda a, w: fk.depthwise(a, w), lambda: [r(4, 4, 3), kernel()]),
    "depthwise: x of integers": ("x", lambda w: fk.depthwise(ints(1, 4, 4, 3), w), lambda: [kernel()]),
    "depthwise: x sparse": ("x", lambda a, w: fk.depthwise(a.to_sparse(), w), lambda: [grid(), kernel()]),
    "depthwise: weight missing": ("weight", lambda a: fk.depthwise(a, None), lambda: [grid()]),
    "depthwise: weight of an even size": ("weight", lambda a, w: fk.depthwise(a, w), lambda: [grid(), r(3, 1, 2, 2)]),
    "depthwise: weight not square": ("weight", lambda a, w: fk.depthwise(a, w), lambda: [grid(), r(3, 1, 3, 5)]),
    "depthwise: weight without dimensions": ("weight", lambda a, w: fk.depthwise(a, w), lambda: [grid(), r()]),
    "depthwise: weight of other channels": ("weight", lambda a, w: fk.depthwise(a, w), lambda: [grid(), r(2, 1, 3, 3)]),
    "depthwise: weight elsewhere": ("weight", lambda a: fk.depthwise(a, meta(3, 1, 3, 3)), lambda: [grid()]),
    "depthwise: bias a number": ("bias", lambda a, w: fk.depthwise(a, w, 5), lambda: [grid(), kernel()]),
    "depthwise: bias elsewhere": ("bias", lambda a, w: fk.depthwise(a, w, meta(3)), lambda: [grid(), kernel()]),
    "depthwise: bias of another width": (
        "bias",
        lambda a, w, b: fk.depthwise(a, w, b),
        lambda: [grid(), kernel(), r(1)],
    ),
}
# On a GPU, the value of dt is not read: NaN shows in the statistics.
NOT_ON_GPUS = {"euler_step_: dt tensor nan": pytest.mark.kernels("cpu", "triton")}
CALLED = [*(pytest.param(name, marks=compiled) for name in ("auto", "eager")), pytest.param("triton", marks=triton)]
ROWS = [pytest.param(what, marks=NOT_ON_GPUS.get(what, ())) for what in WRONG]


def tensors_in(things):
    for thing in things:
        yield from tensors_in(thing) if isinstance(thing, (list, tuple)) else [thing]


@pytest.mark.parametrize("backend", CALLED)
@pytest.mark.parametrize("what", ROWS)
def test_wrong_call(what, backend):
    argument, call, make = WRONG[what]
    arguments = make()
    before = [t.clone() for t in tensors_in(arguments)]
    with fk.use_backend(backend), pytest.raises((ValueError, TypeError)) as error:
        call(*arguments)
    message = str(error.value)
    assert re.search(rf"(?<!\w){re.escape(argument)}(?!\w)", message), message
    assert what.split(":")[0].removeprefix("exported_") in message, message
    for tensor, original in zip(tensors_in(arguments), before, strict=True):
        assert torch.equal(tensor.nan_to_num(), original.nan_to_num()), "an argument was changed"


@compiled
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("what", WRONG_OF_TORCH)
def test_wrong_call_of_an_op_that_torch_has_too(what, backend, grad):
    argument, call, make = WRONG_OF_TORCH[what]
    with fk.use_backend(backend), torch.set_grad_enabled(grad), pytest.raises((ValueError, TypeError)) as error:
        call(*make())
    assert re.match(rf"{what.split(':')[0]}: .*(?<!\w){re.escape(argument)}", str(error.value))


@compiled
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("shapes", [[(2, 4), (8,)], [(8,), (4, 2)], [(9,), (7,)], [(8,), (7,)]], ids=str)
@pytest.mark.parametrize("members", [range(4), range(1), range(3, 4)], ids=["all", "param0", "bias"])
def test_a_group_whose_parameters_were_reshaped_is_refused(shapes, members, used, backend, grad):
    """Also with the old number of elements in all: its outputs would be columns of other parameters."""
    group = fk.TdpGroup([[q.requires_grad_(grad) for q in p()] for _ in range(2)])
    with fk.use_backend(backend):
        if used:
            fk.tdp_group(group, r(3))
        for four, shape in zip(group.params, shapes, strict=True):
            for j in members:
                four[j].data = r(*shape)
        with pytest.raises(ValueError, match=r"tdp_group.*params\[[01]\]"):
            fk.tdp_group(group, r(3))


EMPTY = {
    "linear: first part without width": lambda a, w, b: fk.linear([a[:, :0], a], w, b),
    "linear: last part without width": lambda a, w, b: fk.linear([a, a[:, :0]], w, b),
    "linear: no part has a width": lambda a, w, b: fk.linear([a[:, :0], a[:, :0]], w[:, :0], b),
    "linear: no rows and a part without width": lambda a, w, b: fk.linear([a[:0, :0], a[:0]], w, b),
    "td_rms_norm: empty batch and scale": lambda a, w, b: fk.td_rms_norm(a[:0], w[:0]),
    "td_rms_norm: empty batch, scale and offset": lambda a, w, b: fk.td_rms_norm(a[:0], w[:0], w[:0]),
    "td_layer_norm: empty batch, weight and bias": lambda a, w, b: fk.td_layer_norm(a[:0], w[:0], w[:0]),
    "depthwise: no rows": lambda a, w, b: fk.depthwise(r(1, 0, 4, 3), kernel() * w.sum()),
    "depthwise: no channels": lambda a, w, b: fk.depthwise(r(1, 4, 4, 0), r(0, 1, 3, 3) * w.sum()),
}


@compiled
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("what", EMPTY)
def test_what_is_empty_gives_the_same_on_every_backend(what, grad):
    torch.manual_seed(0)
    leaves = [r(2, 6), r(4, 6), r(4)]
    found = {}
    for backend in ("auto", "eager"):
        mine = [q.clone().requires_grad_(grad) for q in leaves]
        with fk.use_backend(backend):
            y = EMPTY[what](*mine)
            if grad:
                y.sum().backward()
        found[backend] = [y.detach(), *(q.grad for q in mine)]
    for a, b in zip(*found.values(), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


@compiled
@pytest.mark.parametrize("what", ROWS)
def test_the_kernels_refuse_by_themselves(what, monkeypatch):
    """With the ops' Python checks taken away no wrong call gets through to memory: the kernels refuse it."""
    _, call, make = WRONG[what]
    for op in backends.OPS.values():
        monkeypatch.setattr(op, "check", lambda *_: None)
    arguments = make()
    before = [t.clone() for t in tensors_in(arguments)]
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        call(*arguments)
    for tensor, original in zip(tensors_in(arguments), before, strict=True):
        assert torch.equal(tensor.nan_to_num(), original.nan_to_num())


def test_the_table_is_long_enough():
    assert len(WRONG) >= 40
