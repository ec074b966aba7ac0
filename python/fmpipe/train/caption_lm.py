"""A small causal language model trained on the captions of a data set: what meta-queries can read offline."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fmpipe.data.cache import new_folder
from fmpipe.data.source import digest_of

ARCHITECTURE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
STEPS, BATCH, RATE = 400, 64, 3e-3
VERSION = 1  # increase with every change of the model or its training, so that older caches are not used


def caption_lm(captions: Sequence[str], folder: str | Path, seed: int = 0) -> Path:
    """Return ``folder/lm-<digest>`` with a Llama model and a tokenizer of words, trained on the captions if missing.

    The model predicts the next word; training takes about ten seconds. Its vocabulary is the words of the captions.
    Several processes may train it at the same time; the first one to finish keeps the name.
    """
    texts = sorted(set(captions))
    path = Path(folder) / f"lm-{digest_of('caption_lm', VERSION, seed, texts)}"
    if path.is_dir():
        return path
    with new_folder(path) as temporary, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in _trained(texts):
            part.save_pretrained(temporary)
    return path


def _trained(texts: Sequence[str]):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    plain = Tokenizer(models.WordLevel({}, unk_token="[UNK]"))
    plain.normalizer, plain.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    words = {word for text in texts for word, _ in plain.pre_tokenizer.pre_tokenize_str(text.lower())}
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[BOS]", *sorted(words)])}
    plain.model = models.WordLevel(vocabulary, unk_token="[UNK]")
    plain.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 2)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]", bos_token="[BOS]", padding_side="right"
    )
    config = LlamaConfig(**ARCHITECTURE, vocab_size=len(vocabulary), pad_token_id=0, bos_token_id=2, eos_token_id=None)
    model = LlamaForCausalLM(config).train()
    batch = tokenizer(list(texts), padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS, pct_start=0.1)
    for _ in range(STEPS):
        rows = torch.randint(len(ids), (BATCH,))
        optimizer.zero_grad()
        _next_word_loss(model, ids[rows], mask[rows]).backward()
        optimizer.step()
        schedule.step()
    return model.eval(), tokenizer


def _next_word_loss(model, ids: Tensor, mask: Tensor) -> Tensor:
    logits = model(input_ids=ids, attention_mask=mask.long()).logits[:, :-1]
    target = ids[:, 1:].masked_fill(~mask[:, 1:], -100)
    return cross_entropy(logits.flatten(0, 1), target.flatten())
