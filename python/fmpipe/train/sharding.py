"""FSDP2: every process keeps its rows of each parameter, and of what the optimizer and the average hold of it.

Torch's own ``fully_shard``: accelerate's plugin switches the whole process to FSDP by its environment, and a stage is a
model of its own. States on disk are of whole tensors, so that a run may go on with another number of processes.
"""

import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(model: nn.Module, device: torch.device) -> None:
    """The parameters of ``model`` become DTensors, cut by rows among all processes, and are gathered for each forward.

    One unit, whole from the forward to the end of the backward: a time-dependent network makes the values of all its
    blocks at once, before the first of them runs. ValueError (torch's) for a parameter without dimensions.
    """
    # Of an objective's outputs some are views (mu, logvar); nobody writes to them in place, and the losses are none.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # A frozen language model stays whole in every process: its parameters may have another dtype than the rest.
    encoder = getattr(model, "text_encoder", None)
    frozen = {p for p in encoder.parameters() if not p.requires_grad} if encoder is not None else set()
    fully_shard(model, mesh=mesh, reshard_after_forward=False, ignored_params=frozen)


def full(tree: object) -> object:
    """The tree with whole tensors in the place of shards. All processes must call it, with the same tree."""
    if isinstance(tree, DTensor):
        return tree.detach().full_tensor()
    if isinstance(tree, dict):
        return {key: full(x) for key, x in tree.items()}
    return type(tree)(map(full, tree)) if isinstance(tree, (list, tuple)) else tree


def like(x: Tensor, other: Tensor) -> Tensor:
    """x, a whole tensor that all processes have, cut as ``other`` is; x itself where that is not cut."""
    if not isinstance(other, DTensor):
        return x
    x = x.to(other.device_mesh.device_type)
    return distribute_tensor(x, other.device_mesh, other.placements, src_data_rank=None)


def load_model(model: nn.Module, state: dict[str, Tensor]) -> None:
    """``load_state_dict`` of a whole state, into shards or not."""
    own = model.state_dict()
    model.load_state_dict({name: like(x, own[name]) if name in own else x for name, x in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict) -> None:
    """``load_state_dict`` of a whole state, into shards or not."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    rows = {
        i: {
            k: like(x, parameters[i]) if getattr(x, "shape", None) == parameters[i].shape else x for k, x in row.items()
        }
        for i, row in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": rows})
