"""What can be trained between a frozen language model and the text head: a connector, and LoRA in the model."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fmpipe.requirements import optional

LORA = "lora"  # folder beside the model's weights, in peft's format
WEIGHTS = "adapter_model.safetensors"
POOLER = r"(.*\.)?pooler\..*"  # BERT's, which the states of tokens do not pass through


class Connector(nn.Module):
    """A pre-norm transformer encoder on the query states, as in OpenUni: (B, Q, inputs) -> (B, Q, width).

    Args:
        inputs: width of the language model's states.
        layers: number of transformer layers.
        heads: number of attention heads.
        hidden: width of the feed-forward layers; 4 * width if None.
        width: width of the connector and of its output; ``inputs`` if None.
    """

    def __init__(
        self, inputs: int, layers: int = 2, heads: int = 8, hidden: int | None = None, width: int | None = None
    ):
        super().__init__()
        self.width = inputs if width is None else width
        hidden = 4 * self.width if hidden is None else hidden
        for name, value in {"width": self.width, "hidden": hidden, "layers": layers, "heads": heads}.items():
            if value < 1:
                raise ValueError(f"connector: {name} must be positive, got {value}")
        if self.width % heads:
            raise ValueError(f"connector: heads must be a divisor of the width {self.width}, got {heads}")
        self.project = nn.Linear(inputs, self.width) if self.width != inputs else nn.Identity()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(self.width, heads, hidden, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(self.width)
        self.gradient_checkpointing = False

    def forward(self, states: Tensor) -> Tensor:
        """states of any floating dtype; computed in the dtype of the connector's parameters."""
        x = self.project(states.to(self.norm.weight.dtype))
        for layer in self.layers:
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.norm(x)


def add_lora(
    model: nn.Module,
    r: int = 8,
    alpha: float | None = None,
    dropout: float = 0.0,
    target_modules: str | Sequence[str] = "all-linear",
) -> None:
    """Add trainable LoRA weights to a model in place, through peft; they are fp32, whatever the model's dtype.

    Args:
        r: rank.
        alpha: the update is scaled by alpha / r; 2 * r if None.
        dropout: share of the inputs of the LoRA layers that is dropped in training.
        target_modules: names of the linear layers that get LoRA weights, or ``all-linear``.

    Raises ValueError for a rank below 1, an alpha that is not positive, and names that the model does not have.
    """
    if not isinstance(r, int) or isinstance(r, bool) or r < 1:
        raise ValueError(f"lora: r must be a positive int, got {r!r}")
    if alpha is not None and not alpha > 0:
        raise ValueError(f"lora: alpha must be positive, got {alpha!r}")
    if not 0 <= dropout < 1:
        raise ValueError(f"lora: dropout must be in [0, 1), got {dropout!r}")
    peft = optional("peft", "lora")
    config = peft.LoraConfig(
        r=r,
        lora_alpha=alpha or 2 * r,
        lora_dropout=dropout,
        target_modules=target_modules if isinstance(target_modules, str) else list(target_modules),
        exclude_modules=POOLER if any(re.fullmatch(POOLER, name) for name, _ in model.named_modules()) else None,
    )
    try:
        peft.inject_adapter_in_model(config, model)
    except (ValueError, re.error) as error:
        raise ValueError(f"lora: target_modules {target_modules!r}: {error}") from None
    for name, p in model.named_parameters():
        p.requires_grad_(is_lora(name))
        if is_lora(name):
            p.data = p.data.float()


def is_lora(name: str) -> bool:
    """Tell whether a parameter's dotted name is that of a LoRA weight."""
    return ".lora_" in name


def without_lora(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of the model as it was before :func:`add_lora`."""
    return {name.replace(".base_layer.", "."): x for name, x in state.items() if not is_lora(name)}


def save_lora(model: nn.Module, folder: Path) -> None:
    """Write the LoRA weights and their config to ``folder/lora``, which peft reads too."""
    folder = folder / LORA
    folder.mkdir(exist_ok=True)
    model.peft_config["default"].save_pretrained(folder)
    weights = optional("peft", "lora").get_peft_model_state_dict(model)
    save_file({name: x.detach().contiguous() for name, x in weights.items()}, folder / WEIGHTS)


def load_lora(model: nn.Module, folder: Path) -> None:
    """Read the weights that :func:`save_lora` wrote into a model that has LoRA layers.

    Raises ValueError for weights of other layers or another rank, OSError if there are none.
    """
    file = folder / LORA / WEIGHTS
    if not file.is_file():
        raise OSError(f"lora: {file} is missing, the weights that belong to the model")
    try:
        found = optional("peft", "lora").set_peft_model_state_dict(model, load_file(file))
    except RuntimeError as error:
        raise ValueError(f"lora: the weights in {file} do not fit: {error}") from None
    missing = [name for name in found.missing_keys if is_lora(name)]
    if missing or found.unexpected_keys:
        raise ValueError(
            f"lora: the weights in {file} are not of these layers, first {(missing + found.unexpected_keys)[0]}"
        )
