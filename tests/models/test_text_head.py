"""The text heads against CrossFlow's numbers, at their edges, and as a user trains them."""

import pytest
import torch
from support.tiny_models import under

from fmpipe.models import LinearHead, TextHead, build

SMALL = {"width": 16, "tokens": 3, "latent_shape": (2, 3, 5), "blocks": 1, "hidden": 8, "heads": 2, "reductions": 2}

HEADS = [
    pytest.param(lambda: TextHead(**SMALL), id="text"),
    pytest.param(lambda: LinearHead(16, 3, (2, 3, 5), hidden=7), id="linear"),
]


def moments(head, states, mask=None):
    return torch.cat([part.flatten(1) for part in head(states, mask)], dim=1)


def test_golden(golden):
    g, head = golden("dimr_tiny"), build("tiny_dimr").text_head.eval()
    head.load_state_dict(under(g, "state.context_encoder."))
    got = moments(head, g["text.context"], g["text.mask"])
    torch.testing.assert_close(got, g["text.moments"], atol=2e-5, rtol=1e-4)
    mu, logvar = head(g["text.context"], g["text.mask"])
    assert mu.shape == logvar.shape == (len(got), 4, 32, 32)
    assert torch.equal(torch.cat([mu, logvar], 1).flatten(1), got), "b (c h w), mu first"


def test_golden_edges(golden):
    """Small inputs, where eps shows, a row of one token, and one of none."""
    g = golden("edges")
    head = TextHead(32, 3, (2, 32, 32), blocks=1, hidden=16, heads=4, reductions=2, last_norm=True).eval()
    head.load_state_dict(under(g, "text.state."))
    got, expected = moments(head, g["text.x"], g["text.mask"]), g["text.moments"]
    assert ((got - expected).norm(dim=1) < 1e-6 * expected.norm(dim=1)).all()
    torch.testing.assert_close(got, expected, atol=5e-6, rtol=1e-4)


@pytest.mark.parametrize("make", HEADS)
def test_masked_tokens_are_not_seen(make):
    head = make()
    torch.nn.init.normal_(next(head.parameters()))
    states, mask = torch.randn(2, 3, 16), torch.tensor([[1, 1, 0], [1, 0, 0]])
    changed = states.clone()
    changed[0, 2], changed[1, 1:] = 5.0, -5.0
    head.eval()
    if isinstance(head, LinearHead):
        changed[0, 2] = torch.nan
        assert torch.equal(moments(head, states, mask), moments(head, changed, mask))
    else:  # masked tokens are no keys, but each still has its own place in the last product
        kept = head.layers[0].attn(states, mask != 0), head.layers[0].attn(changed, mask != 0)
        torch.testing.assert_close(kept[0][0, :2], kept[1][0, :2])
        assert not torch.allclose(kept[0][0, 2], kept[1][0, 2])
    assert not torch.allclose(moments(head, states), moments(head, changed))


def test_a_fully_masked_row_averages_the_values():
    head = TextHead(**SMALL).eval()
    attention = head.layers[0].attn
    for p in attention.parameters():
        torch.nn.init.normal_(p)
    x = 100 * torch.randn(1, 3, 16)
    got = attention(x, torch.zeros(1, 3, dtype=torch.bool))
    torch.testing.assert_close(
        got, attention.W_O(attention.W_V(x).mean(1, keepdim=True)).expand_as(got), rtol=1e-4, atol=1e-2
    )


@pytest.mark.parametrize(("shape", "channels"), [((4, 64, 64), 8), ((2, 64, 64), 4)])
def test_large_latents_come_from_the_adaptor(shape, channels):
    head = TextHead(32, 3, shape, blocks=1, hidden=8, heads=2, reductions=2, compressed=16)
    assert head.adaptor.conv3.out_channels == channels
    mu, logvar = head(torch.randn(2, 3, 32))
    assert mu.shape == logvar.shape == (2, *shape)
    (mu.square().mean() + logvar.square().mean()).backward()
    assert [n for n, p in head.named_parameters() if p.grad is None] == []


def test_compressor_and_adaptor_are_what_they_are_said_to_be():
    """relu(norm(layer)) each time, but for the last layer, which is bare."""
    head = TextHead(12, 2, (2, 64, 64), blocks=1, hidden=8, heads=2, reductions=1, compressed=8).eval()
    for p in head.parameters():
        torch.nn.init.normal_(p, std=0.3)
    x, c, a = torch.randn(2, 2, 12), head.compressor, head.adaptor
    torch.testing.assert_close(c(x), c.fc2(c.ln_fc1(c.fc1(x)).clamp_min(0)))
    flat = torch.randn(2, 8)
    y = a.ln_fc1(a.fc1(flat)).clamp_min(0)
    y = a.ln_fc2(a.fc2(y)).clamp_min(0).reshape(2, 1, 64, 64)
    y = a.ln_conv1(a.conv1(y)).clamp_min(0)
    y = a.ln_conv2(a.conv2(y)).clamp_min(0)
    torch.testing.assert_close(a(flat), a.conv3(y).reshape(2, -1))
    expected = head.reduction_layers[0](head.layers[0](c(x), None), None).flatten(1)
    torch.testing.assert_close(moments(head, x), a(expected))


def test_dropout_is_for_training_only():
    head, states = TextHead(**SMALL), torch.randn(2, 3, 16)
    assert torch.equal(moments(head.eval(), states), moments(head, states))
    assert not torch.equal(moments(head.train(), states), moments(head, states))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_no_nan(dtype):
    head = TextHead(**SMALL).eval().to(dtype)
    out = moments(head, torch.randn(2, 3, 16).to(dtype), torch.tensor([[1, 0, 1], [0, 0, 0]]))
    assert out.dtype == dtype
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("make", HEADS)
def test_save_and_load(make, tmp_path):
    head = make()
    head.save_pretrained(tmp_path)
    again, states = type(head).from_pretrained(tmp_path), torch.randn(1, 3, 16)
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in head.state_dict().items())
    torch.testing.assert_close(moments(head.eval(), states), moments(again, states))


@pytest.mark.parametrize("make", HEADS)
def test_initial_z0_is_near_the_prior(make):
    head = make()
    mu, logvar = head(torch.randn(8, 3, 16))
    assert mu.abs().mean() < 0.3
    assert logvar.abs().mean() < 0.3


BAD = {
    "states": (lambda: TextHead(**SMALL)(torch.randn(1, 4, 16)), r"states must be \(B, 3, 16\)"),
    "mask": (lambda: TextHead(**SMALL)(torch.randn(1, 3, 16), torch.ones(1, 4)), "mask must be"),
    "heads": (lambda: TextHead(**{**SMALL, "heads": 16}), "divisible"),
    "reductions": (lambda: TextHead(**{**SMALL, "reductions": 6}), "divisible"),
    "no heads": (lambda: TextHead(**{**SMALL, "heads": 0}), "heads must be a positive"),
    "negative reductions": (lambda: TextHead(**{**SMALL, "reductions": -1}), "reductions must be"),
    "mask a list": (lambda: TextHead(**SMALL)(torch.randn(1, 3, 16), [[1, 1, 1]]), "mask must be a tensor"),
    "latent_shape": (lambda: TextHead(**{**SMALL, "latent_shape": (3, 40, 40)}), "needs the adaptor"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_gradient_checkpointing_gives_the_same_gradients():
    head, states, grads = TextHead(**SMALL).eval(), torch.randn(2, 3, 16), []
    for switched in (False, True):
        if switched:
            head.enable_gradient_checkpointing()
        head.zero_grad()
        moments(head, states).square().sum().backward()
        grads.append([p.grad.clone() for p in head.parameters()])
    for plain, checkpointed in zip(*grads, strict=True):
        torch.testing.assert_close(checkpointed, plain)
