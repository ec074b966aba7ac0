"""The gradients of the ops: one module per family. Each formula is an op, ``*_backward``."""
