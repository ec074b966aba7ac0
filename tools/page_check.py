"""Opens pages in headless Chromium: no message on the console, every picture and plot drawn, none wider than a phone.

python tools/page_check.py OUT page.html ...      # screenshots of each go to OUT: light, dark, phone

Needs Debian's chromium and chromium-driver, and selenium: ``make page-check`` installs them.
"""

import sys
from pathlib import Path

from selenium import webdriver

SIZES = {"light": (1200, 900), "dark": (1200, 900), "phone": (390, 844)}
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip
# Pictures that did not load, plots without a line in them, and whatever sticks out on the right.
FACTS = """
const images = [...document.images], charts = [...document.querySelectorAll(".chart")];
const line = p => (p.getAttribute("d") || "").includes("L");
const drawn = c => c.querySelector("circle") || [...c.querySelectorAll("path")].some(line);
return {
  images: images.length, broken: images.filter(i => !i.complete || !i.naturalWidth).length,
  charts: charts.length, empty: charts.filter(c => !drawn(c)).map(c => c.dataset.k),
  outside: document.documentElement.scrollWidth - window.innerWidth,
  foreign: performance.getEntriesByType("resource").map(r => r.name).filter(n => !n.startsWith("data:")),
};
"""


def browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))


def look(chrome: webdriver.Chrome, page: Path, mode: str, out: Path) -> list[str]:
    """What is wrong with the page in this mode; its screenshot in out."""
    width, height = SIZES[mode]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mode == "phone"}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if mode == "dark" else "light"}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    chrome.get(page.absolute().as_uri())
    facts = chrome.execute_script(FACTS)
    whole = min(chrome.execute_script("return document.documentElement.scrollHeight"), 12000)
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**metrics, "height": whole})
    chrome.save_screenshot(str(out / f"{page.stem}-{mode}.png"))
    wrong = [f"console: {entry['message']}" for entry in chrome.get_log("browser")]
    wrong += [f"{facts['broken']} of {facts['images']} pictures are not shown"] if facts["broken"] else []
    wrong += [f"plot {k} has no line" for k in facts["empty"]]
    wrong += [f"{facts['outside']} pixels stick out on the right"] if facts["outside"] > 0 else []
    wrong += [f"it asks for {name}" for name in facts["foreign"]]
    print(f"{page.name} {mode}: {facts['images']} pictures, {facts['charts']} plots; {'; '.join(wrong) or 'sound'}")
    return wrong


def main() -> int:
    out, *pages = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    chrome = browser()
    try:
        return int(bool([wrong for page in pages for mode in SIZES for wrong in look(chrome, page, mode, out)]))
    finally:
        chrome.quit()


if __name__ == "__main__":
    sys.exit(main())
