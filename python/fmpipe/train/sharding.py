"""FSDP2: every process keeps some rows of each parameter, of its optimizer state and of its average.

This uses ``fully_shard`` of torch: accelerate's plugin would switch the whole process to FSDP, but a run trains several
models. States on disk contain whole tensors, so a run may be resumed with another number of processes.
"""

import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(model: nn.Module, device: torch.device) -> None:
    """Turn the parameters of ``model`` into DTensors, sharded by rows over all processes and gathered for each forward.

    The model is one unit, gathered until the end of the backward pass: a time-dependent network computes the values of
    all its blocks before the first one runs. torch raises ValueError for a parameter without dimensions.
    """
    # Some outputs of an objective are views (mu, logvar), but no code writes to them in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # A frozen language model stays whole in every process: its parameters may have another dtype than the rest.
    encoder = getattr(model, "text_encoder", None)
    frozen = {p for p in encoder.parameters() if not p.requires_grad} if encoder is not None else set()
    fully_shard(model, mesh=mesh, reshard_after_forward=False, ignored_params=frozen)


def full(tree: object) -> object:
    """Return the tree with whole tensors instead of shards. All processes must call it, with the same tree."""
    if isinstance(tree, DTensor):
        return tree.detach().full_tensor()
    if isinstance(tree, dict):
        return {key: full(x) for key, x in tree.items()}
    return type(tree)(map(full, tree)) if isinstance(tree, (list, tuple)) else tree


def local(x: Tensor) -> Tensor:
    """Return the rows of x that this process has: x itself if it is not sharded."""
    return x.to_local() if isinstance(x, DTensor) else x


def like(x: Tensor, other: Tensor) -> Tensor:
    """Return x, a whole tensor that all processes have, sharded like ``other``; x itself if that is not sharded."""
    if not isinstance(other, DTensor):
        return x
    x = x.to(other.device_mesh.device_type)
    return distribute_tensor(x, other.device_mesh, other.placements, src_data_rank=None)


def load_model(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a state dict of whole tensors into a module or optimizer that may be sharded."""
    own = model.state_dict()
    model.load_state_dict({name: like(x, own[name]) if name in own else x for name, x in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict) -> None:
    """Load a state dict of whole tensors into a module or optimizer that may be sharded."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    rows = {
        i: {
            k: like(x, parameters[i]) if getattr(x, "shape", None) == parameters[i].shape else x for k, x in row.items()
        }
        for i, row in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": rows})
