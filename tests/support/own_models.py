"""Models of users that are not pipelines: one with planted faults, and one like OpenUni."""

import zlib

import torch
from torch import nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle
from transformers import LlamaConfig, LlamaForCausalLM

from fmpipe.own_model import OpenUniAdapter
from support.tiny_models import SMALL, tokenizer

CAPTIONS = ["a cat", "the moon", "a red house", "blue dog", "on the house", "under a blue moon"]
IMAGES = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
GAIN = 1 / 0.29


class Field:
    """``size`` times the exact velocity of the known pair whose path is nearest to x."""

    def __init__(self, x0, x1, size=0.29):
        self.x0, self.x1, self.size = x0, x1, size

    def __call__(self, x, t):
        t = t.float().view(-1, 1, 1, 1, 1)
        away = ((1 - t) * self.x0 + t * self.x1 - x.float()[:, None]).square().flatten(2).sum(2)
        nearest = away.argmin(1)
        return self.size * (self.x1[nearest] - self.x0[nearest]).to(x.dtype)


class Planted:
    """A model of a user: text means from the letters, an exact autoencoder, and a velocity of a planted size."""

    image_size = 16

    def __init__(self, size=0.29):
        self.velocity = Field(self.embed(CAPTIONS), self.encode(IMAGES), size)

    def embed(self, prompts):
        return torch.stack([torch.randn(12, 8, 8, generator=seeded(zlib.crc32(p.encode()))) for p in prompts])

    def encode(self, images):
        return pixel_unshuffle(images, 2)

    def decode(self, latents):
        return pixel_shuffle(latents, 2)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class TextEncoder(nn.Module):
    """States to z, mu, logvar, as in CrossFlow; the last two may be swapped, or missing."""

    def __init__(self, width, size, std, beside):
        super().__init__()
        self.linear, self.logvar, self.beside = nn.Linear(width, size), 2 * torch.tensor(std).log().item(), beside
        nn.init.normal_(self.linear.weight, std=width**-0.5)

    def forward(self, states, mask):
        mu = self.linear((states - states.mean(-1, keepdim=True)).flatten(1))
        logvar = torch.full_like(mu, self.logvar)
        z = mu + torch.randn_like(mu) * (logvar / 2).exp()
        return z, *{"mu logvar": (mu, logvar), "logvar mu": (logvar, mu), "none": (None, None)}[self.beside]


class Velocities(nn.Module):
    def forward(self, x, log_snr, null_indicator):
        assert x.dtype == log_snr.dtype
        assert not null_indicator.any()
        return [x, self.field(x, (4 - log_snr) / 8)]


class OpenUniLike(nn.Module):
    """The attributes that the debug functions of the notes use, on a random language model."""

    sigma_min, sigma_max, num_queries = 1e-5, 1.0, 4

    def __init__(self, std=0.05, beside="mu logvar"):
        super().__init__()
        torch.manual_seed(0)
        self.llm = LlamaForCausalLM(LlamaConfig(**SMALL, hidden_size=16, initializer_range=1.0))
        self.tokenizer = tokenizer("[BOS] $A [EOS]")
        self.meta_queries = nn.Parameter(torch.randn(self.num_queries, 16))
        self.text_ve_encoder = TextEncoder(self.num_queries * 16, 12 * 8 * 8, std, beside)
        self.fm_transformers = Velocities()
        self.fm_transformers.field = Field(torch.zeros(1, 12, 8, 8), torch.zeros(1, 12, 8, 8))

    def prepare_forward_input(self, x, input_ids, attention_mask):
        embeds = torch.cat([self.llm.get_input_embeddings()(input_ids), x], 1)
        return {"inputs_embeds": embeds, "attention_mask": torch.ones(embeds.shape[:2], dtype=torch.long)}

    def pixels_to_latents(self, x):
        return pixel_unshuffle(x, 2)

    def latents_to_pixels(self, z):
        return pixel_shuffle(z, 2)


def open_uni(dtype=torch.float32, **options):
    """A model whose velocity has the right direction and 0.29 of the size."""
    model = OpenUniLike(**options).to(dtype)
    with torch.no_grad():
        z0 = OpenUniAdapter(model).sample_z0(CAPTIONS)
    model.fm_transformers.field = Field(z0, pixel_unshuffle(IMAGES, 2))
    return model
