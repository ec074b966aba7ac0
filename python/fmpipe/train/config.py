"""What a training run is: one typed tree of settings, YAML to and fro (:mod:`fmpipe.train.settings`), and presets."""

from dataclasses import dataclass, field
from typing import Any, Literal

from fmpipe.models.presets import PRESETS as NETWORKS
from fmpipe.train.settings import to_dict


@dataclass
class Data:
    """source: ``shapes`` needs nothing, ``emoji`` a font, the others a path. val: share held out, by key.

    limit: train on so many items only, and validate on the same: to overfit them.
    """

    source: Literal["shapes", "emoji", "folder", "shards"] = "shapes"
    path: str | None = None
    captions: str | None = None
    size: int = 32
    count: int = 2048  # shapes only
    seed: int = 0
    val: float = 0.1
    limit: int | None = None
    cache: str = "cache"


@dataclass
class Optim:
    """lr: at its highest, after ``warmup`` of the steps; a cosine then takes it to ``floor`` of it."""

    steps: int = 1000
    batch: int = 32  # of all processes together
    lr: float = 1e-3
    warmup: float = 0.05
    floor: float = 0.05
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float = 1.0
    ema: float = 0.999
    scales: dict[str, float] = field(default_factory=dict)  # factors of lr, by the beginning of a parameter's name


@dataclass
class Autoencoder:
    """Stage ``vae``: ``l1 · L1 + mse · MSE + kl · KL``. path: a folder of a trained LatentVAE to use instead.

    augment: pictures turned, mirrored and shifted, so that few of them go further.
    """

    path: str | None = None
    channels: int = 4
    widths: list[int] = field(default_factory=lambda: [32, 64, 64])
    layers: int = 1
    groups: int = 8
    l1: float = 1.0
    mse: float = 2.0
    kl: float = 1e-4
    augment: bool = False
    optim: Optim = field(default_factory=lambda: Optim(lr=1.5e-3, weight_decay=0.0, ema=0.99))


@dataclass
class Losses:
    """Weights, and the controls of MISSION §5. Those with weight 0 are not computed.

    weighting: ``constant``; ``share`` moves the weights until gradients have the shares of ``shares`` (flow: 1);
    ``gradnorm``; ``pcgrad`` projects conflicting gradients. kl_beta: what the KL's weight does after its warm-up.
    """

    flow: float = 1.0
    kl: float = 1e-2
    contrastive: float = 0.0
    dino: float = 0.0
    norm: float = 0.0
    anchor: float = 0.0
    match: float = 0.0
    kl_kind: Literal["standard", "crossflow"] = "standard"
    kl_warmup: float = 0.1
    kl_beta: Literal["constant", "linear", "cosine", "cyclic"] = "constant"
    weighting: Literal["constant", "share", "gradnorm", "pcgrad"] = "constant"
    shares: dict[str, float] = field(default_factory=lambda: {"kl": 0.2, "dino": 0.35, "contrastive": 0.35})
    t: Literal["uniform", "logit_normal", "edge", "mixed", "early"] = "uniform"
    edge_weight: float = 0.0
    null: float = 0.1
    turn: float = 0.0  # degrees between z1 and what anchor and match draw mu to
    others: int = 0  # texts beside the batch's for anchor and match: of the head alone, so they cost little
    multi_scale: bool = True
    detach: bool = False  # z0 in x_t: the flow loss then does not move the head
    dino_classes: int = 256
    temperatures: tuple[float, float] = (0.04, 0.1)  # teacher, student
    alarm: float = 3.0  # E|z0| or E|v*| beyond this many times E|z1| ends the run

    def __post_init__(self):
        if self.dino and not self.contrastive:
            raise ValueError("dino needs contrastive: its teacher is an average of the tower that contrastive trains")
        if self.weighting in ("share", "gradnorm") and self.kl_beta != "constant":
            raise ValueError(f"weighting {self.weighting!r} would undo kl_beta {self.kl_beta!r}: take 'constant'")


@dataclass
class Flow:
    """Stage ``flow``: the text head and the velocity network. head, net: arguments of the head's class and of DiMR.

    hold_out: ``items`` as data.val says; or ``captions``: every picture is trained on, a share of its captions is not.
    token_dropout: share of the tokens that are masked out in training. head_optim: of the stage ``head``, which trains
    the head alone, by ``anchor`` and ``match``; this stage then leaves it as it is.
    """

    encoder: str = "minilm"
    tokens: int = 16
    hold_out: Literal["items", "captions"] = "items"
    token_dropout: float = 0.0
    head_kind: Literal["transformer", "linear"] = "transformer"
    head: dict[str, Any] = field(default_factory=dict)
    net: dict[str, Any] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    optim: Optim = field(default_factory=Optim)
    head_optim: Optim = field(default_factory=Optim)


@dataclass
class Diffusion:
    """Stage ``diffusion``: the plain objective, x0 predicted from x_t by a DiMR with arguments net."""

    net: dict[str, Any] = field(default_factory=dict)
    time_weight: bool = False
    optim: Optim = field(default_factory=Optim)


@dataclass
class Every:
    """Steps between; 0 is never."""

    log: int = 50
    validate: int = 250
    save: int = 250
    sample: int = 500


@dataclass
class Config:
    """A run: its stages in order, each in its own folder under ``out``.

    parallel: of several processes, ``ddp`` has the whole model in each, ``fsdp2`` its rows. Both save the same.
    start: a pipeline to go on from, its folder or the name of one that comes with the package: the stages begin with
    the weights of its parts, at step 0.
    """

    out: str = "runs/default"
    stages: list[Literal["vae", "head", "flow", "diffusion"]] = field(default_factory=lambda: ["vae", "flow"])
    start: str | None = None
    seed: int = 0
    precision: Literal["no", "bf16", "fp16"] = "no"
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    keep: int = 3  # checkpoints
    report_to: list[Literal["jsonl", "tensorboard"]] = field(default_factory=lambda: ["jsonl"])
    data: Data = field(default_factory=Data)
    vae: Autoencoder = field(default_factory=Autoencoder)
    flow: Flow = field(default_factory=Flow)
    diffusion: Diffusion = field(default_factory=Diffusion)
    every: Every = field(default_factory=Every)


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
    preset = NETWORKS["t2i_256px_clip_dimr"]
    stages = [to_dict(stage) for stage in preset.velocity_config["stage_configs"]]
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
                kl=1e-2, kl_kind="crossflow", contrastive=1.0, t="logit_normal", null=preset.null_probability
            ),
            optim=Optim(steps=300_000, batch=512, lr=1e-4, warmup=0.02, weight_decay=0.03, ema=0.9999),
        ),
        every=Every(log=50, validate=2000, save=5000, sample=5000),
    )


PRESETS = {"shapes-tiny": shapes_tiny, "emoji-64": emoji_64, "crossflow-256": crossflow_256}
