"""A third-party model: CrossFlow's module protocol and a DiMR network, written from its published structure.

This module does not import fmkernels. As in CrossFlow, a static method seeds the parameters: it walks over the model
and synchronizes on ``log_snr``, which ``accelerate`` removes.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class TimeDependentParameter(nn.Module):
    def __init__(self, shape, init):
        super().__init__()
        start = init(torch.empty(shape))
        self.param0 = nn.Parameter(start.clone())
        self.param1 = nn.Parameter(start.clone())
        self.nodecay_weight = nn.Parameter(torch.zeros(shape))
        self.nodecay_bias = nn.Parameter(torch.zeros(shape))
        self.curr_weight = None

    def forward(self):
        return self.curr_weight

    @staticmethod
    def seed_time(model, log_snr):
        assert log_snr.dim() == 1
        if torch.all(log_snr == log_snr[0]):
            log_snr = log_snr[:1]
        times = log_snr / 4
        for m in model.modules():
            if isinstance(m, TimeDependentParameter):
                t = times.reshape(-1, *[1] * m.param0.dim())
                gate = torch.sigmoid(t * (m.nodecay_weight + 1) + m.nodecay_bias)
                m.curr_weight = m.param1 + gate * (m.param0 - m.param1)


def rows(weight, x):
    """Reshape (T, D) to broadcast against (B, ..., D): one row per sample, or one for all."""
    return weight.reshape(weight.shape[0], *[1] * (x.dim() - 2), weight.shape[1])


class TDRMSNorm(nn.Module):
    def __init__(self, dim, offset=False):
        super().__init__()
        self.scale = TimeDependentParameter((dim,), nn.init.ones_)
        self.offset = TimeDependentParameter((dim,), nn.init.zeros_) if offset else None

    def forward(self, x):
        root = x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5
        y = x / (root + 1e-8) * rows(self.scale(), x)
        return y if self.offset is None else y + rows(self.offset(), x)


class LayerNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = TimeDependentParameter((dim,), nn.init.ones_)
        self.bias = TimeDependentParameter((dim,), nn.init.zeros_)

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], eps=self.eps) * rows(self.weight(), x) + rows(self.bias(), x)


class ChannelsLast(nn.Module):
    def forward(self, x):
        return x.permute(0, 2, 3, 1)


class ChannelsFirst(nn.Module):
    def forward(self, x):
        return x.permute(0, 3, 1, 2)


class Positions(nn.Module):
    def __init__(self, height, width, dim):
        super().__init__()
        self.width = width
        self.position_embeddings = nn.Embedding(height * width, dim)

    def forward(self, x):
        _, h, w, _ = x.shape
        index = torch.arange(h, device=x.device)[:, None] * self.width + torch.arange(w, device=x.device)
        return x + self.position_embeddings(index)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = TDRMSNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=False)
        self.dense = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.query_key_value(self.norm(x)).reshape(b, n, 3 * self.heads, d // self.heads).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=1)
        return self.dense(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class Gated(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = TDRMSNorm(dim)
        self.w0, self.w1, self.w2 = nn.Linear(dim, hidden), nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        x = self.norm(x)
        return self.w2(F.gelu(self.w0(x)) * self.w1(x))


class Block(nn.Module):
    def __init__(self, kind, dim, hidden, heads, kernel):
        super().__init__()
        if kind == "transformer":
            self.block1 = Attention(dim, heads)
        else:
            conv = nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim)
            self.block1 = nn.Sequential(ChannelsFirst(), conv, ChannelsLast())
        self.block2 = Gated(dim, hidden)

    def forward(self, x):
        x = x + self.block1(x)
        return x + self.block2(x)


class PixelShuffleLinear(nn.Module):
    def __init__(self, dim_in, dim, ratio):
        super().__init__()
        self.ratio = ratio
        self.kernel = nn.Linear(dim_in, dim * ratio**2)

    def forward(self, x):
        b, h, w, _ = x.shape
        r = self.ratio
        x = self.kernel(x).reshape(b, h, w, r, r, -1)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(b, h * r, w * r, -1)


class Stage(nn.Module):
    def __init__(self, channels, kind, dim, hidden, blocks, grid, patch, heads=4, kernel=7, below=None):
        super().__init__()
        self.kind, self.use_checkpoint = kind, None
        embed = nn.Conv2d(channels, dim, patch, stride=patch)
        self.input_layer = nn.Sequential(nn.Identity(), embed, ChannelsLast(), Positions(grid, grid, dim))
        if below:
            below_dim, below_grid = below
            up = PixelShuffleLinear(below_dim, dim, grid // below_grid)
            self.upsample = nn.Sequential(LayerNorm(below_dim), up, LayerNorm(dim))
        if kind == "transformer":
            self.tensor_true, self.tensor_false = nn.Parameter(-torch.ones(1)), nn.Parameter(torch.ones(1))
        half = blocks // 2
        self.blocks = nn.ModuleList([Block(kind, dim, hidden, heads, kernel) for _ in range(2 * half + 1)])
        self.skip_denses = nn.ModuleList([nn.Linear(2 * dim, dim) for _ in range(half)])
        out = nn.Conv2d(dim, channels, 3, padding=1)
        self.output_layer = nn.Sequential(LayerNorm(dim), ChannelsFirst(), out)

    def run(self, block, x):
        if self.use_checkpoint is None:
            return block(x)
        return checkpoint(block, x, use_reentrant=self.use_checkpoint == "reentrant")

    def forward(self, x, below, null):
        x = self.input_layer(x)
        if below is not None:
            x = x + self.upsample(torch.cat(below, dim=-1))
        b, h, w, d = x.shape
        tokens = self.kind == "transformer" and null is not None
        if self.kind == "transformer":
            x = x.reshape(b, h * w, d)
            if tokens:
                flag = torch.where(null, self.tensor_true, self.tensor_false)
                x = torch.cat([flag[:, None, None].expand(b, 1, d), x], dim=1)
        skips, stack, half = [x], [], len(self.skip_denses)
        for i, block in enumerate(self.blocks):
            if i > half:
                x = self.skip_denses[i - half - 1](torch.cat([x, stack.pop()], dim=-1))
            x = self.run(block, x)
            skips.append(x)
            if i < half:
                stack.append(x)
        if self.kind == "transformer":
            skips = [s[:, 1:] if tokens else s for s in skips]
            skips = [s.reshape(b, h, w, d) for s in skips]
        return self.output_layer(skips[-1]), skips


class DiMR(nn.Module):
    """stages: a list of keyword arguments of Stage, from coarse to fine."""

    def __init__(self, channels, stages):
        super().__init__()
        below, built = None, []
        for config in stages:
            built.append(Stage(channels, below=below, **config))
            below = config["dim"] * (config["blocks"] // 2 * 2 + 2), config["grid"]
        self.stages = nn.ModuleList(built)

    def checkpointing(self, kind):
        for stage in self.stages:
            stage.use_checkpoint = kind
        return self

    def forward(self, x, log_snr, null_indicator=None):
        TimeDependentParameter.seed_time(self, log_snr)
        outputs, skips = [], None
        for stage in self.stages:
            out, skips = stage(x, skips, null_indicator)
            outputs.append(out)
        return outputs


def tiny():
    """The network of dimr_tiny.safetensors."""
    return DiMR(
        4,
        [
            {"kind": "transformer", "dim": 64, "hidden": 96, "blocks": 5, "grid": 16, "patch": 2},
            {"kind": "convnext", "dim": 32, "hidden": 48, "blocks": 3, "grid": 32, "patch": 1},
        ],
    )


def randomized(model, seed=0):
    """Draw random parameters. At the initial values, both ends of a time-dependent parameter are equal."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            around = 1.0 if "param" in name.rsplit(".", 1)[-1] else 0.0
            p.copy_(around + 0.2 * torch.randn(p.shape, generator=generator))
    return model
