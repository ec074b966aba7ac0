"""The log of a stage: metrics and sample sheets go to ``log.jsonl`` and to the trackers of accelerate.

The trackers' own packages are imported when a tracker starts.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from accelerate import tracking
from PIL import Image

from fmpipe.requirements import installed
from fmpipe.run_log import RunLog
from fmpipe.train.config import Config
from fmpipe.train.interrupt import StoppedError
from fmpipe.train.settings import to_dict
from fmpipe.untrusted import read_json

PACKAGES = {  # tracker -> distributions, one of which must be installed; the first is suggested
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "mlflow": ("mlflow", "mlflow-skinny"),
}
PROJECT = "fmpipe"  # of wandb and trackio, and experiment of mlflow, unless the tracker's own variable says otherwise


def check(names: Sequence[str]) -> None:
    """Raise ImportError, with the command, for a tracker whose package is not installed."""
    for name in names:
        if name in PACKAGES and not any(map(installed, PACKAGES[name])):
            raise ImportError(f"report_to has {name!r}, which is not installed; run: pip install {PACKAGES[name][0]}")


class Logs:
    """``log.jsonl`` of a stage's folder, and the trackers of ``report_to``.

    A resumed stage continues its runs in wandb, trackio and mlflow: their ids are in ``trackers.json``. A StoppedError
    that leaves the ``with`` block is the last line: why the run ended, and the metrics of that step. Only one process
    of a run writes; in the others, active is False and nothing happens.
    """

    def __init__(self, folder: Path, config: Config, active: bool = True):
        self.folder, self.config, self.texts = folder, config, {}
        self.name = f"{folder.parent.name}-{folder.name}"
        self.ending, self.trackers = contextlib.ExitStack(), {}
        self.lines = self.ending.enter_context(RunLog(folder)) if active else None
        for name in dict.fromkeys(config.report_to) if active else ():
            if name in PACKAGES:
                self.trackers[name] = self._started(name)

    def write(self, step: int, values: Mapping[str, object]) -> None:
        """Log the metrics of a step, if there are any."""
        if self.lines is not None and values:
            self.lines.write(step, values)
        if not self.trackers or not values:
            return
        numbers = dict(_numbers(values))
        texts = {k: v for k, v in values.items() if isinstance(v, str) and self.texts.get(k) != v}  # once, when new
        self.texts |= texts
        for name, tracker in self.trackers.items():
            if name == "mlflow":  # numbers only, and no other characters than these
                tracker.log({re.sub(r"[^\w\-./: ]", "_", k): v for k, v in numbers.items()}, step=step)
            else:
                tracker.log(numbers | texts, step=step)

    def picture(self, step: int, path: Path) -> None:
        """Log a sample sheet."""
        for name, tracker in self.trackers.items():
            if name == "mlflow":
                tracker.log_artifact(str(path), "samples")
            elif name == "trackio":  # accelerate has no images for it
                import trackio

                tracker.log({"samples": trackio.Image(str(path))}, step=step)
            else:
                with Image.open(path) as image:
                    image.load()
                if name == "tensorboard":
                    import numpy as np

                    tracker.log_images({"samples": np.asarray(image)[None]}, step=step, dataformats="NHWC")
                else:
                    tracker.log_images({"samples": [image]}, step=step)

    def __enter__(self) -> "Logs":
        return self

    def flush(self) -> None:
        """Write the lines of ``log.jsonl`` that are still in memory."""
        if self.lines is not None:
            self.lines.flush()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, StoppedError):
                self.write(error.step, {**error.metrics, "stop/reason": str(error)})
        finally:
            self.ending.close()

    def _started(self, name: str) -> tracking.GeneralTracker:
        """Return a tracker that is running, with the settings of the run."""
        cls, ids = tracking.LOGGER_TYPE_TO_CLASS[name], self._ids()
        if name == "tensorboard":
            tracker = cls("", self.folder)
        elif name == "mlflow":
            import mlflow

            if "MLFLOW_TRACKING_URI" not in os.environ:
                os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # files need no database
                mlflow.set_tracking_uri((self.folder.parent / "mlruns").absolute().as_uri())
                self.ending.callback(mlflow.set_tracking_uri, None)  # which unsets the variable that the line above set
            tracker = cls(PROJECT, run_id=ids.get(name), run_name=self.name)
        else:
            project, options = os.environ.get(f"{name.upper()}_PROJECT", PROJECT), {"resume": "allow"}
            if name == "wandb":
                options |= {"id": ids.get(name), "dir": str(self.folder)}
            tracker = cls(project, name=self.name, config=to_dict(self.config), **options)
        tracker.start()
        self.ending.callback(tracker.finish)
        if name in ("wandb", "mlflow") and name not in ids:
            ids[name] = tracker.tracker.id if name == "wandb" else tracker.tracker.info.run_id
            (self.folder / "trackers.json").write_text(json.dumps(ids))
            if name == "mlflow":
                tracker.store_init_configuration(_flat(to_dict(self.config)))
        return tracker

    def _ids(self) -> dict[str, str]:
        return read_json(self.folder / "trackers.json")


def _numbers(values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a line of the log; those of a list as name/0, name/1."""
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            yield from _numbers({f"{name}/{i}": part for i, part in enumerate(value)})
        elif isinstance(value, (int, float)):
            yield name, value
        elif hasattr(value, "item"):
            yield name, value.item()


def _flat(values: object, prefix: str = "") -> dict[str, object]:
    """Return nested settings under dotted names."""
    if not isinstance(values, dict) or not values:
        return {prefix: str(values) if isinstance(values, (dict, list)) else values}
    return {
        k: v for name, part in values.items() for k, v in _flat(part, f"{prefix}.{name}" if prefix else name).items()
    }
