"""Opens pages in headless Chromium: no message on the console, every picture and plot drawn, none wider than a phone;
plots tell their values under the mouse, and go to logarithms at a click.

python tools/page_check.py OUT page.html ...      # screenshots of each go to OUT: light, dark, phone

Needs Debian's chromium and chromium-driver, and selenium: ``make page-check`` installs them.
"""

import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains

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
    touched = touch(chrome)
    wrong = [f"console: {entry['message']}" for entry in chrome.get_log("browser")]
    wrong += [f"{facts['broken']} of {facts['images']} pictures are not shown"] if facts["broken"] else []
    wrong += [f"plot {k} has no line" for k in facts["empty"]]
    wrong += [f"{facts['outside']} pixels stick out on the right"] if facts["outside"] > 0 else []
    wrong += [f"it asks for {name}" for name in facts["foreign"]]
    wrong += touched
    print(f"{page.name} {mode}: {facts['images']} pictures, {facts['charts']} plots; {'; '.join(wrong) or 'sound'}")
    return wrong


def touch(chrome: webdriver.Chrome) -> list[str]:
    """What plots that can be seen fail to do when the mouse is over them, or their button is clicked."""
    wrong = []
    for chart in [c for c in chrome.find_elements("css selector", ".chart") if c.is_displayed()]:
        ActionChains(chrome).move_to_element(chart.find_element("css selector", "svg")).perform()
        if "@" not in chart.find_element("css selector", "figcaption").text:
            wrong.append(f"plot {chart.get_attribute('data-k')} tells no value under the mouse")
        if chart.find_elements("css selector", "button"):
            before = chart.find_element("css selector", "button").get_attribute("aria-pressed")
            chart.find_element("css selector", "button").click()
            if chart.find_element("css selector", "button").get_attribute("aria-pressed") == before:
                wrong.append(f"plot {chart.get_attribute('data-k')} does not go to logarithms and back")
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
