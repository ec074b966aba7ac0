"""A SIMT interpreter of PTX: what nvcc makes of csrc/cuda, and Triton of its kernels, executed and checked on the CPU.

parse.py reads PTX, encode.py makes arrays of it, machine.cpp and ops.cpp execute them, 32 lanes of a warp at once.
cuda.py runs the ops on the PTX of the CUDA kernels, triton.py runs Triton kernels. Mistakes that raise ``PtxError``:

- an access outside every tensor, shared variable or parameter, or at an address that its width does not allow
- a barrier that some threads do not reach, or reach at another instruction
- a shuffle that names or reads lanes which are not there
- a use of an undefined value as address, condition or stored value: of a register nobody has written, or computed from
  it; a read of shared memory before it is written

An opcode that ops.cpp does not list raises ``NotImplementedError`` when the kernel is loaded. What this cannot show:
what ptxas makes of the PTX (registers, order, fusing a multiplication and an addition without a rounding modifier),
races between warps and blocks, time.
"""

from .machine import Counts, PtxError, counting, opcodes, perturb

__all__ = ["Counts", "PtxError", "counting", "opcodes", "perturb"]
