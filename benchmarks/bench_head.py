"""reparameterize with its KL and the nine statistics of the debugging notes."""

import torch
from harness import Bench, compiled, main

import fmkernels as fk


def eager_head(mu, logvar, eps):
    logvar = logvar.clamp(-6.0, 6.0)
    std = (0.5 * logvar).exp()
    z = mu + std * eps
    kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).flatten(1).sum(1)
    stats = [mu.abs().mean(), mu.square().mean().sqrt(), logvar.mean(), std.mean(), std.min(), std.max()]
    stats += [z.mean(), z.var(unbiased=False), z.flatten(1).std(dim=0, unbiased=False).mean()]
    return z, kl, torch.stack(stats)


def ours_head(mu, logvar, eps):
    z, kl, stats = fk.reparameterize(mu, logvar, eps=eps)
    return z, kl, stats.values[:9]


def cases():
    mu, logvar, eps = torch.randn(3, 64, 4, 32, 32)
    fast = compiled(eager_head)
    yield Bench(
        "reparameterize + KL + statistics (64,4,32,32)",
        {
            "eager": lambda: eager_head(mu, logvar, eps),
            "compile": lambda: fast(mu, logvar, eps),
            "fmkernels": lambda: ours_head(mu, logvar, eps),
        },
        moved=mu.numel() * 16,
    )
    big = torch.randn(3, 36, 4, 512, 512)
    yield Bench(
        "reparameterize 604 MB, fresh",
        {"eager": lambda: eager_head(*big), "compile": lambda: fast(*big), "fmkernels": lambda: ours_head(*big)},
        moved=big[0].numel() * 16,
        share=0.8,
        fresh=True,
    )


if __name__ == "__main__":
    main([cases])
