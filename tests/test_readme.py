"""The README's examples run, in the order they stand."""

import re
from pathlib import Path

import foreign
import torch

README = Path(__file__).parent.parent / "README.md"
CHINESE = README.with_name("README.zh-CN.md")


def test_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 9
    model = foreign.randomized(foreign.tiny())  # what the reader has: a model, a field, a state
    names = {"torch": torch, "model": model, "velocity": lambda x, t: -x, "x": torch.ones(2, 3)}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["trace"].shape == (16, 5)
    assert names["stats"].as_dict().keys() >= {"mu/rms", "z_init/var"}
    assert names["y"].shape == (2, 256, 67584)
    assert names["h"].shape == (2, 257, 2048)


def code_blocks(path):
    """Each fenced block: its language and its lines, without comments and trailing spaces."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [
        (language, [re.sub(r"(^| )#.*", "", line).rstrip() for line in code.split("\n")]) for language, code in blocks
    ]


def test_chinese_has_the_same_code():
    english, chinese = code_blocks(README), code_blocks(CHINESE)
    assert len(english) >= 9
    assert [language for language, _ in chinese] == [language for language, _ in english]
    for ours, theirs in zip(chinese, english):
        assert ours == theirs
