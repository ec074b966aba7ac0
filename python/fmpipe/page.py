"""Generated images on one self-contained HTML page, with prompts, trace, probes and settings."""

import base64
import html
import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fmkernels.flow import Trace

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }
figure { display: inline-block; margin: 0 1em 1em 0; width: 14em; max-width: 100%; vertical-align: top }
figure img { width: 100%; image-rendering: pixelated } figcaption { opacity: .7 }
table { border-collapse: collapse } td, th { padding: .2em .8em; text-align: left; border-bottom: 1px solid #8884 }
figure.wide { width: 100% } small { opacity: .7; font-weight: normal }
section { border-left: .4em solid #8884; padding: .1em 1em; margin: 1em 0 } section p { margin: .4em 0 }
section.root, section.fail { border-color: #d33 } section.warn { border-color: #d90 }
section.pass { border-color: #3a3 }
pre { overflow: auto; background: #8882; padding: 1em } .plot { max-width: 100% }
"""


def _encoded(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def embedded(image) -> str:
    """Return an image as the address of a PNG inside the page."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return _encoded(buffer.getvalue())


def table(rows: dict[str, object]) -> str:
    cells = (f"<tr><th>{html.escape(str(k))}</th><td>{html.escape(str(v))}</td></tr>" for k, v in rows.items())
    return f"<table>{''.join(cells)}</table>"


def _plot(trace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            return f'<img class="plot" src="{_encoded(trace.plot(Path(folder) / "trace.png").read_bytes())}" alt="">'
        except ImportError:
            return "<p>(a plot of the trace needs matplotlib)</p>"


class Batch(NamedTuple):
    """One batch: its images, their captions, its trace, and its probes (None if they were not measured)."""

    images: Sequence
    captions: Sequence[str]
    trace: "Trace"
    probes: dict | None


def document(title: str, body: str, lang: str = "en") -> str:
    return (
        f'<!doctype html><html lang="{lang}"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>fmpipe: {html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>{body}</html>\n"
    )


def _probe_rows(probes: dict) -> str:
    """Return the rows of the probe table: what was measured, the figures, and how to read them."""
    start, moved, end = probes["A"], probes["B"], probes["C"]

    def decoded(probe) -> str:
        return f"pixels {probe.low:.2f} to {probe.high:.2f}, contrast {probe.contrast:.2f}, latent rms {probe.rms:.2f}"

    rows = (
        ("A: z0 decoded, before the flow", decoded(start), "Shows what the text alone gives; usually blurred."),
        ("B: rms change of the first step", f"{moved:.4f}", "Close to 0 means that the velocity network does nothing."),
        (
            "C: z1 decoded, after the flow",
            decoded(end),
            "Pixels should lie between about -1 and 1. A contrast near 0 means an empty image.",
        ),
    )
    return "".join(f"<tr><th>{name}</th><td>{value}</td><td>{words}</td></tr>" for name, value, words in rows)


def page(batches: Sequence[Batch], settings: dict[str, object]) -> str:
    """Return the page as a string that refers to no other file. Without matplotlib, it has no plots of the traces."""
    gallery = "".join(
        f'<figure><img src="{embedded(image)}" alt="{html.escape(caption)}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for run in batches
        for image, caption in zip(run.images, run.captions, strict=True)
    )
    sections = []
    for k, run in enumerate(batches, 1):
        title = f"<h2>Batch {k} of {len(batches)}</h2>" if len(batches) > 1 else ""
        lines = html.escape("\n".join(run.trace.lines()))
        sections.append(
            f"{title}<h3>Trace</h3>{_plot(run.trace)}<details><summary>Every step</summary><pre>{lines}</pre></details>"
            f"<h3>Probes</h3><table>{_probe_rows(run.probes)}</table>"
        )
    count = sum(len(run.images) for run in batches)
    title = f"{count} image{'s' * (count != 1)}"
    return document(title, f"{gallery}{''.join(sections)}<h2>Settings</h2>{table(settings)}")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file completely or not at all: to a temporary file beside it, which is then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # of this process: another may write the same file
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
