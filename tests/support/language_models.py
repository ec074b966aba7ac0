"""Tiny random language models of transformers, saved in folders as their users have them."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedTokenizerFast

WORDS = (
    "a an in at the small large red orange yellow green cyan blue purple black circle square triangle cross ring "
    "diamond centre left right top bottom , . draw : 一 只 猫"
)
TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 1,
}
SPLIT = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
CAUSAL = {
    "llama": TEXT,
    "mistral": TEXT,
    "qwen2": TEXT,
    "qwen3": {**TEXT, "head_dim": 8},
    "gemma": {**TEXT, "head_dim": 8},
    "gemma2": {**TEXT, "head_dim": 8},
    "gemma3_text": {**TEXT, "head_dim": 8, "sliding_window": 64},
    "phi": TEXT,
    "phi3": TEXT,
    "gpt2": {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96},
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
VISION_LANGUAGE = {
    "qwen2_vl": {
        "text_config": {**TEXT, "rope_parameters": SPLIT},
        "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2},
    },
    "qwen2_5_vl": {
        "text_config": {**TEXT, "rope_parameters": SPLIT},
        "vision_config": {**QWEN_VISION, "fullatt_block_indexes": [0]},
    },
    "qwen3_vl": {
        "text_config": {**TEXT, "head_dim": 8, "rope_parameters": SPLIT},
        "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0]},
    },
    "internvl": {
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": {**VISION, "image_size": [28, 28], "patch_size": [14, 14]},
    },
    "gemma3": {
        "text_config": {**TEXT, "head_dim": 8},
        "vision_config": {**VISION, "image_size": 28, "patch_size": 14},
    },
}


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "[PAD]", *WORDS.split()])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")


def save_language_model(kind: str, folder: Path, **changes) -> Path:
    """Save a random model of a kind in ``CAUSAL`` or ``VISION_LANGUAGE``, and a tokenizer; return the folder."""
    torch.manual_seed(0)
    if kind in CAUSAL:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**CAUSAL[kind], **changes}))
    else:
        model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, **VISION_LANGUAGE[kind]))
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
