#!/usr/bin/env python3
"""Draws a page of packages whose quality was recorded: quality against size and predicted speed, and error by layer.

    python3 scripts/quality_page.py THANE PACKAGE.. -o PAGE.html [--target a19,m4]

Each PACKAGE has been through `thane quality PACKAGE --record`. KL divergence (of embedding models: 1 less the cosine) is what
the contract says, with its 95 % interval; size is that of the folder, each file once; milliseconds are those that `thane audit`
predicts for a token of an answer, or for the slowest function, with their 80 % interval. The error behind each layer is what was
recorded. Needs nothing but Python.
"""

import argparse
import html
import json
import math
import subprocess
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 360, 84, 44
COLORS = ["#0b6e4f", "#6b3fa0", "#a14300", "#1f5f8b", "#b00020", "#545b66"]
STYLE = """
:root { color-scheme: light dark; --text: #1c1f24; --soft: #545b66; --line: #c9ced6; }
@media (prefers-color-scheme: dark) { :root { --text: #e8eaed; --soft: #aab2bd; --line: #3d444e; } }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
figure { margin: 2rem 0 0; } figcaption { color: var(--soft); font-size: 0.9rem; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--text); font-size: 13px; }
.axis { stroke: var(--line); } table { border-collapse: collapse; } th, td { padding: 0.3rem 0.8rem; text-align: left; }
"""


def thane(args, *rest):
    done = subprocess.run([args.thane, *map(str, rest)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"thane {rest[0]} {rest[1]}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def recorded(package):
    """The name and interval of what is drawn, and what was recorded."""
    files = [package / "manifest.json", package / "Data/ai.thane/contract.json"]
    quality = next((json.loads(f.read_text()).get("quality") for f in files if f.is_file()), None)
    if not quality:
        sys.exit(f"{package}: nothing is recorded: thane quality {package} --file TEXT --record")
    measures = quality["measures"]
    if "kl" in measures:
        return "KL divergence, nats", measures["kl"], quality
    cosine = measures["cosine"]
    loss = {"value": 1 - cosine["value"], "low": 1 - cosine["high"], "high": 1 - cosine["low"]}
    return "1 less the cosine", loss, quality


def size(package):
    """Megabytes; packages of a folder share files."""
    files = {f.stat().st_ino: f.stat().st_size for f in package.rglob("*") if f.is_file()}
    return sum(files.values()) / 1e6


def speed(args, package):
    """Predicted milliseconds by target."""
    times = {}
    for target in thane(args, "audit", package, "--target", args.target, "--json")["targets"]:
        calls = [f["latency"] for f in target["functions"]]
        answer = target.get("answer")
        times[target["target"].split("+")[0]] = answer["token"] if answer else max(calls, key=lambda call: call["ms"])
    return times


class Axis:
    """A logarithmic axis over all values."""

    def __init__(self, values, begin, end):
        values = [math.log10(v) for v in values if v > 0] or [0.0]
        low, high = min(values), max(values)
        room = max(0.08 * (high - low), 0.05)
        self.low, self.high, self.begin, self.end = low - room, high + room, begin, end

    def __call__(self, value):
        share = (math.log10(max(value, 1e-300)) - self.low) / (self.high - self.low)
        return self.begin + min(max(share, 0), 1) * (self.end - self.begin)

    def ticks(self):
        """Values of one digit, so many that a reader finds the scale."""
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        ticks = [d * 10.0**e for e in decades for d in range(1, 10)]
        inside = [t for t in ticks if self.low <= math.log10(t) <= self.high]
        few = [t for t in inside if f"{t:e}"[0] in "125"]
        return few if len(few) > 1 else inside[:6]


def frame(x, y, names):
    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(" against ".join(names[::-1]))}">']
    for tick in x.ticks() if isinstance(x, Axis) else []:
        out.append(f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="10" y2="{HEIGHT - BOTTOM}"/>'
                   f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:.4g}</text>')
    for tick in y.ticks():
        out.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
                   f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.3g}</text>')
    out.append(f'<text x="{WIDTH}" y="{HEIGHT - 8}" text-anchor="end">{html.escape(names[0])}</text>'
               f'<text x="4" y="{HEIGHT - 8}">{html.escape(names[1])}</text>')
    return out


def figure(caption, svg):
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{''.join(svg)}</svg></figure>"


def scatter(what, name, caption, points):
    """Points are a label, x and y, each with value, low and high."""
    x = Axis([v for _, x, _ in points for v in x.values()], LEFT + 10, WIDTH - 20)
    y = Axis([v for _, _, y in points for v in y.values()], HEIGHT - BOTTOM - 10, 20)
    svg = frame(x, y, (name, what))
    for i, (label, px, py) in enumerate(points):
        color, at = COLORS[i % len(COLORS)], (x(px["value"]), y(py["value"]))
        line = lambda x1, x2, y1, y2: f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'
        svg.append(f'<g stroke="{color}" fill="{color}">{line(x(px["low"]), x(px["high"]), at[1], at[1])}'
                   f'{line(at[0], at[0], y(py["low"]), y(py["high"]))}'
                   f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="5"/></g>'
                   f'<text x="{at[0] + 8:.1f}" y="{at[1] - 8:.1f}">{html.escape(label)}</text>')
    return figure(caption, svg)


def layers(caption, lines):
    """Lines are a label and an error per layer."""
    n = max(len(errors) for _, errors in lines)
    x = lambda layer: LEFT + 10 + layer * (WIDTH - LEFT - 40) / max(n - 1, 1)
    y = Axis([e for _, errors in lines for e in errors], HEIGHT - BOTTOM - 10, 20)
    svg = frame(x, y, ("layer", "relative error"))
    for layer in range(0, n, max(1, n // 10)):
        svg.append(f'<text x="{x(layer):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{layer}</text>')
    for i, (label, errors) in enumerate(lines):
        color = COLORS[i % len(COLORS)]
        path = " ".join(f"{x(layer):.1f},{y(error):.1f}" for layer, error in enumerate(errors))
        svg.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
                   f'<text x="{WIDTH}" y="{24 + 18 * i}" text-anchor="end" style="fill: {color}">{html.escape(label)}</text>')
    return figure(caption, svg)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("thane")
    parser.add_argument("packages", nargs="+", type=Path, metavar="PACKAGE")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--target", default="a19,m4")
    args = parser.parse_args()
    exact = lambda value: {"value": value, "low": value, "high": value}
    rows = [(p.stem, *recorded(p), size(p), speed(args, p)) for p in args.packages]
    if len({row[1] for row in rows}) > 1:
        sys.exit("language and embedding models have no common measure: a page for each kind")
    what = rows[0][1]
    figures = [scatter(what, "megabytes", f"{what}, against size",
                       [(label, exact(mb), loss) for label, _, loss, _, mb, _ in rows])]
    for target in rows[0][5]:
        points = [(label, {"value": t[target]["ms"], "low": t[target]["low_ms"], "high": t[target]["high_ms"]}, loss)
                  for label, _, loss, _, _, t in rows]
        figures.append(scatter(what, "milliseconds", f"{what}, against the predicted time on {target}", points))
    lines = [(label, quality["layer_errors"]) for label, _, _, quality, _, _ in rows if quality.get("layer_errors")]
    if lines:
        figures.append(layers("Relative error of the residual stream behind each layer", lines))
    cells = lambda values, tag: "".join(f"<{tag}>{html.escape(str(v))}</{tag}>" for v in values)
    show = lambda i: f"{i['value']:.4g} ({i['low']:.4g} to {i['high']:.4g})"
    table = ["<table><tr>", cells(["package", what, "over", "reference", "MB"], "th"), "</tr>"]
    for label, _, loss, quality, mb, _ in rows:
        table += ["<tr>", cells([label, show(loss), quality["samples"], quality["reference"], f"{mb:.1f}"], "td"), "</tr>"]
    body = "".join(["<h1>Quality of packages</h1>", *table, "</table>", *figures])
    args.out.write_text("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Quality of packages</title>"
                        f"<style>{STYLE}</style></head>\n<body>{body}</body></html>\n", encoding="utf-8")
    print(f"{args.out}: {len(rows)} packages, {len(figures)} figures")


if __name__ == "__main__":
    main()
