"""Convert dataclasses to YAML and back, with type checks and errors for unknown keys; independent of the config.

A field is int, float, str, bool, a Literal, a dataclass, or list[…], tuple[…], dict[…, …], ``… | None`` of these; Any
accepts every YAML value.
"""

import dataclasses
import difflib
import hashlib
import json
import math
import os
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from fmpipe.bounded_yaml import BYTES, BoundedLoader
from fmpipe.untrusted import read_bytes

T = TypeVar("T")
Key = tuple  # the path to a value: names of fields, keys of dicts, indices of lists


class SettingsError(ValueError):
    """An invalid value: ``key`` is the path to it, ``problem`` what is wrong."""

    def __init__(self, key: Key, problem: str, where: str = "config"):
        self.key, self.problem = key, problem
        dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
        super().__init__(f"{where}{dotted}: {problem}")


def from_dict(cls: type[T], data: Mapping[str, Any], where: str = "config") -> T:
    """Return the dataclass of a mapping. A float may also be an int or a string such as "1e-3", as YAML reads it.

    Raises SettingsError (a ValueError) with the path for an unknown or missing key, a wrong type, or a ValueError in a
    ``__post_init__``.
    """
    try:
        return _dataclass(cls, data, ())
    except SettingsError as error:
        raise SettingsError(error.key, error.problem, where) from error.__cause__


def to_dict(config: Any) -> Any:
    """Return plain dicts and lists, as in YAML; tuples become lists."""
    if dataclasses.is_dataclass(config):
        return {field.name: to_dict(getattr(config, field.name)) for field in _fields(config)}
    if isinstance(config, dict):
        return {key: to_dict(value) for key, value in config.items()}
    return [to_dict(value) for value in config] if isinstance(config, (list, tuple)) else config


def merged(cls: Any, base: Any, changes: Any) -> Any:
    """Return base with the values of changes: dataclasses key by key, everything else, also a dict, as a whole."""
    if not dataclasses.is_dataclass(cls) or not isinstance(base, Mapping) or not isinstance(changes, Mapping):
        return changes
    kinds = typing.get_type_hints(cls)
    return {**base, **{key: merged(kinds.get(key), base.get(key), value) for key, value in changes.items()}}


def load(cls: type[T], path: str | Path, prepare: Callable[[Any], Any] = lambda data: data) -> T:
    """Return the dataclass of a YAML file. prepare: applied to what YAML reads, before it is checked.

    Raises SettingsError as ``from_dict`` does, with the file and line in front of it.
    """
    try:
        text = read_bytes(Path(path), BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError((), f"is not UTF-8 text: {error.reason}", str(path)) from None
    except ValueError as error:
        raise SettingsError((), str(error), str(path)) from None
    try:
        data = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        problem = " ".join(filter(None, (error.context, error.problem)))
        raise SettingsError((), problem, f"{path}:{error.problem_mark.line + 1}") from None
    except yaml.YAMLError as error:  # an invalid character: no mark, but the message contains the position
        raise SettingsError((), " ".join(str(error).split()), str(path)) from None
    try:
        return _dataclass(cls, prepare({} if data is None else data), ())
    except SettingsError as error:
        line = _line(yaml.compose(text, _Loader), error.key)
        raise SettingsError(error.key, error.problem, f"{path}:{line}: config") from error.__cause__


def dump(config: Any, path: str | Path) -> None:
    """Write the YAML file completely or not at all; the folder must exist."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("w", encoding="utf-8") as file:
            yaml.safe_dump(
                to_dict(config), file, sort_keys=False, width=120
            )  # escapes: YAML would fold U+0085 into a space
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def commented(config: Any, skip: Collection[str] = (), depth: int = 0) -> list[str]:
    """Return the lines of a YAML file with every key of the config, its value, and its help text as a comment.

    skip: names of keys to leave out.
    """
    lines, indent = [], "  " * depth
    for field in _fields(config):
        if field.name in skip:
            continue
        value, text = getattr(config, field.name), field.metadata.get("help", "")
        name = _flow_style(field.name)
        if dataclasses.is_dataclass(value):
            lines += [""] * (depth == 0) + [f"{indent}{name}:  # {text}", *commented(value, skip, depth + 1)]
        else:
            lines.append(f"{indent}{name}: {_flow_style(to_dict(value))}  # {text}")
    return lines


def _flow_style(value: Any) -> str:
    """Return a value as YAML on one line."""
    style = '"' if isinstance(value, str) and "\n" in value else None
    text = yaml.safe_dump(value, default_flow_style=True, default_style=style, width=10**6, sort_keys=False)
    return text.removesuffix("...\n").strip()


def with_overrides(config: T, overrides: Iterable[str]) -> T:
    """Return a config changed by overrides such as ``"train.steps=100"``: dotted keys, values in YAML."""
    data = to_dict(config)
    for override in overrides:
        dotted, equals, text = override.partition("=")
        *groups, name = dotted.strip().split(".")
        if not equals or not all((*groups, name)):
            raise SettingsError((), f"an override is key=value, as train.steps=100; got {override!r}", "overrides")
        group = data
        for depth, part in enumerate(groups, 1):
            if group.get(part) is None:
                group[part] = {}
            group = group[part]
            if not isinstance(group, dict):
                raise SettingsError(tuple(groups[:depth]), f"has no keys inside; got {override!r}")
        try:
            group[name] = yaml.load(text, _Loader)
        except yaml.YAMLError as error:
            problem = getattr(error, "problem", None) or error
            raise SettingsError((*groups, name), f"{text!r} is no YAML: {problem}") from None
    return from_dict(type(config), data)


def digest(config: Any) -> str:
    """Return the SHA-256 of the values, which is equal for equal configs."""
    plain = to_dict(from_dict(type(config), to_dict(config)))  # 1 given for a float is 1.0
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


class _Loader(BoundedLoader):
    """Raises an error for a duplicate key, of which YAML's own loader would use the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            value = self.construct_object(key, deep=True)
            if isinstance(value, Hashable) and value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"the key {value!r} is given twice", key.start_mark)
            seen.add(value if isinstance(value, Hashable) else None)
        # A key written as null is the name "null", not the value.
        return {"null" if key is None else key: value for key, value in super().construct_mapping(node, deep).items()}


def _line(node: yaml.Node | None, key: Key) -> int:
    """Return the line of a value, or of the last part of its path that exists. An empty file has no node."""
    line = node.start_mark.line + 1 if node else 1
    for part in key:
        if isinstance(node, yaml.SequenceNode):
            node = node.value[part]
            line = node.start_mark.line + 1
            continue
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        pair = next((pair for pair in pairs if pair[0].value == str(part)), None)
        if pair is None:
            break
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line


def _fields(cls: Any) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(cls) if field.init]


def _dataclass(cls: type[T], data: Any, key: Key) -> T:
    if not isinstance(data, Mapping):
        raise SettingsError(key, f"expected a mapping, got {_told(data)}")
    fields, kinds = {field.name: field for field in _fields(cls)}, typing.get_type_hints(cls)
    for name in data:
        if name not in fields:
            raise SettingsError((*key, str(name)), f"unknown key; {_nearest(str(name), list(fields))}")
    empty = dataclasses.MISSING
    missing = [n for n, f in fields.items() if n not in data and f.default is empty and f.default_factory is empty]
    if missing:
        raise SettingsError(key, f"missing {', '.join(f'{name!r} ({_name(kinds[name])})' for name in missing)}")
    values = {name: _value(kinds[name], value, (*key, name)) for name, value in data.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise SettingsError(key, str(error)) from error


def _value(kind: Any, value: Any, key: Key) -> Any:
    """Return the value as that type, or raise SettingsError."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return to_dict(value)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, key)
    if origin in (Union, types.UnionType):
        return _union(kind, value, key)
    if origin is Literal:
        for choice in inner:
            if choice == value and type(choice) is type(value):
                return choice
    elif origin is list and isinstance(value, (list, tuple)):
        return [_value(inner[0], part, (*key, i)) for i, part in enumerate(value)]
    elif origin is tuple and isinstance(value, (list, tuple)):
        kinds = [inner[0]] * len(value) if inner[1:] == (...,) else inner
        if len(kinds) == len(value):
            return tuple(_value(kind, part, (*key, i)) for i, (kind, part) in enumerate(zip(kinds, value)))
    elif origin is dict and isinstance(value, Mapping):
        return {_value(inner[0], k, (*key, str(k))): _value(inner[1], v, (*key, str(k))) for k, v in value.items()}
    elif kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError) as error:
            raise SettingsError(key, f"expected float, got {_told(value)}") from error
        if math.isnan(number):
            raise SettingsError(key, "expected a number, got nan")
        return number
    elif type(value) is kind and kind in (int, str, bool):
        return value
    elif origin not in (Literal, list, tuple, dict) and kind not in (int, float, str, bool):
        raise TypeError(f"settings: a config cannot have the type {kind} of {'.'.join(map(str, key))}")
    boolean = isinstance(value, bool) and (kind is str or origin is Literal)
    hint = "; YAML reads on, off, yes, no so: put it in quotes" if boolean else ""
    raise SettingsError(key, f"expected {_name(kind)}, got {_told(value)}{hint}")


def _union(kind: Any, value: Any, key: Key) -> Any:
    """Return the value as its own type or the first that accepts it: "1e-3" stays a string in ``float | str``."""
    arms = typing.get_args(kind)
    if value is None and type(None) in arms:
        return None
    arms = sorted((arm for arm in arms if arm is not type(None)), key=lambda arm: arm is not type(value))
    nested = [arm for arm in arms if dataclasses.is_dataclass(arm)]
    if len(nested) == 1 and isinstance(value, Mapping):
        return _value(nested[0], value, key)  # its error is more specific
    if len(arms) == 1 and (nested or isinstance(value, (list, tuple, dict))):
        return _value(arms[0], value, key)
    for arm in arms:
        try:
            return _value(arm, value, key)
        except SettingsError:
            continue
    raise SettingsError(key, f"expected {_name(kind)}, got {_told(value)}")


def _name(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if origin in (Union, types.UnionType):
        return " or ".join("None" if arm is type(None) else _name(arm) for arm in inner)
    return str(kind) if origin else getattr(kind, "__name__", str(kind))


def _told(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r}"


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f"the nearest known is {close[0]!r}" if close else f"known are {', '.join(known)}"
