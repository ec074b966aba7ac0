"""What the processes of a run must agree on."""

import torch
from accelerate import Accelerator


def in_any_process(accelerator: Accelerator, here: bool) -> bool:
    """Tell whether ``here`` is true in any process. All processes must call it."""
    if accelerator.num_processes == 1:
        return bool(here)
    return bool(accelerator.reduce(torch.tensor(float(here), device=accelerator.device), "sum") > 0)


def mean_over_processes(accelerator: Accelerator, values: dict[str, float]) -> dict[str, float]:
    """Return the mean of every value over all processes. All processes must call it."""
    if accelerator.num_processes == 1:
        return values
    mine = torch.tensor(list(values.values()), device=accelerator.device)
    return dict(zip(values, accelerator.reduce(mine, "mean").tolist(), strict=True))
