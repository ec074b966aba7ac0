"""Tiny random text encoders and autoencoders."""

from pathlib import Path

import torch
from diffusers import AutoencoderDC, AutoencoderKL
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast

from fmpipe.models import build
from fmpipe.pipeline import FlowPipeline
from fmpipe.text import CLIPText
from fmpipe.vae import LatentVAE

WORDS = ["a", "red", "blue", "cat", "dog", "house", "on", "under", "the", "moon"]
VOCAB = {word: i for i, word in enumerate(["[PAD]", "[BOS]", "[EOS]", "[UNK]", *WORDS])}
SMALL = {"vocab_size": len(VOCAB), "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def tokenizer(template="$A [EOS]", padding_side="right", pad_token="[PAD]"):
    backend = Tokenizer(models.WordLevel(VOCAB, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(token, VOCAB[token]) for token in ("[BOS]", "[EOS]")]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    tokens = {"bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]", "pad_token": pad_token}
    return PreTrainedTokenizerFast(tokenizer_object=backend, padding_side=padding_side, **tokens)


def tiny_vae():
    torch.manual_seed(0)
    model = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        block_out_channels=[16, 16],
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=4,
    )
    return LatentVAE.from_diffusers(model, scaling_factor=0.23010)


def tiny_dc_vae():
    """Sana's kind of autoencoder, which halves the size."""
    return AutoencoderDC(
        latent_channels=4,
        attention_head_dim=4,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
    )


def tiny_clip(tokens=16):
    config = CLIPTextConfig(**SMALL, hidden_size=64, max_position_embeddings=16, bos_token_id=1, eos_token_id=2)
    return CLIPText(CLIPTextModel(config), tokenizer("[BOS] $A [EOS]"), tokens=tokens)


def ldm_vae():
    """An LDM autoencoder's state dict, tiny."""
    golden = load_file(Path(__file__).parents[1] / "golden" / "ldm_vae_tiny.safetensors")
    return {k.removeprefix("state."): v for k, v in golden.items() if k.startswith("state.")}


def save_tiny_pipeline(folder):
    """Save a random small_dimr pipeline and return the folder."""
    torch.manual_seed(0)
    networks = build("small_dimr")
    FlowPipeline(tiny_clip(), networks.text_head, networks.velocity_net, tiny_vae()).save_pretrained(folder)
    return str(folder)


def under(tensors, prefix):
    """Return the tensors whose names begin with the prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def write(state, path):
    """Save a state dict in the format of the path's suffix."""
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return path
