"""Build the documentation site, strictly, and check every link of the result.

python tools/build_site.py [OUT]      # by default build/site

Exit code 1 if MkDocs warns, if a link or an anchor leads nowhere, or if a page loads something from another host.
"""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
NOT_LOADED = {"canonical", "alternate", "prev", "next"}


class Page(HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.anchors, self.loaded = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors |= {values[k] for k in ("id", "name") if values.get(k)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in LOADS and values.get(LOADS[tag]) and values.get("rel") not in NOT_LOADED:
            self.loaded.append(values[LOADS[tag]])


def wrong_links(site: Path) -> list[str]:
    """What is wrong with the links of the pages in a folder, one line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(site)
        wrong += [f"{name} loads {x} from another host" for x in page.loaded if urlsplit(x).netloc]
        for link in [*page.links, *(x for x in page.loaded if not urlsplit(x).netloc)]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file():
                wrong.append(f"{name} links to {link}, which does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                wrong.append(f"{name} links to {link}, but {target.name} has no such anchor")
    return wrong


def main() -> None:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if built.returncode:  # --quiet would hide the warnings from --strict, too
        raise SystemExit("".join(x for x in built.stdout.splitlines(keepends=True) if not x.startswith("INFO")))
    wrong = wrong_links(site)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if wrong:
        raise SystemExit(1)
    print(f"{len(list(site.rglob('*.html')))} pages in {site}; every link leads somewhere")


if __name__ == "__main__":
    main()
