"""``fmpipe app``: the playground in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli.base import DeviceOption, DtypeOption, PipelineOption, Refused, command, load_pipeline, say
from fmpipe.requirements import optional


@command("Generate")
def app(
    pipeline: PipelineOption = "default",
    runs: Annotated[Path, typer.Option(help="Folder with training runs to follow.")] = Path("runs"),
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port on this computer.", show_default="the first free one from 7860"),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
) -> None:
    """Open a playground in the browser: generate, compare settings, watch the flow, follow training runs.

    [b]fmpipe app[/b]

    The page is served on this computer only. It works offline and sends nothing.
    """
    optional("gradio", "fmpipe app")
    pipe = load_pipeline(pipeline, dtype, device)
    from fmpipe.app import build, serve

    page = build(pipe, runs)
    try:
        address = serve(page, port, browser)
    except OSError as error:
        raise Refused(f"--port {port}: {error}", 1) from None
    say(f"serving {address}; end it with Ctrl-C")
    page.block_thread()
