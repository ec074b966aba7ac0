"""The settings of a training run: one typed tree, read from and written to YAML, and its presets.

Every key has a help text, which ``fmpipe init`` writes as a comment and ``docs/training.md`` lists.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fmpipe.models.presets import PRESETS as NETWORKS
from fmpipe.train import settings
from fmpipe.train.settings import SettingsError, to_dict


def key(help: str, default: Any = MISSING, factory: Any = MISSING) -> Any:
    """Return a dataclass field with a default and a help text."""
    return field(default=default, default_factory=factory, metadata={"help": help})


@dataclass
class Data:
    """Images and captions."""

    source: Literal["shapes", "emoji", "folder", "shards"] = key(
        "shapes: drawn, needs nothing; emoji: needs a font; folder: your images; shards: webdataset tar files", "shapes"
    )
    path: str | None = key("folder of images, glob of tar files, or the emoji font; null for shapes", None)
    captions: str | None = key(
        "for folder: a file with captions; null looks for captions in the folder, see docs/training.md", None
    )
    size: int = key("side of the square images in pixels; see the size rule in docs/training.md", 32)
    count: int = key("for shapes: number of images", 2048)
    seed: int = key("seed of the split into training and validation data, and of shapes", 0)
    val: float = key("share of the images, or captions, that is held out for validation", 0.1)
    limit: int | None = key("train on this many images only and validate on the same ones; null uses all", None)
    cache: str = key("folder for cached latents and text states, shared by runs", "cache")


@dataclass
class Optim:
    """AdamW with a linear warm-up and a cosine decay of the learning rate."""

    steps: int = key("number of optimizer steps", 1000)
    batch: int = key("images per step, over all processes", 32)
    lr: float = key("highest learning rate", 1e-3)
    warmup: float = key("share of the steps in which the learning rate rises from 0", 0.05)
    floor: float = key("learning rate at the last step, as a share of lr", 0.05)
    weight_decay: float = key("weight decay of matrices; biases and norms have none", 0.01)
    betas: tuple[float, float] = key("AdamW's betas", (0.9, 0.99))
    clip: float = key("largest gradient norm; larger gradients are scaled down", 1.0)
    ema: float = key("decay of the averaged weights, which are validated and saved", 0.999)
    scales: dict[str, float] = key("factors of lr by the beginning of a parameter's name", factory=dict)

    def __post_init__(self):
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


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


@dataclass
class Losses:
    """Losses of the stage flow. A loss with weight 0 is not computed."""

    flow: float = key("weight of the flow-matching loss", 1.0)
    kl: float = key("weight of the KL divergence of z0 to N(0, I)", 1e-2)
    contrastive: float = key("weight of the contrastive text-image loss", 0.0)
    dino: float = key("weight of the DINO soft-target loss; needs contrastive", 0.0)
    norm: float = key("weight of (|v_pred| - |v_target|)^2", 0.0)
    anchor: float = key("weight of the squared distance of mu to the image's latent", 0.0)
    match: float = key("weight of the loss that makes mu nearest to its own image among the batch", 0.0)
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
    t: Literal["uniform", "logit_normal", "edge", "mixed", "early"] = key(
        "distribution of the training times", "uniform"
    )
    edge_weight: float = key("extra weight of the flow loss near t = 0 and t = 1", 0.0)
    null: float = key("share of samples with the null indicator set; 0 trains a model that cannot use guidance", 0.1)
    turn: float = key("angle in degrees between z1 and the target of anchor and match", 0.0)
    others: int = key("captions in addition to the batch's for anchor and match", 0)
    multi_scale: bool = key("also apply the flow loss to the coarser stages of the network", True)
    detach: bool = key("stop the gradient of the flow loss at z0, so that it does not train the text head", False)
    dino_classes: int = key("number of classes of the DINO loss", 256)
    temperatures: tuple[float, float] = key("temperatures of the DINO teacher and student", (0.04, 0.1))
    alarm: float = key("stop if E|z0| or E|v*| exceeds this many times E|z1|; 0 never stops", 3.0)

    def __post_init__(self):
        if self.dino and not self.contrastive:
            raise ValueError("dino needs contrastive: its teacher is an average of the tower that contrastive trains")
        if self.weighting in ("share", "gradnorm") and self.kl_beta != "constant":
            raise ValueError(f"weighting {self.weighting!r} would undo kl_beta {self.kl_beta!r}: use 'constant'")


@dataclass
class Flow:
    """Stages head and flow: the text head and the velocity network."""

    encoder: str = key("text encoder: minilm, or a folder with a CLIP, T5 or BERT model", "minilm")
    tokens: int = key("tokens of a caption that the encoder reads", 16)
    hold_out: Literal["items", "captions"] = key(
        "items: validate on held-out images; captions: train on all images, validate on held-out captions", "items"
    )
    token_dropout: float = key("share of the tokens that are masked out in training", 0.0)
    head_kind: Literal["transformer", "linear"] = key(
        "transformer: CrossFlow's text head; linear: three linear layers", "transformer"
    )
    head: dict[str, Any] = key("arguments of the text head, for example std_range, mu_rms, hidden", factory=dict)
    net: dict[str, Any] = key("arguments of the velocity network DiMR: stage_configs", factory=dict)
    losses: Losses = key("losses of the stage flow", factory=Losses)
    optim: Optim = key("optimizer of the stage flow", factory=Optim)
    head_optim: Optim = key("optimizer of the stage head, which trains the text head alone", factory=Optim)


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


@dataclass
class Config:
    """A training run."""

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
    keep: int = key("number of checkpoints to keep", 3)
    report_to: list[Literal["jsonl", "tensorboard"]] = key("formats of the log", factory=lambda: ["jsonl"])
    data: Data = key("images and captions", factory=Data)
    vae: Autoencoder = key("the autoencoder", factory=Autoencoder)
    flow: Flow = key("text head and velocity network", factory=Flow)
    diffusion: Diffusion = key("plain diffusion objective", factory=Diffusion)
    every: Every = key("intervals in steps; 0 means never", factory=Every)

    def __post_init__(self):
        if self.vae.path is not None:  # used instead of training one
            self.stages = [stage for stage in self.stages if stage != "vae"]


def load(path: str | Path) -> Config:
    """Return the config of a YAML file. Its key ``base`` names a preset, whose values the file's other keys replace.

    SettingsError (a ValueError) names the file, line and key of what is wrong.
    """

    def with_base(data: Any) -> Any:
        if not isinstance(data, Mapping) or "base" not in data:
            return data
        data = dict(data)
        if not isinstance(base := data.pop("base"), str) or base not in PRESETS:
            raise SettingsError(("base",), f"unknown preset {base!r}; choose one of {', '.join(PRESETS)}")
        return settings.merged(Config, to_dict(PRESETS[base]()), data)

    return settings.load(Config, path, with_base)


def _stages(dims: tuple[int, int], hidden: tuple[int, int], blocks: tuple[int, int], grid: int) -> list[dict]:
    """A transformer stage at half the latent's resolution and a ConvNeXt one at all of it; grid: of the first."""
    return [
        {
            "kind": "transformer",
            "dim": dims[0],
            "hidden": hidden[0],
            "blocks": blocks[0],
            "grid": [grid] * 2,
            "patch": 2,
        },
        {
            "kind": "convnext",
            "dim": dims[1],
            "hidden": hidden[1],
            "blocks": blocks[1],
            "grid": [2 * grid] * 2,
            "patch": 1,
        },
    ]


def shapes_tiny() -> Config:
    """A minute: 16 px, latents of 4 × 8 × 8.

    The autoencoder learns colours last, and by the number of its steps, so these are many and small: after 700 it gives
    94 % of the scenes their colour back (thin green shapes come out black), after 900 99 %. The flow then draws 44 or
    45 of 48 asked colours, on the prompts the recipe was chosen by.
    """
    return Config(
        out="runs/shapes-tiny",
        data=Data(count=864, size=16, val=0.05),
        vae=Autoencoder(
            widths=[16, 32],
            l1=0.0,
            mse=10.0,
            kl=1e-3,
            optim=Optim(steps=900, batch=8, lr=3e-3, weight_decay=0.0, betas=(0.8, 0.95), ema=0.98),
        ),
        flow=Flow(
            tokens=12,
            head_kind="linear",
            head={"hidden": 512, "pooled": True, "std_range": [0.3, 0.4]},
            net={"stage_configs": _stages((64, 32), (128, 64), (3, 3), grid=4)},
            losses=Losses(kl=1e-3, anchor=1.0, match=1.0, others=128, detach=True, t="early", null=0.0),
            optim=Optim(steps=520, batch=32, lr=4e-3, ema=0.99),
        ),
        every=Every(log=50, validate=250, save=250, sample=250),
    )


def emoji_64() -> Config:
    """The default model: 64 px, latents of 4 × 16 × 16, some two and a half hours on two cores, by its steps' times.

    mu is drawn to the picture of its text and the flow does not move it, sigma stays above 0.3: without either the flow
    reads well and draws nothing. Times are drawn at both ends: early ones choose the picture, late ones finish it.
    """
    return Config(
        out="runs/emoji-64",
        stages=["vae", "head", "flow"],
        data=Data(source="emoji", size=64, val=0.06),
        vae=Autoencoder(
            widths=[24, 48, 96],
            augment=True,
            optim=Optim(steps=7400, batch=8, lr=1.5e-3, warmup=0.02, weight_decay=0.0, betas=(0.8, 0.95), ema=0.995),
        ),
        flow=Flow(
            tokens=24,
            hold_out="captions",
            token_dropout=0.1,
            head_kind="linear",
            head={"hidden": 1024, "pooled": True, "dropout": 0.1, "std_range": [0.3, 0.34]},
            net={"stage_configs": _stages((192, 80), (512, 192), (7, 5), grid=8)},
            losses=Losses(kl=1e-3, anchor=1.0, match=1.0, turn=45.0, others=480, detach=True, t="edge"),
            head_optim=Optim(steps=5000, batch=32, lr=1e-3, warmup=0.02, floor=0.02, ema=0.997),
            optim=Optim(steps=9000, batch=32, lr=1e-3, warmup=0.02, floor=0.02, ema=0.999),
        ),
        every=Every(log=50, validate=500, save=500, sample=1000),
    )


def crossflow_256() -> Config:
    """The released 256 px configuration: a CLIP folder, an LDM autoencoder converted to a folder, tar shards."""
    network = NETWORKS["t2i_256px_clip_dimr"]
    stages = [to_dict(stage) for stage in network.velocity_config["stage_configs"]]
    return Config(
        out="runs/crossflow-256",
        stages=["flow"],
        precision="bf16",
        data=Data(source="shards", path="data/*.tar", size=256, val=0.001),
        vae=Autoencoder(path="autoencoder_kl"),
        flow=Flow(
            encoder="clip-vit-large-patch14",
            tokens=77,
            net={"stage_configs": stages},
            losses=Losses(
                kl=1e-2, kl_kind="crossflow", contrastive=1.0, t="logit_normal", null=network.null_probability
            ),
            optim=Optim(steps=300_000, batch=512, lr=1e-4, warmup=0.02, weight_decay=0.03, ema=0.9999),
        ),
        every=Every(log=50, validate=2000, save=5000, sample=5000),
    )


PRESETS = {"shapes-tiny": shapes_tiny, "emoji-64": emoji_64, "crossflow-256": crossflow_256}


def commented(preset: str) -> str:
    """Return a YAML file with every key that the stages of a preset use, its value, and its help text as a comment."""
    config = PRESETS[preset]()
    unused = {
        "vae": "vae" not in config.stages and not config.vae.path,
        "flow": not {"head", "flow"} & set(config.stages),
        "head_optim": "head" not in config.stages,
        "diffusion": "diffusion" not in config.stages,
    }
    head = [
        "# Settings of a training run. Start it with: fmpipe train --config THIS_FILE",
        "# docs/training.md explains caption formats, the size rule and the output folder.",
        f"base: {preset}  # preset; keys that are not in this file keep its values",
    ]
    return "\n".join([*head, *settings.commented(config, skip=[name for name in unused if unused[name]])]) + "\n"
