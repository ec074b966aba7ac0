"""A trained text encoder: its share of a training step with and without reused prompts, memory with checkpointing.

python benchmarks/bench_text.py           # 3 minutes; writes results/text.json

The language model is random: Llama, 100 M parameters, fp32; prompts of 64 tokens, 32 queries, batch 8. Head and network
are those of the preset emoji-64 with a transformer head. The states and gradients with reused prompts must agree with
those without before anything is timed; the two take turns in one process. Memory is what the forward pass keeps.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import harness
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from fmpipe.models import DiMR, TextHead
from fmpipe.text.meta_query import MetaQueryText
from fmpipe.train.config import Losses
from fmpipe.train.objective import FlowObjective
from fmpipe.train.presets import PRESETS

ARCHITECTURE = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}
PROMPT, QUERIES, BATCH, LATENT = 64, 32, 8, (4, 16, 16)
TOLERANCE = 1e-4
TURNS = 7


def made() -> tuple[FlowObjective, dict[str, Tensor]]:
    """Return the objective of a training step, and a batch without prefixes."""
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(**ARCHITECTURE, vocab_size=20_000))
    encoder = MetaQueryText(model, None, QUERIES, PROMPT)
    head = TextHead(width=768, tokens=QUERIES, latent_shape=LATENT, blocks=2, reductions=3)
    objective = FlowObjective(head, DiMR(**PRESETS["emoji-64"]().flow.net), Losses(), text_encoder=encoder).train()
    z1, eps = torch.randn(2, BATCH, *LATENT)
    ids = torch.randint(20_000, (BATCH, PROMPT))
    mask = torch.arange(PROMPT) >= torch.arange(BATCH)[:, None]
    null = torch.zeros(BATCH, dtype=torch.bool)
    return objective, {"z1": z1, "eps": eps, "t": torch.rand(BATCH), "null": null, "ids": ids, "mask": mask}


def step(objective: FlowObjective, batch: dict[str, Tensor]) -> Tensor:
    """Run the forward and the backward pass; return the gradient of the queries."""
    objective.zero_grad()
    torch.manual_seed(1)  # the dropout of the head
    sum(objective(**batch).losses.values()).backward()
    return objective.text_encoder.queries.grad


def encoder_alone(objective: FlowObjective, batch: dict[str, Tensor]) -> None:
    objective.zero_grad()
    names = ("ids", "mask", "prefix")
    objective.text_encoder.encode(**{k: batch[k] for k in names if k in batch})[0].sum().backward()


def timed(call, *args) -> float:
    begun = time.perf_counter()
    call(*args)
    return time.perf_counter() - begun


def measure() -> dict:
    objective, plain = made()
    reused = {**plain, "prefix": objective.text_encoder.prefixes(plain["ids"], plain["mask"])}
    expected, got = step(objective, plain).clone(), step(objective, reused)
    error = ((got - expected).norm() / expected.norm()).item()
    if not expected.norm() > 0 or not error <= TOLERANCE:
        sys.exit(f"the gradients with reused prompts differ by {error:.1e}, more than {TOLERANCE}")
    times = {name: {"step": [], "encoder": []} for name in ("plain", "reused")}
    for _ in range(TURNS):
        for name, batch in (("plain", plain), ("reused", reused)):
            times[name]["step"].append(timed(step, objective, batch))
            times[name]["encoder"].append(timed(encoder_alone, objective, batch))
    found = {"gradient_error": error}
    for name, rows in times.items():
        medians = {part: statistics.median(row) for part, row in rows.items()}
        found[name] = {**medians, "share": medians["encoder"] / medians["step"]}
    found["speed_up_of_the_step"] = found["plain"]["step"] / found["reused"]["step"]
    return found


def activations(objective: FlowObjective, batch: dict[str, Tensor]) -> float:
    """Return the MB of tensors, other than parameters, that the forward pass keeps for the backward pass."""
    own, kept = {p.untyped_storage().data_ptr() for p in objective.parameters()}, {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        outcome = objective(**batch)  # noqa: F841 (holds the tensors)
    return sum(kept.values()) / 2**20


def memory() -> dict[str, float]:
    objective, batch = made()
    found = {"plain": activations(objective, batch)}
    expected = step(objective, batch).clone()
    objective.text_encoder.enable_gradient_checkpointing()
    objective.train()
    found["checkpointed"] = activations(objective, batch)
    if not (step(objective, batch) - expected).norm() <= TOLERANCE * expected.norm():
        sys.exit("the gradients with activation checkpointing differ")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default=str(Path(__file__).parent / "results" / "text.json"))
    arguments = parser.parse_args()
    found = {**harness.header(), **measure(), "activations_mb": memory()}
    Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
