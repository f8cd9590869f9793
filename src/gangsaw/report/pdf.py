"""A page printed to PDF by a browser that is at hand."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from gangsaw.errors import RunFailedError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "msedge")
TIMEOUT_S = 60


def find_browser() -> str | None:
    """Path of a Chromium-like browser; None where there is none."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def print_pdf(html: str, target: Path, timeout_s: float = TIMEOUT_S) -> None:
    """Print a page to `target`. RunFailedError without a browser, or when it fails."""
    browser = find_browser()
    if browser is None:
        raise RunFailedError(
            f"no browser to print with (looked for {', '.join(BROWSERS)}); write the page with"
            " --html and print it anywhere"
        )
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(html, encoding="utf-8")
        made = Path(folder) / "page.pdf"
        words = [
            browser, "--headless", "--disable-gpu", "--no-sandbox", "--no-pdf-header-footer",
            f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}", page.as_uri(),
        ]  # fmt: skip
        try:
            done = subprocess.run(words, capture_output=True, timeout=timeout_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RunFailedError(f"{browser} did not print: {type(error).__name__}") from None
        if done.returncode != 0 or not made.is_file():
            raise RunFailedError(f"{browser} did not print: exit {done.returncode}")
        shutil.move(made, target)
