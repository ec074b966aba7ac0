"""Learned queries on language models as transformers has them: states, gradients, reuse of prompts, files."""

import json

import pytest
import torch
from safetensors.torch import load_file
from support.language_models import CAUSAL, VISION_LANGUAGE, save_language_model
from torch import nn

from fmpipe.text import load_text_encoder

PROMPTS = ["a large red circle in the centre", "", "at the top left a small blue ring , large", "一 只 猫"]
CLOSE = {"rtol": 1e-4, "atol": 2e-5}
TRAINED = {"lora": {"r": 2, "alpha": 3}, "connector": {"layers": 1, "heads": 4, "hidden": 16, "width": 24}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root, made = tmp_path_factory.mktemp("models"), {}

    def find(kind):
        if kind not in made:
            made[kind] = save_language_model(kind, root / kind)
        return made[kind]

    return find


def encoder(model, **arguments):
    torch.manual_seed(1)
    return load_text_encoder(
        {"kind": "meta_query", "model": model and str(model), "num_queries": 5, **arguments}, tokens=16
    )


def gradients(made, **texts):
    made.zero_grad()
    made.encode(**texts)[0].pow(3).sum().backward()
    return {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", [*CAUSAL, *VISION_LANGUAGE])
def test_a_prompt_has_the_same_states_alone_and_in_a_batch(folder, kind):
    made = encoder(folder(kind))
    states, mask = made(PROMPTS)
    assert states.shape == (4, 5, 32)
    assert mask.all()
    for prompt, expected in zip(PROMPTS, states, strict=True):
        torch.testing.assert_close(made(prompt)[0][0], expected, **CLOSE)
    assert (states[0] - states[2]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [*CAUSAL, *VISION_LANGUAGE])
def test_reused_prefixes_change_neither_states_nor_gradients(folder, kind):
    made = encoder(folder(kind))
    texts = made.tokenize(PROMPTS)
    prefix = made.prefixes(**texts)
    assert made.reuse_error(PROMPTS) < 1e-5
    torch.testing.assert_close(made.encode(**texts, prefix=prefix)[0], made.encode(**texts)[0], **CLOSE)
    plain, reused = gradients(made, **texts), gradients(made, **texts, prefix=prefix)
    assert list(plain) == list(reused) == ["queries"]
    torch.testing.assert_close(reused["queries"], plain["queries"], **CLOSE)
    wrong = made.encode(**texts, prefix=prefix.flip(0))[0]
    assert (wrong - made.encode(**texts)[0]).abs().max() > 1e-3  # the prefix is what the queries read


def test_prefixes_are_not_reused_where_they_depend_on_what_is_trained(folder, tmp_path):
    assert encoder(folder("llama"), lora={"r": 2}).reuse_error(PROMPTS) == float("inf")
    assert load_text_encoder({"kind": "meta_query", "model": "minilm", "num_queries": 3}).reuse_error(
        ["a red circle"]
    ) == float("inf")


@pytest.mark.parametrize("kind", ["mistral", "phi3", "qwen2", "gemma2", "gemma3_text"])
def test_prefixes_are_not_reused_if_a_sliding_window_is_shorter_than_the_prompt(tmp_path, kind):
    changes = {"sliding_window": 4} | ({"use_sliding_window": True, "max_window_layers": 1} if kind == "qwen2" else {})
    made = encoder(save_language_model(kind, tmp_path, **changes))
    assert made.reuse_error(PROMPTS) == float("inf")


def test_every_lora_weight_of_a_bidirectional_encoder_has_a_gradient():
    """Or several processes would wait for it: BERT's pooler is not on the way to the states."""
    made = encoder("minilm", lora={"r": 2})
    found = gradients(made, **made.tokenize(PROMPTS[:2]))
    assert found.keys() == {name for name, p in made.named_parameters() if p.requires_grad}
    assert any("lora_B" in name for name in found)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "phi", "qwen2_5_vl"])
def test_checkpointing_changes_no_gradient_and_no_mode(folder, kind):
    made = encoder(folder(kind), **TRAINED)
    plain = gradients(made, **made.tokenize(PROMPTS))
    made.enable_gradient_checkpointing()
    made.train()
    assert not any(module.training for module in made.modules() if isinstance(module, nn.Dropout))
    calls = []
    layer = next(m for m in made.model.modules() if getattr(m, "gradient_checkpointing", False) and m is not made.model)
    inner = next(m for m in layer.modules() if isinstance(m, nn.LayerNorm) or "Norm" in type(m).__name__)
    inner.register_forward_hook(lambda *_: calls.append(1))
    again = gradients(made, **made.tokenize(PROMPTS))
    assert len(calls) == 2  # forward, and once more in the backward pass
    for name, expected in plain.items():
        torch.testing.assert_close(again[name], expected, **CLOSE)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "internvl", "qwen2_vl"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_is_trained_is_fp32_and_survives_the_round_trip(folder, tmp_path, kind, dtype):
    made = encoder(folder(kind), dtype=dtype, prompt_template="draw : {prompt} .", **TRAINED)
    trained = {name: p for name, p in made.named_parameters() if p.requires_grad}
    assert {name.split(".")[0] for name in trained} == {"queries", "connector", "model"}
    assert all("lora_" in name for name in trained if name.startswith("model."))
    assert {p.dtype for p in trained.values()} == {torch.float32}
    assert {p.dtype for n, p in made.named_parameters() if n not in trained} == {made.model.dtype}
    assert made.model.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    before = {name: p.clone() for name, p in made.named_parameters()}
    grads = gradients(made, **made.tokenize(PROMPTS))
    assert set(grads) == set(trained)
    with torch.no_grad():
        for p in trained.values():
            p += 0.1 * torch.randn_like(p)
    made.save_pretrained(tmp_path)
    loaded = load_text_encoder(tmp_path, tokens=3)  # keeps its own number of prompt tokens
    assert torch.equal(loaded(PROMPTS)[0], made(PROMPTS)[0])
    assert {n for n, p in loaded.named_parameters() if p.requires_grad} == set(trained)
    base = load_file(tmp_path / "model.safetensors")  # the language model, unchanged
    plain = {n.removeprefix("model.").replace(".base_layer", ""): x for n, x in before.items() if n[:6] == "model."}
    assert all(torch.equal(base[name], plain[name]) for name in base)
    assert json.loads((tmp_path / "lora" / "adapter_config.json").read_text())["r"] == 2


def test_a_long_prompt_is_cut_inside_its_template(folder):
    made = encoder(folder("llama"), prompt_tokens=9, prompt_template="draw : {prompt} .")
    words = ["a", "large", "red", "circle", "in", "the", "centre", "at", "the", "top", "left"]
    ids = made.tokenize([" ".join(words)])["ids"][0]
    assert made.tokenizer.decode(ids).split() == ["draw", ":", *words[:6], "."]
    assert made.prompt_limit == 6
    assert made.cut(" ".join(words)).split() == words[6:]
    short = made.tokenize(["red circle", "blue ring in the centre"])
    assert made.tokenizer.decode(short["ids"][0][short["mask"][0]]).split() == ["draw", ":", "red", "circle", "."]


def test_dropout_of_lora_follows_the_mode(folder):
    made = encoder(folder("llama"), lora={"r": 2, "dropout": 0.5})
    with torch.no_grad():
        for name, p in made.named_parameters():
            if "lora_B" in name:
                p.normal_()
    first, second = (made.train()(PROMPTS)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(made.eval()(PROMPTS)[0], made(PROMPTS)[0])


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ({"kind": "meta"}, ValueError, "kind must be one of clip, meta_query, minilm, t5, got 'meta'"),
        ({"model": None}, ValueError, "model is missing"),
        ({"model": "no/such"}, FileNotFoundError, "'no/such' is not a folder"),
        ({"dtype": "int8"}, ValueError, "dtype must be one of fp32, bf16, fp16, got 'int8'"),
        ({"num_queries": 0}, ValueError, "num_queries must be a positive int, got 0"),
        ({"num_queries": 90}, ValueError, r"num_queries \+ prompt_tokens must be at most 96.* got 90 \+ 16"),
        ({"queries": 4}, ValueError, "queries is not an argument of kind 'meta_query'"),
        ({"prompt_template": "draw"}, ValueError, r"prompt_template must contain \{prompt\} once, got 'draw'"),
        ({"prompt_template": "a " * 20 + "{prompt}"}, ValueError, "prompt_template alone has 2. tokens"),
        ({"lora": {"r": 0}}, ValueError, "lora: r must be a positive int, got 0"),
        ({"lora": {"r": 2, "target_modules": ["qqq"]}}, ValueError, "lora: target_modules .'qqq'.*not found"),
        ({"lora": {"r": 2, "dropout": 1.0}}, ValueError, r"lora: dropout must be in \[0, 1\), got 1.0"),
        ({"connector": {"layers": 1, "heads": 5}}, ValueError, "heads must be a divisor of the width 32"),
        ({"connector": {"layers": 0}}, ValueError, "layers must be positive"),
        ({"kind": "clip", "num_queries": 4}, ValueError, "num_queries is not an argument of kind 'clip'"),
    ],
    ids=str,
)
def test_wrong_settings_are_named(folder, spec, error, said):
    with pytest.raises(error, match=said):
        encoder(spec.pop("model", folder("llama")), **spec)(PROMPTS[0])
