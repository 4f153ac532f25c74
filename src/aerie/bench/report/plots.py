"""Every picture that is drawn from raw records, stamped with the hash of what it was drawn from."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from aerie.bench.engine.oracle import Choice
from aerie.bench.engine.plot import draw
from aerie.bench.engine.summary import Place, Point
from aerie.bench.gpu.plot import draw_planner
from aerie.bench.profile import plot as profile_plot
from aerie.bench.record import Interval, read_json
from aerie.bench.report.tables import ENGINES

# Pixels depend on the plotting library's version, so freshness is told by the raw data's hash,
# kept in a text chunk of the file. A PNG is a signature, then chunks; the first, IHDR, is 25 bytes.
_KEYWORD = b"Raw-SHA256"
_AFTER_HEADER = 8 + 25
SUMMARY = "reports/h200_baseline_summary.json"


@dataclass(frozen=True)
class Plot:
    """A picture that `draw(root, path)` makes from the record `raw`."""

    path: str
    raw: str
    draw: Callable[[Path, Path], None]

    def raw_hash(self, root: Path) -> str:
        """What a fresh picture is stamped with."""
        return hashlib.sha256((root / self.raw).read_bytes()).hexdigest()


def stale_plots(root: Path, plots: Iterable[Plot]) -> list[Plot]:
    """Pictures that are absent or were drawn from other data."""
    there = (plot for plot in plots if (root / plot.raw).is_file())
    return [plot for plot in there if stamp_of(root / plot.path) != plot.raw_hash(root)]


def redraw(root: Path, plot: Plot) -> None:
    """Draw and stamp."""
    path = root / plot.path
    plot.draw(root, path)
    stamp(path, plot.raw_hash(root))


def stamp(path: Path, text: str) -> None:
    """Put a text chunk behind the header of a PNG."""
    data = path.read_bytes()
    body = b"tEXt" + _KEYWORD + b"\0" + text.encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    path.write_bytes(data[:_AFTER_HEADER] + chunk + data[_AFTER_HEADER:])


def stamp_of(path: Path) -> str:
    """The stamp of a picture; empty if it has none or does not exist."""
    if not path.is_file():
        return ""
    _, found, rest = path.read_bytes().partition(b"tEXt" + _KEYWORD + b"\0")
    return rest[:64].decode("ascii", "replace") if found else ""


def _draw_engine(root: Path, path: Path) -> None:
    values = read_json(path.with_suffix(".json"))
    points = [Point(**point) for point in values["points"]]
    places = [
        Place(
            batch=place["batch"],
            context=place["context"],
            points=[
                p for p in points if (p.batch, p.context) == (place["batch"], place["context"])
            ],
            to_plain=Interval(**place["to_plain"]),
            to_best_fixed=Interval(**place["to_best_fixed"]),
            best_fixed=place["best_fixed"],
            oracle=Choice(**place["oracle"]),
            regret=place["regret"],
            n_different=place["texts_different"],
        )
        for place in values["planner"]
    ]
    draw(places, path)


def _draw_planner(root: Path, path: Path) -> None:
    draw_planner(read_json(root / SUMMARY), path)


def _draw_roofline(root: Path, path: Path) -> None:
    profile_plot.draw_roofline(path.parent)


def _draw_timeline(root: Path, path: Path) -> None:
    profile_plot.draw_timeline(path.parent)


PLOTS = (
    *(Plot(f"{stem}.png", f"{stem}.json", _draw_engine) for stem in ENGINES),
    Plot("reports/h200_planner.png", SUMMARY, _draw_planner),
    Plot("reports/cuda_roofline.png", "reports/cuda_roofline.csv", _draw_roofline),
    Plot("reports/cuda_timeline.png", "reports/cuda_timeline.csv.xz", _draw_timeline),
)
