"""What this machine has, whether the GPU checks can run on it, and what to install if they cannot.

python tools/gpu_checks/machine.py    # prints the torch build for this machine: cpu, cuda or rocm

``make setup`` runs this file before torch is installed, so it imports only the standard library at the top. Everything
about the machine is read through :class:`Probes`, which tests replace.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The minimum Linux driver for each CUDA major version: CUDA Toolkit release notes, "minor version compatibility".
DRIVERS = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}
TORCH, TORCH_CUDA = "2.13.0", "13.0"  # the version in constraints.txt, and the CUDA version of its build on PyPI
ROCM = "7.2"  # as in the Makefile
NVIDIA, AMD = "0x10de", "0x1002"  # PCI vendors
DISPLAY, ACCELERATOR = "0x03", "0x12"  # PCI classes; AMD's Instinct GPUs are accelerators
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Torch:
    """The installed torch.

    sees: names of the visible GPUs. says: torch's reason if there is none. supports: whether it has code for the first.
    """

    version: str
    cuda: str = ""
    hip: str = ""
    sees: tuple[str, ...] = ()
    says: str = ""
    supports: bool = True


def _run(command: Sequence[str]) -> tuple[int, str] | None:
    """(exit code, output) of a command; None if it does not exist or does not answer within a minute."""
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.returncode, run.stdout


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _pci() -> list[tuple[str, str]]:
    """(vendor, class) of every PCI device; empty if the system does not list them."""
    return [(_read(device / "vendor"), _read(device / "class")) for device in Path("/sys/bus/pci/devices").glob("*")]


def _torch() -> Torch:
    import warnings

    import torch

    built = {"version": torch.__version__, "cuda": torch.version.cuda or "", "hip": torch.version.hip or ""}
    if not (torch.version.cuda or torch.version.hip):
        return Torch(**built, says="this torch has no GPU support")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reason is read from the exception below
        if torch.cuda.is_available():
            devices = range(torch.cuda.device_count())
            names = tuple(torch.cuda.get_device_name(i) for i in devices)
            try:
                supports = torch.ones(2, device="cuda").sum().item() == 2
            except RuntimeError:  # "no kernel image is available for execution on the device"
                supports = False
            return Torch(**built, sees=names, supports=supports)
        try:
            torch.cuda.init()
        except Exception as error:
            return Torch(**built, says=" ".join(str(error).split()))
    return Torch(**built, says="torch.cuda.is_available() is False")


def _nvcc() -> tuple[int, int] | None:
    """The version of the nvcc that a build would use; None if there is none, or if it does not run."""
    sys.path.append(str(ROOT / "csrc"))
    from find_cuda import cuda_home, nvcc_version

    try:
        home = cuda_home()
        return nvcc_version(home) if home else None
    except (OSError, subprocess.CalledProcessError, AttributeError):  # the last if it prints no version
        return None


def _loaded() -> dict[str, str]:
    from fmkernels import backend

    return {name: "" if found.available else found.reason for name, found in backend.status.items()}


@dataclass(frozen=True)
class Probes:
    """How the machine is examined: commands, files, PCI devices, kernel name, environment, torch and backends."""

    run: Callable[[Sequence[str]], tuple[int, str] | None] = _run
    exists: Callable[[str], bool] = os.path.exists
    pci: Callable[[], list[tuple[str, str]]] = _pci
    kernel: Callable[[], str] = lambda: _read("/proc/version")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    torch: Callable[[], Torch] = _torch
    nvcc: Callable[[], tuple[int, int] | None] = _nvcc
    loaded: Callable[[], Mapping[str, str]] = _loaded


@dataclass(frozen=True)
class Hardware:
    """The GPUs of the machine, independent of torch.

    nvidia, amd: names reported by nvidia-smi and rocminfo. *_error: why the command reported none, "" if it is not
    installed. *_present: whether there is a GPU of that vendor, including one that its command does not report.
    """

    nvidia: tuple[str, ...] = ()
    driver: str = ""
    nvidia_error: str = ""
    nvidia_present: bool = False
    amd: tuple[str, ...] = ()
    amd_error: str = ""
    amd_present: bool = False
    wsl: bool = False
    container: bool = False


@dataclass(frozen=True)
class Machine:
    hardware: Hardware
    torch: Torch
    nvcc: tuple[int, int] | None
    loaded: Mapping[str, str]  # backend -> "" if it is loaded, otherwise the reason
    hidden_by: Mapping[str, str]  # of the variables HIDING, those that are set


@dataclass(frozen=True)
class Verdict:
    """kind: "nothing" (no GPU), "ready", or "error" with the commands that fix it."""

    kind: str
    text: str


def _first(probes: Probes, names: Sequence[str], *arguments: str) -> tuple[int, str] | None:
    """The result of the first of the commands that exists."""
    return next((result for name in names if (result := probes.run([name, *arguments])) is not None), None)


def hardware(probes: Probes) -> Hardware:
    query = ("--query-gpu=name,driver_version", "--format=csv,noheader")
    smi = _first(probes, ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi"), *query)
    rows = [line.rsplit(",", 1) for line in smi[1].splitlines() if "," in line] if smi and smi[0] == 0 else []
    nvidia = tuple(row[0].strip() for row in rows)
    nvidia_error = " ".join(smi[1].split()) or f"exit code {smi[0]}" if smi and not nvidia else ""

    info = _first(probes, ("rocminfo", "/opt/rocm/bin/rocminfo"))
    agents = re.split(r"^\*+\nAgent ", info[1], flags=re.M) if info else []
    gpus = [agent for agent in agents if re.search(r"Device Type:\s*GPU", agent)]
    amd = tuple(re.search(r"Marketing Name:[ \t]*(.*)", gpu).group(1).strip() or "an AMD GPU" for gpu in gpus)
    amd_error = " ".join(info[1].split()) or f"exit code {info[0]}" if info and info[0] and not amd else ""

    pci = probes.pci()
    nvidia_pci = any(vendor == NVIDIA and kind.startswith(DISPLAY) for vendor, kind in pci)
    # The graphics of a Ryzen processor is an AMD display device too: it counts only if ROCm is installed.
    amd_kinds = (DISPLAY, ACCELERATOR) if amd_error else (ACCELERATOR,)
    amd_pci = any(vendor == AMD and kind.startswith(amd_kinds) for vendor, kind in pci)
    return Hardware(
        nvidia=nvidia,
        driver=rows[0][1].strip() if rows else "",
        nvidia_error=nvidia_error,
        nvidia_present=bool(nvidia) or nvidia_pci or probes.exists("/dev/nvidia0") or bool(nvidia_error and not pci),
        amd=amd,
        amd_error=amd_error,
        amd_present=bool(amd) or amd_pci,
        wsl="microsoft" in probes.kernel().lower(),
        container=any(map(probes.exists, ("/.dockerenv", "/run/.containerenv"))) or "container" in probes.environ,
    )


def torch_build(probes: Probes) -> str:
    """The torch build for this machine: ``cuda`` or ``rocm`` if a GPU of that kind works, otherwise ``cpu``."""
    found = hardware(probes)
    return "cuda" if found.nvidia else "rocm" if found.amd else "cpu"


def inspect(probes: Probes) -> Machine:
    hidden_by = {name: probes.environ[name] for name in HIDING if name in probes.environ}
    return Machine(hardware(probes), probes.torch(), probes.nvcc(), probes.loaded(), hidden_by)


def numbers(version: str) -> tuple[int, ...]:
    """ "580.65.06" -> (580, 65, 6); () if it is not a version"""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+(\.\d+)*", version) else ()


def driver_too_old(driver: str, cuda: str) -> bool:
    """Whether the driver is older than CUDA ``cuda`` needs; False if either version is not known."""
    needed = DRIVERS.get(cuda.split(".")[0])
    return bool(needed and numbers(driver)) and numbers(driver) < numbers(needed)


def pip(*arguments: str) -> str:
    return f"{sys.executable} -m pip install {' '.join(arguments)}"


def commands(*lines: str) -> str:
    return "".join(f"\n    {line}" for line in lines)


REBUILD = pip("--no-build-isolation --no-deps -e", str(ROOT))


def cuda_torch() -> str:
    install = pip(f"'torch==={TORCH}'")  # "===" leaves out 2.13.0+cpu
    return f"Install the CUDA build of torch with `make setup TORCH=cuda`, or by hand:{commands(install, REBUILD)}"


def rocm_torch() -> str:
    remove = f"{sys.executable} -m pip uninstall --yes torch triton"  # torch for ROCm brings its own triton
    install = pip(f"'torch=={TORCH}+rocm{ROCM}' --extra-index-url https://download.pytorch.org/whl/rocm{ROCM}")
    by_hand = commands(remove, install, REBUILD)
    return (
        f"Install the ROCm build of torch with `make setup TORCH=rocm`, or by hand:{by_hand}\n"
        f"If there is no build for ROCm {ROCM}, pytorch.org/get-started lists the others."
    )


def new_driver(found: Hardware, cuda: str) -> str:
    needed = DRIVERS.get(cuda.split(".")[0], DRIVERS["13"])
    if found.wsl:
        return (
            f"Update the NVIDIA driver on Windows to {needed} or newer, then run `wsl --shutdown`. "
            "Do not install a Linux driver inside WSL."
        )
    install = f"sudo apt install nvidia-driver-{needed.split('.')[0]} && sudo reboot"
    text = f"Install NVIDIA driver {needed} or newer. On Ubuntu:{commands(install)}"
    return text + ("\nIn a container, this is the driver of the host." if found.container else "")


def rebuild(*before: str) -> str:
    return commands(*before, f"FORCE_CUDA=1 {REBUILD}")


def nvcc_from_pypi(cuda: str) -> str:
    """The commands that install nvcc for CUDA 13 or newer next to torch and rebuild with it.

    The packages contain no libcudart.so, which the linker looks for, and no lib64, where setup.py looks for it.
    """
    major = cuda.split(".")[0]
    packages = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl")
    return rebuild(
        pip(*(f"'{name}=={cuda}.*'" for name in packages)),
        f'export CUDA_HOME=$({sys.executable} -c "import nvidia.cu{major} as home; print(*home.__path__)")',
        f"ln -sfn lib $CUDA_HOME/lib64; ln -sf libcudart.so.{major} $CUDA_HOME/lib/libcudart.so",
    )


def cuda_not_loaded(machine: Machine) -> str:
    """What to do about ``_cuda``, which is not loaded although torch is a CUDA build."""
    cuda, nvcc, why = machine.torch.cuda, machine.nvcc, machine.loaded["cuda"]
    major = int(cuda.split(".")[0])
    if nvcc and nvcc[0] == major:
        return f"{why}, although nvcc {nvcc[0]}.{nvcc[1]} is installed. Rebuild it:{rebuild()}"
    found = f"nvcc is version {nvcc[0]}.{nvcc[1]}" if nvcc else "no nvcc was found"
    text = f"{why}: {found}, and torch is built for CUDA {cuda}."
    if major >= 13:
        return f"{text} Install nvcc {cuda} from PyPI and rebuild:{nvcc_from_pypi(cuda)}"
    return (
        f"{text} PyPI has no nvcc for CUDA {major}. Either install the CUDA {cuda} toolkit and rebuild:"
        f"{rebuild('export CUDA_HOME=/usr/local/cuda-' + cuda)}\n"
        f"or change to CUDA {TORCH_CUDA} (driver {DRIVERS[TORCH_CUDA.split('.')[0]]} or newer). {cuda_torch()}"
    )


def hidden(machine: Machine) -> str:
    set_to = " and ".join(f"{name}={value!r}" for name, value in machine.hidden_by.items())
    return f"{set_to} leaves no GPU visible to torch. Unset it:{commands('unset ' + ' '.join(machine.hidden_by))}"


def nvidia_not_seen(machine: Machine) -> str:
    """Why torch does not see the NVIDIA GPU, and what to do."""
    found, torch = machine.hardware, machine.torch
    cuda = torch.cuda or TORCH_CUDA
    gpu = found.nvidia[0] if found.nvidia else "an NVIDIA GPU"
    if not found.nvidia:
        reason = f"nvidia-smi failed: {found.nvidia_error}" if found.nvidia_error else "no NVIDIA driver was found"
        if found.container:
            start = commands("docker run --gpus all ...")
            return f"this container has no access to the GPU: {reason}. Start it with the GPU:{start}"
        if "mismatch" in found.nvidia_error:
            return f"{reason}. The driver was updated while it was in use; restart:{commands('sudo reboot')}"
        if found.nvidia_error:
            reason += f" Load the driver:{commands('sudo modprobe nvidia')}\n"
            return f"{reason}If that fails, reinstall it. {new_driver(found, cuda)}"
        return f"the machine has {gpu}, but {reason}. {new_driver(found, cuda)}"
    old = driver_too_old(found.driver, cuda)
    if not torch.cuda:
        text = f"the machine has {gpu}, but torch {torch.version} is not a CUDA build. {cuda_torch()}"
        return f"{text}\nDriver {found.driver} is too old for that build. {new_driver(found, cuda)}" if old else text
    if old:
        return f"driver {found.driver} is too old for torch {torch.version} (CUDA {cuda}). {new_driver(found, cuda)}"
    if machine.hidden_by:
        return hidden(machine)
    return (
        f"the machine has {gpu}, but torch {torch.version} does not see it: {torch.says}. "
        f"Load the driver's memory module, or restart:{commands('sudo modprobe nvidia_uvm')}"
    )


def amd_not_seen(machine: Machine) -> str:
    """Why torch does not see the AMD GPU, and what to do."""
    found, torch = machine.hardware, machine.torch
    gpu = found.amd[0] if found.amd else "an AMD GPU"
    if not torch.hip:
        return f"the machine has {gpu}, but torch {torch.version} is not a ROCm build. {rocm_torch()}"
    if machine.hidden_by:
        return hidden(machine)
    text = f"torch {torch.version} does not see {gpu}: {found.amd_error or torch.says}."
    if found.container:
        start = commands("docker run --device=/dev/kfd --device=/dev/dri --group-add video ...")
        return f"{text} Start the container with the GPU:{start}"
    join = commands("sudo usermod -aG render,video $USER")
    return f"{text} Check that the amdgpu driver is loaded and that you may open /dev/kfd; log in again after:{join}"


def verdict(machine: Machine) -> Verdict:
    found, torch = machine.hardware, machine.torch
    if not torch.sees:
        if found.nvidia_present and not (found.amd and torch.hip):
            return Verdict("error", nvidia_not_seen(machine))
        if found.amd_present:
            return Verdict("error", amd_not_seen(machine))
        return Verdict("nothing", f"nothing to test: no GPU was found on this machine (torch {torch.version})")
    gpu = torch.sees[0]
    if not torch.supports:
        return Verdict(
            "error",
            f"torch {torch.version} has no code for {gpu}. Install a build of torch whose "
            "torch.cuda.get_arch_list() includes this GPU; pytorch.org/get-started lists the builds.",
        )
    if torch.hip:
        if machine.loaded["triton"]:
            return Verdict("error", f"{gpu} has no kernels: {machine.loaded['triton']}. {rocm_torch()}")
        return Verdict("ready", f"ready: {gpu}, torch {torch.version}; Triton kernels")
    if machine.loaded["cuda"]:
        return Verdict("error", cuda_not_loaded(machine))
    driver = f", driver {found.driver}" if found.driver else ""
    return Verdict("ready", f"ready: {gpu}{driver}, torch {torch.version}; CUDA kernels")


if __name__ == "__main__":
    print(torch_build(Probes()))
