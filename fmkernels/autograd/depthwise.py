"""The gradients of depthwise, attached by csrc/autograd; without it, torch's convolution runs."""

from fmkernels import eager
from fmkernels.autograd.attach import backward_op

backward_op("depthwise", eager.depthwise_backward)
