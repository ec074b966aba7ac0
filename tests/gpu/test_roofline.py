"""benchmarks/roofline.py: what it counts, against numbers worked out by hand; nothing it says was measured."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fmkernels as fk
from fmkernels.schema import KERNELS

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ROW = 57_600  # wider rows of a norm are read twice


@pytest.fixture
def roofline(monkeypatch):
    pytest.importorskip("triton")
    pytest.importorskip("diffusers")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import roofline

    return roofline


def x(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def bf16(*shape):
    return x(*shape, dtype=torch.bfloat16)


# call -> launches, bytes, FLOPs
BY_HAND = {
    "a sum": (lambda: x(1000) + x(1000), 1, 12000, 0),
    "a mixture of dtypes": (lambda: x(1000) + bf16(1000), 1, 10000, 0),
    "an expanded operand": (lambda: x(100, 10) + x(10), 1, 8040, 0),
    "one that was expanded before": (lambda: x(100, 10) + x(1, 10).expand(100, 10), 1, 8040, 0),
    "half of a tensor": (lambda: x(1000)[:500].exp(), 1, 4000, 0),
    "views and buffers": (lambda: x(4, 5).t().reshape(2, 10).chunk(2, dim=1)[0][None], 1, 160, 0),  # reshape copies
    "only views": (lambda: x(4, 5).t()[1:].unflatten(1, (2, 2)), 0, 0, 0),
    "in place": (lambda: x(1000).add_(x(1000)), 1, 12000, 0),
    "a copy does not read what it covers": (lambda: bf16(1000).copy_(x(1000)), 1, 6000, 0),
    "out=": (lambda: torch.add(x(1000), x(1000), out=x(1000)), 1, 12000, 0),
    "a product": (lambda: x(3, 5) @ x(5, 7), 1, 4 * (15 + 35 + 21), 2 * 3 * 5 * 7),
    "a product with a bias": (lambda: F.linear(x(2, 3, 5), x(7, 5), x(7)), 1, 4 * (30 + 35 + 7 + 42), 2 * 6 * 5 * 7),
    "a product into a sum": (lambda: x(3, 7).addmm_(x(3, 5), x(5, 7)), 1, 4 * (15 + 35 + 42), 2 * 3 * 5 * 7),
    "attention": (
        lambda: F.scaled_dot_product_attention(*(bf16(2, 3, 5, 8) for _ in range(3))),
        1,
        2 * 4 * 240,
        4 * 2 * 3 * 5 * 5 * 8,
    ),
    "a depthwise convolution": (
        lambda: F.conv2d(x(1, 4, 9, 9), x(4, 1, 3, 3), padding=1, groups=4),
        1,
        4 * (324 + 36 + 324),
        2 * 324 * 9,
    ),
    "tdp": (lambda: fk.tdp(*(bf16(100) for _ in range(4)), x(3)), 1, 2 * 400 + 12 + 2 * 300, 0),
    "a norm": (lambda: fk.td_rms_norm(bf16(6, ROW), bf16(ROW)), 1, 2 * 13 * ROW + 8 * 6, 0),
    "a wide norm": (lambda: fk.td_rms_norm(x(6, ROW + 1), x(ROW + 1)), 1, 4 * 19 * (ROW + 1) + 8 * 6, 0),
    "a norm of a list": (
        lambda: fk.td_layer_norm([x(6, 10), x(6, 20)], x(30), x(30)),
        1,
        4 * (180 + 60 + 180) + 8 * 6,
        0,
    ),
    "a norm and its sum": (lambda: fk.td_rms_norm(x(6, 10), x(10), residual=x(6, 10)), 1, 4 * 250 + 8 * 6, 0),
    "a step": (
        lambda: fk.euler_step_(x(2, 50), bf16(2, 50), 0.1, v_uncond=bf16(2, 50), low=bf16(2, 50), stats=x(2, 5)),
        1,
        100 * (4 + 4 + 2 + 2 + 2) + 40,
        0,
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(roofline, name):
    call, *expected = BY_HAND[name]
    work = roofline.work_of(call)
    assert [sum(getattr(w, key) for w in work) for key in ("launches", "bytes", "flops")] == expected, work


def test_of_a_backward_too(roofline):
    """The norm's: a second launch, wide rows of half precision read four times, scale's gradient rounded by torch."""
    args = bf16(6, ROW + 1).requires_grad_(), bf16(ROW + 1).requires_grad_()
    work = {w.name: w for w in roofline.work_of(lambda: roofline.with_gradients(fk.td_rms_norm, *args))}
    assert {name: w.launches for name, w in work.items()} == {"td_norm": 1, "td_norm_backward": 2, "_to_copy": 1}
    # grad three times and s four, scale, the statistics; the gradient to s, and in fp32 those to scale and offset
    assert work["td_norm_backward"].bytes == (ROW + 1) * (2 * (6 * 7 + 1) + 2 * 6 + 2 * 4) + 8 * 6
    ends = bf16(2, 8).requires_grad_(), bf16(2, 8)
    work = roofline.work_of(lambda: roofline.with_gradients(fk.psi, x(2), *ends))
    assert work[-1].name == "psi_backward"
    assert work[-1].bytes == 2 * 16 * 3 + 8  # grad, both gradients and t: x0 and x1 are not looked at


def test_a_launch_takes_the_longest_of_four(roofline):
    gpu = roofline.GPU("made up", bandwidth=1e9, peak=1e12, issue=1e9)
    work = [
        roofline.Work("bytes", 1, 9000, 1_000_000),  # 9, 4 and 1 µs
        roofline.Work("flops", 1, 1000, 7_000_000),  # 1, 4 and 7
        roofline.Work("launches", 2, 3000),  # 3, 8 and 0
        roofline.Work("instructions", 1, 2000, 0, 11000),  # 2, 4, 0 and 11
    ]
    assert roofline.times(work, gpu, 4.0) == pytest.approx(
        {"bandwidth": 15, "launches": 20, "flops": 8, "issue": 11, "estimate": 9 + 7 + 8 + 11}
    )
    assert roofline.times([], gpu, 4.0)["estimate"] == 0


def test_instructions_by_hand(roofline):
    """Per element of what is counted on the interpreter, 32 to a warp; the plain structure's are not counted."""
    for call, case, elements in (
        (lambda: fk.gelu_mul(bf16(6, 2048)), "gelu_mul", 6 * 1024),
        (lambda: fk.td_rms_norm(bf16(6, 1024), bf16(1024), residual=bf16(6, 1024)), "RMS norm + residual", 6 * 1024),
        (lambda: fk.tdp(*(bf16(100) for _ in range(4)), x(50)), "tdp group, T=50", 5000),
        (lambda: fk.velocity_stats(x(2, 50), x(2, 50), x(2, 50)), "velocity_stats", 100),
    ):
        work = roofline.work_of(call)[0]
        assert work.instructions == pytest.approx(roofline.INSTRUCTIONS[case]["per_element"] * elements / 32), case
    assert roofline.work_of(lambda: x(1000) + x(1000))[0].instructions == 0


def test_every_op_has_its_launches(roofline):
    assert set(roofline.CUDA_LAUNCHES) == set(KERNELS["cuda"])
    assert {name for name, number in roofline.CUDA_LAUNCHES.items() if number != 1} == {
        "td_norm_backward",
        "qk_norm_rope",
        "qk_norm_rope_",
        "qk_norm_rope_backward",
    }


def test_every_op_is_in_the_table(roofline):
    """Itself or by its backward; the *_out ops are the same kernels. Ours never takes more than the plain formula."""
    seen = set()
    for name, plain, ours in roofline.op_cases():
        plain, ours = (roofline.counted(call, roofline.Traffic()) for call in (plain, ours))
        seen |= ours.counts.keys()
        assert ours.counts.total() <= plain.counts.total(), name
        assert sum(w.bytes for w in ours.work) < sum(w.bytes for w in plain.work), name
        assert not any("fmkernels" in w.name or w.name in roofline.CUDA_LAUNCHES for w in plain.work), name
    of_the_path = {"psi_backward", "tdp_backward"}  # not trained through
    assert seen >= {op for op in roofline.CUDA_LAUNCHES if not op.endswith("_out")} - of_the_path


def check_counts(table):
    """Of all, and of what is outside products and attention, ours is at most the plain structure's."""
    rows = {tuple(row[:3]): row[3:] for row in table["rows"]}
    for (model, who, part), (launches, megabytes, gflop) in rows.items():
        if who == "fmkernels" and part != "products, attention":
            plain = rows[model, "plain", part]
            assert 0 < launches < plain[0], (model, part)
            assert 0 < megabytes < plain[1], (model, part)
            # A convolution into patches is a product of ours, so the parts differ.
            assert part != "all" or gflop == pytest.approx(plain[2], rel=0.05), model


def test_all_of_it_is_called_an_estimate(roofline, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(roofline, "MODELS", {"small": "small_dimr"})
    path = tmp_path / "estimate.json"
    roofline.main(["--launch-us", "2", "--json", str(path)])
    written, printed = json.loads(path.read_text()), capsys.readouterr().out
    assert "estimate" in written["label"].lower()
    assert len(written["tables"]) == 3
    for table in written["tables"]:
        assert "estimate" in table["title"].lower()
        assert table["title"] in printed
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
    check_counts(written["tables"][1])
    assert {row[2] for row in written["tables"][2]["rows"]} == {2.0}
    assert {row[1] for row in written["tables"][2]["rows"]} == {"A100", "H100", "B200"}
    with pytest.raises(SystemExit):
        roofline.main(["--help"])
    assert "estimate" in capsys.readouterr().out.lower()


@pytest.mark.slow
def test_a_guided_step(roofline):
    counts, times = roofline.step_tables([4.0])
    check_counts(counts)
    launches = {tuple(row[:2]): row[3] for row in counts["rows"] if row[2] == "all"}
    assert launches["256 px", "fmkernels"] <= 1000
    for *_, by_bytes, by_launches, by_flops, by_issue, step, rest, _, _ in times["rows"]:
        bounds = by_bytes, by_launches, by_flops, by_issue
        assert max(bounds) <= step <= sum(bounds)
        assert rest < step
