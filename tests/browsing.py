"""A real headless browser for the tests of pages: the system's chromium, driven by selenium and chromedriver."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

PROGRAMS = ("chromium", "chromedriver")
WIDE, PHONE = (1280, 900), (375, 812)


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Chromium without a window; its log of the console is kept."""
    options = Options()
    options.binary_location = str(shutil.which("chromium"))
    # its sandbox does not start for root, as which containers run
    flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--force-device-scale-factor=1"]
    for flag in [*flags, *(["--no-sandbox"] if os.geteuid() == 0 else [])]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        yield driver
    finally:
        driver.quit()


def look(driver: webdriver.Chrome, page: Path, size: tuple[int, int] = WIDE, scheme: str = "light") -> None:
    """Open a page at a size, as a reader who prefers `scheme` sees it."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get(page.resolve().as_uri())
