"""The playground: generate images, watch the flow, interpolate, and follow training runs, in a browser.

``fmpipe app`` starts it. The page is served on this computer only, loads nothing from elsewhere, and sends nothing.
"""

import html
import math
import os
import queue
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import gradio as gr
import pandas as pd
import torch

from fmpipe.cli.run_sampling import noise_of
from fmpipe.image_grid import to_image
from fmpipe.pipeline import FlowPipeline
from fmpipe.sampling import CHOICES, Dtype, SamplingOptions, get_args

COUNT, SIDE, PAUSE = 4, 256, 5.0  # images in a row; pixels of an image, at least; seconds between two looks at a run
# What can be varied along a row -> the values that are compared.
VARIED = {
    "seed": "",
    "steps": "1, 2, 5, 10, 20, 50",
    "solver": ", ".join(CHOICES["solver"]),
    "schedule": ", ".join(CHOICES["schedule"]),
    "guidance": "1, 1.5, 2, 4, 7",
    "gain": "0.5, 0.8, 1, 1.2, 2",
    "dt_scale": "0.8, 0.9, 1, 1.1, 1.2",
    "time_dir": ", ".join(CHOICES["time_dir"]),
    "precision": ", ".join(get_args(Dtype)),
}
ARGUMENTS = {  # the controls by name -> the arguments of the pipeline
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "gain": "fm_gain",
    "precision": "velocity_dtype",
}
NAMES = {argument: name for name, argument in ARGUMENTS.items()}
PLOTTED = ("|x|", "|v|", "dt")


class Playground:
    """A pipeline and what the page does with it. One thread at a time uses the pipeline."""

    def __init__(self, pipe: FlowPipeline, runs: Path):
        self.pipe, self.runs = pipe, runs
        self.busy = threading.Lock()

    def options(self, controls: dict[str, object]) -> dict[str, object]:
        """Return the arguments of the pipeline for the controls; raise gr.Error for what it would refuse."""
        named = {ARGUMENTS.get(name, name): value for name, value in controls.items()}
        try:
            options = SamplingOptions(**named, label=lambda name: NAMES.get(name, name)).changed
        except (ValueError, TypeError) as error:
            raise gr.Error(str(error)) from None
        if "velocity_dtype" in options:
            options["velocity_dtype"] = getattr(torch, options["velocity_dtype"])
        return options

    def call(self, call=None, **options):
        """Call the pipeline; show on the page what it refuses and what it warns about."""
        try:
            with self.busy, warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always", UserWarning)
                return (call or self.pipe)(**options)
        except (ValueError, TypeError, FloatingPointError) as error:
            raise gr.Error(str(error)) from None
        finally:
            for warning in told:
                gr.Warning(str(warning.message))

    def row(self, prompt: str, seed: int, varied: str, values: str, controls: dict) -> Iterator[list]:
        """Yield the images of one prompt for several values of one setting, with their labels, as they are made."""
        if not prompt.strip():
            raise gr.Error("Write a prompt first, for example: a cat")
        made = []
        if varied == "seed":
            seeds = range(int(seed), int(seed) + COUNT)
            draws = [noise_of(prompt, s) for s in seeds]
            images = self.call(prompt=[prompt] * COUNT, generator=draws, **self.options(controls)).images
            yield [(_enlarged(image), f"seed {s}") for image, s in zip(images, seeds, strict=True)]
            return
        for text in _listed(values):
            value = text if varied in ("solver", "schedule", "time_dir", "precision") else _number(varied, text)
            options = self.options(controls | {varied: value})
            image = self.call(prompt=prompt, generator=noise_of(prompt, int(seed)), **options).images[0]
            made.append((_enlarged(image), f"{varied} {text}"))
            yield list(made)

    def steps(self, prompt: str, seed: int, controls: dict) -> Iterator[tuple]:
        """Yield (x_t, predicted endpoint, curves, anomaly) after every step of one image, while it is sampled."""
        options = self.options(controls)
        if options.get("solver", self.pipe.config.solver) == "dopri5":
            raise gr.Error("dopri5 chooses its own steps, so there are none to watch; select another solver")
        states, results = queue.Queue(), []

        def step_end(pipe, step, t, tensors):
            states.put((step, tensors["latents"].clone(), tensors["stats"].mean(0).tolist()))

        def work():
            try:
                inputs = {"callback_on_step_end": step_end, "callback_on_step_end_tensor_inputs": ["latents", "stats"]}
                results.append(self.call(prompt=prompt, generator=noise_of(prompt, int(seed)), **inputs, **options))
            except Exception as error:
                results.append(error)
            states.put(None)

        threading.Thread(target=work, daemon=True).start()
        rows, before, moved = [], None, 0.0
        while (state := states.get()) is not None:
            step, x, (size, speed, _, _, dt) = state
            rows += [(step, q, v) for q, v in zip(PLOTTED, (size, speed, dt), strict=True)]
            moved += dt
            endpoint = None if before is None or dt == 0 else x + (x - before) / dt * (1 - moved)
            before = x
            yield self._decoded(x), self._decoded(endpoint), _curves(rows), f"step {step + 1}"
        result = results[0]
        if isinstance(result, Exception):
            raise result
        anomaly = result.trace.first_anomaly()
        text = f"First anomaly: {anomaly}" if anomaly else "No anomaly: all values are finite and none runs away."
        yield self._decoded(result.z1), self._decoded(result.z1), _curves(rows), text

    def between(self, a: str, b: str, count: int, controls: dict) -> list:
        """Return images between two prompts."""
        if not (a.strip() and b.strip()):
            raise gr.Error("Write two prompts, for example: a red heart, a blue heart")
        images = self.call(self.pipe.interpolate, a=a, b=b, n=int(count), **self.options(controls)).images
        return [(_enlarged(image), text) for image, text in zip(images, [a, *[""] * (len(images) - 2), b], strict=True)]

    def found_runs(self) -> list[str]:
        """Return the folders below ``runs`` that have a log, those that were written last first."""
        logs = {path.parent for path in self.runs.glob("**/*.jsonl")} if self.runs.is_dir() else ()
        tops = {folder.relative_to(self.runs).parts[:1] or (".",) for folder in logs}
        return sorted((top for (top,) in tops), key=lambda top: -_written(self.runs / top))

    def report(self, run: str | None, lang: str = "en") -> str:
        """Return the diagnosis of a run with its curves, as a page in a frame."""
        if not run:
            return f"<p>No run in {html.escape(str(self.runs.absolute()))} yet. Start one: fmpipe train</p>"
        from fmpipe.diagnose import reference
        from fmpipe.diagnose.engine import judge
        from fmpipe.diagnose.read import read
        from fmpipe.diagnose.render.html import html as page

        try:
            figures = read(self.runs / run, {})
        except (OSError, ValueError) as error:
            return f"<p>{html.escape(str(error))}</p>"
        runs = reference.of_preset(figures)
        document = page(figures, judge(figures), lang, placement=runs and reference.place(figures, runs))
        return f'<iframe title="report of {html.escape(run)}" srcdoc="{html.escape(document)}" class="report"></iframe>'

    @torch.no_grad()
    def _decoded(self, z):
        if z is None or not z.isfinite().all():
            return None
        vae = self.pipe.vae
        return _enlarged(to_image(vae.decode(z.to(vae.device, vae.dtype)).float()[0]))


def _enlarged(image):
    scale = math.ceil(SIDE / image.width)
    return image.resize((image.width * scale, image.height * scale), 0)  # nearest: every pixel stays a square


def _listed(values: str) -> list[str]:
    found = [text.strip() for text in values.split(",") if text.strip()]
    if not found:
        raise gr.Error("Write the values to compare, separated by commas")
    return found


def _number(name: str, text: str) -> float | int:
    try:
        return int(text) if name == "steps" else float(text)
    except ValueError:
        raise gr.Error(f"{name} must be a number, got {text!r}") from None


def _curves(rows: list[tuple]) -> list[pd.DataFrame]:
    table = pd.DataFrame(rows, columns=["step", "quantity", "value"])
    return [table[table.quantity == quantity] for quantity in PLOTTED]


def _written(folder: Path) -> float:
    return max((path.stat().st_mtime for path in folder.glob("**/*.jsonl")), default=0.0)


THEME = gr.themes.Default(font="system-ui", font_mono="monospace")  # its own fonts would be loaded from Google
CSS = """
.report { width: 100%; height: 80vh; border: 0; }
@media (max-width: 640px) { .grid-container { grid-template-columns: repeat(2, 1fr) !important; } }
"""


def build(pipe: FlowPipeline, runs: Path = Path("runs")) -> gr.Blocks:
    """Return the page for a pipeline and a folder of training runs."""
    play, own = Playground(pipe, runs), pipe.config
    with gr.Blocks(title="fmpipe", analytics_enabled=False) as page:
        with gr.Accordion("Sampling settings", open=False), gr.Row():
            steps = gr.Slider(1, 100, own.num_inference_steps, step=1, label="steps", info="number of solver steps")
            solver = gr.Dropdown(list(CHOICES["solver"]), value=own.solver, label="solver")
            schedule = gr.Dropdown(list(CHOICES["schedule"]), value=own.schedule, label="schedule")
            scale = 1.0 if own.guidance_scale is None else own.guidance_scale
            guidance = gr.Slider(0, 10, scale, step=0.1, label="guidance", info="1 turns it off")
            gain = gr.Slider(0, 5, own.fm_gain, step=0.05, label="gain", info="factor for the velocity")
            dt_scale = gr.Slider(0.1, 2, 1, step=0.05, label="dt_scale", info="factor for every step size")
            direction = gr.Radio(list(CHOICES["time_dir"]), value="0->1", label="time_dir", info="1->0 reverses t")
            precision = gr.Dropdown(list(get_args(Dtype)), value="float32", label="precision", info="of the velocity")
        controls = {
            "steps": steps, "solver": solver, "schedule": schedule, "guidance": guidance, "gain": gain,
            "dt_scale": dt_scale, "time_dir": direction, "precision": precision,
        }  # fmt: skip

        def taken(values: dict) -> dict:
            return {name: values[control] for name, control in controls.items()}

        with gr.Tab("Generate"):
            with gr.Row():
                prompt = gr.Textbox(label="prompt", value="a cat", scale=4, elem_id="prompt")
                seed = gr.Number(0, label="seed", precision=0, minimum=0)
                varied = gr.Dropdown(
                    list(VARIED), value="seed", label="compare", info="what differs between images", elem_id="compare"
                )
                values = gr.Textbox(label="values", visible=False, elem_id="values")
            start = gr.Button("Generate", variant="primary", elem_id="generate")
            gallery = gr.Gallery(
                label="images",
                columns=COUNT,
                buttons=["download"],
                object_fit="contain",
                elem_id="images",
                height="auto",
            )
        with gr.Tab("Step by step"):
            gr.Markdown("The state x_t and the endpoint that the velocity predicts, decoded after every step.")
            with gr.Row():
                watched = gr.Textbox(label="prompt", value="a cat", scale=4)
                watched_seed = gr.Number(0, label="seed", precision=0, minimum=0)
            watch = gr.Button("Watch", variant="primary", elem_id="watch")
            with gr.Row():
                state, endpoint = (gr.Image(label=name, buttons=["download"]) for name in ("x_t", "predicted endpoint"))
            anomaly = gr.Markdown(elem_id="anomaly")
            with gr.Row():
                plots = [gr.LinePlot(x="step", y="value", title=name, height=220) for name in PLOTTED]
        with gr.Tab("Interpolate"):
            with gr.Row():
                first = gr.Textbox(label="from", value="a red heart")
                last = gr.Textbox(label="to", value="a blue heart")
                count = gr.Slider(2, 16, 8, step=1, label="images")
            go = gr.Button("Interpolate", variant="primary", elem_id="interpolate")
            between = gr.Gallery(
                label="images", columns=8, buttons=["download"], object_fit="contain", elem_id="between", height="auto"
            )
        with gr.Tab("Runs"):
            gr.Markdown(f"The training runs in `{runs}`, read again every {PAUSE:.0f} seconds while they are written.")
            with gr.Row():
                run = gr.Dropdown(play.found_runs(), label="run", elem_id="run")
                lang = gr.Radio(["en", "zh"], value="en", label="language")
            seen, report = gr.State(), gr.HTML(elem_id="report")
            timer = gr.Timer(PAUSE)

        settings = set(controls.values())
        inputs = {prompt, seed, varied, values, *settings}
        varied.change(lambda name: gr.Textbox(VARIED[name], visible=name != "seed"), varied, values)

        def generate(x):
            yield from play.row(x[prompt], x[seed], x[varied], x[values], taken(x))

        gr.on([start.click, prompt.submit], generate, inputs, gallery)

        def steps_of(x):
            for *images, curves, text in play.steps(x[watched], x[watched_seed], taken(x)):
                yield [*images, *curves, text]

        watch.click(steps_of, {watched, watched_seed, *settings}, [state, endpoint, *plots, anomaly])
        go.click(
            lambda x: play.between(x[first], x[last], x[count], taken(x)), {first, last, count, *settings}, between
        )

        def look(name, language, last_seen):
            """Read the run again if its log has grown; list the runs again."""
            names = play.found_runs()
            name = name if name in names else (names[0] if names else None)
            now = (name, language, name and _written(runs / name))
            shown = gr.skip() if now == last_seen else play.report(name, language)
            return gr.Dropdown(names, value=name), shown, now

        gr.on([page.load, timer.tick, run.input, lang.change], look, [run, lang, seen], [run, report, seen],
              show_progress="hidden")  # fmt: skip
    return page


def serve(page: gr.Blocks, port: int | None = None, browser: bool = False) -> str:
    """Serve the page on this computer and return its address. port: None selects a free one."""
    return page.launch(
        server_name="127.0.0.1", server_port=port, share=False, inbrowser=browser, quiet=True, prevent_thread_lock=True,
        enable_monitoring=False, ssr_mode=False, footer_links=[], theme=THEME, css=CSS,
    )[1]  # fmt: skip
