"""Photograph the live page as a visitor finds it, light and dark, for the documentation.

    python -m scripts.picture_view

Starts a server with a fixed tree and a browser (apt-get install chromium); writes
docs/images/view.png and docs/images/view-dark.png.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from scripts import ROOT
from tests.e2e.browser import browsed, find_browser
from tests.e2e.server_process import served

SHAPE = {"num-steps": 5, "eagle-topk": 3, "num-draft-tokens": 16}
PICTURES = {"light": "view.png", "dark": "view-dark.png"}
SIZE = (1280, 940)
COLOURS = 24  # as many as the page has, with the edges of letters


def main() -> None:
    """Both pictures, from one server and one browser."""
    program = find_browser()
    if program is None:
        sys.exit("no browser: apt-get install chromium")
    tree = [word for name, n in SHAPE.items() for word in (f"--speculative-{name}", str(n))]
    with (
        served(*tree) as server,
        tempfile.TemporaryDirectory() as profile,
        browsed(program, Path(profile)) as page,
    ):
        for scheme, name in PICTURES.items():
            page.dress(*SIZE, scheme)
            page.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
            page.wait_for("document.querySelectorAll('#about li').length > 3")
            page.wait_for("document.querySelector('#tree svg') !== null")
            out = ROOT / "docs/images" / name
            picture = Image.open(io.BytesIO(page.picture())).convert("RGB")
            picture.quantize(COLOURS, dither=Image.Dither.NONE).save(out, optimize=True)
            print(f"{out.relative_to(ROOT)}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
