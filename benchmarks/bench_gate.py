"""The gates at the widths of public flow transformers: Sana's 2240, SD3's 1536, Flux's 3072, in bf16."""

import torch
import torch.nn.functional as F
from bench_norm import training, trio
from harness import main

import fmkernels as fk


def eager_swiglu(both):
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


def ours_swiglu(both):
    return fk.gate_mul(both, act="silu")


def eager_geglu(a, b):
    return F.gelu(a, approximate="tanh") * b


def ours_geglu(a, b):
    return fk.gate_mul(a, b, "gelu_tanh")


def eager_gated_add(x, gate, y):
    return x + gate[:, None] * y


def cases():
    both = torch.randn(1, 1024, 2 * 5600).bfloat16()
    yield trio("gate_mul silu, halves, bf16 (1,1024,5600)", eager_swiglu, ours_swiglu, (both,), 3 * both.numel(), {})
    a, b = torch.randn(1, 512, 6144).bfloat16(), torch.randn(1, 512, 6144).bfloat16()
    yield trio("gate_mul gelu_tanh bf16 (1,512,6144)", eager_geglu, ours_geglu, (a, b), 6 * a.numel(), {})
    yield training("gate_mul gelu_tanh bf16 fwd+bwd (1,512,6144)", eager_geglu, ours_geglu, (a, b), 16 * a.numel(), {})
    for width, tokens in ((1536, 1024), (2240, 1024), (3072, 1024)):
        x, y = torch.randn(2, tokens, width).bfloat16(), torch.randn(2, tokens, width).bfloat16()
        args = (x, torch.randn(2, width).bfloat16(), y)
        yield trio(f"gated_add bf16 (2,{tokens},{width})", eager_gated_add, fk.gated_add, args, 6 * x.numel(), {})
    yield training("gated_add bf16 fwd+bwd (2,1024,3072)", eager_gated_add, fk.gated_add, args, 14 * x.numel(), {})


if __name__ == "__main__":
    main([cases])
