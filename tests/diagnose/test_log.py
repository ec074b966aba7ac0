"""The log: what is written is read back, and no crash, kill, full disk or second writer leaves a torn line."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

from fmpipe.run_log import LOG_NAME, RunLog, read_log

pytestmark = pytest.mark.slow

PYTHON = str(Path(__file__).parents[2] / "python")


def child(code, *arguments, wait=True):
    """A process that runs the code with the arguments in ``argv``; it does not import torch."""
    code = f"import sys; argv = sys.argv[1:]\nfrom fmpipe.run_log import *\n{code}"
    run = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": PYTHON},
    )
    return (*run.communicate(), run.returncode) if wait else run


def strict(path):
    """Every line by a parser that takes no NaN, and the file ends with a line's end."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    text = path.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


VALUES = [
    (0.5, 0.5),
    (3, 3),
    (True, True),
    (None, None),
    ("float32", "float32"),
    (math.inf, math.inf),
    (-math.inf, -math.inf),
    ((0.9999, 4.04e-5), [0.9999, 4.04e-5]),
    ([math.inf, 1], [math.inf, 1]),
    (torch.tensor(2.5), 2.5),
    (torch.tensor([7]), 7),
    (torch.tensor(0.25).numpy(), 0.25),
    (torch.tensor([0.25]).numpy()[0], 0.25),
    ("a\nline 'and' \"quotes\" ä", "a\nline 'and' \"quotes\" ä"),
]


@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_what_is_written_is_read(tmp_path, value, expected):
    with RunLog(tmp_path / "new" / "run") as log:
        log.write(12, {"flow/cos": value}, lr=1e-3)
    (line,) = read_log(tmp_path / "new" / "run")
    assert line["step"] == 12
    assert line["flow/cos"] == expected
    assert type(line["flow/cos"]) is type(expected)
    assert line["lr"] == 1e-3
    assert abs(line["time"] - time.time()) < 60
    assert len(strict(log.path)) == 1


def test_nan_is_strict_json_and_read_as_a_float(tmp_path):
    with RunLog(tmp_path) as log:
        log.write(0, {"loss/total": math.nan})
    assert strict(log.path)[0]["loss/total"] == "NaN"
    assert math.isnan(read_log(log.path)[0]["loss/total"])


WRONG = [
    (lambda p: RunLog(p, ("csv",)), ValueError, "unknown 'csv'"),
    (lambda p: RunLog(p, flush_every=0), ValueError, "flush_every"),
    (lambda p: RunLog(p, flush_seconds=-1), ValueError, "flush_seconds"),
    (lambda p: RunLog(p).write(0, {"step": 1}), ValueError, "'step'"),
    (lambda p: RunLog(p).write(0, {"x": torch.ones(2)}), TypeError, "x must have one element, got 2"),
    (lambda p: RunLog(p).write(0, {"x": {}}), TypeError, "x must be a number"),
    (lambda p: RunLog(p).write(0, {"x": torch.float32}), TypeError, "got dtype"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_wrong_calls(tmp_path, call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call(tmp_path)


def test_a_closed_log_says_so_and_closes_twice(tmp_path):
    log = RunLog(tmp_path)
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.write(0, {"x": 1})


def test_lines_wait_for_their_number_or_time(tmp_path):
    log = RunLog(tmp_path, flush_every=3, flush_seconds=1e9)
    counts = []
    for step in range(4):
        log.write(step)
        counts.append(len(strict(log.path)))
    assert counts == [0, 0, 3, 3]
    log.flush()
    assert len(strict(log.path)) == 4
    log.close()
    with RunLog(tmp_path, flush_every=100, flush_seconds=0) as log:
        log.write(4)
        assert len(strict(log.path)) == 5


ENDS = [
    ("pass", 5, 0, ""),
    ("raise RuntimeError('it broke')", 5, 1, "it broke"),
    ("raise KeyboardInterrupt", 5, None, "KeyboardInterrupt"),
    ("sys.exit(3)", 5, 3, ""),
    ("os._exit(4)", 4, 4, ""),  # two flushes of two; the fifth is lost
    ("signal.raise_signal(signal.SIGTERM)", 4, -signal.SIGTERM, ""),
    ("os.fork() and os.wait()", 5, 0, ""),
    ("warnings.simplefilter('error'); log.flush(); log.write(5); log.flush()", 6, 0, ""),
]


@pytest.mark.parametrize(("end", "lines", "code", "said"), ENDS)
@pytest.mark.parametrize("managed", [False, True])
def test_a_process_that_ends(tmp_path, end, lines, code, said, managed):
    opened = "RunLog(argv[0], flush_every=2, flush_seconds=1e9)"
    start = f"import os, signal, warnings\n{f'with {opened} as log' if managed else f'log = {opened}'}"
    body = f"[log.write(step, x=0.5) for step in range(5)]; {end}"
    _, errors, got = child(f"{start}{':' if managed else ';'} {body}", tmp_path)
    assert [line["step"] for line in strict(tmp_path / LOG_NAME)] == list(range(lines)), errors
    assert code in (None, got), errors
    assert said in errors
    if not said:
        assert errors == ""


KILLED = """
log = RunLog(argv[0], flush_every=int(argv[1]), flush_seconds=1e9)
step = 0
while True:
    log.write(step, x=[0.5] * 2000, who=argv[2])
    step += 1
    if step == log.flush_every: print("ready", flush=True)
"""


@pytest.mark.parametrize("flush_every", [1, 50])
def test_kill_9_in_mid_writing(tmp_path, flush_every):
    """Lines of 10 kB, so that a kill can fall inside one; the next writer goes on at a line's end."""
    total = 0
    for k in range(4):
        run = child(KILLED, tmp_path, flush_every, k, wait=False)
        assert run.stdout.readline() == "ready\n"
        time.sleep(0.02 + 0.013 * k)
        run.kill()
        run.communicate()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            lines = read_log(tmp_path)
            RunLog(tmp_path).close()
        assert len(said) in (0, 2)  # both speak of a torn line, or neither
        assert strict(tmp_path / LOG_NAME) == lines
        mine = [line["step"] for line in lines if line["who"] == str(k)]
        assert mine == list(range(len(mine)))
        total += len(mine)
    assert len(lines) == total > 0


TORN = [
    (b'{"step": 1}\n{"step": 2, "x', 1, "14 bytes"),
    (b'{"step": 1}\n{"step": 2}', 2, None),  # killed before the line's end: whole
    (b'{"step', 0, "6 bytes"),
    (b'{"step": 1}\n' + b'{"x": "' + b"y" * 200_000, 1, "200007 bytes"),
    (b"", 0, None),
    (b'{"step": 1}\n12', 1, "2 bytes"),
]


@pytest.mark.parametrize(("before", "kept", "said"), TORN)
def test_a_torn_tail_is_cut_off(tmp_path, before, kept, said, recwarn):
    (tmp_path / LOG_NAME).write_bytes(before)
    assert len(read_log(tmp_path)) == kept
    assert len(recwarn) == (said is not None)
    recwarn.clear()
    with RunLog(tmp_path) as log:
        log.write(9)
    lines = strict(log.path)
    assert [line["step"] for line in lines] == [*range(1, kept + 1), 9]
    assert [said in str(w.message) for w in recwarn] == [True] * (said is not None)


def test_another_writer_that_dies_does_not_spoil_our_next_line(tmp_path):
    with RunLog(tmp_path, flush_every=1) as log:
        log.write(0)
        with open(log.path, "ab") as other:
            other.write(b'{"step": 1, "x": 0.')
        with pytest.warns(UserWarning, match="torn and is cut off"):
            log.write(2)
    assert [line["step"] for line in strict(log.path)] == [0, 2]


def test_a_torn_line_in_the_middle_is_counted(tmp_path):
    (tmp_path / "log").write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.warns(UserWarning, match="1 of 3 lines"):
        assert [line["step"] for line in read_log(tmp_path / "log")] == [1, 3]


def test_two_writers_do_not_tear_each_other(tmp_path):
    code = """
with RunLog(argv[0], flush_every=3, flush_seconds=1e9) as log:
    for step in range(400): log.write(step, who=argv[1], x="y" * (step * 37 % 9000))
"""
    runs = [child(code, tmp_path, who, wait=False) for who in range(3)]
    assert [(*run.communicate(), run.returncode) for run in runs] == [("", "", 0)] * 3
    lines = strict(tmp_path / LOG_NAME)
    for who in range(3):
        assert [line["step"] for line in lines if line["who"] == str(who)] == list(range(400))


def test_a_full_disk_keeps_whole_lines_and_the_rest_waits(tmp_path):
    """The limit on a file's size stands for the disk: a write is short, the next fails."""
    code = """
import resource, warnings
log = RunLog(argv[0], flush_every=10, flush_seconds=1e9)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for step in range(40): log.write(step, x="y" * 30)
print(len(said), said[0].message)
print(len(read_log(argv[0])))
if argv[1] == "freed": resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
log.close()
"""
    out, errors, returned = child(code, tmp_path / "a", "freed")
    assert returned == 0, errors
    assert "lines wait for the next try" in out
    assert 0 < int(out.split()[-1]) < 40
    assert [line["step"] for line in strict(tmp_path / "a" / LOG_NAME)] == list(range(40))
    out, errors, returned = child(code, tmp_path / "b", "full")
    kept = [line["step"] for line in strict(tmp_path / "b" / LOG_NAME)]
    assert kept == list(range(len(kept)))
    assert returned == 1
    assert f"{40 - len(kept)} lines were lost" in errors


def test_a_forked_child_opens_its_own(tmp_path):
    code = """
import os
log = RunLog(argv[0]); log.write(0)
if os.fork() == 0:
    try: log.write(1)
    except RuntimeError as error: print(error)
else: os.wait()
"""
    out, errors, _ = child(code, tmp_path)
    assert "opens its own" in out, errors
    assert [line["step"] for line in strict(tmp_path / LOG_NAME)] == [0]


def test_tensorboard_has_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with RunLog(tmp_path, ("jsonl", "tensorboard")) as log:
        for step in (0, 50):
            log.write(step, {"flow/endpt_rmse@8": 0.5 + step, "stat/x_t/dtype": "float32", "const/betas": [1e-4, 0.02]})
    seen = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in seen.Scalars("flow/endpt_rmse@8")] == [(0, 0.5), (50, 50.5)]
    assert seen.Scalars("const/betas/1")[0].value == pytest.approx(0.02)
    assert len(seen.Tensors("stat/x_t/dtype/text_summary")) == 1
    assert [line["flow/endpt_rmse@8"] for line in read_log(tmp_path)] == [0.5, 50.5]


def test_tensorboard_alone_writes_no_lines(tmp_path):
    pytest.importorskip("tensorboard")
    with RunLog(tmp_path, "tensorboard") as log:
        log.write(0, {"x": 1.0})
    assert [path.name.startswith("events") for path in tmp_path.iterdir()] == [True]


def test_missing_tensorboard_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        RunLog(tmp_path, ("jsonl", "tensorboard"))
    assert os.listdir(tmp_path) == []
