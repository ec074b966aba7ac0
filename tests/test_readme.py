"""The README's examples run, in the order they stand."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 6
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["stats"].as_dict().keys() >= {"mu/rms", "z_init/var"}
    assert names["y"].shape == (2, 256, 67584)
    assert names["h"].shape == (2, 257, 2048)
