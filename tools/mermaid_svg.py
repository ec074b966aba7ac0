"""Draw a Mermaid ``graph TD`` as SVG, because Mermaid's own script would be loaded from another host.

Supported is what ARCHITECTURE.md uses: ``a["label"] --> b & c --> d``. A node is one row below the lowest of its
predecessors, and edges are straight lines.
"""

import re
from html import escape

ROW, GAP, HEIGHT, CHAR = 64, 56, 32, 7.3  # pixels: of a row, between boxes, of a box, of a character
NODE = re.compile(r'\s*(\w+)(?:\["([^"]*)"\])?\s*')


def parse(text: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the labels of the nodes and the edges of a graph. Raises ValueError for a line that is not supported."""
    labels, edges = {}, []
    for line in filter(str.strip, text.strip().splitlines()[1:]):
        before = []
        for part in line.split("-->"):
            matches = [NODE.fullmatch(node) for node in part.split("&")]
            if not all(matches):
                raise ValueError(f'mermaid_svg: nodes must be name or name["label"], got {line.strip()!r}')
            now = [match[1] for match in matches]
            for match in matches:
                labels[match[1]] = match[2] or labels.get(match[1], match[1])
            edges += [(a, b) for a in before for b in now]
            before = now
    return labels, edges


def rows(labels: dict[str, str], edges: list[tuple[str, str]]) -> list[list[str]]:
    """Return the nodes row by row. Raises ValueError if the graph has a cycle."""
    depth = dict.fromkeys(labels, 0)
    for _ in labels:
        deeper = {b: depth[a] + 1 for a, b in edges if depth[b] <= depth[a]}
        if not deeper:
            return [[n for n in labels if depth[n] == k] for k in range(max(depth.values()) + 1)]
        depth |= deeper
    raise ValueError("mermaid_svg: the graph must not have a cycle")


def svg(text: str) -> str:
    """Return the SVG of a graph. Its colors are those of the text around it."""
    labels, edges = parse(text)
    placed, center = {}, {}
    for k, row in enumerate(rows(labels, edges)):
        widths = [CHAR * len(labels[name]) + 24 for name in row]
        gap = GAP if len(row) > 3 else 4 * GAP  # wide enough for edges that pass a box of the row above
        left = -(sum(widths) + gap * (len(row) - 1)) / 2
        for name, width in zip(row, widths, strict=True):
            placed[name] = left, k * ROW, width
            center[name] = left + width / 2
            left += width + gap
    start = min(x for x, _, _ in placed.values()) - 4
    width = max(x + w for x, _, w in placed.values()) + 4 - start
    height = max(y for _, y, _ in placed.values()) + HEIGHT + 4
    lines = [
        f'<line x1="{center[a]:.0f}" y1="{placed[a][1] + HEIGHT}" x2="{center[b]:.0f}" y2="{placed[b][1] - 5}" '
        'stroke="currentColor" stroke-opacity="0.5" marker-end="url(#arrow)"/>'
        for a, b in edges
    ]
    boxes = [
        f'<rect x="{x:.0f}" y="{y}" width="{w:.0f}" height="{HEIGHT}" rx="6" fill="var(--md-code-bg-color)" '
        f'stroke="currentColor" stroke-opacity="0.4"/><text x="{x + w / 2:.0f}" y="{y + 21}" text-anchor="middle" '
        f'fill="currentColor">{escape(labels[name])}</text>'
        for name, (x, y, w) in placed.items()
    ]
    marker = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="currentColor" fill-opacity="0.5"/></marker></defs>'
    )
    told = escape("; ".join(f"{labels[a]} to {labels[b]}" for a, b in edges))
    return (
        f'<svg class="graph" viewBox="{start:.0f} -2 {width:.0f} {height}" xmlns="http://www.w3.org/2000/svg" '
        f'role="img" aria-label="graph: {told}" font-size="13">' + "".join([marker, *lines, *boxes]) + "</svg>"
    )
