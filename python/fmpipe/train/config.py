"""The settings of a training run: one typed tree, read from and written to YAML.

Every key has a help text, which ``fmpipe init`` writes as a comment and ``docs/training.md`` lists.
"""

import math
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

from fmpipe.train.settings import to_dict
from fmpipe.train.times import check_times


def key(help: str, default: Any = MISSING, factory: Any = MISSING) -> Any:
    """Return a dataclass field with a default and a help text."""
    return field(default=default, default_factory=factory, metadata={"help": help})


def check_range(config: Any, low: float, high: float, *names: str) -> None:
    """Raise ValueError if a setting is not in [low, high], or not finite; None is always accepted."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (low <= value <= high and value < math.inf):
            limits = f"in [{low}, {high}]" if high < math.inf else f"at least {low}" + " and finite" * (value == high)
            raise ValueError(f"{name} must be {limits}, got {value}")


@dataclass
class DataSource:
    """Where images or latents and their captions come from."""

    source: Literal["shapes", "scenes", "emoji", "folder", "hf", "shards", "latents"] = key(
        "shapes: drawn, needs nothing; scenes: the same with up to four objects; emoji: needs a font; folder: your "
        "images; hf: a Hugging Face dataset on disk or parquet files; shards: webdataset tar files; latents: "
        "precomputed latents",
        "shapes",
    )
    path: str | None = key("folder, file or glob of the source, or the emoji font; null for shapes and scenes", None)
    captions: str | None = key(
        "for folder and latents: a file (for latents, also a folder) with captions; for hf: the column of captions; "
        "null looks for captions, see docs/training.md",
        None,
    )
    image_column: str | None = key("for hf: the column of images; null looks for it, see docs/training.md", None)
    latents_scaled: bool | None = key(
        "for latents with the autoencoder's number of channels: whether they are stored with its scale applied", None
    )


@dataclass
class WeightedSource(DataSource):
    """One of several sources."""

    weight: float = key("share of the source in training, relative to the other weights", 1.0)

    def __post_init__(self):
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight must be a positive number, got {self.weight}")


WIDEST = 1 << 16  # channels of an autoencoder
LARGEST = 1 << 14  # pixels of a side


@dataclass
class Data(DataSource):
    """Images and captions."""

    size: int = key("side of the square images in pixels; see the size rule in docs/training.md", 32)
    count: int = key("for shapes and scenes: number of images", 2048)
    seed: int = key("seed of the split into training and validation data, and of shapes and scenes", 0)
    val: float = key("share of the images, or captions, that is held out for validation", 0.1)
    limit: int | None = key("train on this many images only and validate on the same ones; null uses all", None)
    cache: str = key("folder for cached latents and text states, shared by runs", "cache")
    sources: list[WeightedSource] = key(
        "several sources instead of one: a list of mappings with source, path, captions, image_column, latents_scaled "
        "and weight",
        factory=list,
    )

    def __post_init__(self):
        check_range(self, 1, LARGEST, "size")
        check_range(self, 1, math.inf, "count", "limit")
        check_range(self, 0, 1, "val")
        if self.sources and self.path is not None:
            raise ValueError(f"path and sources exclude each other: remove path, or set it to null, got {self.path!r}")


SCHEDULES = (
    "cosine",
    "linear",
    "constant",
    "cosine_with_restarts",
    "polynomial",
    "inverse_sqrt",
    "warmup_stable_decay",
)


@dataclass
class Group:
    """Learning rate and weight decay of one module; None keeps the optimizer's."""

    lr: float | None = None
    weight_decay: float | None = None

    def __post_init__(self):
        check_range(self, 0, math.inf, "lr", "weight_decay")


@dataclass
class Optim:
    """The optimizer of a stage: a linear warm-up, then a schedule of the learning rate by name."""

    steps: int = key("number of optimizer steps", 1000)
    batch: int = key("images per step, over all processes and micro-batches", 32)
    accumulate: int = key("micro-batches per step, one after the other, to save memory; batch is their sum", 1)
    optimizer: Literal["adamw", "adamw8bit", "muon"] = key(
        "adamw8bit needs bitsandbytes; muon: Muon for the 2-D weights of layers, AdamW for everything else", "adamw"
    )
    lr: float = key("highest learning rate", 1e-3)
    schedule: Literal[SCHEDULES] = key("learning rate after the warm-up; the names are those of transformers", "cosine")
    schedule_args: dict[str, Any] = key(
        "arguments of the schedule, for example {num_cycles: 3}, {power: 2} or {num_decay_steps: 200}", factory=dict
    )
    warmup: float = key("share of the steps in which the learning rate rises from 0", 0.05)
    floor: float = key("lowest learning rate of the schedule, as a share of lr", 0.05)
    weight_decay: float = key("weight decay of matrices; biases and norms have none", 0.01)
    betas: tuple[float, float] = key("AdamW's betas", (0.9, 0.99))
    clip: float = key("largest gradient norm; larger gradients are scaled down", 1.0)
    ema: float = key("decay of the averaged weights, which are validated and saved", 0.999)
    groups: dict[str, Group] = key(
        "lr and weight_decay by module or parameter, for example {text_head: {lr: 1e-4, weight_decay: 0}}; the longest "
        "name that fits counts",
        factory=dict,
    )

    def __post_init__(self):
        check_range(self, 1, math.inf, "steps", "batch", "accumulate")
        check_range(self, 0, math.inf, "lr", "weight_decay")
        check_range(self, 0, 1, "warmup", "floor")
        if not self.clip > 0:
            raise ValueError(f"clip must be above 0, got {self.clip}")
        for name, values in (("ema", [self.ema]), ("betas", self.betas)):
            if not all(0 <= value < 1 for value in values):
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if self.batch % self.accumulate:
            raise ValueError(f"batch must be a multiple of accumulate ({self.accumulate}), got {self.batch}")


@dataclass
class Autoencoder:
    """Stage vae: an AutoencoderKL trained with l1 * L1 + mse * MSE + kl * KL."""

    path: str | None = key("folder of a trained LatentVAE to use instead of training one", None)
    channels: int = key("channels of the latent", 4)
    widths: list[int] = key(
        "channels per level; every level after the first halves the resolution", factory=lambda: [32, 64, 64]
    )
    layers: int = key("residual blocks per level", 1)
    groups: int = key("groups of the group norms; must divide every width", 8)
    l1: float = key("weight of the L1 reconstruction loss", 1.0)
    mse: float = key("weight of the squared reconstruction loss", 2.0)
    kl: float = key("weight of the KL divergence to N(0, I)", 1e-4)
    augment: bool = key("rotate, mirror and shift the images", False)
    optim: Optim = key("optimizer of the stage vae", factory=lambda: Optim(lr=1.5e-3, weight_decay=0.0, ema=0.99))

    def __post_init__(self):
        check_range(self, 1, math.inf, "channels", "layers", "groups")
        check_range(self, 0, math.inf, "l1", "mse", "kl")
        if not self.widths or not 1 <= min(self.widths) <= max(self.widths) <= WIDEST:
            raise ValueError(f"widths must be numbers from 1 to {WIDEST}, got {self.widths}")


LOSSES = ("flow", "kl", "contrastive", "dino", "norm", "anchor", "match", "repa")  # those with a weight


@dataclass
class LossSchedule:
    """Factor on the weight of a loss: start up to ``begin``, end from ``until`` on (shares of the run)."""

    kind: Literal["cosine", "linear"] = "cosine"
    start: float = 1.0
    end: float = 0.1
    begin: float = 0.0
    until: float = 1.0

    def __post_init__(self):
        if not 0 <= self.begin <= self.until <= 1:
            raise ValueError(f"0 <= begin <= until <= 1 must hold, got begin {self.begin}, until {self.until}")
        if self.start < 0 or self.end < 0:
            raise ValueError(f"start and end must be 0 or more, got {self.start} and {self.end}")


@dataclass
class Losses:
    """Losses of the stage flow. A loss with weight 0 is not computed."""

    flow: float = key("weight of the flow-matching loss", 1.0)
    kl: float = key("weight of the KL divergence of z0 to N(0, I)", 1e-2)
    contrastive: float = key("weight of the contrastive text-image loss", 0.0)
    dino: float = key("weight of the DINO soft-target loss; needs contrastive or teacher", 0.0)
    norm: float = key("weight of (|v_pred| - |v_target|)^2", 0.0)
    anchor: float = key("weight of the squared distance of mu to the image's latent", 0.0)
    match: float = key(
        "weight of the loss that makes mu nearest to its own image among the batch; of a mixture: -log of its density "
        "at the image",
        0.0,
    )
    repa: float = key("weight of the REPA loss: aligns a block of the velocity network with teacher's patches", 0.0)
    kl_kind: Literal["standard", "crossflow"] = key("formula of the KL divergence", "standard")
    kl_warmup: float = key("share of the steps in which the weight of the KL rises from 0", 0.1)
    kl_beta: Literal["constant", "linear", "cosine", "cyclic"] = key(
        "schedule of the KL's weight after its warm-up", "constant"
    )
    weighting: Literal["constant", "share", "gradnorm", "pcgrad"] = key(
        "constant weights; share: reach the gradient shares below; gradnorm; pcgrad: project conflicting gradients",
        "constant",
    )
    shares: dict[str, float] = key(
        "for weighting share: gradient norms relative to the flow loss",
        factory=lambda: {"kl": 0.2, "dino": 0.35, "contrastive": 0.35},
    )
    schedules: dict[str, LossSchedule] = key(
        "factor on a loss's weight over the run, for example {dino: {kind: cosine, start: 1, end: 0.1, begin: 0, "
        "until: 1}}; kind may be linear",
        factory=dict,
    )
    t: Literal["uniform", "logit_normal", "edge", "mixed", "early", "mode", "cosmap"] = key(
        "distribution of the training times; t = 0 is z0 (text), t = 1 the image", "uniform"
    )
    t_mean: float = key("for logit_normal and mixed: mean of logit(t); above 0, times near the image are denser", 0.0)
    t_std: float = key("for logit_normal and mixed: standard deviation of logit(t)", 1.0)
    t_mode_scale: float = key(
        "for mode: up to 1.75, above 0 the middle is denser; below 0, down to -1, both ends are denser", 1.29
    )
    t_shift: float = key(
        "resolution shift of the times, as SD3's shift of sigma = 1 - t: above 1, times near z0 are denser", 1.0
    )
    edge_weight: float = key("extra weight of the flow loss near t = 0 and t = 1", 0.0)
    null: float = key("share of samples with the null indicator set; 0 trains a model that cannot use guidance", 0.1)
    turn: float = key("angle in degrees between z1 and the target of anchor and match", 0.0)
    others: int = key("captions in addition to the batch's for anchor and match", 0)
    multi_scale: bool = key("also apply the flow loss to the coarser stages of the network", True)
    detach: bool = key("stop the gradient of the flow loss at z0, so that it does not train the text head", False)
    dino_classes: int = key("number of classes of the DINO loss", 256)
    temperatures: tuple[float, float] = key("temperatures of the DINO teacher and student", (0.04, 0.1))
    teacher: str | None = key(
        "image encoder that dino and repa learn from: folder of a DINOv2, ViT, CLIP, SigLIP or other model of "
        "transformers; null: dino uses a moving average of contrastive's image tower",
        None,
    )
    teacher_on: Literal["cache", "pixels"] = key(
        "cache: compute the teacher's features of all images once; pixels: run the teacher in every step", "cache"
    )
    repa_layer: int | None = key(
        "block of the velocity network that repa aligns, counted from 0 over all stages; null: a third into the first",
        None,
    )
    alarm: float = key("stop if E|z0| or E|v*| exceeds this many times E|z1|; 0 never stops", 3.0)

    def __post_init__(self):
        check_range(self, 0, math.inf, *LOSSES, "edge_weight", "others", "alarm")
        check_range(self, 0, 1, "kl_warmup", "null")
        if self.dino and not self.contrastive and not self.teacher:
            raise ValueError(
                "dino needs contrastive, whose image tower its teacher averages, or an external one: set teacher"
            )
        if self.repa and not self.teacher:
            raise ValueError("repa needs teacher: the folder of an image encoder, whose patch features it aligns to")
        if self.weighting in ("share", "gradnorm") and self.kl_beta != "constant":
            raise ValueError(f"weighting {self.weighting!r} would undo kl_beta {self.kl_beta!r}: use 'constant'")
        if self.schedules and self.weighting in ("share", "gradnorm"):
            raise ValueError(f"weighting {self.weighting!r} would undo schedules: use 'constant' or 'pcgrad'")
        if unknown := sorted(self.schedules.keys() - set(LOSSES)):
            raise ValueError(f"schedules has {unknown[0]!r}; the losses are {', '.join(LOSSES)}")
        check_times(self.t_std, self.t_mode_scale, self.t_shift)


@dataclass
class Lora:
    """LoRA weights in the language model, through peft."""

    r: int = key("rank", 8)
    alpha: float | None = key("the update is scaled by alpha / r; null is 2 * r", None)
    dropout: float = key("share of the inputs of the LoRA layers that is dropped", 0.0)
    target_modules: str | list[str] = key(
        "names of the linear layers that get LoRA weights, or all-linear", "all-linear"
    )


@dataclass
class Connector:
    """Transformer layers between the query states and the text head."""

    layers: int = key("number of layers", 2)
    heads: int = key("number of attention heads", 8)
    hidden: int | None = key("width of the feed-forward layers; null is 4 * width", None)
    width: int | None = key("width of the layers and of their output; null is that of the language model", None)


@dataclass
class Encoder:
    """A text encoder with its arguments. Those after dtype are for the kind meta_query."""

    kind: Literal["meta_query", "minilm", "clip", "t5"] = key("meta_query: a language model with learned queries")
    model: str | None = key(
        "folder of the model; minilm (null is minilm for that kind); or captions: a small model trained on them", None
    )
    dtype: Literal["fp32", "bf16", "fp16"] | None = key("dtype of the frozen model; null is that of its files", None)
    num_queries: int | None = key("number of learned queries; null is 256", None)
    prompt_tokens: int | None = key("tokens of a prompt that are read; null is flow.tokens", None)
    prompt_template: str | None = key("text around the prompt, with {prompt} in the place of the prompt", None)
    train_queries: bool | None = key("false keeps the queries at their random values; null is true", None)
    connector: Connector | None = key("transformer layers between the query states and the text head", None)
    lora: Lora | None = key("LoRA weights in the language model", None)
    reuse_prefix: bool = key(
        "cache the keys and values of the prompts, where this is exact, and run the model on the queries only", True
    )
    architecture: dict[str, Any] | None = key(
        "config of transformers for --dry-run, in case the folder does not exist", None
    )

    def __post_init__(self):
        if self.model is None:
            if self.kind != "minilm":
                raise ValueError(f"model is missing: the kind {self.kind!r} needs the folder of a model")
            self.model = "minilm"

    def spec(self) -> dict[str, Any]:
        """Return the mapping that :func:`fmpipe.text.load_text_encoder` takes."""
        given = {name: value for name, value in to_dict(self).items() if value is not None}
        for name in ("reuse_prefix", "architecture"):
            given.pop(name, None)
        return given


@dataclass
class Flow:
    """Stages head and flow: the text head and the velocity network."""

    encoder: str | Encoder = key(
        "text encoder: minilm, a folder with a CLIP, T5 or BERT model or a saved encoder, or a mapping", "minilm"
    )
    tokens: int = key("tokens of a caption that the encoder reads; a saved meta_query encoder keeps its own", 16)
    hold_out: Literal["items", "captions"] = key(
        "items: validate on held-out images; captions: train on all images, validate on held-out captions", "items"
    )
    token_dropout: float = key("share of the tokens that are masked out in training", 0.0)
    head_kind: Literal["transformer", "linear", "mixture"] = key(
        "transformer: CrossFlow's text head; linear: three linear layers; mixture: a Gaussian for each of several "
        "meanings of a text, which needs losses.match",
        "transformer",
    )
    head: dict[str, Any] = key("arguments of the text head, for example std_range, mu_rms, hidden", factory=dict)
    net: dict[str, Any] = key("arguments of the velocity network DiMR: stage_configs", factory=dict)
    fp32_net: bool = key("with precision bf16 or fp16: run the velocity network in fp32", False)
    losses: Losses = key("losses of the stage flow", factory=Losses)
    optim: Optim = key("optimizer of the stage flow", factory=Optim)
    head_optim: Optim = key("optimizer of the stage head, which trains the text head alone", factory=Optim)

    def __post_init__(self):
        check_range(self, 1, math.inf, "tokens")
        check_range(self, 0, 1, "token_dropout")


@dataclass
class Diffusion:
    """Stage diffusion: the plain diffusion objective with x0-prediction."""

    net: dict[str, Any] = key("arguments of the network DiMR: stage_configs", factory=dict)
    time_weight: bool = key("weight the loss by time step", False)
    optim: Optim = key("optimizer of the stage diffusion", factory=Optim)


@dataclass
class Every:
    """Intervals in steps; 0 means never."""

    log: int = key("steps between two lines of the log", 50)
    validate: int = key("steps between two validations", 250)
    save: int = key("steps between two checkpoints", 250)
    sample: int = key("steps between two sheets of sample images", 500)

    def __post_init__(self):
        check_range(self, 0, math.inf, "log", "validate", "save", "sample")


@dataclass
class Config:
    """A training run."""

    base: str = key("preset that the settings started from; fmpipe report --reference compares with its runs", "")
    out: str = key("folder for checkpoints, logs, samples and the trained pipeline", "runs/default")
    stages: list[Literal["vae", "head", "flow", "diffusion"]] = key(
        "stages to run, in this order", factory=lambda: ["vae", "flow"]
    )
    start: str | None = key("pipeline whose weights the stages start from: a folder, a run, or default", None)
    seed: int = key("seed of the weights, batches and noise", 0)
    precision: Literal["no", "bf16", "fp16"] = key("mixed precision; fp16 needs a GPU", "no")
    parallel: Literal["ddp", "fsdp2"] = key(
        "for several processes: copy the model to each (ddp) or shard it (fsdp2)", "ddp"
    )
    checkpointing: list[Literal["text_encoder", "text_head", "velocity_net"]] = key(
        "modules that recompute their activations in the backward pass instead of storing them", factory=list
    )
    compile: bool = key("compile the text head and the velocity network with torch.compile", False)
    keep: int = key("number of checkpoints to keep", 3)
    report_to: list[Literal["jsonl", "tensorboard", "wandb", "trackio", "mlflow"]] = key(
        "trackers for metrics and sample sheets; log.jsonl, which fmpipe report reads, is always written",
        factory=lambda: ["jsonl"],
    )
    data: Data = key("images and captions", factory=Data)
    vae: Autoencoder = key("the autoencoder", factory=Autoencoder)
    flow: Flow = key("text head and velocity network", factory=Flow)
    diffusion: Diffusion = key("plain diffusion objective", factory=Diffusion)
    every: Every = key("intervals in steps; 0 means never", factory=Every)

    def __post_init__(self):
        check_range(self, 1, math.inf, "keep")
        check_range(self, 0, 2**32 - 1, "seed")
        if self.vae.path is not None:  # used instead of training one
            self.stages = [stage for stage in self.stages if stage != "vae"]
