"""Configs: dataclass ↔ YAML, and the errors a person reads who mistyped one."""

from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fmpipe.train.presets import PRESETS
from fmpipe.train.run import run
from fmpipe.train.settings import SettingsError, digest, dump, from_dict, load, to_dict, with_overrides

pytestmark = pytest.mark.slow


@dataclass
class Optimizer:
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    name: Literal["adamw", "sgd", "off"] = "adamw"
    warmup: int | None = None


@dataclass(frozen=True)
class Train:
    steps: int
    batch: int = 8
    fast: bool = False
    optimizer: Optimizer = field(default_factory=Optimizer)

    def __post_init__(self):
        if self.batch < 1:
            raise ValueError(f"batch must be 1 or more, got {self.batch}")


@dataclass
class Data:
    path: str = "shapes"
    val: float = 0.05
    sizes: list[int] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    rows: tuple[tuple[int, str], ...] = ()
    seed: int | str | None = None
    limit: float | str = 1.0


@dataclass
class Config:
    train: Train
    data: Data = field(default_factory=Data)
    second: Optimizer | None = None
    stages: list[Optimizer] = field(default_factory=list)


CONFIG = Config(Train(100))

WRONG = [
    ({"lerning_rate": 1}, "config.lerning_rate: unknown key; known are train, data, second, stages"),
    ({"train": {"steps": 1, "bach": 2}}, "config.train.bach: unknown key; the nearest known is 'batch'"),
    ({"train": {"steps": 1, 3: 2}}, "config.train.3: unknown key; known are steps, batch, fast, optimizer"),
    (
        {"train": {"steps": 1, "optimizer": {"lerning_rate": 1}}},
        "config.train.optimizer.lerning_rate: unknown key; the nearest known is 'learning_rate'",
    ),
    ({"train": {"steps": 1, "batch": "many"}}, "config.train.batch: expected int, got str 'many'"),
    ({"train": {"steps": 1.0}}, "config.train.steps: expected int, got float 1.0"),
    ({"train": {"steps": True}}, "config.train.steps: expected int, got bool True"),
    ({"train": {"steps": None}}, "config.train.steps: expected int, got None"),
    ({"train": {"steps": 1, "fast": 1}}, "config.train.fast: expected bool, got int 1"),
    ({"train": {"steps": 1, "batch": 0}}, "config.train: batch must be 1 or more, got 0"),
    ({"train": {}}, "config.train: missing 'steps' (int)"),
    ({}, "config: missing 'train' (Train)"),
    ({"train": 3}, "config.train: expected a mapping, got int 3"),
    ([1], "config: expected a mapping, got list [1]"),
]

WRONG_DATA = [
    ("val", "few", "config.data.val: expected float, got str 'few'"),
    ("val", True, "config.data.val: expected float, got bool True"),
    ("val", 10**400, "config.data.val: expected float, got int 1000"),
    ("path", 3, "config.data.path: expected str, got int 3"),
    ("path", False, "config.data.path: expected str, got bool False; YAML reads on, off, yes, no so"),
    ("sizes", [1, "2"], "config.data.sizes[1]: expected int, got str '2'"),
    ("sizes", 3, "config.data.sizes: expected list[int], got int 3"),
    ("sizes", "12", "config.data.sizes: expected list[int], got str '12'"),
    ("weights", {"kl": "x"}, "config.data.weights.kl: expected float, got str 'x'"),
    ("weights", {1: 1.0}, "config.data.weights.1: expected str, got int 1"),
    ("rows", [[1, "a"], [2]], "config.data.rows[1]: expected tuple[int, str], got list [2]"),
    ("seed", 0.5, "config.data.seed: expected int or str or None, got float 0.5"),
]


@pytest.mark.parametrize(
    ("data", "message"), WRONG + [({"train": {"steps": 1}, "data": {name: value}}, m) for name, value, m in WRONG_DATA]
)
def test_errors_say_where_and_what(data, message):
    with pytest.raises(SettingsError) as error:
        from_dict(Config, data)
    assert str(error.value).startswith(message)


def test_literal_and_optional_errors():
    with pytest.raises(SettingsError, match=r"^run\.name: expected one of 'adamw', 'sgd', 'off', got str 'adam'$"):
        from_dict(Optimizer, {"name": "adam"}, where="run")
    with pytest.raises(SettingsError, match=r"name: .* got bool False; YAML reads on, off"):
        from_dict(Optimizer, {"name": False})
    with pytest.raises(SettingsError, match=r"^config\.second\.warmup: expected int or None, got str 'x'$"):
        from_dict(Config, {"train": {"steps": 1}, "second": {"warmup": "x"}})
    with pytest.raises(SettingsError, match=r"^config\.stages\[0\]\.nam: unknown key; the nearest known is 'name'$"):
        from_dict(Config, {"train": {"steps": 1}, "stages": [{"nam": "sgd"}]})


def test_a_literal_is_of_its_type():
    @dataclass
    class One:
        value: Literal[1, "1"]

    assert [type(from_dict(One, {"value": value}).value) for value in (1, "1")] == [int, str]
    with pytest.raises(SettingsError, match="expected one of 1, '1', got bool True"):
        from_dict(One, {"value": True})


def test_a_type_yaml_cannot_hold_is_the_programmers_error():
    @dataclass
    class Bad:
        value: set[int]

    with pytest.raises(TypeError, match="set"):
        from_dict(Bad, {"value": {1}})


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1.0), ("1e-3", 1e-3), ("-2E5", -2e5), (0.1, 0.1), (float("inf"), float("inf"))]
)
def test_numbers_that_do_for_a_float(value, expected):
    got = from_dict(Data, {"val": value}).val
    assert type(got) is float
    assert got == expected


FILES = [
    ("train:\n  steps: 5\n  bach: 2\n", ":3: config.train.bach: unknown key"),
    ("# a run\ntrain:\n  steps: 5\n\ndata: {val: 0.1,\n  sizes: [1,\n    x]}\n", ":7: config.data.sizes[1]: expected"),
    ("train:\n  batch: 3\n", ":1: config.train: missing 'steps' (int)"),
    ("", ":1: config: missing 'train' (Train)"),
    ("train:\n  steps: [1\n  batch: 2\n", ":3: "),
    ("train:\n  steps: 5\n  batch: 1\n  steps: 6\n", ":4: the key 'steps' is given twice"),
    ("train: {steps: !!python/object/apply:os.getcwd []}\n", ":1: could not determine a constructor"),
    ("- 1\n", ":1: config: expected a mapping, got list [1]"),
]


@pytest.mark.parametrize(("text", "message"), FILES)
def test_errors_of_a_file_have_its_line(tmp_path, text, message):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        load(Config, path)
    assert str(error.value).startswith(f"{path}{message}")


def test_a_file_as_people_write_it(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("second: &o {learning_rate: 1e-4, betas: [0.9, 1]}\nstages: [*o]\ntrain: {steps: 5}\n")
    optimizer = Optimizer(1e-4, (0.9, 1.0))
    assert load(Config, path) == Config(Train(5), second=optimizer, stages=[optimizer])


texts = st.text(max_size=12) | st.sampled_from(
    ["off", "1e-3", "1_000", "~", "null", "0x1f", "2024-01-01", "=", "a: b\n"]
)
floats = st.floats(allow_nan=False)
optimizers = st.builds(
    Optimizer,
    floats,
    st.tuples(floats, floats),
    st.sampled_from(["adamw", "sgd", "off"]),
    st.none() | st.integers(),
)
configs = st.builds(
    Config,
    st.builds(Train, st.integers(), st.integers(1), st.booleans(), optimizers),
    st.builds(
        Data,
        texts,
        floats,
        st.lists(st.integers(), max_size=4),
        st.dictionaries(texts, floats, max_size=3),
        st.lists(st.tuples(st.integers(), texts), max_size=3).map(tuple),
        st.none() | st.integers() | texts,
        floats | texts,
    ),
    st.none() | optimizers,
    st.lists(optimizers, max_size=2),
)


@settings(max_examples=100, deadline=None)
@given(configs)
def test_round_trip(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    dump(config, path)
    again = load(Config, path)
    assert again == config
    assert repr(again) == repr(config)  # the types of the values too
    assert digest(again) == digest(config)


def test_dump_leaves_the_old_file_if_it_fails(tmp_path):
    path = tmp_path / "run.yaml"
    dump(CONFIG, path)
    with pytest.raises(Exception, match="represent"):
        dump(Config(Train(object())), path)
    assert load(Config, path) == CONFIG
    assert [file.name for file in tmp_path.iterdir()] == ["run.yaml"]


def test_overrides():
    config = with_overrides(
        CONFIG,
        ["train.steps=7", "train.optimizer.learning_rate=1e-4", "data.sizes=[1, 2]", "second.warmup=3"]
        + ["data.weights.kl=2", "data.path=a=b", "data.seed=null", "train.steps=8"],
    )
    data = Data("a=b", sizes=[1, 2], weights={"kl": 2.0})
    assert config == Config(Train(8, optimizer=Optimizer(1e-4)), data, Optimizer(warmup=3))
    assert Config(Train(100)) == CONFIG, "the config given was changed"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.bach=2", "config.train.bach: unknown key; the nearest known is 'batch'"),
        ("trian.batch=2", "config.trian: unknown key; the nearest known is 'train'"),
        ("train.batch=many", "config.train.batch: expected int, got str 'many'"),
        ("train.batch=", "config.train.batch: expected int, got None"),
        ("train.batch.x=1", "config.train.batch: has no keys inside; got 'train.batch.x=1'"),
        ("data.sizes=[1", "config.data.sizes: '[1' is no YAML"),
        ("train.batch", "overrides: an override is key=value, as train.steps=100; got 'train.batch'"),
        ("=3", "overrides: an override is key=value"),
        ("train..x=3", "overrides: an override is key=value"),
    ],
)
def test_override_errors(override, message):
    with pytest.raises(SettingsError) as error:
        with_overrides(CONFIG, [override])
    assert str(error.value).startswith(message)


def test_digest_is_of_the_values():
    same = Config(Train(100), Data(limit=1.0, val=0.05))
    whole, real = Config(Train(1), Data(val=1)), Config(Train(1), Data(val=1.0))
    assert digest(CONFIG) == digest(same) == digest(from_dict(Config, to_dict(CONFIG)))
    assert digest(whole) == digest(real)
    assert digest(CONFIG) != digest(replace(CONFIG, train=Train(101)))
    assert len(digest(CONFIG)) == 64


def test_the_kind_minilm_needs_no_model():
    from fmpipe.train.config import Encoder

    assert from_dict(Encoder, {"kind": "minilm"}).spec() == {"kind": "minilm", "model": "minilm"}


BOMB = "\n".join(
    ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    + [f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(9)]
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: " + "[" * 100_000, "nested"),
        ("train: " + "{a: " * 100_000, "nested"),
        ("- " * 100_000, "nested"),
        (BOMB, "more than 20000 values"),
        ("train: &a [*a]", "alias of itself"),
        ("train: {steps: 1}\n#" + "x" * (1 << 20), "bytes"),
    ],
    ids=["brackets", "braces", "lists", "aliases", "itself", "long"],
)
def test_yaml_is_bounded_before_it_is_built(tmp_path, text, said):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(SettingsError, match=said) as error:
        load(Config, tmp_path / "c.yaml")
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("keep=0", ": keep must be at least 1, got 0"),
        ("seed=-1", r": seed must be in \[0, 4294967295\], got -1"),
        ("every.log=-1", r"\.every: log must be at least 0, got -1"),
        ("every.save=-1", r"\.every: save must be at least 0, got -1"),
        ("data.limit=0", r"\.data: limit must be at least 1, got 0"),
        ("data.val=1.5", r"\.data: val must be in \[0, 1\], got 1.5"),
        ("vae.widths=[]", r"\.vae: widths must be numbers from 1 to 65536, got \[\]"),
        ("vae.layers=0", r"\.vae: layers must be at least 1, got 0"),
        ("vae.kl=-1", r"\.vae: kl must be at least 0, got -1"),
        ("vae.optim.batch=0", r"\.vae\.optim: batch must be at least 1, got 0"),
        ("flow.optim.batch=-1", r"\.flow\.optim: batch must be at least 1, got -1"),
        ("flow.optim.steps=-5", r"\.flow\.optim: steps must be at least 1, got -5"),
        ("flow.optim.lr=.nan", r"\.flow\.optim\.lr: expected a number, got nan"),
        ("flow.optim.lr='nan'", r"\.flow\.optim\.lr: expected a number, got nan"),
        ("flow.optim.lr=.inf", r"\.flow\.optim: lr must be at least 0 and finite, got inf"),
        ("flow.optim.lr=-1e-3", r"\.flow\.optim: lr must be at least 0, got -0.001"),
        ("flow.optim.clip=0", r"\.flow\.optim: clip must be above 0, got 0"),
        ("flow.optim.ema=1", r"\.flow\.optim: ema must be in \[0, 1\), got 1"),
        ("flow.optim.betas=[0.9, 1]", r"\.flow\.optim: betas must be in \[0, 1\), got"),
        ("flow.optim.groups={text_head: {lr: -1}}", r"\.flow\.optim\.groups\.text_head: lr must be at least 0, got -1"),
        ("flow.losses.kl=-1", r"\.flow\.losses: kl must be at least 0, got -1"),
        ("flow.losses.null=2", r"\.flow\.losses: null must be in \[0, 1\], got 2"),
        ("flow.token_dropout=-1", r"\.flow: token_dropout must be in \[0, 1\], got -1"),
    ],
)
def test_numbers_that_no_run_can_have_are_refused_with_their_key(override, said):
    with pytest.raises(SettingsError, match=f"^config{said}"):
        with_overrides(PRESETS["shapes-tiny"](), [override])


def test_values_set_in_python_are_checked_before_anything_is_written(tmp_path):
    config = PRESETS["shapes-tiny"]()
    config.out, config.keep = str(tmp_path / "run"), 0
    with pytest.raises(SettingsError, match=r"^config: keep must be at least 1, got 0"):
        run(config)
    config.keep, config.vae.optim.lr = 1, float("nan")
    with pytest.raises(SettingsError, match=r"^config\.vae\.optim\.lr: expected a number, got nan"):
        run(config)
    config.vae.optim.lr, config.stages = 1e-3, []
    with pytest.raises(SettingsError, match=r"^config\.stages: names no stage to run"):
        run(config)
    assert not list(tmp_path.iterdir())
