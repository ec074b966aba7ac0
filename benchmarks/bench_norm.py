"""The norms and the gate at the sizes of a 256 px block: two samples, 257 tokens, width 1024."""

import torch
import torch.nn.functional as F
from harness import Bench, compiled, main

import fmkernels as fk


def eager_rms(x, scale):
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + 1e-8) * scale


def eager_rms_residual(x, scale, residual):
    summed = x + residual
    return eager_rms(summed, scale), summed


def eager_gelu_mul(a, b):
    return F.gelu(a) * b


def trio(name, eager, ours, args, moved, floors, **more):
    fast = compiled(eager)
    calls = {"eager": lambda: eager(*args), "compile": lambda: fast(*args), "fmkernels": lambda: ours(*args)}
    return Bench(name, calls, moved, floors, **more)


def training(name, eager, ours, args, moved, floors):
    leaves = [x.clone().requires_grad_() for x in args]
    fast = compiled(eager)
    seeds: list[torch.Tensor] = []

    def backward(fn):
        out = fn(*leaves)
        out = list(out) if isinstance(out, tuple) else [out]
        if not seeds:
            seeds.extend(torch.randn_like(o) for o in out)
        return torch.autograd.grad(out, leaves, seeds[: len(out)])

    calls = {"eager": lambda: backward(eager), "compile": lambda: backward(fast), "fmkernels": lambda: backward(ours)}
    return Bench(name, calls, moved, floors, mode=torch.enable_grad)


def ours_rms_residual(x, scale, residual):
    return fk.td_rms_norm(x, scale, residual=residual)


def cases():
    x, residual, scale = torch.randn(2, 257, 1024), torch.randn(2, 257, 1024), torch.randn(1, 1024)
    size = x.numel() * 4
    floors = {"eager": 4, "compile": 1}
    copy = ("a copy of x", x.clone)
    yield trio("td_rms_norm (2,257,1024)", eager_rms, fk.td_rms_norm, (x, scale), 2 * size, floors, bound=copy)
    copies = ("a copy of both", lambda: (x.clone(), residual.clone()))
    args = (x, scale, residual)
    yield trio(
        "td_rms_norm + residual (2,257,1024)",
        eager_rms_residual,
        ours_rms_residual,
        args,
        4 * size,
        floors,
        bound=copies,
    )
    half = (x.bfloat16(), scale)
    yield trio(
        "td_rms_norm bf16 (2,257,1024)",
        lambda h, s: eager_rms(h.float(), s).bfloat16(),
        fk.td_rms_norm,
        half,
        size,
        {},
    )
    yield training(
        "td_rms_norm fwd+bwd (2,257,1024)",
        eager_rms,
        fk.td_rms_norm,
        (x, scale),
        6 * size,
        {"eager": 2.5, "compile": 1},
    )
    yield training(
        "td_rms_norm + residual fwd+bwd", eager_rms_residual, ours_rms_residual, (x, scale, residual), 9 * size, {}
    )
    a, b = torch.randn(2, 257, 2048), torch.randn(2, 257, 2048)
    size = a.numel() * 4
    yield trio("gelu_mul (2,257,2048)", eager_gelu_mul, fk.gelu_mul, (a, b), 3 * size, {"eager": 1.5, "compile": 1})
    yield training("gelu_mul fwd+bwd (2,257,2048)", eager_gelu_mul, fk.gelu_mul, (a, b), 9 * size, {})
    yield from modulated()
    yield from big()


def eager_modulated(x, scale, shift):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale[:, None]) + shift[:, None]


def eager_end_of_block(x, scale, shift, residual, gate):
    stream = residual + gate[:, None] * x
    return eager_modulated(stream, scale, shift), stream


def modulated():
    """At the widths of SD3, Sana and Flux, in bf16."""
    for width in (1536, 2240, 3072):
        x, residual = (torch.randn(2, 1024, width).bfloat16() for _ in range(2))
        scale, shift, gate = (0.1 * torch.randn(2, width).bfloat16() for _ in range(3))
        size, shape = 2 * x.numel(), f"bf16 (2,1024,{width})"
        yield trio(f"norm_modulate {shape}", eager_modulated, fk.norm_modulate, (x, scale, shift), 2 * size, {})
        args = (x, scale, shift, residual, gate)
        yield trio(f"norm_modulate + gated residual {shape}", eager_end_of_block, ours_end_of_block, args, 4 * size, {})
    yield training(f"norm_modulate fwd+bwd {shape}", eager_modulated, fk.norm_modulate, (x, scale, shift), 6 * size, {})
    yield training(
        f"norm_modulate + gated residual fwd+bwd {shape}", eager_end_of_block, ours_end_of_block, args, 11 * size, {}
    )


def ours_end_of_block(x, scale, shift, residual, gate):
    return fk.norm_modulate(x, scale, shift, residual=residual, gate=gate)


def big():
    parts = [torch.randn(2, 256, 1024) for _ in range(66)]
    weight, bias = torch.randn(2, 67584), torch.randn(2, 67584)

    def eager_list():
        normed = F.layer_norm(torch.cat(parts, -1), (67584,))
        return torch.addcmul(bias[:, None], normed, weight[:, None])

    yield Bench(
        "td_layer_norm list 66 × (2,256,1024)",
        {
            "eager": eager_list,
            "compile": compiled(eager_list),
            "fmkernels": lambda: fk.td_layer_norm(parts, weight, bias),
        },
        moved=2 * 66 * parts[0].numel() * 4,
        fresh=True,
        floors={"eager": 2},
        tolerance=1e-3,
    )
    large = {"fresh": True, "share": 0.8}
    x, scale = torch.randn(64, 1024, 1024), torch.randn(1024)
    yield trio("td_rms_norm 537 MB, fresh", eager_rms, fk.td_rms_norm, (x, scale), 2 * x.numel() * 4, {}, **large)
    a, b = torch.randn(48, 1 << 20), torch.randn(48, 1 << 20)
    yield trio("gelu_mul 604 MB, fresh", eager_gelu_mul, fk.gelu_mul, (a, b), 3 * a.numel() * 4, {}, **large)


if __name__ == "__main__":
    main([cases])
