"""Paths and step schedules."""

import itertools
import re
from pathlib import Path as File

import pytest
import torch
from support.cases import assert_close

import fmkernels as fk
from fmkernels.flow import (
    PATHS,
    SCHEDULES,
    Path,
    PsiPath,
    Schedule,
    crossflow,
    logit_normal,
    make_schedule,
    midpoint,
    shifted,
    uniform,
)

PRINTED = (File(__file__).parents[1] / "golden" / "printed_steps.txt").read_text().splitlines()


def ends(batch=5):
    generator = torch.Generator().manual_seed(0)
    return torch.linspace(0.05, 0.95, batch), *torch.randn(2, batch, 3, 7, generator=generator)


# Paths


@pytest.mark.parametrize("name", PATHS)
def test_velocity_is_the_derivative_of_the_path(name):
    t, x0, x1 = (x.double() for x in ends())
    path, h = PATHS[name], 1e-6
    x_t, v = path.pair(t, x0, x1)
    assert torch.equal(x_t, path.point(t, x0, x1))
    assert torch.equal(v, path.velocity(t, x0, x1))
    numeric = (path.point(t + h, x0, x1) - path.point(t - h, x0, x1)) / (2 * h)
    assert_close(v, numeric, atol=1e-8, rtol=1e-6)


def test_paths_agree_with_the_ops():
    t, x0, x1 = ends()
    x_t, v = PATHS["psi"].pair(t, x0, x1)
    assert torch.equal(x_t, fk.psi(t, x0, x1))
    assert torch.equal(v, fk.Dt_psi(t, x0, x1))
    assert_close(PATHS["linear"].velocity(t, x0, x1), x1 - x0)
    own = PsiPath(0.1, 2.0)
    for got, expected in zip(own.pair(t, x0, x1), Path(own.alpha, own.beta).pair(t, x0, x1), strict=True):
        assert_close(got, expected)


def test_path_golden(golden):
    vectors = golden("dimr_tiny")
    t, x0, x1 = vectors["path.t"], vectors["x"], vectors["path.x1"]
    assert_close(PATHS["psi"].point(t, x0, x1), vectors["path.psi"])
    assert_close(PATHS["psi"].velocity(t, x0, x1), vectors["path.dt_psi"])


@pytest.mark.parametrize("name", PATHS)
def test_the_target_cannot_move(name):
    t, x0, x1 = ends()
    x_t, v = PATHS[name].pair(t, x0.requires_grad_(), x1)
    assert x_t.requires_grad
    assert not v.requires_grad
    assert not PATHS[name].velocity(t, x0, x1).requires_grad


@pytest.mark.parametrize("name", PATHS)
def test_path_dtypes(name):
    t, x0, x1 = ends()
    exact = PATHS[name].pair(t, x0, x1)
    for got, expected in zip(PATHS[name].pair(t, x0, x1, dtype=torch.bfloat16), exact, strict=True):
        assert got.dtype == torch.bfloat16
        assert torch.equal(got, expected.bfloat16()), "rounded more than once"


# Schedules


def test_all_printed_steps():
    printed = [re.fullmatch(r"step(\d+): .* dt=(\d\.\d{4})", line).groups() for line in PRINTED]
    starts = [i for i, (k, _) in enumerate(printed) if k == "0"] + [len(printed)]
    runs = [[dt for _, dt in printed[a:b]] for a, b in itertools.pairwise(starts)]
    assert [len(run) for run in runs] == [20, 20, 20, 100, 100]
    for run in runs:
        assert [f"{dt:.4f}" for _, dt in logit_normal(len(run))] == run


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 7, 100, 1000])
def test_schedules(name, steps):
    schedule = make_schedule(name, steps)
    assert len(schedule) == len(list(schedule)) == steps
    assert schedule.t.dtype == schedule.dt.dtype == torch.float32
    assert (schedule.dt > 0).all()
    assert (schedule.t >= 0).all()
    assert (schedule.t < 1).all()
    assert (schedule.t.diff() > 0).all()
    assert schedule[steps - 1] == list(schedule)[-1]
    assert abs(schedule.total - 1) < (2e-2 if name == "logit_normal" else 2e-5)
    assert ("add up to" in str(schedule)) == (name == "logit_normal")
    assert len(str(schedule).splitlines()) >= steps + 2


def test_tables():
    assert uniform(4).t.tolist() == [0, 0.25, 0.5, 0.75]
    assert uniform(4).dt.tolist() == [0.25] * 4
    assert midpoint(4).t.tolist() == [0.125, 0.375, 0.625, 0.875]
    assert (midpoint(4).start, midpoint(4).end) == (0.0, 1.0)
    assert torch.equal(crossflow(8).t, torch.linspace(0, 1 - 1e-5, 8))
    assert torch.equal(crossflow(8).dt, torch.linspace(1e-5, 1, 9).diff())
    u = torch.arange(5, dtype=torch.float64) / 5
    assert torch.equal(shifted(5, shift=2.5).t, (2.5 * u / (1 + 1.5 * u)).float())
    assert torch.equal(shifted(5, shift=1).t, uniform(5).t)
    closed = logit_normal(20, close_ends=True)
    assert closed.t[0] == 0
    assert abs(closed.total - 1) < 1e-6
    assert_close(closed.dt / closed.dt[0], logit_normal(20).dt / logit_normal(20).dt[0], rtol=1e-4)


@pytest.mark.parametrize("name", SCHEDULES)
def test_reversed(name):
    schedule = make_schedule(name, 6)
    back = schedule.reversed()
    assert torch.equal(back.t, schedule.t.flip(0))
    assert torch.equal(back.dt, -schedule.dt.flip(0))
    assert back.start == pytest.approx(schedule.end)
    assert back.end == pytest.approx(schedule.start)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_do_not_depend_on_defaults(name):
    expected = make_schedule(name, 20)
    try:
        torch.set_default_dtype(torch.bfloat16)
        schedule = make_schedule(name, 20)
        own = Schedule("own", [0.1, 0.3], [0.1, 0.1])
        fk.sample(lambda x, t: -x, torch.ones(1, 2, dtype=torch.float32), schedule)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(schedule.t, expected.t)
    assert torch.equal(schedule.dt, expected.dt)
    assert torch.equal(own.t, torch.tensor([0.1, 0.3]))


def test_a_schedule_is_its_own():
    table = torch.tensor([0.0, 0.5])
    schedule = Schedule("own", table, table)
    table.fill_(9)
    assert schedule.t.tolist() == [0.0, 0.5]


def test_paths_check_their_ends():
    t, x0, x1 = ends()
    with pytest.raises(ValueError, match="x1 must have shape"):
        PATHS["cosine"].pair(t, x0, x1[0])
    with pytest.raises(ValueError, match="t must have shape"):
        PATHS["cosine"].pair(t[:1], x0, x1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: uniform(0), "steps must be a whole number of at least 1, got 0"),
        (lambda: crossflow(2.5), "steps must be a whole number"),
        (lambda: shifted(3, shift=0), "shift must be a positive number"),
        (lambda: make_schedule("cosine", 3), "unknown schedule 'cosine'; choose one of logit_normal, uniform"),
        (lambda: Schedule("own", torch.zeros(3), torch.zeros(2)), "of one length, got 3 and 2"),
        (lambda: Schedule("own", torch.zeros(0), torch.zeros(0)), "t must be of shape"),
        (lambda: Schedule("own", torch.zeros(1), torch.tensor([torch.nan])), "dt must be finite"),
        (lambda: Schedule("own", [0.0, 2.0], [1.0, 1.0]), "t must be in [0, 1], got 0 … 2"),
    ],
)
def test_bad_schedules(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
