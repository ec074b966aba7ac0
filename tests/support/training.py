"""Helpers for tests that train: changed configs, interrupted runs and the comparison of what they leave."""

import copy

import torch

from fmpipe.run_log import read_log
from fmpipe.train import checkpoint, settings

STEPS = 6


def changed(tiny, out, *overrides):
    return settings.with_overrides(copy.deepcopy(tiny), [f"out={out}", "stages=[flow]", *overrides])


def states(config, stage="flow"):
    path = checkpoint.latest(f"{config.out}/{stage}/checkpoints")
    return checkpoint.load(path)


def steps_of(config):
    """The log's lines of the flow's steps, without what is known before the first."""
    return [line for line in read_log(f"{config.out}/flow") if line["step"]]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


class CutError(Exception):
    pass


def stop_at(at):
    """For ``on_log``: ends the run at a step that is logged and not yet saved."""

    def stop(stage, step, steps, figures):
        if step == at:
            raise CutError

    return stop


def apart(a, b, rel=1e-5, way="") -> list[str]:
    """Where two trees differ, tensors by more than rounding.

    But for the null token: the norm behind it takes its one value away, its gradient is rounding, and Adam steps on it.
    """
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{way}: {a.keys() ^ b.keys()}"]
        kept = [k for k in a if not str(k).endswith("tensor_false")]
        return [found for k in kept for found in apart(a[k], b[k], rel, f"{way}/{k}")]
    if hasattr(a, "allclose"):
        like = type(a) is type(b) and a.shape == b.shape
        return [] if like and a.allclose(b, rel, 1e-4) else [f"{way}: {(a - b).abs().max() if like else b.shape}"]
    return [] if same(a, b) else [f"{way}: {a} {b}"]
