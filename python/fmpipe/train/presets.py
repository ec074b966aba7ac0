"""Complete settings under a name, which a YAML file can start from, and the commented file that shows all of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fmpipe.models.presets import PRESETS as NETWORKS
from fmpipe.train import settings
from fmpipe.train.config import Autoencoder, Config, Connector, Data, Encoder, Every, Flow, Group, Lora, Losses, Optim
from fmpipe.train.settings import SettingsError, to_dict


def load(path: str | Path) -> Config:
    """Return the config of a YAML file. Its key ``base`` names a preset, whose values the file's other keys replace.

    SettingsError (a ValueError) names the file, line and key of what is wrong.
    """

    def with_base(data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("base", "") == "":
            return data
        if not isinstance(base := data["base"], str) or base not in PRESETS:
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
    94 % of the scenes their colour back (thin green shapes come out black), after 900 99 %. With ``match`` 3, the flow
    then draws 96 % of the asked colours; with 1, 91 % (six draws of the 48 prompts that the recipe was chosen by). It
    also makes E|v*| up to 3.1 times E|z1| for a moment, near step 11, whatever the warmup, so the alarm is at 4.
    """
    return Config(
        base="shapes-tiny",
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
            losses=Losses(kl=1e-3, anchor=1.0, match=3.0, others=128, detach=True, t="early", null=0.0, alarm=4.0),
            optim=Optim(steps=520, batch=32, lr=4e-3, ema=0.99),
        ),
        every=Every(log=50, validate=250, save=250, sample=250),
    )


def emoji_64() -> Config:
    """The default model: 64 px, latents of 4 × 16 × 16, some two and a half hours on two cores, by its steps' times.

    The head has a component for every picture, so that a vague text gives one of several pictures instead of their
    average. The flow does not move the components, and sigma stays above 0.3: without either the flow reads well and
    draws nothing. Times are drawn at both ends: early ones choose the picture, late ones finish it.
    """
    return Config(
        base="emoji-64",
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
            head_kind="mixture",
            head={"components": 887, "dropout": 0.1, "std_range": [0.3, 0.34]},
            net={"stage_configs": _stages((192, 80), (512, 192), (7, 5), grid=8)},
            losses=Losses(kl=1e-3, anchor=1.0, match=1.0, turn=45.0, others=480, detach=True, t="edge"),
            head_optim=Optim(steps=2000, batch=32, lr=3e-3, warmup=0.02, floor=0.02, ema=0.997),
            optim=Optim(steps=9000, batch=32, lr=1e-3, warmup=0.02, floor=0.02, ema=0.999),
        ),
        every=Every(log=50, validate=500, save=500, sample=1000),
    )


def shapes_scenes() -> Config:
    """Scenes with up to four objects for the compositional score of ``fmpipe evaluate --scenes``: minutes, 16 px.

    The head reads every token in its place, because the order of the words decides what is where and which object has
    which colour. It is trained alone first: such a step takes a fraction of the time of a joint one.
    """
    config = shapes_tiny()
    config.base, config.out, config.stages = "shapes-scenes", "runs/shapes-scenes", ["vae", "head", "flow"]
    config.data = Data(source="scenes", count=4000, size=16, val=0.05)
    config.vae.optim.steps = 1200
    config.flow.head = {"hidden": 512, "std_range": [0.3, 0.4]}
    config.flow.head_optim = Optim(steps=1500, batch=32, lr=2e-3, ema=0.99)
    config.flow.optim = Optim(steps=600, batch=32, lr=2e-3, ema=0.995)
    return config


def crossflow_256() -> Config:
    """The released 256 px configuration: a CLIP folder, an LDM autoencoder converted to a folder, tar shards."""
    network = NETWORKS["t2i_256px_clip_dimr"]
    stages = [to_dict(stage) for stage in network.velocity_config["stage_configs"]]
    return Config(
        base="crossflow-256",
        out="runs/crossflow-256",
        stages=["flow"],
        precision="bf16",
        data=Data(source="shards", path="data/*.tar", size=256, val=0.001),
        vae=Autoencoder(path="autoencoder_kl", widths=[128, 256, 512, 512], layers=2, groups=32),
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


def _without_decay() -> dict[str, Group]:
    """No weight decay on what connects the language model to the flow."""
    return {name: Group(weight_decay=0.0) for name in ("text_encoder", "text_head")}


def shapes_queries() -> Config:
    """The whole system on two cores, in minutes: language model, learned queries, LoRA, transformer head, flow.

    The language model is trained on the captions and then frozen. Without LoRA, the queries alone learn to read it too
    slowly: the squared error of mu is 1.07 after 400 steps, instead of 0.42 after 300. With half as many scenes, the
    held-out endpoint error rises from step 500 on.
    """
    config = shapes_tiny()
    config.base, config.out = "shapes-queries", "runs/shapes-queries"
    config.data.count *= 2
    config.flow = Flow(
        tokens=16,
        encoder=Encoder(kind="meta_query", model="captions", num_queries=8, lora=Lora(r=16)),
        head={"blocks": 1, "hidden": 256, "heads": 4, "reductions": 0, "std_range": [0.3, 0.4]},
        net=config.flow.net,
        losses=Losses(
            kl=1e-3, contrastive=0.2, dino=0.3, anchor=1.0, match=1.0, others=128, detach=True, t="early", null=0.0
        ),
        optim=Optim(steps=1200, batch=32, lr=4e-3, ema=0.99, groups=_without_decay()),
    )
    return config


def crossuni_256() -> Config:
    """A frozen 0.5 B language model, 256 learned queries, a connector, and CrossFlow's 256 px network.

    ``architecture`` describes the language model of InternVL3-1B, so that ``--dry-run`` works without its folder.
    """
    config = crossflow_256()
    config.base, config.out = "crossuni-256", "runs/crossuni-256"
    config.flow.tokens = 128
    config.flow.encoder = Encoder(
        kind="meta_query",
        model="internvl3-1b",
        dtype="bf16",
        num_queries=256,
        prompt_template="<|im_start|>user\nGenerate an image: {prompt}<|im_end|>\n<|im_start|>assistant\n",
        connector=Connector(layers=6, heads=14),
        architecture={
            "model_type": "qwen2",
            "vocab_size": 151_674,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
        },
    )
    config.flow.head = {"reductions": 5}  # 28 channels for each of 256 queries
    config.flow.losses.dino = 0.35
    config.flow.optim.groups = _without_decay()
    return config


PRESETS = {
    "shapes-tiny": shapes_tiny,
    "shapes-queries": shapes_queries,
    "shapes-scenes": shapes_scenes,
    "emoji-64": emoji_64,
    "crossflow-256": crossflow_256,
    "crossuni-256": crossuni_256,
}


def commented(preset: str) -> str:
    """Return a YAML file with every key that the stages of a preset use, its value, and its help text as a comment."""
    config = PRESETS[preset]()
    unused = {
        "base": True,  # printed first
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
