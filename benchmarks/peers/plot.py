"""Tokens per CPU second of each loader, as a bar chart.

What flows in: the CSV of `peers.py`. What flows out: an SVG without background, for light and dark pages.

    python benchmarks/peers/plot.py peers.csv peers.svg
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

INK, OURS, OTHERS = "#7d8590", "#2f81f7", "#a0a7b0"


def main(table: Path, svg: Path) -> None:
    with table.open(encoding="utf-8", newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["cpu_s_per_m_tokens"]]
    names = list(dict.fromkeys(r["loader"] for r in rows))
    of = {n: statistics.median(1e6 / float(r["cpu_s_per_m_tokens"]) for r in rows if r["loader"] == n) for n in names}
    names.sort(key=of.__getitem__)
    mpl.rcParams |= {"svg.hashsalt": "peers", "svg.fonttype": "none", "font.size": 10}
    figure, axes = plt.subplots(figsize=(7, 0.36 * len(names) + 0.6), layout="constrained")
    colours = [OURS if n.startswith("torchtitan_zephon") else OTHERS for n in names]
    bars = axes.barh(names, [of[n] for n in names], color=colours, height=0.62)
    axes.bar_label(bars, [f"{of[n]:,.0f}" for n in names], padding=4, color=INK)
    axes.set_title("Tokens per CPU second, text to batches", loc="left", color=INK, fontsize=10)
    axes.margins(x=0.14)
    axes.xaxis.set_visible(False)
    axes.tick_params(axis="y", colors=INK, length=0)
    axes.spines[:].set_visible(False)
    figure.savefig(svg, transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
