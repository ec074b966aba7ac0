"""The AMX guard: its rule on CPUID values of other machines, its side effects, and a bf16 product that lives."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

import fmkernels
from fmkernels import _host, amx

TILE = 1 << 24


@pytest.mark.parametrize(
    ("machine", "highest", "leaf7_edx", "leaf1d_eax", "hidden"),
    [
        ("no AMX", 0x10, 0, 0, False),
        ("no AMX, high leaves", 0x1F, 0xFFFFFFFF & ~TILE, 0, False),
        ("whole AMX", 0x20, TILE, 1, False),
        ("advertised, leaves end at 0x1C", 0x1C, TILE, 0, True),
        ("advertised, leaf 0x1D empty", 0x20, TILE, 0, True),
        ("advertised, stale value behind the last leaf", 0x1C, TILE, 1, True),
    ],
)
def test_rule(machine, highest, leaf7_edx, leaf1d_eax, hidden):
    assert _host.amx_hidden_from(highest_leaf=highest, leaf7_edx=leaf7_edx, leaf1d_eax=leaf1d_eax) is hidden, machine


@pytest.fixture
def hidden_amx(monkeypatch):
    monkeypatch.setattr(amx, "hidden", lambda: True)
    monkeypatch.delenv(amx.VARIABLE, raising=False)


def test_guard_sets_the_variable_and_warns_once(hidden_amx):
    assert not amx.bf16_safe()
    with pytest.warns(RuntimeWarning, match=r"mkldnn\.enabled") as caught:
        [amx.guard() for _ in range(2)]
    assert len(caught) == 1
    assert "bf16_safe" in str(caught[0].message)
    assert os.environ[amx.VARIABLE] == amx.SAFE
    assert amx.bf16_safe()


@pytest.mark.parametrize(
    ("value", "safe"), [("AVX2", True), ("avx512_core_fp16", True), ("AVX512_CORE_AMX", False), ("ALL", False)]
)
def test_the_users_setting_stands(hidden_amx, monkeypatch, value, safe):
    monkeypatch.setenv(amx.VARIABLE, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        amx.guard()
    assert os.environ[amx.VARIABLE] == value
    assert amx.bf16_safe() is safe


def test_without_onednn_there_is_nothing_to_fear(hidden_amx):
    with torch.backends.mkldnn.flags(enabled=False):
        assert amx.bf16_safe()


def test_nothing_is_done_where_amx_is_whole_or_absent(monkeypatch):
    monkeypatch.setattr(amx, "hidden", lambda: False)
    monkeypatch.delenv(amx.VARIABLE, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        amx.guard()
    assert amx.VARIABLE not in os.environ
    assert amx.bf16_safe()


@pytest.mark.parametrize(
    ("flags", "suspect"), [("fpu amx_tile hypervisor", True), ("fpu amx_tile", False), ("fpu", False)]
)
def test_suspicion_without_the_compiled_module(tmp_path, flags, suspect):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor: 0\nflags\t\t: {flags}\nbugs: none\n")
    assert amx._suspected(cpuinfo) is suspect
    assert amx._suspected(tmp_path / "missing") is False


def test_a_bf16_product_lives():
    code = "import fmkernels, torch; a = torch.randn(64, 64).bfloat16(); print((a @ a).shape, fmkernels.bf16_safe())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, f"died with {run.returncode}: {run.stderr}"
    assert run.stdout == "torch.Size([64, 64]) True\n"


def test_public():
    assert fmkernels.bf16_safe is amx.bf16_safe
