"""What the encoders share: a frozen transformers model and its tokenizer, saved flat in one folder.

config.json, model.safetensors and the tokenizer's files are transformers' own, so that its classes read the folder too;
text_encoder.json has the class and its arguments. A folder without it is any model of transformers.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import ConfigMixin, ModelMixin
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from fmpipe.text.protocol import check_prompts
from fmpipe.untrusted import load_pretrained, read_json

CONFIG = "text_encoder.json"
FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
# Of what DiffusionPipeline passes to every model: where weights lie on the way. It moves the loaded encoder itself.
IGNORED = {
    "device_map",
    "disable_mmap",
    "low_cpu_mem_usage",
    "max_memory",
    "offload_folder",
    "offload_state_dict",
    "use_flashpack",
    "use_safetensors",
}


def check_count(where: str, **counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{where}: {name} must be a positive int, got {count!r}")


def located(where: str, source: str | Path, local_files_only: bool = True) -> Path:
    """A folder, or the snapshot of a hub name: from the cache, and only if asked from the network."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    try:
        return Path(snapshot_download(str(source), local_files_only=True, allow_patterns=FILES))
    except (HFValidationError, LocalEntryNotFoundError):
        if local_files_only:
            raise FileNotFoundError(
                f"{where}: folder {str(source)!r} is not a folder, nor a hub name in the cache; "
                "local_files_only=False downloads one"
            ) from None
    return Path(snapshot_download(str(source), allow_patterns=FILES))


def _tokenizer_class(folder: Path) -> type:
    """Return the class that reads a tokenizer as it was saved.

    For some models, AutoTokenizer replaces a plain ``tokenizer.json`` by the model's usual tokenizer.
    """
    saved = read_json(folder / "tokenizer_config.json").get("tokenizer_class")
    return PreTrainedTokenizerFast if saved in ("PreTrainedTokenizerFast", "TokenizersBackend") else AutoTokenizer


class FrozenText(ModelMixin, ConfigMixin):
    """A transformers model that never trains, and its tokenizer: always in eval mode, no parameter with a gradient.

    A component of a DiffusionPipeline: model_index.json names the module of the class, which must have been imported
    when the pipeline is loaded (diffusers imports none by itself). arguments: what text_encoder.json
    keeps in place of tokens.
    """

    config_name = CONFIG
    model_class: type  # transformers' class, or an Auto class, that reads the folder

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tokens: int, **arguments):
        super().__init__()
        check_count(type(self).__name__, tokens=tokens)
        self.register_to_config(**(arguments or {"tokens": tokens}))
        self.model, self.tokenizer = model.requires_grad_(False), tokenizer
        self.tokens, self.dim = tokens, model.config.hidden_size
        self.train(False)

    def train(self, mode: bool = True) -> "FrozenText":
        """Eval mode, whatever is asked: dropout in a frozen encoder is noise in its states."""
        return super().train(False)

    def ids_and_mask(self, prompts: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        """(B, tokens) each: int64 and bool; truncated, and padded on the right whatever the tokenizer's side."""
        batch = self.tokenizer(
            check_prompts(type(self).__name__, prompts),
            padding="max_length",
            padding_side="right",  # on the left, positions would move, and CLIP sees no mask
            truncation=True,
            max_length=self.tokens,
            return_attention_mask=True,
            return_tensors="pt",
        ).to(self.device)
        return batch["input_ids"], batch["attention_mask"].bool()

    @property
    def prompt_limit(self) -> int:
        """The number of tokens of a prompt that are read, special tokens included."""
        return self.tokens

    def cut(self, prompt: str) -> str:
        """Return the end of a prompt that is beyond ``prompt_limit`` and therefore ignored; "" if all of it is read."""
        words = self.tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]
        return self.tokenizer.decode(words[max(0, self.prompt_limit - self.tokenizer.num_special_tokens_to_add()) :])

    @torch.no_grad()
    def forward(self, prompts: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        """States (B, tokens, dim) in the model's dtype, mask (B, tokens) bool."""
        ids, mask = self.ids_and_mask(prompts)
        return self.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state, mask

    def save_pretrained(self, folder: str | Path) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        self.save_config(folder)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        dtype: torch.dtype | None = None,
        torch_dtype: torch.dtype | None = None,
        local_files_only: bool = True,
        **arguments,
    ) -> "FrozenText":
        """From ``save_pretrained``'s folder or any of transformers, or a hub name (network: local_files_only=False).

        arguments: the class's, before those saved. dtype (torch_dtype is its old name): as saved if None.
        FileNotFoundError without such a folder, ValueError for another class's, TypeError for an unknown argument,
        OSError for files that cannot be read, lack tensors or need Python code of the folder. Pickled weights are not
        read.
        """
        where = cls.__name__
        folder = located(where, folder, local_files_only)
        saved = read_json(folder / CONFIG)
        if saved.get("_class_name", where) != where:
            raise ValueError(f"{where}: folder {str(folder)!r} has a {saved['_class_name']}")
        arguments = {k: v for k, v in arguments.items() if k not in IGNORED and v is not None}
        arguments = {k: v for k, v in saved.items() if not k.startswith("_")} | arguments
        try:
            model, loaded = load_pretrained(
                cls.model_class,
                folder,
                dtype=dtype or torch_dtype or "auto",
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # named below, all of them
                output_loading_info=True,
            )
            tokenizer = load_pretrained(_tokenizer_class(folder), folder)
        except Exception as error:  # whatever the libraries beneath make of a damaged file
            raise OSError(f"{where}: folder {str(folder)!r} cannot be read: {error}") from error
        for what in ("missing_keys", "mismatched_keys"):
            if keys := sorted(loaded[what]):
                raise OSError(
                    f"{where}: folder {str(folder)!r} has {len(keys)} {what.replace('_', ' ')}, first {keys[0]}"
                )
        return cls(model, tokenizer, **arguments)
