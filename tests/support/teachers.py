"""Tiny random image encoders of transformers, saved in folders as users have them."""

import torch
import transformers

SIZE, EDGE = {"size": {"height": 28, "width": 28}}, {"size": {"shortest_edge": 28}}

VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 7}
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 9}
CROP = {**EDGE, "crop_size": {"height": 28, "width": 28}}
MLP = {**VIT, "intermediate_size": 64}
# config, image processor and its arguments, the tokens before the patches, the grid
ENCODERS = {
    "dinov2": (transformers.Dinov2Config(**VIT), "Bit", CROP, 1, 4),
    "registers": (transformers.Dinov2WithRegistersConfig(**VIT, num_register_tokens=3), "Bit", CROP, 4, 4),
    "vit": (transformers.ViTConfig(**MLP), "ViT", SIZE, 1, 4),
    "clip": (transformers.CLIPConfig(vision_config=MLP, text_config=TEXT), "CLIP", CROP, 1, 4),
    "clip-vision": (transformers.CLIPVisionConfig(**MLP), "CLIP", CROP, 1, 4),
    "siglip": (transformers.SiglipVisionConfig(**MLP), "Siglip", SIZE, 0, 4),
    "swin": (
        transformers.SwinConfig(image_size=32, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4),
        "ViT", {"size": {"height": 32, "width": 32}}, 0, 4,
    ),
    "convnext": (
        transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=32),
        "ViT", {"size": {"height": 32, "width": 32}}, None, 4,
    ),
}  # fmt: skip


def save_teacher(name, folder):
    """A folder with a tiny random encoder and its image processor, as from_pretrained expects one."""
    config, processor, arguments, *_ = ENCODERS[name]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for p in model.parameters():  # with the initial 0.02 every image has nearly the same features
            p.mul_(4 if p.dim() > 1 else 1)
    model.save_pretrained(folder)
    getattr(transformers, f"{processor}ImageProcessorPil")(**arguments).save_pretrained(folder)
    return str(folder)
