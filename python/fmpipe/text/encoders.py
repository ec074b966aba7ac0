"""Frozen text encoders built on transformers models (CLIP, T5, MiniLM), and the loader for every encoder."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import ModelMixin  # noqa: F401 (diffusers looks for it in the module that model_index.json names)
from torch import Tensor
from transformers import AutoModel, CLIPTextModel, PreTrainedModel, PreTrainedTokenizerBase, T5EncoderModel

from fmpipe.text import minilm
from fmpipe.text.base import CONFIG, FrozenText, located
from fmpipe.text.meta_query import MetaQueryText
from fmpipe.untrusted import read_json

TOKENS = 77  # CLIP's; the text heads of all released configurations take as many
T5_FACTOR = 10.0  # CrossFlow's: brings T5's states to the size of CLIP's


def check_room(where: str, tokens: int, model: PreTrainedModel) -> None:
    room = model.config.max_position_embeddings
    if isinstance(tokens, int) and tokens > room:
        raise ValueError(f"{where}: tokens must be at most {room}, the positions of the model, got {tokens}")


class CLIPText(FrozenText):
    """The last hidden states of CLIP's text model, after its norm."""

    model_class = CLIPTextModel

    def __init__(self, model: CLIPTextModel, tokenizer: PreTrainedTokenizerBase, tokens: int = TOKENS):
        check_room("CLIPText", tokens, model)
        super().__init__(model, tokenizer, tokens)

    @torch.no_grad()
    def forward(self, prompts: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        """As in CrossFlow: the model does not see the mask. It is causal: only states of padding could tell."""
        ids, mask = self.ids_and_mask(prompts)
        return self.model(input_ids=ids).last_hidden_state, mask


class T5Text(FrozenText):
    """10 × the last hidden states of T5's encoder, in fp32 (fp64 for fp64)."""

    model_class = T5EncoderModel

    def __init__(self, model: T5EncoderModel, tokenizer: PreTrainedTokenizerBase, tokens: int = TOKENS):
        super().__init__(model, tokenizer, tokens)

    @torch.no_grad()
    def forward(self, prompts: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        states, mask = super().forward(prompts)
        return states.to(torch.promote_types(states.dtype, torch.float32)) * T5_FACTOR, mask


class MiniLMText(FrozenText):
    """The last hidden states of all-MiniLM-L6-v2 (22.7 M parameters, dim 384), or any BERT: before the pooling.

    Those of padding are zero: the model is not run on what is padding in all of the batch.
    """

    model_class = AutoModel

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tokens: int = TOKENS):
        check_room("MiniLMText", tokens, model)
        super().__init__(model, tokenizer, tokens)

    @torch.no_grad()
    def forward(self, prompts: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        ids, mask = self.ids_and_mask(prompts)
        longest = int(mask.sum(1).max())
        short = mask[:, :longest]
        states = self.model(input_ids=ids[:, :longest], attention_mask=short.long()).last_hidden_state
        return F.pad(states.masked_fill(~short[..., None], 0), (0, 0, 0, self.tokens - longest)), mask

    @classmethod
    def from_pretrained(cls, folder: str | Path | None = None, **arguments) -> "MiniLMText":
        """Without a folder: those of the installed package or of the Hub, checked (:mod:`fmpipe.text.minilm`)."""
        if folder is None:
            folder = minilm.verified_folder()
        return super().from_pretrained(folder, **arguments)


CLASSES = {cls.__name__: cls for cls in (CLIPText, MetaQueryText, MiniLMText, T5Text)}
KINDS = {"clip": CLIPText, "meta_query": MetaQueryText, "minilm": MiniLMText, "t5": T5Text}
MODEL_TYPES = {"bert": MiniLMText, "clip": CLIPText, "clip_text_model": CLIPText, "t5": T5Text}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load_text_encoder(
    spec: str | Path | Sequence[str | Path] | Mapping[str, Any], tokens: int | None = None, **arguments
) -> FrozenText:
    """Return the encoder that spec describes.

    Args:
        spec: ``"minilm"``; a folder; ``(class name, folder)``; or a mapping with ``kind`` (clip, meta_query, minilm,
            t5), ``model`` (a folder, or ``minilm``), optionally ``dtype`` (fp32, bf16, fp16), and the arguments of
            the class. A folder's class is that of its text_encoder.json, otherwise that of its config.json's model_type
            (bert, clip, t5).
        tokens: number of tokens of a prompt that are read. A saved MetaQueryText keeps its own number.
        arguments: of the class's ``from_pretrained``.

    Raises ValueError that names spec for an unknown class, FileNotFoundError without such a folder.
    """
    if isinstance(spec, Mapping):
        spec, arguments = _described(spec, arguments)
    if spec == "minilm":
        return MiniLMText.from_pretrained(**{**_length(MiniLMText, tokens), **arguments})
    if isinstance(spec, (str, Path)):
        folder = located("load_text_encoder", spec, arguments.get("local_files_only", True))
        name = read_json(folder / CONFIG).get("_class_name")
        model_type = read_json(folder / "config.json").get("model_type")
        if name is None and model_type not in MODEL_TYPES:
            raise ValueError(
                f"load_text_encoder: spec {str(spec)!r} has model_type {model_type!r}, not {', '.join(MODEL_TYPES)}; "
                f"for a language model, use {{kind: meta_query, model: {spec}}}, or pass (class name, folder), one of "
                f"{', '.join(CLASSES)}"
            )
        name = name or MODEL_TYPES[model_type].__name__
        tokens = None if name == "MetaQueryText" else tokens
    elif isinstance(spec, (list, tuple)) and len(spec) == 2:
        name, folder = spec
    else:
        raise ValueError(
            f"load_text_encoder: spec must be 'minilm', a folder or (class name, folder), or a mapping, got {spec!r}"
        )
    if name not in CLASSES:
        raise ValueError(f"load_text_encoder: spec names class {name!r}; choose one of {', '.join(CLASSES)}")
    return CLASSES[name].from_pretrained(folder, **{**_length(CLASSES[name], tokens), **arguments})


def _described(spec: Mapping[str, Any], arguments: dict) -> tuple[str | tuple[str, str | Path], dict]:
    """Return the plain spec and the arguments of a mapping."""
    given = {name: value for name, value in spec.items() if value is not None}
    kind, model, dtype = (given.pop(name, None) for name in ("kind", "model", "dtype"))
    for name, value, known in (("kind", kind, KINDS), ("dtype", dtype or "fp32", DTYPES)):
        if value not in known:
            raise ValueError(f"load_text_encoder: {name} must be one of {', '.join(known)}, got {value!r}")
    if dtype:
        arguments = {"dtype": DTYPES[dtype], **arguments}
    if model == "minilm":
        model = minilm.verified_folder()
    elif model is None:
        raise ValueError(f"load_text_encoder: model is missing: a folder, or minilm, for kind {kind!r}")
    unknown = sorted(given.keys() - set(inspect.signature(KINDS[kind]).parameters) | given.keys() & {"tokens"})
    if unknown:
        raise ValueError(f"load_text_encoder: {unknown[0]} is not an argument of kind {kind!r}")
    return (KINDS[kind].__name__, model), {**given, **arguments}


def _length(cls: type[FrozenText], tokens: int | None) -> dict[str, int]:
    """Return the argument of a class that limits the length of prompts."""
    return {} if tokens is None else {"prompt_tokens" if cls is MetaQueryText else "tokens": tokens}
