"""Random calls of every op, native against eager: ``python tests/fuzz.py 100000 [seed]``.

Each call is made twice with equal arguments, by the compiled kernels and by eager PyTorch, in subprocesses with one and
two threads: any shapes, dtypes, layouts, overlaps, autograd modes and values, and a wrong argument in every third call.
Both must return the same or raise the same type of error, and leave the arguments that they do not write as they were.
Where they differ, float64 decides. Every fifth call passes nonsense to an op of ``torch.ops``, which may only raise.
"""

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

import fmkernels as fk
from fmkernels.schema import KERNELS

CHUNK = 2500  # calls of a subprocess
THREADS = (1, 2)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = (0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 127, 129, 255, 513, 1024, 1031)
EPSILON = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2.5e-3}
LARGEST_EXPONENT = 87  # exp of larger ones may be inf
LARGE = 1e15  # squares of such elements, or their sums, overflow float32
MODES = ("grad", "grad", "none", "none", "inference")


class Draw:
    """The random choices of one call; equal seeds give equal arguments."""

    def __init__(self, seed: str):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(40))
        self.kinds: set[str] = set()

    def one(self, choices):
        return self.random.choice(choices)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def size(self, most: int = 1100) -> int:
        return self.one([n for n in SIZES if n <= most])

    def number(self) -> float:
        return self.one((0.0, 1.0, -1.0, 0.5, 1e-5, 3, 1e-30, 7.5, -2, 1e10))

    def values(self, shape: tuple, dtype: torch.dtype) -> Tensor:
        x = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        kind = self.one(("plain",) * 8 + ("zero", "constant", "tiny", "huge", "special", "wide", "denormal"))
        self.kinds.add(kind)
        if kind == "zero":
            x.zero_()
        elif kind == "constant":
            x.fill_(self.one((1.0, -3.0, 1e4, 1e-4)))
        elif kind == "tiny":
            x *= 1e-20
        elif kind == "huge":
            x *= 10.0 ** self.random.uniform(10, 38)
        elif kind == "denormal":
            x *= 1e-41
        elif kind == "wide":
            x *= 10 ** torch.randn(shape, generator=self.generator, dtype=torch.float64).mul(4)
        elif kind == "special" and x.numel():
            flat, marks = x.view(-1), (math.nan, math.inf, -math.inf, 0.0, -0.0, 3.4e38, 65504.0)
            for _ in range(self.random.randint(1, 4)):
                flat[self.random.randrange(x.numel())] = self.one(marks)
        return x.to(dtype)

    def tensor(self, *shape: int, dtype: torch.dtype | None = None, grad: bool = True, dense: bool = False) -> Tensor:
        """A tensor of any layout."""
        dtype = dtype or self.one(DTYPES)
        x = self.values(shape, dtype)
        layout = self.one(("dense",) * 6 + ("offset", "transposed", "strided", "expanded", "padded"))
        if layout == "offset":
            x = torch.cat([x.new_zeros(self.random.randint(1, 5)), x.reshape(-1)])[-x.numel() or x.numel() + 1 :]
            x = x[: math.prod(shape)].view(shape)
        elif layout == "transposed" and x.dim() > 1:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        elif layout == "strided" and x.dim():
            x = torch.stack([x, x], -1)[..., 0]
        elif layout == "expanded" and x.dim() and not dense and x.shape[0]:
            x = x[:1].expand(shape)
        elif layout == "padded" and x.dim():
            x = torch.cat([x, x[..., :1]], -1)[..., : shape[-1]]
        return x.requires_grad_(grad and self.chance(0.5))

    def batch(self) -> tuple[int, ...]:
        """A shape (B, ..., D)."""
        return (self.one((0, 1, 2, 3)), *(self.one((1, 2, 3)) for _ in range(self.one((0, 1, 1, 2)))), self.size())


# The calls: each draws positional and keyword arguments.


def _four(draw: Draw) -> list[Tensor]:
    shape = tuple(draw.size(130) for _ in range(draw.one((1, 1, 2))))
    return [draw.tensor(*shape) for _ in range(4)]


def tdp(draw: Draw):
    four, steps = _four(draw), draw.one((0, 1, 2, 5))
    more = {"weight_offset": draw.number()} if draw.chance(0.5) else {}
    if draw.chance(0.3):
        dtype = torch.promote_types(four[0].dtype, four[1].dtype)
        more["out"] = draw.tensor(steps, *four[0].shape, dtype=dtype, grad=False)
    return [*four, draw.tensor(steps)], more


def tdp_group(draw: Draw):
    return [[tuple(_four(draw)) for _ in range(draw.one((1, 2, 5)))], draw.tensor(draw.one((0, 1, 2, 5)))], {}


def norm(draw: Draw):
    shape = draw.batch()
    rows = draw.one(((), (1,), (shape[0] if len(shape) > 1 else 1,)))
    args = [draw.tensor(*shape), draw.tensor(*rows, shape[-1])]
    more = {"eps": draw.one((1e-8, 1e-5, 1e-12, 0.0, 1.0))} if draw.chance(0.4) else {}
    if draw.chance(0.4):
        more["residual"] = draw.tensor(*shape)
    elif draw.chance(0.3):
        more["out"] = draw.tensor(*shape, dtype=args[0].dtype, grad=False)
    return args, more


def rms(draw: Draw):
    args, more = norm(draw)
    return args + ([draw.tensor(*args[1].shape)] if draw.chance(0.5) else []), more


def layer(draw: Draw):
    args, more = norm(draw)
    return [*args, draw.tensor(*args[1].shape)], more


def joined(draw: Draw):
    shape, dtype = draw.batch(), draw.one(DTYPES)
    parts = [draw.tensor(*shape[:-1], draw.size(130), dtype=dtype) for _ in range(draw.one((1, 2, 4)))]
    width = sum(part.shape[-1] for part in parts)
    return [parts, draw.tensor(width), draw.tensor(width)], {}


def gelu_mul(draw: Draw):
    shape = draw.batch()
    if draw.chance(0.3):
        return [draw.tensor(*shape[:-1], 2 * shape[-1])], {}
    return [draw.tensor(*shape), draw.tensor(*shape)], {}


def gate_mul(draw: Draw):
    args, _ = gelu_mul(draw)
    return args, {"act": draw.one(("gelu", "gelu_tanh", "silu")), "gate_first": draw.chance(0.5)}


def _rows(draw: Draw, shape: tuple) -> Tensor:
    """Rows of D elements for x of a shape: (D,), (B, D), (B, 1, …, D) or one per token."""
    between = (1,) * (len(shape) - 2)
    kinds = ((shape[-1],), (shape[0], shape[-1]), (shape[0], *between, shape[-1]), shape)
    return draw.tensor(*draw.one(kinds if len(shape) > 1 else kinds[:1]))


def gated_add(draw: Draw):
    shape, inplace = draw.batch(), draw.chance(0.3)
    x, y = (draw.tensor(*shape, grad=not inplace, dense=inplace) for _ in range(2))
    gate = _rows(draw, shape)
    return [x, gate.detach() if inplace else gate, y], {"inplace": inplace}


def modulate(draw: Draw):
    shape = draw.batch()
    more = {name: _rows(draw, shape) for name in ("scale", "shift", "weight", "bias") if draw.chance(0.5)}
    if draw.chance(0.5):
        more["residual"] = draw.tensor(*shape)
        more |= {"gate": _rows(draw, shape)} if draw.chance(0.5) else {}
    more |= {"eps": draw.one((1e-6, 1e-12, 1.0))} if draw.chance(0.3) else {}
    return [draw.tensor(*shape)], more | {"kind": draw.one(("layer", "rms")), "eps_outside": draw.chance(0.3)}


def rope(draw: Draw):
    b, s, h, d = draw.one((0, 1, 2)), draw.one((0, 1, 5)), draw.one((1, 2, 3)), draw.one((2, 6, 16, 64))
    axis, turned = draw.one((1, 2)), draw.one(range(2, d + 1, 2))
    shape = (b, s, h, d) if axis == 1 else (b, h, s, d)
    inplace, dtype = draw.chance(0.3), draw.one(DTYPES)
    q, k = (draw.tensor(*shape, dtype=dtype, grad=not inplace, dense=inplace) for _ in range(2))
    weights = [draw.tensor(draw.one((d, h * d)), grad=not inplace) if draw.chance(0.7) else None for _ in range(2)]
    tables = [draw.tensor(*draw.one(((s, turned), (b, s, turned))), dtype=torch.float32, grad=False) for _ in range(2)]
    more = {"norm": draw.chance(0.7), "interleaved": draw.chance(0.5), "sequence_dim": axis, "inplace": inplace}
    return [q, k if draw.chance(0.8) else None, *weights, *tables], more


INT8_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def quantized(draw: Draw):
    return [draw.tensor(*draw.batch(), dtype=draw.one(INT8_DTYPES), grad=draw.chance(0.1))], {}


def norm_int8(draw: Draw):
    shape, dtype = draw.batch(), draw.one(INT8_DTYPES)
    more = {"residual": draw.tensor(*shape, dtype=dtype, grad=False)} if draw.chance(0.4) else {}
    args = [draw.tensor(*s, dtype=dtype, grad=False) for s in (shape, shape[-1:], shape[-1:])]
    return args, more


def linear_int8(draw: Draw):
    shape, out = draw.batch(), draw.size(130)
    x = draw.tensor(*shape, dtype=draw.one(INT8_DTYPES), grad=False)
    weight, scale = fk.quantize_weight(draw.values((out, shape[-1]), torch.float32))
    more = {"out_dtype": draw.one(INT8_DTYPES)} if draw.chance(0.3) else {}
    if draw.chance(0.5):
        x, more["x_scale"] = fk.quantize_rows(x)
    bias = draw.tensor(out, dtype=draw.one(INT8_DTYPES), grad=False) if draw.chance(0.5) else None
    return [x, weight, scale, bias], more


def _sigmas(draw: Draw) -> dict:
    return {"sigma_min": draw.number(), "sigma_max": draw.one((1.0, 0.5, 2, 1e-3))} if draw.chance(0.4) else {}


def path(draw: Draw):
    shape = draw.batch()
    t = draw.tensor(shape[0]) if draw.chance(0.7) else draw.tensor(shape[0], *(1 for _ in shape[1:]))
    return [t, draw.tensor(*shape), draw.tensor(*shape)], _sigmas(draw)


def pair(draw: Draw):
    args, more = path(draw)
    return args, more | ({"dtype": draw.one(DTYPES)} if draw.chance(0.3) else {})


def stats(draw: Draw):
    shape = draw.batch()
    args = [draw.tensor(*shape)]
    if draw.chance(0.5):
        return args, {"v_target": draw.tensor(*shape)}
    return [*args, draw.tensor(*shape), draw.tensor(*shape)], _sigmas(draw)


def loss(draw: Draw):
    args, more = stats(draw)
    if draw.chance(0.4):
        more["weight"] = draw.tensor(args[0].shape[0])
    return args, more | {"reduction": draw.one(("mean", "none")), "return_stats": draw.chance(0.5)}


def step(draw: Draw):
    shape, plain = draw.batch(), {"grad": False}
    x = draw.tensor(*shape, dtype=draw.one((torch.float32, torch.float32, torch.float64)), **plain)
    more = {"gain": draw.number()} if draw.chance(0.3) else {}
    if draw.chance(0.4):
        more |= {"v_uncond": draw.tensor(*shape, **plain), "guidance": draw.number()}
    if draw.chance(0.4):
        more["low"] = draw.tensor(*shape, **plain)
    if draw.chance(0.4):
        more["stats"] = draw.tensor(shape[0], 5, dtype=torch.float32, **plain)
    v = draw.tensor(*shape, **plain)
    if draw.chance(0.1):  # overlapping
        v = x.view(-1)[: v.numel()].view(shape) if x.is_contiguous() else x
    dt = draw.tensor(1, **plain) if draw.chance(0.2) else draw.number()
    if draw.chance(0.5):
        return [x, v, dt], more
    return [x, v, draw.tensor(*shape, **plain), dt, draw.number(), draw.number()], more


def euler(draw: Draw):
    args, more = step(draw)
    return (args[:2] + [args[3]] if len(args) > 3 else args), more


def multistep(draw: Draw):
    args, more = step(draw)
    return (args if len(args) > 3 else [*args[:2], args[1].clone(), args[2], 1.5, -0.5]), more


def head(draw: Draw):
    shape = draw.batch()
    more = {"eps": draw.tensor(*shape)}
    if draw.chance(0.4):
        more["clamp"] = draw.one(((-1.0, 1.0), (-6, 6), (-math.inf, math.inf), (0.0, 0.0), (-30.0, 20.0)))
    return [draw.tensor(*shape), draw.tensor(*shape)], more


def linear(draw: Draw):
    shape, dtype, out = draw.batch(), draw.one(DTYPES), draw.size(130)
    if draw.chance(0.5):
        x = draw.tensor(*shape, dtype=dtype)
    else:
        x = [draw.tensor(*shape[:-1], draw.size(130), dtype=dtype) for _ in range(draw.one((1, 2, 3)))]
    width = shape[-1] if isinstance(x, Tensor) else sum(part.shape[-1] for part in x)
    more = [draw.tensor(out, dtype=dtype)] if draw.chance(0.5) else []
    return [x, draw.tensor(out, width, dtype=dtype), *more], {}


def depthwise(draw: Draw):
    channels, size = draw.size(33), draw.one((1, 3, 5, 7, 9))
    dtype = draw.one((torch.float32, torch.float32, torch.float64, torch.bfloat16))
    x = draw.tensor(draw.one((0, 1, 2)), draw.one((1, 3, 8)), draw.one((1, 4, 9)), channels, dtype=dtype)
    more = [draw.tensor(channels, dtype=dtype)] if draw.chance(0.5) else []
    return [x, draw.tensor(channels, 1, size, size, dtype=dtype), *more], {}


CALLS: dict[str, tuple[Callable, Callable]] = {
    "tdp": (fk.tdp, tdp),
    "tdp_group": (fk.tdp_group, tdp_group),
    "td_rms_norm": (fk.td_rms_norm, rms),
    "td_layer_norm": (fk.td_layer_norm, layer),
    "td_layer_norm of a list": (fk.td_layer_norm, joined),
    "gelu_mul": (fk.gelu_mul, gelu_mul),
    "psi": (fk.psi, path),
    "Dt_psi": (fk.Dt_psi, path),
    "flow_pair": (fk.flow_pair, pair),
    "velocity_stats": (fk.velocity_stats, stats),
    "flow_loss": (fk.flow_loss, loss),
    "euler_step_": (fk.euler_step_, euler),
    "multistep_step_": (fk.multistep_step_, multistep),
    "reparameterize": (fk.reparameterize, head),
    "linear": (fk.linear, linear),
    "depthwise": (fk.depthwise, depthwise),
    "gate_mul": (fk.gate_mul, gate_mul),
    "gated_add": (fk.gated_add, gated_add),
    "norm_modulate": (fk.norm_modulate, modulate),
    "qk_norm_rope": (fk.qk_norm_rope, rope),
    "quantize_rows": (fk.quantize_rows, quantized),
    "td_rms_norm_int8": (fk.td_rms_norm_int8, norm_int8),
    "td_layer_norm_int8": (fk.td_layer_norm_int8, norm_int8),
    "linear_int8": (fk.linear_int8, linear_int8),
}


def wrong(draw: Draw) -> object:
    """Something that no argument, or only some, may be."""
    return draw.one(
        (
            *(lambda x=x: x for x in (None, "x", 3, -1, 2.5, True, math.nan, math.inf, 10**400, [], (), {}, object())),
            lambda: torch.ones(3, dtype=torch.int64),
            lambda: torch.ones(2, 3, dtype=torch.bool),
            lambda: torch.ones(4, dtype=torch.complex64),
            lambda: torch.ones(4).to(torch.float8_e4m3fn),
            lambda: torch.eye(3).to_sparse(),
            lambda: torch.empty(3, 4, device="meta"),
            lambda: torch.tensor(1.5),
            lambda: torch.empty(0),
            lambda: torch.ones(2, 3, 4, 5, 6),
            lambda: torch.ones(1).expand(2**40),
            lambda: draw.tensor(draw.size(), grad=False),
            lambda: draw.tensor(*draw.batch()),
            lambda: [draw.tensor(3), None],
            lambda: torch.nn.Parameter(torch.ones(5)),
            lambda: torch.ones(3).numpy(),
        )
    )()


@dataclass
class Outcome:
    error: type | None = None
    message: str = ""
    outputs: list[Tensor] = field(default_factory=list)
    arguments: list[Tensor] = field(default_factory=list)


def leaves(value: object) -> Iterator[Tensor]:
    """The tensors in arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    elif isinstance(value, fk.ops.HeadStats):
        yield value.values
    elif isinstance(value, fk.ops.VelocityStats):
        yield value.sums


def drawn(seed: str) -> tuple[str, Callable, list, dict, Draw, str]:
    """The call of a seed: name, function, arguments, mode."""
    draw = Draw(seed)
    name = draw.one(list(CALLS))
    function, arguments = CALLS[name]
    args, more = arguments(draw)
    mode = draw.one(MODES)
    if draw.chance(0.33):
        draw.kinds.add("wrong")
        if more and draw.chance(0.4):
            more[draw.one(list(more))] = wrong(draw)
        elif draw.chance(0.15):
            args = args[:-1]
        else:
            at = draw.random.randrange(len(args))
            if isinstance(args[at], list) and args[at] and draw.chance(0.6):
                args[at][draw.random.randrange(len(args[at]))] = wrong(draw)
            else:
                args[at] = wrong(draw)
    elif draw.chance(0.1):  # one tensor in two places
        tensors = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        if len(tensors) > 1:
            i, j = draw.random.sample(tensors, 2)
            args[i] = args[j]
    return name, function, args, more, draw, mode


def called(seed: str, backend: str, double: bool = False) -> Outcome:
    """Make the call of a seed. double: with float64 arguments."""
    _, function, args, more, _, mode = drawn(seed)
    if double:
        args, more = _double(args), _double(more)
    tensors, out = list(leaves([args, more])), Outcome()
    grad = mode == "grad"
    torch.manual_seed(0)  # reparameterize may draw its noise
    try:
        with fk.use_backend(backend), torch.inference_mode(mode == "inference"), torch.set_grad_enabled(grad):
            found = list(leaves(function(*args, **more)))
            smooth = [x for x in found if x.requires_grad]
            if smooth:
                wanted = [x for x in tensors if x.requires_grad and x.is_leaf]
                wanted = list({id(x): x for x in wanted}.values())
                ones = list(map(torch.ones_like, smooth))
                found += [x for x in torch.autograd.grad(smooth, wanted, ones, allow_unused=True) if x is not None]
            out.outputs = [x.detach() for x in found]
    except Exception as error:
        out.error, out.message = type(error), str(error)
    out.arguments = [x.detach() for x in tensors if x.layout == torch.strided and x.device.type == "cpu"]
    out.arguments = [x for x in out.arguments if x.numel() < 2**30]
    return out


def _sigmoid(x: Tensor) -> Tensor:
    """A sigmoid whose gradient is exact where it rounds to 1; that of torch's is 0 there."""
    return torch.nn.functional.logsigmoid(x).exp()


def _double(value: object) -> object:
    if isinstance(value, Tensor):
        wide = value.detach().double() if value.is_floating_point() else value
        return wide.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(_double(part) for part in value)
    if isinstance(value, dict):
        return {key: torch.float64 if key == "dtype" else _double(part) for key, part in value.items()}
    return value


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def largest_of(tensors: Iterable[Tensor]) -> float:
    """The largest finite magnitude."""
    return max((x.abs().nan_to_num(0, 0, 0).max().item() for x in tensors if x.numel()), default=0.0)


def apart(a: Tensor, b: Tensor, epsilon: float, size: float = 0.0) -> Tensor:
    """Where two results differ by more than rounding, which is relative to the largest element, or to size."""
    x, y = a.double(), b.double()
    near = (x - y).abs() <= epsilon * max(size, largest_of((x, y))) + 1e-30
    return ~(near | (x == y) | (x.isnan() & y.isnan()))


def explained(seed: str, native: Outcome, eager: Outcome) -> str:
    """The class of a pair of outcomes; "unexplained: …" if there is none."""
    name, _, args, more, draw, _ = drawn(seed)
    if native.error or eager.error:
        if native.error is not eager.error:
            if native.error is RuntimeError and "aten::contiguous" in native.message:
                return "no memory for a copy of an expanded argument"
            return f"unexplained: {native.error} {native.message[:200]} | {eager.error} {eager.message[:200]}"
        if not all(map(same, native.arguments, drawn_arguments(seed))):
            return "unexplained: a refused call has changed its arguments"
        return "refused by both"
    pairs = [*zip(native.outputs, eager.outputs, strict=True), *zip(native.arguments, eager.arguments, strict=True)]
    if wrongs := [f"{a.dtype} {tuple(a.shape)} {a.device} | {b.dtype} {tuple(b.shape)} {b.device}" for a, b in pairs
                  if (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device)]:  # fmt: skip
        return f"unexplained: {wrongs[0]}"
    pairs = [pair for pair in pairs if not pair[0].is_meta]
    if all(same(a, b) for a, b in pairs):
        return "equal bit for bit"
    given = [x.double() for x in leaves([args, more]) if x.is_floating_point() and x.numel()]
    lowest = max((EPSILON[x.dtype] for x in leaves([args, more]) if x.dtype in EPSILON), default=2e-5)
    epsilon = max([lowest, *(EPSILON.get(a.dtype, 0.0) for a, _ in pairs)])
    far = [apart(a, b, epsilon) for a, b in pairs]
    if not any(x.any() for x in far):
        return "equal up to rounding"
    special = any(not x.isfinite().all() for x in given)
    largest = largest_of(given)
    with mock.patch.object(torch, "sigmoid", _sigmoid):
        exact = called(seed, "eager", double=True)
    truth = [*exact.outputs, *exact.arguments]
    fits = not exact.error and [x.shape for x in truth] == [a.shape for a, _ in pairs]
    if fits and all(_no_worse(a, b, r, epsilon, w) for (a, b), r, w in zip(pairs, truth, far, strict=True)):
        return "closer to float64 than eager"
    size = max(largest, largest_of(a.double() for a, _ in pairs))
    if name in ("psi", "flow_pair"):
        size *= max(1.0, largest_of([args[0].detach().double()]))  # t is a factor of the terms
    if largest <= LARGE and not any(apart(a, b, epsilon, size).any() for a, b in pairs):
        return "cancellation, within rounding of the terms"
    if name in ("gelu_mul", "gate_mul") and special:
        return "gelu of an infinity (docs/ops.md)"
    if largest > LARGE or (name == "reparameterize" and largest_of([args[1].detach()]) > 2 * LARGEST_EXPONENT):
        return "overflow of float32 (docs/ops.md)"
    if name == "depthwise" and not args[1].isfinite().all():
        return "padding times a weight that is not finite (docs/ops.md)"
    if name.endswith("norm_int8") and _within_a_level(pairs[0], pairs[1], epsilon * size):
        return "rounding at the edge of two integers"
    if name.startswith("td_layer") and _constant_rows(args[0], more.get("residual")):
        return "nearly constant rows (docs/ops.md)"
    return f"unexplained: values of {sorted(draw.kinds)}"


def _within_a_level(rows: tuple[Tensor, Tensor], scales: tuple[Tensor, Tensor], rounding: float) -> bool:
    """Whether two quantized results differ by at most one level, apart from rounding of what was quantized."""
    (a, b), (a_scale, b_scale) = ((x.double() for x in pair) for pair in (rows, scales))
    difference = (a * a_scale[..., None] - b * b_scale[..., None]).abs()
    return bool((difference <= 1.01 * torch.maximum(a_scale, b_scale)[..., None] + rounding).all())


def _no_worse(a: Tensor, b: Tensor, truth: Tensor, epsilon: float, where: Tensor) -> bool:
    """Whether native is at least as close to float64 as eager is, where they differ."""
    if not where.any():
        return True
    native, eager, exact = (x.double()[where] for x in (a, b, truth))
    exact = exact.to(a.dtype).double()
    error, other = ((x - exact).abs() for x in (native, eager))
    error = torch.where((native == exact) | (native.isnan() & exact.isnan()), 0.0, error)
    return bool(((error <= 2 * other) | ~(other < math.inf) | (error <= epsilon * exact.abs())).all())


def _constant_rows(x: object, residual: Tensor | None) -> bool:
    """Whether a row that is normalized varies so little that rounding it (to x's dtype, for the backward) matters."""
    x = torch.cat(x, -1) if isinstance(x, list) else x
    if not x.numel():
        return False
    x = x.double() if residual is None else x.double() + residual.double()
    return bool((x.std(-1, correction=0) < 1e-3 * x.abs().amax(-1)).any())


def drawn_arguments(seed: str) -> list[Tensor]:
    _, _, args, more, _, _ = drawn(seed)
    given = [x.detach() for x in leaves([args, more]) if x.layout == torch.strided and x.device.type == "cpu"]
    return [x for x in given if x.numel() < 2**30]


def nonsense(seed: str) -> str:
    """Call an op of torch.ops with anything; it may raise, not crash."""
    draw = Draw(seed)
    name = draw.one(sorted({op for ops in KERNELS.values() for op in ops} - {"tdp_unpin"}))
    overload = getattr(torch.ops.fmkernels, name).default
    args = []
    for argument in overload._schema.arguments:
        kind = str(argument.type)
        if draw.chance(0.15):
            args.append(wrong(draw))
        elif kind == "List[Tensor]":
            args.append([draw.tensor(*draw.batch()) for _ in range(draw.one((0, 1, 2, 4, 8)))])
        elif "Tensor" in kind:
            args.append(None if "Optional" in kind and draw.chance(0.4) else draw.tensor(*draw.batch()))
        else:
            args.append({"float": draw.number(), "bool": draw.chance(0.5)}.get(kind, draw.one((0, 1, -1, 2**62, 7))))
    same_shape = draw.tensor(*draw.batch())
    if draw.chance(0.5):
        args = [same_shape.detach().clone() if isinstance(a, Tensor) else a for a in args]
    try:
        overload(*args)
    except Exception:
        return "nonsense, refused"
    return "nonsense, computed"


def work(seed: int, count: int, threads: int, mark: Path) -> None:
    """Make the calls of a chunk, print what became of them. mark: where the call is noted, in case of a crash."""
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    found: Counter[str] = Counter()
    with mark.open("w") as note:
        for k in range(count):
            one = f"{seed}/{k}"
            note.seek(0), note.write(f"{one:<40}"), note.flush()
            if k % 5 == 4:
                found[nonsense(one)] += 1
                continue
            native, eager = called(one, "auto"), called(one, "eager")
            what = explained(one, native, eager)
            found[what.partition(":")[0]] += 1
            if what.startswith("unexplained"):
                print(f"{one} {drawn(one)[0]} {drawn(one)[5]}: {what}", file=sys.stderr)
    print(json.dumps(found))


def fuzz(calls: int, seed: int, seconds: float = math.inf, chunk: int = CHUNK) -> tuple[Counter[str], list[str]]:
    """Run chunks in subprocesses. Returns how often each class occurred, and what was wrong."""
    found: Counter[str] = Counter()
    bad, began = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number, first in enumerate(range(0, calls, chunk)):
            if time.monotonic() - began > seconds:
                break
            mark, threads = Path(folder) / f"{number}", THREADS[number % len(THREADS)]
            arguments = [str(seed + number), str(min(chunk, calls - first)), str(threads), str(mark)]
            done = subprocess.run(
                [sys.executable, __file__, "--work", *arguments],
                capture_output=True,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            )
            bad += done.stderr.splitlines()
            if done.returncode:
                bad.append(f"a crash, code {done.returncode}, in the call {mark.read_text().strip()}")
            else:
                found.update(json.loads(done.stdout.splitlines()[-1]))
    return found, bad


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work(*map(int, sys.argv[2:5]), Path(sys.argv[5]))
        sys.exit()
    calls, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 2**32
    print(f"seed {seed}", flush=True)
    found, bad = fuzz(calls, seed)
    for what, count in found.most_common():
        print(f"{count:8} {what}")
    print(*bad[:50], sep="\n")
    print(f"{sum(found.values())} calls, seed {seed}, {len(bad)} unexplained")
    sys.exit(bool(bad))
