"""A frozen language model read out by learned queries, as in MetaQuery and OpenUni."""

import inspect
from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import ModelMixin  # noqa: F401 (diffusers looks for it in the module that model_index.json names)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from fmpipe.text.base import FrozenText, check_count, located
from fmpipe.text.protocol import check_prompts

QUERIES = "meta_queries.safetensors"


class MetaQueryText(FrozenText):
    """``num_queries`` learned embeddings after the prompt's; the model's last hidden states there are the output.

    model: a causal language model, with or without its head, which is dropped. The queries are the only parameters that
    train; they are drawn from N(0, 1 / dim). prompt_tokens: longer prompts are truncated. Every state means something:
    the mask is True.
    """

    model_class = AutoModel

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        num_queries: int = 256,
        prompt_tokens: int = 256,
    ):
        check_count("MetaQueryText", num_queries=num_queries, prompt_tokens=prompt_tokens)
        model = model.base_model
        if "position_ids" not in inspect.signature(model.forward).parameters:
            raise ValueError(f"MetaQueryText: model must take position_ids, {type(model).__name__} does not")
        room = getattr(model.config, "max_position_embeddings", None)
        if room is not None and num_queries + prompt_tokens > room:
            raise ValueError(
                f"MetaQueryText: num_queries + prompt_tokens must be at most {room}, the positions of the model, "
                f"got {num_queries} + {prompt_tokens}"
            )
        super().__init__(model, tokenizer, num_queries, num_queries=num_queries, prompt_tokens=prompt_tokens)
        width = model.get_input_embeddings().embedding_dim
        self.queries = nn.Parameter(torch.randn(num_queries, width, device=model.device) * width**-0.5)

    @property
    def prompt_limit(self) -> int:
        return self.config.prompt_tokens

    def forward(self, prompts: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        """States (B, num_queries, dim) in the model's dtype, with gradients to the queries; mask all True.

        Prompts are padded on the left whatever the tokenizer's side, so that prompt and queries are neighbours; padding
        is masked and has no positions.
        """
        prompts = check_prompts("MetaQueryText", prompts)
        batch = self.tokenizer(prompts, truncation=True, max_length=self.config.prompt_tokens)["input_ids"]
        longest = max(map(len, batch))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in batch], dtype=torch.int64, device=self.device)
        lengths = torch.tensor([len(row) for row in batch], device=self.device)
        positions = torch.arange(longest + self.tokens, device=self.device) - (longest - lengths)[:, None]

        embeddings = self.model.get_input_embeddings()(ids)
        queries = self.queries.to(embeddings.dtype).expand(len(batch), -1, -1)
        states = self.model(
            inputs_embeds=torch.cat([embeddings, queries], dim=1),
            attention_mask=(positions >= 0).long(),
            position_ids=positions.clamp(min=0),
            use_cache=False,
        ).last_hidden_state[:, -self.tokens :]
        return states, torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)

    def save_pretrained(self, folder: str | Path) -> None:
        super().save_pretrained(folder)
        save_file({"queries": self.queries.detach().contiguous()}, Path(folder) / QUERIES)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        dtype: torch.dtype | None = None,
        torch_dtype: torch.dtype | None = None,
        local_files_only: bool = True,
        **arguments,
    ) -> "MetaQueryText":
        """As the others'; the queries are the folder's, or new ones where it is a language model's."""
        folder, dtype = located("MetaQueryText", folder, local_files_only), dtype or torch_dtype
        encoder = super().from_pretrained(folder, dtype=dtype, **arguments)
        queries = encoder.queries.data
        if (folder / QUERIES).is_file():
            queries = load_file(folder / QUERIES)["queries"]
            if queries.shape != encoder.queries.shape:
                raise ValueError(f"MetaQueryText: num_queries is {encoder.tokens}, {folder} has {len(queries)} queries")
        encoder.queries.data = queries.to(encoder.device, dtype)
        return encoder
