"""Checkpoints on disk (safetensors and JSON): each is complete or absent, even if the run is killed. POSIX only.

``folder/step-00001200/`` contains ``<part>.json`` (the tree) and ``<part>.safetensors`` (its tensors, named by their
path in the tree) for every part of the state, and ``checkpoint.json`` with the size and digest of each file. Only one
process may write.
"""

import errno
import hashlib
import json
import math
import os
import re
import shutil
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import fmkernels
from fmpipe.untrusted import parse_json, read_bytes, read_json

FORMAT = 1
INDEX = "checkpoint.json"
OLD = r"\.old-step-[0-9]{8,}"  # a checkpoint that is being replaced


class InvalidCheckpointError(RuntimeError):
    """A checkpoint of a run is damaged or missing."""


def save(folder: str | Path, step: int, state: Mapping[str, object], *, keep: int = 3) -> Path:
    """Write ``folder/step-00001200`` completely, then remove all but the newest ``keep`` checkpoints up to this step.

    A part of ``state`` is a tree of dicts (any keys), lists and tuples with tensors, numpy arrays, numbers, strings,
    bool and None. Tensors may be on any device; views of the same elements are stored once. Saving a step again
    replaces its checkpoint. Checkpoints of later steps, left by a run that went back, are never removed.

    Raises OSError if the checkpoint cannot be written; nothing of it remains then, and earlier checkpoints are
    unchanged. Raises TypeError for a value of another type, ValueError for an invalid part name, step or keep.
    """
    folder = Path(folder)
    if step < 0 or keep < 1:
        raise ValueError(f"save: step must be 0 or more and keep 1 or more, got step {step}, keep {keep}")
    for part in state:
        if not re.fullmatch(r"[\w-]+", part) or f"{part}.json" == INDEX:
            raise ValueError(
                f"save: a part's name must be letters, digits, _ and -, and not 'checkpoint'; got {part!r}"
            )
    packed = {part: _Packed(part, tree) for part, tree in state.items()}
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    final = folder / f"step-{step:08d}"
    temporary = folder / f".tmp-{final.name}-{os.getpid()}"
    try:
        temporary.mkdir()
        _write(temporary, step, packed)
        if final.exists():
            final.rename(folder / f".old-{final.name}")  # still found until it is replaced
        os.replace(temporary, final)
        _sync(folder)
    except (OSError, SafetensorError) as error:
        raise _not_written(error, folder, step, packed) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # exists only if the save failed
    _prune(folder, step, keep)
    return final


def load(path: str | Path) -> dict[str, object]:
    """Return the saved state, tensors on the CPU. InvalidCheckpointError names a damaged or missing file."""
    path = Path(path)
    index = verify(path)
    state = {}
    for part in index["parts"]:
        file = path / f"{part}.safetensors"
        # load_file maps the file: its memory is not aligned, and it would keep a removed file on the disk
        try:
            tensors = {name: x.clone() for name, x in load_file(file).items()} if file.name in index["files"] else {}
            state[part] = _unpack(parse_json(read_bytes(path / f"{part}.json")), tensors)
        except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
            raise InvalidCheckpointError(f"the part {part} of {path} cannot be read: {error}") from error
    return state


def read_meta(path: str | Path) -> dict:
    """Return the part ``meta`` of a checkpoint of a run: its stage, step and config, without reading any tensor."""
    try:
        meta = _unpack(read_json(Path(path) / "meta.json"), {})
        return {name: meta[name] for name in ("stage", "step", "config")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidCheckpointError(f"{path} is not a checkpoint of a training run: {error!r}") from None


def read_index(path: str | Path) -> dict:
    """Return the contents of ``checkpoint.json``; raise InvalidCheckpointError if it is damaged or missing."""
    file = Path(path) / INDEX
    try:
        index = parse_json(read_bytes(file))
        digest = index.pop("digest")
    except FileNotFoundError:
        raise InvalidCheckpointError(f"{file} is missing: this is not a checkpoint") from None
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InvalidCheckpointError(f"{file} is damaged: {error}") from error
    if digest != _digest_of(index):
        raise InvalidCheckpointError(f"{file} is damaged: its digest differs")
    if index["format"] != FORMAT:
        raise InvalidCheckpointError(
            f"{file} has format {index['format']}, this version reads {FORMAT}; use {index['code']}"
        )
    return index


def verify(path: str | Path) -> dict:
    """Return ``read_index``; raise InvalidCheckpointError if the size or digest of a file differs."""
    index = read_index(path)
    for name, expected in index["files"].items():
        file = Path(path) / name
        try:
            size = file.stat().st_size
            if size != expected["bytes"]:
                raise InvalidCheckpointError(f"{file} is damaged: {size} bytes, expected {expected['bytes']}")
            if _sha256(file) != expected["sha256"]:
                raise InvalidCheckpointError(f"{file} is damaged: its digest differs")
        except OSError as error:
            raise InvalidCheckpointError(f"{file} cannot be read: {error.strerror}") from error
    return index


def latest(folder: str | Path) -> Path | None:
    """Return the valid checkpoint of the highest step, or None; warn about damaged ones."""
    for _, path in sorted(_checkpoints(Path(folder)).items(), reverse=True):
        try:
            verify(path)
        except InvalidCheckpointError as error:
            warnings.warn(f"checkpoint {path.name} is skipped: {error}", stacklevel=2)
        else:
            return path
    return None


def find(folder: str | Path, spec: str | int) -> Path:
    """Return the checkpoint of ``--resume`` ("latest", a step or a path) or raise InvalidCheckpointError."""
    found = _checkpoints(Path(folder))
    steps = f"there are steps {', '.join(map(str, sorted(found)))}" if found else "there is none"
    if spec == "latest":
        path = latest(folder)
        if path is None:
            raise InvalidCheckpointError(f"resume: no complete checkpoint in {folder}; {steps}")
        return path
    if str(spec).isdecimal():
        if int(spec) not in found:
            raise InvalidCheckpointError(f"resume: no checkpoint of step {spec} in {folder}; {steps}")
        return found[int(spec)]
    if not Path(spec).is_dir():
        raise InvalidCheckpointError(
            f"resume: {spec!r} is neither 'latest', nor a step, nor a folder; in {folder} {steps}"
        )
    read_index(spec)
    return Path(spec)


class _Packed:
    """A tree as JSON, and its tensors by name. In the JSON, ``{"$tensor": name}`` refers to a tensor."""

    def __init__(self, part: str, tree: object):
        self.part, self.tensors, self._names, self._storages = part, {}, {}, set()
        self.json = json.dumps(self._pack(tree, ()), allow_nan=False).encode()
        self.bytes = len(self.json) + sum(x.nbytes for x in self.tensors.values())

    def _pack(self, value: object, path: tuple) -> object:
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._tensor(value, path)}
        if isinstance(value, np.ndarray):
            return {"$array": self._tensor(torch.from_numpy(value.copy()), path)}
        if isinstance(value, dict):
            pairs = [(key, self._pack(item, (*path, key))) for key, item in value.items()]
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return dict(pairs)
            return {"$dict": [[self._pack(key, (*path, "key")), item] for key, item in pairs]}
        if isinstance(value, (list, tuple)):
            items = [self._pack(item, (*path, i)) for i, item in enumerate(value)]
            return {"$tuple": items} if isinstance(value, tuple) else items
        if isinstance(value, float) and not math.isfinite(value):
            return {"$float": str(float(value))}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        where = "/".join(map(str, (self.part, *path)))
        raise TypeError(f"save: {where} must be a tensor, an array, a number, a string or None, got {type(value)}")

    def _tensor(self, tensor: torch.Tensor, path: tuple) -> str:
        tensor = tensor.detach().resolve_conj().resolve_neg()  # the values, not the memory of a lazy view
        same = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and same in self._names:
            return self._names[same]
        name = "/".join(map(str, path)) or self.part
        while name in self.tensors or name == "__metadata__":  # reserved by safetensors
            name += "_"
        held = tensor.cpu().contiguous()
        if held.untyped_storage().data_ptr() in self._storages:
            held = held.clone()  # safetensors does not store shared memory
        self._storages.add(held.untyped_storage().data_ptr())
        self.tensors[name], self._names[same] = held, name
        return name


def _unpack(value: object, tensors: Mapping[str, torch.Tensor]) -> object:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    mark, inner = next(iter(value.items()), (None, None))
    if mark == "$tensor":
        return tensors[inner]
    if mark == "$array":
        return tensors[inner].numpy()
    if mark == "$float":
        return float(inner)
    if mark == "$tuple":
        return tuple(_unpack(inner, tensors))
    if mark == "$dict":
        return {_unpack(key, tensors): _unpack(item, tensors) for key, item in inner}
    return {key: _unpack(item, tensors) for key, item in value.items()}


def _write(folder: Path, step: int, packed: Mapping[str, _Packed]) -> None:
    for part, tree in packed.items():
        (folder / f"{part}.json").write_bytes(tree.json)
        if tree.tensors:
            try:
                save_file(tree.tensors, folder / f"{part}.safetensors")  # with mode 600, hence chmod
                (folder / f"{part}.safetensors").chmod((folder / f"{part}.json").stat().st_mode)
            except (KeyError, ValueError) as error:
                raise TypeError(f"save: {part} has a tensor that safetensors cannot hold: {error}") from error
    files = {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in sorted(folder.iterdir())}
    index = {
        "format": FORMAT,
        "step": step,
        "parts": list(packed),
        "files": files,
        "code": f"fmkernels {fmkernels.__version__}",
        "torch": torch.__version__,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    for name in files:
        _sync(folder / name)
    (folder / INDEX).write_text(json.dumps({**index, "digest": _digest_of(index)}, indent=1))
    _sync(folder / INDEX)
    _sync(folder)


def _not_written(error: Exception, folder: Path, step: int, packed: Mapping[str, _Packed]) -> OSError:
    code = re.search(r"os error (\d+)", str(error))  # safetensors' error has the number in its text only
    number = getattr(error, "errno", None) or (int(code[1]) if code else errno.EIO)
    needed, free = sum(tree.bytes for tree in packed.values()), shutil.disk_usage(folder).free
    message = (
        f"{os.strerror(number)}: the checkpoint of step {step} needs {needed:,} bytes ({free:,} are free on the disk)"
    )
    return OSError(number, f"{message}, it was not written and the earlier ones are untouched", str(folder))


def _checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints by step. One that is being replaced counts until its replacement exists."""
    found = {}
    for prefix in (".old-step-", "step-"):
        for path in folder.glob(f"{prefix}*"):
            if path.name.removeprefix(prefix).isdecimal():
                found[int(path.name.removeprefix(prefix))] = path
    return found


def _sweep(folder: Path) -> None:
    """Remove what killed processes left: partly written and partly removed checkpoints."""
    written = _named(folder, r"\.tmp-step-[0-9]{8,}-[0-9]{1,9}")
    stale = [path for path in written if not _alive(int(path.name.rpartition("-")[2]))]
    for path in [*stale, *_named(folder, r"\.trash-[0-9]+")]:
        _discard(path)
    for old in _named(folder, OLD):
        current = folder / old.name.removeprefix(".old-")
        if current.exists():
            _discard(old)
        else:
            old.rename(current)


def _prune(folder: Path, step: int, keep: int) -> None:
    kept = sorted(number for number in _checkpoints(folder) if number <= step)[-keep:]
    for number, path in _checkpoints(folder).items():
        if number < kept[0]:
            _discard(path)
    for old in _named(folder, OLD):
        _discard(old)


def _named(folder: Path, pattern: str) -> list[Path]:
    """Return the entries with names of that form; all others belong to the user."""
    return [path for path in folder.iterdir() if re.fullmatch(pattern, path.name)]


def _discard(path: Path) -> None:
    """Rename, then remove: a process killed in between leaves nothing that looks like a checkpoint."""
    try:
        trash = path.rename(path.with_name(f".trash-{time.time_ns()}"))
        shutil.rmtree(trash) if trash.is_dir() else trash.unlink()
    except OSError as error:  # the new checkpoint exists, so training continues
        warnings.warn(f"{path} cannot be removed: {error.strerror}", stacklevel=4)


def _alive(pid: int) -> bool:
    """Tell whether another process has this id. Files with our own id are stale: an earlier process had it."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM  # it exists and belongs to another user
    return True


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while chunk := data.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _digest_of(index: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
