"""What MkDocs does not do itself: pages from outside docs/, links to files of the repository, generated pages.

Markdown files are written for GitHub. The hook adds the pages in ``PAGES``, the reference of the ops (``docs_ops.py``)
and the notebooks (``notebooks.py``), and rewrites relative links: to the page on the site if the file is one, otherwise
to a copy of the file, which becomes part of the site.
"""

import logging
import posixpath
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import docs_ops  # noqa: E402
import mermaid_svg  # noqa: E402
import notebooks  # noqa: E402

log = logging.getLogger("mkdocs.hooks.site")
PAGES = {  # path in the repository: path on the site
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "README.zh-CN.md": "zh.md",
    "benchmarks/README.md": "benchmarks.md",
    "python/fmpipe/assets/emoji-64/README.md": "model-card.md",
}
OPTIONAL = ("diffusers.md",)
FENCED = re.compile(r"(?ms)^ *```.*?^ *```$|`[^`\n]+(?:\n[^`\n]+)?`")
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")
NAMED = re.compile(r"\[[\w./-]+\.(?:md|ipynb)(\]\(([^)\s#:]+))")  # a link whose text is the name of a file
ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=<code>|`)")  # of Sphinx, in docstrings
sources: dict[str, str] = {}  # path on the site: path in the repository
titles: dict[str, str] = {}  # path in the repository: title of the page


def outside_code(text: str, change) -> str:
    """Apply ``change`` to the parts of a Markdown text that are not code."""
    parts, start = [], 0
    for match in FENCED.finditer(text):
        parts += [change(text[start : match.start()]), match.group()]
        start = match.end()
    return "".join([*parts, change(text[start:])])


def in_python_markdown(text: str) -> str:
    """Add what Python-Markdown needs and GitHub does not: four spaces in nested lists, blank lines before lists."""
    text = re.sub(r"(?m)^ {2,3}([-*] )", r"    \1", text)
    text = re.sub(r"(?m)^((?![-*|] |\d+\. |[ #|]).+)\n(?=[-*] |\|)", r"\1\n\n", text)
    return text


def rewritten(text: str, page: str) -> str:
    """Return the text of a page (a path on the site) with links that lead to pages and files of the site."""
    on_site = {source: name for name, source in sources.items()}

    def replace(match):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(sources[page]), match[2]))
        name = on_site.get(target)
        if name is None:
            log.warning("%s links to %s, which does not exist", sources[page], match[2])
            return match.group()
        return f"{match[1]}{posixpath.relpath(name, posixpath.dirname(page) or '.')}{match[3] or ''})"

    def titled(match):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(sources[page]), match[2]))
        return f"[{titles[target]}{match[1]}" if target in titles else match.group()

    return outside_code(text, lambda part: LINK.sub(replace, NAMED.sub(titled, part)))


def expanded(nav: list) -> list:
    """The nav of mkdocs.yml with the generated entries, and without optional pages that do not exist."""
    decisions = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    listed = [f"decisions/{name}" for name in re.findall(r"\]\(([\w-]+\.md)\)", decisions)]
    found = []
    for entry in nav:
        title, value = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if value == "OPS":
            found += [{title: name} for name, title in docs_ops.titles().items()]
        elif value == "DECISIONS":
            found.append({title: ["decisions/README.md", *listed]})
        elif isinstance(value, list):
            found.append({title: expanded(value)})
        elif value not in OPTIONAL or (ROOT / "docs" / value).exists():
            found.append(entry)
    return found


def on_config(config):
    config.nav = expanded(config.nav)
    return config


def on_files(files: Files, *, config) -> Files:
    sources.clear()
    titles.clear()
    for file in list(files):
        path = Path(file.abs_src_path) if file.abs_src_path else None
        if path is None or not path.is_relative_to(ROOT / "docs"):
            continue
        source = path.relative_to(ROOT).as_posix()
        if source in PAGES:
            files.remove(file)
        elif path.suffix == ".ipynb":  # the file itself can be downloaded
            name = path.relative_to(ROOT / "docs").with_suffix(".md").as_posix()
            files.append(File.generated(config, name, content=notebooks.markdown(path)))
            sources[name] = source
        else:
            sources[file.src_uri] = source
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
        sources[name] = source
    for name, content in docs_ops.pages().items():
        files.append(File.generated(config, name, content=content))
        sources[name] = f"docs/{name}"
    for name, source in list(sources.items()):  # files that pages link to become part of the site
        if not name.endswith(".md"):
            continue
        text = files.get_file_from_path(name).content_string
        if heading := re.search(r"(?m)^# (.+)", text):
            titles[source] = heading[1]
        for _, link, _ in LINK.findall(FENCED.sub("", text)):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
            if target not in sources.values() and (ROOT / target).is_file():
                sources[f"files/{target}"] = target
                files.append(File.generated(config, f"files/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, *, page, config, files) -> str:
    markdown = re.sub(r"(?ms)^```mermaid\n(.*?)^```$", lambda match: mermaid_svg.svg(match[1]), markdown)
    return rewritten(outside_code(markdown, in_python_markdown), page.file.src_uri)


def on_page_content(html: str, *, page, config, files) -> str:
    return ROLE.sub("", html)
