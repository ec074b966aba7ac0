"""The path, the loss and the statistics on latents (B, 4, 32, 32)."""

import torch
import torch.nn.functional as F
from harness import Bench, compiled, main

import fmkernels as fk

RATIO = 1e-5 - 1


def eager_pair(t, x0, x1):
    t = t[:, None, None, None]
    return ((t * RATIO + 1) * x0 + t * x1).bfloat16(), (RATIO * x0 + x1).bfloat16()


def eager_loss(v, x0, x1):
    return (v - (RATIO * x0 + x1)).square().mean()


def debugging_notes(v, x0, x1, t):
    """The code of the debugging notes: one slice and one float at a time."""
    ret, v_tgt = {}, RATIO * x0 + x1
    res, count = v - v_tgt, len(t)
    ret["flow/nmse"] = (res.pow(2).mean() / v_tgt.pow(2).mean().clamp_min(1e-12)).item()
    ret["flow/cos"] = F.cosine_similarity(v.flatten(1), v_tgt.flatten(1), dim=1).mean().item()
    ret["flow/speed_ratio"] = (v.flatten(1).norm(dim=1) / (v_tgt.flatten(1).norm(dim=1) + 1e-12)).mean().item()
    edges = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], device=t.device)
    idx = torch.bucketize(t, edges) - 1
    for b in range(10):
        m = idx == b
        if m.any():
            r, p, q = (x.view(count, -1)[m] for x in (res, v, v_tgt))
            ret[f"flow/nmse_t{b}"] = ((r**2).mean() / (q**2).mean().clamp_min(1e-12)).item()
            ret[f"flow/cos_t{b}"] = F.cosine_similarity(p, q, dim=1).mean().item()
    return ret


def two_sums(v, x0, x1):
    """Two of the nine sums: enough to compare, and the least an eager version can do."""
    return torch.stack([((v - (RATIO * x0 + x1)) ** 2).flatten(1).sum(1), (v * v).flatten(1).sum(1)], 1)


def vectorised(v, x0, x1, t):
    """The same numbers the careful way: sums of each sample, slices by a mask, one copy to the host."""
    target = (RATIO * x0 + x1).flatten(1)
    pred = v.flatten(1)
    error, p2, q2 = ((pred - target) ** 2).sum(1), (pred**2).sum(1), (target**2).sum(1)
    cos = (pred * target).sum(1) / (p2.sqrt() * q2.sqrt()).clamp_min(1e-8)
    speed = p2.sqrt() / (q2.sqrt() + 1e-12)
    tenths = torch.arange(10, device=t.device)
    slices = torch.bucketize(t, tenths[1:] / 10) == tenths[:, None]
    rows = torch.cat([torch.ones_like(t, dtype=torch.bool)[None], slices]).float()
    total = rows @ torch.stack([error, q2, cos, speed, torch.ones_like(error)], dim=1)
    table = (total[:, :4] / torch.stack([total[:, 1], total[:, 1], total[:, 4], total[:, 4]], dim=1)).tolist()
    counts = total[:, 4].tolist()
    ret = {"flow/nmse": table[0][0], "flow/cos": table[0][2], "flow/speed_ratio": table[0][3]}
    for k in range(10):
        if counts[k + 1]:
            ret[f"flow/nmse_t{k}"], ret[f"flow/cos_t{k}"] = table[k + 1][0], table[k + 1][2]
    return ret


def cases():
    t, x0, x1 = torch.rand(64), torch.randn(64, 4, 32, 32), torch.randn(64, 4, 32, 32)
    fast_pair = compiled(eager_pair)
    yield Bench(
        "flow_pair bf16 out (64,4,32,32)",
        {
            "eager": lambda: eager_pair(t, x0, x1),
            "compile": lambda: fast_pair(t, x0, x1),
            "fmkernels": lambda: fk.flow_pair(t, x0, x1, dtype=torch.bfloat16),
        },
        moved=x0.numel() * 12,
        floors={"eager": 4},
        bound=("rounding x0 and x1", lambda: (x0.bfloat16(), x1.bfloat16())),
    )
    t16, (v16, a16, b16) = torch.rand(16), torch.randn(3, 16, 4, 32, 32)
    yield Bench(
        "velocity_stats, ten slices (16,4,32,32)",
        {
            "debugging notes": lambda: debugging_notes(v16, a16, b16, t16),
            "eager": lambda: vectorised(v16, a16, b16, t16),
            "fmkernels": lambda: fk.velocity_stats(v16, a16, b16, t=t16).as_dict(),
        },
        moved=v16.numel() * 12,
        floors={"debugging notes": 15, "eager": 4},
    )
    leaf = torch.randn(64, 4, 32, 32, requires_grad=True)
    fast_loss = compiled(eager_loss)
    yield Bench(
        "flow_loss fwd+bwd (64,4,32,32)",
        {
            "eager": lambda: torch.autograd.grad(eager_loss(leaf, x0, x1), leaf),
            "compile": lambda: torch.autograd.grad(fast_loss(leaf, x0, x1), leaf),
            "fmkernels": lambda: torch.autograd.grad(fk.flow_loss(leaf, x0, x1), leaf),
        },
        moved=x0.numel() * 28,
        mode=torch.enable_grad,
    )
    v, a, b = torch.randn(3, 48, 4, 512, 512)
    fast_sums = compiled(two_sums)
    yield Bench(
        "velocity_stats 604 MB",
        {
            "eager": lambda: two_sums(v, a, b),
            "compile": lambda: fast_sums(v, a, b),
            "fmkernels": lambda: fk.velocity_stats(v, a, b).sums[:, :2],
        },
        moved=v.numel() * 12,
        share=0.8,
    )
    t48 = torch.rand(48)
    yield Bench(
        "flow_pair bf16 out 604 MB, fresh",
        {
            "eager": lambda: eager_pair(t48, a, b),
            "compile": lambda: fast_pair(t48, a, b),
            "fmkernels": lambda: fk.flow_pair(t48, a, b, dtype=torch.bfloat16),
        },
        moved=a.numel() * 12,
        fresh=True,
        share=0.8,
    )


if __name__ == "__main__":
    main([cases])
