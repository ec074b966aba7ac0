"""A frozen language model that is read out by learned queries, as in MetaQuery and OpenUni."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import ModelMixin  # noqa: F401 (diffusers looks for it in the module that model_index.json names)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer

from fmpipe.text.base import FrozenText, check_count, located
from fmpipe.text.connector import Connector, add_lora, is_lora, load_lora, save_lora, without_lora
from fmpipe.text.protocol import check_prompts

QUERIES = "meta_queries.safetensors"
SLOT = "{prompt}"


class MetaQueryText(FrozenText):
    """``num_queries`` learned embeddings after the prompt's; the model's last hidden states there are the output.

    The model's weights never change; gradients flow through them to the queries. What can be trained (queries,
    connector, LoRA) is kept in fp32, whatever the model's dtype. Every state has a meaning: the mask is True.

    Args:
        model: a language model of transformers, with or without its head, which is dropped. Of a vision-language model,
            the language part is kept. A bidirectional encoder such as BERT works too.
        num_queries: number of queries, which are initialized from N(0, 1 / dim).
        prompt_tokens: longer prompts are truncated; the template is not.
        prompt_template: text around the prompt, with ``{prompt}`` where it goes.
        connector: arguments of :class:`~fmpipe.text.connector.Connector`; None has no connector.
        lora: arguments of :func:`~fmpipe.text.connector.add_lora`; None has no LoRA.
        train_queries: False keeps the queries at their initial values.
    """

    model_class = AutoModel

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        num_queries: int = 256,
        prompt_tokens: int = 256,
        prompt_template: str | None = None,
        connector: Mapping[str, Any] | None = None,
        lora: Mapping[str, Any] | None = None,
        train_queries: bool = True,
    ):
        check_count("MetaQueryText", num_queries=num_queries, prompt_tokens=prompt_tokens)
        if prompt_template is not None and prompt_template.count(SLOT) != 1:
            raise ValueError(f"MetaQueryText: prompt_template must contain {SLOT} once, got {prompt_template!r}")
        model = model.base_model
        model = getattr(model, "language_model", model)
        if "position_ids" not in inspect.signature(model.forward).parameters:
            raise ValueError(f"MetaQueryText: model must take position_ids, {type(model).__name__} does not")
        room = getattr(model.config, "max_position_embeddings", None)
        if room is not None and num_queries + prompt_tokens > room:
            raise ValueError(
                f"MetaQueryText: num_queries + prompt_tokens must be at most {room}, the positions of the model, "
                f"got {num_queries} + {prompt_tokens}"
            )
        super().__init__(
            model,
            tokenizer,
            num_queries,
            num_queries=num_queries,
            prompt_tokens=prompt_tokens,
            prompt_template=prompt_template,
            connector=connector and dict(connector),
            lora=lora and dict(lora),
            train_queries=train_queries,
        )
        if prompt_template and tokenizer and not self.prompt_limit:
            around = len(self._ids(prompt_template.replace(SLOT, "")))
            raise ValueError(
                f"MetaQueryText: prompt_template alone has {around} tokens, prompt_tokens is {prompt_tokens}"
            )
        width = model.get_input_embeddings().embedding_dim
        queries = torch.randn(num_queries, width, device=model.device, dtype=torch.float32) * width**-0.5
        self.queries = nn.Parameter(queries, requires_grad=train_queries)
        self.connector = None
        if connector:
            self.connector = Connector(self.dim, **connector).to(model.device)
            self.dim = self.connector.width
        if lora:
            add_lora(model, **lora)
        self.train(False)

    def __getattr__(self, name: str):
        """Find modules first: diffusers' own lookup returns the config's entry of the same name (connector)."""
        return nn.Module.__getattr__(self, name)

    @property
    def trainable(self) -> bool:
        """Whether a parameter is trained. If not, the states of a prompt never change and can be cached."""
        return any(p.requires_grad for p in self.parameters())

    def train(self, mode: bool = True) -> "MetaQueryText":
        """Keep the model in eval mode; LoRA's dropout and activation checkpointing follow ``mode``."""
        super().train(False)
        for name, module in self.model.named_modules():
            if ".lora_dropout" in name or getattr(module, "gradient_checkpointing", False):
                module.training = mode  # not module.train(): the layers of the model beneath stay in eval mode
        return self

    def enable_gradient_checkpointing(self) -> None:
        """Recompute the activations of the model and the connector in the backward pass instead of keeping them."""
        if not any(isinstance(module, GradientCheckpointingLayer) for module in self.model.modules()):
            raise ValueError(f"MetaQueryText: {type(self.model).__name__} does not support activation checkpointing")
        older = self.model.gradient_checkpointing_enable
        getattr(self.model, "activation_checkpointing_enable", older)({"use_reentrant": False})
        if self.connector is not None:
            self.connector.gradient_checkpointing = True

    # Prompts to states

    @property
    def prompt_limit(self) -> int:
        template = self.config.prompt_template
        around = len(self._ids(template.replace(SLOT, ""))) if template else 0
        return max(0, self.config.prompt_tokens - around)

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, verbose=False)["input_ids"]

    def _prompt_ids(self, prompt: str) -> list[int]:
        """Return the ids of a prompt in its template; of a long prompt, only the end of the prompt is cut off."""
        template, limit = self.config.prompt_template, self.config.prompt_tokens
        if template is None:
            return self.tokenizer(prompt, truncation=True, max_length=limit)["input_ids"]
        ids = self._ids(template.replace(SLOT, prompt))
        words = None
        while len(ids) > limit:
            words = self.tokenizer(prompt, add_special_tokens=False)["input_ids"] if words is None else words
            if not words:
                raise ValueError(
                    f"MetaQueryText: prompt_template alone has {len(ids)} tokens, prompt_tokens is {limit}"
                )
            words = words[: len(words) - max(1, len(ids) - limit)] if len(words) > len(ids) - limit else []
            ids = self._ids(template.replace(SLOT, self.tokenizer.decode(words)))
        return ids

    def tokenize(self, prompts: str | Sequence[str]) -> dict[str, Tensor]:
        """Return ``ids`` (B, P) int64 and ``mask`` (B, P) bool on the CPU, padded on the left to the longest prompt.

        The padding is on the left whatever the tokenizer's side, so that prompt and queries are neighbours.
        """
        rows = [self._prompt_ids(prompt) for prompt in check_prompts("MetaQueryText", prompts)]
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], dtype=torch.int64)
        lengths = torch.tensor([len(row) for row in rows])
        return {"ids": ids, "mask": torch.arange(longest) >= longest - lengths[:, None]}

    def encode(self, ids: Tensor, mask: Tensor, prefix: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return states (B, num_queries, dim) with gradients to all that is trained, and their mask, all True.

        ids, mask: of :meth:`tokenize`. prefix: of :meth:`prefixes`, for the same prompts; the model then runs on the
        queries alone. Padding is masked out and takes no positions.
        """
        positions = torch.arange(ids.shape[1] + self.tokens, device=ids.device) - (~mask).sum(1, keepdim=True)
        queries = self.queries.to(self.model.dtype).expand(len(ids), -1, -1)
        if prefix is None:
            inputs = torch.cat([self.model.get_input_embeddings()(ids), queries], dim=1)
            states = self._run(inputs, positions, positions >= 0)
        else:
            cache = DynamicCache(zip(prefix[:, 0::2].unbind(1), prefix[:, 1::2].unbind(1)))
            states = self._run(queries, positions[:, -self.tokens :], positions >= 0, past_key_values=cache)
        states = states.last_hidden_state[:, -self.tokens :]
        if self.connector is not None:
            states = self.connector(states)
        return states, torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)

    def _run(self, inputs: Tensor, positions: Tensor, keep: Tensor, **cache):
        mask = keep.long()
        if keep.is_meta:  # a dry run; transformers would read the values of a (B, L) mask
            mask = inputs.new_zeros(len(keep), 1, inputs.shape[1], keep.shape[1])
        return self.model(
            inputs_embeds=inputs,
            attention_mask=mask,
            position_ids=positions.clamp(min=0),
            **{"use_cache": False, **cache},
        )

    def forward(self, prompts: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return states (B, num_queries, dim), with gradients to all that is trained, and their mask, all True."""
        return self.encode(**{name: x.to(self.device) for name, x in self.tokenize(prompts).items()})

    # Reuse of the prompt's keys and values

    @torch.no_grad()
    def prefixes(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the keys and values of prompts, (B, 2 * layers, heads, P, head_dim), keys and values in turn.

        Raises ValueError if the model gives none, or not of one shape in all layers.
        """
        positions = torch.arange(ids.shape[1], device=ids.device) - (~mask).sum(1, keepdim=True)
        inputs = self.model.get_input_embeddings()(ids)
        found = self._run(inputs, positions, positions >= 0, use_cache=True)
        layers = getattr(getattr(found, "past_key_values", None), "layers", [])
        tensors = [x for layer in layers for x in (getattr(layer, "keys", None), getattr(layer, "values", None))]
        # A sliding window shorter than the prompt keeps fewer.
        if not tensors or any(x is None or x.shape != tensors[0].shape or x.shape[2] != ids.shape[1] for x in tensors):
            raise ValueError(f"{type(self.model).__name__} gives no keys and values that can be reused")
        return torch.stack(tensors, dim=1).masked_fill(~mask[:, None, None, :, None], 0)

    @torch.no_grad()
    def reuse_error(self, prompts: Sequence[str]) -> float:
        """Return the relative error of the states if prefixes are reused; infinite where they must not be.

        It is at the level of rounding for causal models. LoRA changes the prefix at every step.
        """
        if any(is_lora(name) for name, _ in self.model.named_parameters()):
            return float("inf")
        rows = {name: x.to(self.device) for name, x in self.tokenize(prompts).items()}
        try:
            reused, _ = self.encode(**rows, prefix=self.prefixes(**rows))
        except (ValueError, TypeError):  # no keys and values, or a model that does not take them
            return float("inf")
        exact, _ = self.encode(**rows)
        return ((reused - exact).float().norm() / exact.float().norm()).item()

    # Files

    def save_pretrained(self, folder: str | Path) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder, state_dict=without_lora(self.model.state_dict()))
        self.tokenizer.save_pretrained(folder)
        self.save_config(folder)
        if self.config.lora:
            save_lora(self.model, folder)
        save_file({name: x.detach().contiguous() for name, x in self._own().items()}, folder / QUERIES)

    def _own(self) -> dict[str, Tensor]:
        """Return the queries and the parameters of the connector."""
        own = {"queries": self.queries}
        if self.connector is not None:
            own |= {f"connector.{name}": p for name, p in self.connector.named_parameters()}
        return own

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, local_files_only: bool = True, **arguments) -> "MetaQueryText":
        """Load a folder of :meth:`save_pretrained`, or a language model, which gets new queries.

        arguments: those of :meth:`FrozenText.from_pretrained`. Trained parameters stay in fp32 whatever the dtype.
        """
        folder = located("MetaQueryText", folder, local_files_only)
        encoder = super().from_pretrained(folder, **arguments)
        if not (folder / QUERIES).is_file():
            if (folder / cls.config_name).exists():
                raise OSError(f"MetaQueryText: {folder} has a {cls.config_name}, but no {QUERIES}, its trained queries")
            return encoder
        saved, own = load_file(folder / QUERIES), encoder._own()
        if "queries" not in saved:
            raise ValueError(f"MetaQueryText: {QUERIES} in {folder} has no tensor 'queries'")
        if saved["queries"].shape != encoder.queries.shape:
            raise ValueError(
                f"MetaQueryText: num_queries is {encoder.tokens}, {folder} has {len(saved['queries'])} queries"
            )
        if {name: x.shape for name, x in saved.items()} != {name: x.shape for name, x in own.items()}:
            raise ValueError(f"MetaQueryText: the connector in {folder} is not the one of its {cls.config_name}")
        with torch.no_grad():
            for name, x in own.items():
                x.copy_(saved[name])
        if encoder.config.lora:
            load_lora(encoder.model, folder)
        return encoder
