"""Install the matching wheel of dist/ into other environments, and use it there without a compiler.

python tools/wheel_check.py PYTHON...    # each the Python of an environment with torch

In each environment, every warning is an error, the CPU ops must come from `_cpu`, and outputs and gradients must agree
with eager PyTorch. The gradients come from `_autograd` only under the torch version that it was built with.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DIST = Path(__file__).parent.parent / "dist"
USE = """
import sys, torch, fmkernels as fk
from fmkernels import backend

assert backend.served_by("tdp", "cpu")[0] == "cpp", backend.status
gradients, built_with = backend.status["autograd"], backend.build_facts()["built_with_torch"]
assert gradients.available == (torch.__version__ == built_with), (gradients, built_with)

def results(name):
    torch.manual_seed(0)
    x, scale, w = torch.randn(2, 5, 64), torch.randn(64), torch.randn(4, 64)
    leaves = [a.requires_grad_() for a in (x, scale, w)]
    with fk.use_backend(name):
        s = fk.tdp(*w, torch.tensor([0.25, -0.5]))
        y = fk.gelu_mul(fk.td_rms_norm(x, scale)) + fk.gelu_mul(fk.td_layer_norm(x, s, torch.zeros(64)))
        loss = fk.flow_loss(y, *torch.randn(2, 2, 5, 32), t=torch.rand(2))
        return [loss, *torch.autograd.grad(loss, leaves)]

torch.testing.assert_close(results("cpp"), results("eager"))
print(f"Python {sys.version.split()[0]}, torch {torch.__version__}: cpp; gradients in C++: {gradients.reason}")
"""


def check(python: str, scratch: str) -> None:
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", "--no-index"]
    environment = {"PATH": str(Path(python).parent), "HOME": os.environ.get("HOME", scratch)}
    began = time.perf_counter()
    subprocess.run([*install, "--find-links", str(DIST), "--only-binary=fmkernels", "fmkernels"], check=True)
    installed = time.perf_counter() - began
    done = subprocess.run(
        [python, "-W", "error", "-c", USE], cwd=scratch, env=environment, capture_output=True, text=True
    )
    if done.returncode or done.stderr:
        raise SystemExit(f"{python}:\n{done.stdout}{done.stderr}")
    print(f"{done.stdout.rstrip()}; installed in {installed:.1f} s", flush=True)


if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        for python in sys.argv[1:]:
            check(python, scratch)
