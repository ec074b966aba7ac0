"""The norm and rotation of queries and keys: Flux's 24 heads of 128, SD3's width of 1536, Wan's norm over all heads."""

import torch
import torch.nn.functional as F
from bench_norm import training, trio
from harness import main

import fmkernels as fk


def tables(tokens, width):
    angles = torch.outer(torch.arange(tokens).float(), 1e4 ** (-torch.arange(0, width, 2).float() / width))
    return angles.cos().repeat_interleave(2, -1), angles.sin().repeat_interleave(2, -1)


def eager_rope(x, cos, sin):
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([-second, first], dim=-1).flatten(-2)
    return (x.float() * cos[:, None] + turned.float() * sin[:, None]).to(x.dtype)


def eager(q, k, q_weight, k_weight, cos, sin):
    width = q_weight.shape
    return tuple(
        eager_rope(F.rms_norm(x, width, weight, 1e-6), cos, sin) for x, weight in ((q, q_weight), (k, k_weight))
    )


def eager_all_heads(q, k, q_weight, k_weight, cos, sin):
    width = q_weight.shape
    return tuple(
        eager_rope(F.rms_norm(x.flatten(-2), width, weight, 1e-6).unflatten(-1, x.shape[-2:]), cos, sin)
        for x, weight in ((q, q_weight), (k, k_weight))
    )


def cases():
    for name, heads, width, all_heads in (
        ("SD3's width", 24, 64, False),
        ("Flux", 24, 128, False),
        ("Wan, all heads", 24, 128, True),
    ):
        q, k = torch.randn(1, 1024, heads, width).bfloat16(), torch.randn(1, 1024, heads, width).bfloat16()
        size = heads * width if all_heads else width
        cos, sin = tables(1024, width)
        plain = eager_all_heads if all_heads else eager
        weights = torch.rand(size).bfloat16() + 0.5, torch.rand(size).bfloat16() + 0.5
        args = (q, k, *weights, cos, sin)
        label = f"qk_norm_rope bf16 (1,1024,{heads},{width}), {name}"
        yield trio(label, plain, fk.qk_norm_rope, args, 8 * q.numel(), {})
        if not all_heads:

            def plain_of(q, k, q_weight, k_weight, plain=plain, cos=cos, sin=sin):
                return plain(q, k, q_weight, k_weight, cos, sin)

            def ours_of(q, k, q_weight, k_weight, cos=cos, sin=sin):
                return fk.qk_norm_rope(q, k, q_weight, k_weight, cos, sin)

            yield training(f"{label}, fwd+bwd", plain_of, ours_of, (q, k, *weights), 20 * q.numel(), {})


if __name__ == "__main__":
    main([cases])
