"""Triton's interpreter, sped up by a factor of two with the same results, and a count of memory accesses in it."""

import numpy as np
from triton.runtime import interpreter


def patch_once_a_launch() -> None:
    """Patch the language once per launch and module instead of once per function that a kernel calls."""
    patch, run, done = interpreter._patch_lang, interpreter.GridExecutor.__call__, set()

    def patch_once(function):
        module = id(function.__globals__)
        if module in done:
            return interpreter._LangPatchScope()
        done.add(module)
        return patch(function)

    def run_afresh(self, *args, **kwargs):
        done.clear()
        return run(self, *args, **kwargs)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, run_afresh


class Traffic:
    """Records what the kernels that run inside the block read and write."""

    def __init__(self):
        self.reads, self.writes = [], []

    def __enter__(self):
        self.builder = interpreter.interpreter_builder
        load, store = self.builder.create_masked_load, self.builder.create_masked_store

        def counted_load(pointers, mask, *rest):
            self.reads.append(_bytes(pointers, mask))
            return load(pointers, mask, *rest)

        def counted_store(pointers, value, mask, *rest):
            self.writes.append(_bytes(pointers, mask))
            return store(pointers, value, mask, *rest)

        self.builder.create_masked_load, self.builder.create_masked_store = counted_load, counted_store
        return self

    def __exit__(self, *_):
        del self.builder.create_masked_load, self.builder.create_masked_store

    def of(self, tensor):
        """Return (read, written): how often each byte of the tensor was accessed, on average."""
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return tuple(
            sum(size * int(((at >= begin) & (at < end)).sum()) for at, size in accesses) / tensor.nbytes
            for accesses in (self.reads, self.writes)
        )


def _bytes(pointers, mask):
    """Return the addresses inside the mask and the number of bytes per address."""
    at, inside = np.broadcast_arrays(pointers.data, mask.data)
    return at[inside], pointers.get_element_ty().primitive_bitwidth // 8
