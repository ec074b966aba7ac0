"""A run on one self-contained HTML page: pictures, prompts, trace, probes, settings."""

import base64
import html
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }
figure { display: inline-block; margin: 0 1em 1em 0; width: 14em; vertical-align: top }
figure img { width: 100%; image-rendering: pixelated } figcaption { color: #555 }
table { border-collapse: collapse } td, th { padding: .2em .8em; text-align: left; border-bottom: 1px solid #ddd }
pre { overflow: auto; background: #f6f6f6; padding: 1em } .plot { max-width: 100% }
"""


def _embedded(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _picture(image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return _embedded(buffer.getvalue())


def _table(rows: dict[str, object]) -> str:
    cells = (f"<tr><th>{html.escape(str(k))}</th><td>{html.escape(str(v))}</td></tr>" for k, v in rows.items())
    return f"<table>{''.join(cells)}</table>"


def page(images: Sequence, captions: Sequence[str], trace, probes: dict, settings: dict[str, object]) -> str:
    """The page as a string; nothing in it points elsewhere. The plot of the trace is left out without matplotlib."""
    figures = "".join(
        f'<figure><img src="{_picture(image)}" alt=""><figcaption>{html.escape(caption)}</figcaption></figure>'
        for image, caption in zip(images, captions, strict=True)
    )
    plot = ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            plot = f'<img class="plot" src="{_embedded(trace.plot(Path(folder) / "trace.png").read_bytes())}" alt="">'
        except ImportError:
            plot = "<p>(a plot of the trace needs matplotlib)</p>"
    lines = html.escape("\n".join(trace.lines()))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>fmpipe</title><style>{STYLE}</style>'
        f"<h1>{len(images)} pictures</h1>{figures}<h2>Trace</h2>{plot}<pre>{lines}</pre>"
        f"<h2>Probes</h2>{_table(probes)}<h2>Settings</h2>{_table(settings)}</html>\n"
    )
