"""Uses the playground in headless Chromium: types a prompt, changes controls, watches the flow, opens a run.

python tools/app_check.py OUT RUNS      # screenshots go to OUT: light, dark, phone; RUNS: folder with a training run

Exits 1 if something does not appear, if the console has an error, or if the page asks another host for anything.
"""

import sys
import time
from pathlib import Path
from urllib.parse import urlparse

from page_check import SIZES, browser
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from fmpipe.app import COUNT, build, serve
from fmpipe.pipeline import FlowPipeline

SECONDS = 60  # to wait for anything to appear


def wait(chrome: webdriver.Chrome, what: str, script: str) -> object:
    """Return the value of the script once it is true; raise TimeoutError, naming what did not appear."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            if value := chrome.execute_script(f"return {script}"):
                return value
        except (StaleElementReferenceException, WebDriverException):
            pass
        time.sleep(0.2)
    raise TimeoutError(f"did not appear: {what}")


def images(place: str) -> str:
    """The number of images in an element that are drawn."""
    return f"[...document.querySelectorAll('#{place} img')].filter(i => i.naturalWidth >= 64).length"


def tab(chrome: webdriver.Chrome, name: str) -> None:
    chrome.execute_script(
        "[...document.querySelectorAll('button[role=tab]')].find(b => b.textContent.trim() == arguments[0]).click()",
        name,
    )


def shot(chrome: webdriver.Chrome, out: Path, name: str) -> None:
    for mode in [*SIZES, "light"]:
        width, height = SIZES[mode]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mode == "phone"}
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        dark = "add" if mode == "dark" else "remove"
        chrome.execute_script(f"document.body.classList.{dark}('dark')")
        time.sleep(0.5)  # for the layout
        outside = chrome.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        if outside > 0:
            raise ValueError(f"{name}, {mode}: {outside} pixels wider than the window")
        chrome.save_screenshot(str(out / f"app-{name}-{mode}.png"))


def use(chrome: webdriver.Chrome, out: Path) -> None:
    prompt = wait(chrome, "the prompt", "document.querySelector('#prompt textarea')")
    prompt.clear()
    prompt.send_keys("a red heart", Keys.ENTER)
    wait(chrome, "images of a prompt", f"{images('images')} >= {COUNT}")
    shot(chrome, out, "generate")
    compared = wait(chrome, "the control", "document.querySelector('#compare input')")
    compared.click()
    compared.send_keys(Keys.CONTROL, "a")
    compared.send_keys("steps", Keys.ENTER)
    wait(chrome, "the values to compare", "document.querySelector('#values textarea')?.value.includes('50')")
    chrome.find_element(By.ID, "generate").click()
    wait(chrome, "an image for each value", f"{images('images')} >= 6")
    shot(chrome, out, "compare")
    tab(chrome, "Step by step")
    chrome.find_element(By.ID, "watch").click()
    wait(chrome, "the anomaly", "document.querySelector('#anomaly')?.textContent.includes('nomaly')")
    wait(chrome, "three plots", "document.querySelectorAll('.vega-embed').length >= 3")
    shot(chrome, out, "steps")
    tab(chrome, "Interpolate")
    chrome.find_element(By.ID, "interpolate").click()
    wait(chrome, "images between two prompts", f"{images('between')} >= 8")
    shot(chrome, out, "interpolate")
    tab(chrome, "Runs")
    plots = "document.querySelector('iframe.report')?.contentDocument.querySelectorAll('.chart svg').length"
    wait(chrome, "the report of a run with its plots", plots)
    shot(chrome, out, "runs")


def main() -> int:
    out, runs = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    pipe = FlowPipeline.from_pretrained("default")
    pipe.set_progress_bar_config(disable=True)
    address, chrome, wrong = serve(build(pipe, runs)), browser(), []
    try:
        chrome.get(address)
        use(chrome, out)
        asked = chrome.execute_script("return performance.getEntriesByType('resource').map(r => r.name)")
        wrong += [f"asked {name}" for name in asked if urlparse(name).hostname not in (None, "127.0.0.1")]
        wrong += [line["message"] for line in chrome.get_log("browser") if line["level"] == "SEVERE"]
    except (TimeoutError, ValueError) as error:
        chrome.save_screenshot(str(out / "app-failed.png"))
        wrong.append(str(error))
    finally:
        chrome.quit()
    print("\n".join(wrong) or f"the app: everything appeared; screenshots in {out}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
