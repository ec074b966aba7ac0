"""Read YAML from untrusted sources, of bounded size and depth. Apart from untrusted.py: it imports yaml."""

from typing import Any

import yaml

from fmpipe.untrusted import LEVELS

BYTES, NODES = 1 << 20, 20_000  # of a config; `fmpipe init` writes 30,000 bytes with 600 values


class BoundedLoader(yaml.SafeLoader):
    """Raises an error for text with more than ``LEVELS`` levels or ``NODES`` values.

    Each alias counts as all that it stands for.
    """

    def __init__(self, text: str):
        super().__init__(text)
        self.level, self.nodes, self.sizes = 0, 0, {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        mark, before, alias = self.peek_event().start_mark, self.nodes, self.check_event(yaml.AliasEvent)
        if self.level == LEVELS:
            raise yaml.composer.ComposerError(None, None, f"nested more than {LEVELS} levels deep", mark)
        self.level += 1
        node = super().compose_node(parent, index)
        self.level -= 1
        self.nodes += self.sizes.get(node, NODES) if alias else 1  # NODES: an alias inside of what it stands for
        if self.nodes > NODES:
            raise yaml.composer.ComposerError(None, None, f"more than {NODES} values, or an alias of itself", mark)
        self.sizes.setdefault(node, self.nodes - before)
        return node


def load_documents(text: str) -> list[object]:
    """Return the documents of a stream, by libyaml if it is there, which is fast.

    libyaml overflows the stack of the process on deep text, so the depth is checked before. Raises yaml.YAMLError
    for damaged text, ValueError for more than ``LEVELS`` levels, and for an alias, which may multiply its size.
    """
    loader, level = getattr(yaml, "CSafeLoader", yaml.SafeLoader), 0
    for event in yaml.parse(text, loader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > LEVELS or isinstance(event, yaml.AliasEvent):
            what = f"it is nested more than {LEVELS} levels deep" if level > LEVELS else "it has an alias"
            raise ValueError(f"line {event.start_mark.line + 1}: {what}")
    return list(yaml.load_all(text, loader))
