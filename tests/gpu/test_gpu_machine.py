"""The verdict of make gpu-check, and the torch build that make setup selects, on simulated machines.

A machine is described by what its commands print, its files, its environment and its torch. The outputs are those of
real machines: nvidia-smi and rocminfo as documented, and the errors that users report.
"""

import os
import subprocess
import sys
from dataclasses import replace

import gpu_check
import pytest
from gpu_checks import ROOT, machine
from gpu_checks.machine import Probes, Torch

H100 = "NVIDIA H100 80GB HBM3, 580.95.05\n"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
ROCMINFO = """\
ROCk module is loaded
*******
Agent 1
*******
  Name:                    AMD EPYC 9654 96-Core Processor
  Marketing Name:          AMD EPYC 9654 96-Core Processor
  Device Type:             CPU
*******
Agent 2
*******
  Name:                    gfx942
  Marketing Name:          AMD Instinct MI300X
  Device Type:             GPU
"""
NO_KFD = "ROCk module is loaded\nUnable to open /dev/kfd read-write: Permission denied\nFailed to get user name\n"

CPU = Torch("2.13.0+cpu", says="this torch has no GPU support")
CUDA_13 = Torch("2.13.0+cu130", cuda="13.0", sees=("NVIDIA H100 80GB HBM3",), supports=True)
CUDA_12 = replace(CUDA_13, version="2.13.0+cu126", cuda="12.6")
ROCM = Torch("2.13.0+rocm7.2", hip="7.2.26015", sees=("AMD Instinct MI300X",), supports=True)
NVIDIA_PCI, AMD_PCI, INTEL_PCI = ("0x10de", "0x030200"), ("0x1002", "0x120000"), ("0x8086", "0x030000")
LAPTOP_PCI = ("0x1002", "0x030000")  # the graphics of a Ryzen processor: no GPU to test unless ROCm is installed


def blind(torch, says="CUDA unknown error"):
    """The same torch, to which no GPU is visible."""
    return replace(torch, sees=(), says=says)


def simulated(
    torch=CPU,
    smi=None,
    rocminfo=None,
    files=(),
    pci=(INTEL_PCI,),
    environ=None,
    nvcc=None,
    cuda="",
    triton="",
    version="",
):
    """The probes of a machine. smi, rocminfo: output or (exit code, output) of the command; None if it is missing."""
    outputs = {"nvidia-smi": smi, "rocminfo": rocminfo}

    def run(command):
        name = command[0].rpartition("/")[2]
        outside_path = [path for path in files if path.endswith(f"/{name}")]
        if outputs.get(name) is None or command[0] not in (outside_path or [name]):
            return None
        return outputs[name] if isinstance(outputs[name], tuple) else (0, outputs[name])

    return Probes(
        run=run,
        exists=lambda path: path in files,
        pci=lambda: list(pci),
        kernel=lambda: version,
        environ=environ or {},
        torch=lambda: torch,
        nvcc=lambda: nvcc,
        loaded=lambda: {"cuda": cuda, "triton": triton},
    )


NOT_BUILT, NO_GPU_TORCH = "_cuda was not built", "this torch has no GPU support"
NVIDIA = {"smi": H100, "files": ["/dev/nvidia0"], "pci": [NVIDIA_PCI]}
AMD = {"rocminfo": ROCMINFO, "files": ["/dev/kfd"], "pci": [AMD_PCI]}
WSL = {"version": "Linux version 5.15.167.4-microsoft-standard-WSL2", "pci": []}
WSL_SMI = ["/dev/dxg", "/usr/lib/wsl/lib/nvidia-smi"]
OLD = "The NVIDIA driver on your system is too old (found version 12040)."
INSTALL_CUDA, INSTALL_ROCM = "pip install 'torch===2.13.0'", "--extra-index-url https://download.pytorch.org/whl/rocm"
INSTALL_NVCC = "'nvidia-cuda-nvcc==13.0.*'"

# name -> (machine, verdict, what the text contains)
MACHINES = {
    "no GPU": ({"cuda": NO_GPU_TORCH}, "nothing", ["nothing to test: no GPU"]),
    "old driver": (
        NVIDIA | {"smi": "NVIDIA A100-SXM4-40GB, 550.54.15\n", "torch": blind(CUDA_13, OLD), "nvcc": (13, 0)},
        "error",
        ["driver 550.54.15", "13.0", "580.65.06 or newer", "sudo apt install nvidia-driver-580"],
    ),
    "no nvcc": (
        NVIDIA | {"torch": CUDA_13, "cuda": NOT_BUILT},
        "error",
        ["no nvcc was found", INSTALL_NVCC, "nvidia-cuda-cccl", "CUDA_HOME=", "FORCE_CUDA=1", "--no-build-isolation"],
    ),
    "CUDA 12 nvcc": (
        NVIDIA | {"torch": CUDA_13, "cuda": NOT_BUILT, "nvcc": (12, 4)},
        "error",
        ["nvcc is version 12.4", "torch is built for CUDA 13.0", INSTALL_NVCC, "FORCE_CUDA=1"],
    ),
    "AMD": (AMD | {"torch": CPU}, "error", ["AMD Instinct MI300X", "torch 2.13.0+cpu", INSTALL_ROCM, "TORCH=rocm"]),
    "everything works": (NVIDIA | {"torch": CUDA_13, "nvcc": (13, 0)}, "ready", ["NVIDIA H100", "580.95.05", "cu130"]),
    # What else users have.
    "CPU torch": (NVIDIA, "error", ["NVIDIA H100", "torch 2.13.0+cpu", INSTALL_CUDA, "TORCH=cuda"]),
    "CPU torch and an old driver": (
        NVIDIA | {"smi": "NVIDIA A100-SXM4-40GB, 550.54.15\n"},
        "error",
        [INSTALL_CUDA, "580.65.06 or newer"],
    ),
    "CUDA torch with AMD": (AMD | {"torch": blind(CUDA_13)}, "error", [INSTALL_ROCM]),
    "ROCm works": (AMD | {"torch": ROCM, "cuda": NOT_BUILT}, "ready", ["AMD Instinct MI300X", "Triton"]),
    "ROCm without triton": (
        AMD | {"torch": ROCM, "cuda": NOT_BUILT, "triton": "triton is not installed: pip install triton"},
        "error",
        ["triton is not installed", INSTALL_ROCM],
    ),
    "ROCm without permission": (
        AMD | {"torch": blind(ROCM), "rocminfo": (1, NO_KFD)},
        "error",
        ["/dev/kfd", "sudo usermod -aG render,video $USER"],
    ),
    "ROCm in a container": (
        {"torch": blind(ROCM), "pci": [AMD_PCI], "files": ["/.dockerenv"]},
        "error",
        ["--device=/dev/kfd --device=/dev/dri"],
    ),
    "rocminfo outside PATH": (AMD | {"files": ["/dev/kfd", "/opt/rocm/bin/rocminfo"]}, "error", [INSTALL_ROCM]),
    "Ryzen graphics without ROCm": ({"pci": [LAPTOP_PCI], "files": ["/dev/kfd"]}, "nothing", ["no GPU"]),
    "WSL, CPU torch": (WSL | {"smi": "NVIDIA GeForce RTX 4090, 581.15\n"}, "error", [INSTALL_CUDA]),
    "WSL, nvidia-smi outside PATH": (
        WSL | {"smi": "NVIDIA GeForce RTX 4090, 581.15\n", "files": WSL_SMI},
        "error",
        ["RTX 4090", INSTALL_CUDA],
    ),
    "WSL, old driver": (
        WSL | {"smi": "NVIDIA GeForce RTX 3060, 546.80\n", "files": WSL_SMI, "torch": blind(CUDA_13, OLD)},
        "error",
        ["driver 546.80", "on Windows"],
    ),
    "WSL with Intel graphics": (WSL | {"files": ["/dev/dxg"]}, "nothing", ["no GPU"]),
    "WSL works": (WSL | {"smi": H100, "files": WSL_SMI, "torch": CUDA_13}, "ready", ["H100"]),
    "container without /dev/nvidia*": (
        {"pci": [NVIDIA_PCI], "files": ["/.dockerenv"], "torch": blind(CUDA_13)},
        "error",
        ["container", "docker run --gpus all"],
    ),
    "container without nvidia-smi, but with a GPU": (
        {"pci": [NVIDIA_PCI], "files": ["/.dockerenv", "/dev/nvidia0"], "torch": CUDA_13},
        "ready",
        ["H100"],
    ),
    "no driver": ({"pci": [NVIDIA_PCI]}, "error", ["no NVIDIA driver", "sudo apt install nvidia-driver-580"]),
    "nvidia-smi fails": (
        NVIDIA | {"smi": (9, NO_DRIVER), "torch": blind(CUDA_13)},
        "error",
        ["couldn't communicate with the NVIDIA driver", "sudo modprobe nvidia"],
    ),
    "driver updated without a restart": (
        NVIDIA | {"smi": (18, MISMATCH), "torch": blind(CUDA_13)},
        "error",
        ["version mismatch", "sudo reboot"],
    ),
    "nvidia-smi on a machine without a GPU": ({"smi": (9, NO_DRIVER)}, "nothing", ["no GPU"]),
    "nvidia-smi fails, PCI unknown": ({"smi": (9, NO_DRIVER), "pci": []}, "error", ["couldn't communicate"]),
    "nvidia-smi finds no device": ({"smi": (6, "No devices were found\n")}, "nothing", ["no GPU"]),
    'CUDA_VISIBLE_DEVICES=""': (
        NVIDIA | {"torch": blind(CUDA_13, "No CUDA GPUs are available"), "environ": {"CUDA_VISIBLE_DEVICES": ""}},
        "error",
        ["CUDA_VISIBLE_DEVICES=''", "unset CUDA_VISIBLE_DEVICES"],
    ),
    "HIP_VISIBLE_DEVICES=-1": (
        AMD | {"torch": blind(ROCM), "environ": {"HIP_VISIBLE_DEVICES": "-1"}},
        "error",
        ["unset HIP_VISIBLE_DEVICES"],
    ),
    "chosen GPU": (NVIDIA | {"torch": CUDA_13, "environ": {"CUDA_VISIBLE_DEVICES": "1"}}, "ready", ["H100"]),
    "GPU lost": (NVIDIA | {"torch": blind(CUDA_13)}, "error", ["CUDA unknown error", "sudo modprobe nvidia_uvm"]),
    "GPU older than this torch supports": (
        NVIDIA | {"smi": "NVIDIA GeForce GTX 1080, 580.95.05\n", "torch": replace(CUDA_13, supports=False)},
        "error",
        ["get_arch_list"],
    ),
    "old driver with NVIDIA's compatibility package": (
        NVIDIA | {"smi": "NVIDIA A100-SXM4-40GB, 550.54.15\n", "torch": CUDA_13},
        "ready",
        ["550.54.15"],
    ),
    "_cuda of other sources": (
        NVIDIA | {"torch": CUDA_13, "nvcc": (13, 0), "cuda": "_cuda.so was built from other sources"},
        "error",
        ["other sources", "FORCE_CUDA=1"],
    ),
    "CUDA 12 torch without nvcc": (
        NVIDIA | {"torch": CUDA_12, "cuda": NOT_BUILT},
        "error",
        ["CUDA 12.6", "no nvcc for CUDA 12", "CUDA_HOME", INSTALL_CUDA],
    ),
    "CUDA 13 nvcc with CUDA 12 torch": (
        NVIDIA | {"torch": CUDA_12, "cuda": NOT_BUILT, "nvcc": (13, 0)},
        "error",
        ["nvcc is version 13.0", "torch is built for CUDA 12.6", INSTALL_CUDA],
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_verdict(name):
    described, kind, contained = MACHINES[name]
    verdict = machine.verdict(machine.inspect(simulated(**described)))
    assert verdict.kind == kind, verdict.text
    for part in contained:
        assert part in verdict.text
    assert "None" not in verdict.text
    if kind != "error":
        assert "\n" not in verdict.text


@pytest.mark.parametrize(("kind", "code"), [("nothing", 0), ("error", 1)])
def test_the_verdict_decides_the_exit_code(monkeypatch, capsys, tmp_path, kind, code):
    name = {"nothing": "no GPU", "error": "no nvcc"}[kind]
    monkeypatch.setattr(machine, "Probes", lambda: simulated(**MACHINES[name][0]))
    assert gpu_check.main([], tmp_path) == code
    out = capsys.readouterr().out
    assert out.startswith("gpu-check: ")
    assert out.count("\n") == 1 or kind == "error"
    assert list(tmp_path.iterdir()) == []


def test_a_machine_that_is_ready_is_tested(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "Probes", lambda: simulated(**MACHINES["everything works"][0]))
    asked = []
    monkeypatch.setattr(gpu_check, "run", lambda options, *_: asked.append(options.device) or 0)
    assert gpu_check.main([], tmp_path) == 0
    assert asked == ["cuda"]


# Driver versions


@pytest.mark.parametrize(
    ("driver", "cuda", "too_old"),
    [
        ("580.65.06", "13.0", False),
        ("580.65.05", "13.0", True),
        ("580.95.05", "13.2", False),
        ("575.57.08", "13.0", True),
        ("525.60.13", "12.8", False),
        ("525.53", "12.8", True),
        ("581.15", "13.0", False),
        ("600.1", "14.0", False),  # not in the table: torch decides
        ("", "13.0", False),
        ("[N/A]", "13.0", False),
    ],
)
def test_driver_too_old(driver, cuda, too_old):
    assert machine.driver_too_old(driver, cuda) is too_old


def test_versions_are_those_of_the_other_files():
    assert f"torch=={machine.TORCH}\n" in (ROOT / "constraints.txt").read_text()
    assert f"ROCM ?= {machine.ROCM}\n" in (ROOT / "Makefile").read_text()


# make setup


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("no GPU", "cpu"),
        ("CPU torch", "cuda"),
        ("WSL, nvidia-smi outside PATH", "cuda"),
        ("AMD", "rocm"),
        ("rocminfo outside PATH", "rocm"),
        ("Ryzen graphics without ROCm", "cpu"),
        ("nvidia-smi fails", "cpu"),
        ("container without /dev/nvidia*", "cpu"),
        ("nvidia-smi on a machine without a GPU", "cpu"),
    ],
)
def test_the_torch_build_that_setup_selects(name, build):
    assert machine.torch_build(simulated(**MACHINES[name][0] | {"torch": None})) == build


def test_detection_needs_neither_torch_nor_the_package():
    command = [sys.executable, "-I", "-S", str(ROOT / "tools/gpu_checks/machine.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.strip() in ("cpu", "cuda", "rocm")


def outside_make():
    """The environment without what a surrounding `make test` passes on."""
    return {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "TORCH")}


def setup_commands(tmp_path, *arguments):
    """What `make setup` would run for a new environment in tmp_path."""
    command = [
        "make",
        "--dry-run",
        "--always-make",
        f"VENV={tmp_path / 'venv'}",
        *arguments,
        f"{tmp_path / 'venv'}/.torch",
    ]
    run = subprocess.run(command, cwd=ROOT, env=outside_make(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize(
    ("build", "installs"),
    [
        ("cpu", "install --constraint constraints.txt torch numpy ninja"),
        ("cuda", "'torch===2.13.0'"),
        ("rocm", "'torch==2.13.0+rocm7.2' --extra-index-url https://download.pytorch.org/whl/rocm7.2 numpy"),
    ],
)
def test_setup_installs_the_build_that_was_asked_for(tmp_path, build, installs):
    assert installs in setup_commands(tmp_path, f"TORCH={build}")


def test_setup_names_the_choices_of_torch(tmp_path):
    command = ["make", "--dry-run", f"VENV={tmp_path / 'venv'}", "setup", "TORCH=metal"]
    run = subprocess.run(command, cwd=ROOT, env=outside_make(), capture_output=True, text=True)
    assert run.returncode != 0
    assert "TORCH must be cpu, cuda or rocm, got metal" in run.stderr
