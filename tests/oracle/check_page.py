"""The page of `thane audit --format html` in a real browser: filled, sorted, filtered, used by keyboard, wide and narrow.

    python3 tests/oracle/check_page.py THANE BROWSER [FOLDER]

BROWSER is a Chromium. A script that is added to the page uses it as a reader would, and leaves what it saw in the page, which
Chromium prints. With FOLDER, pictures of the page are left there: light and dark, wide and narrow.
"""

import html
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from audit_program import OPS_A_LAYER, program

# Whole layers.
N_OPS = 200 * OPS_A_LAYER
# A page of thousands of ops must answer at once; the bound is generous, for machines that are busy.
MOST_MS = 1000

PROBE = """
<script>
"use strict";
const seen = { errors: [] };
addEventListener("error", (e) => seen.errors.push(String(e.message)));
addEventListener("securitypolicyviolation", (e) => seen.errors.push(`policy: ${e.violatedDirective} ${e.blockedURI}`));
addEventListener("load", () => {
  const at = (id) => document.getElementById(id);
  const rows = () => [...at("table").tBodies[0].rows];
  const column = (i) => rows().map((r) => r.cells[i].textContent);
  const timed = (name, act) => { const start = performance.now(); act(); seen[name + "_ms"] = performance.now() - start; };
  const press = (key) => {
    const button = document.querySelector(`button[data-key=${key}]`);
    button.focus();
    button.click();
    return button.closest("th").getAttribute("aria-sort");
  };
  seen.first = rows().length;
  seen.status = at("status").textContent;
  timed("sort", () => { seen.sort = press("ms"); });
  seen.largest = column(5).slice(0, 3);
  seen.again = press("ms");
  seen.names = press("name");
  seen.name_order = column(1);
  timed("filter", () => { at("filter").value = "LAYERS_7_ softmax"; at("filter").dispatchEvent(new Event("input")); });
  seen.filtered = column(1);
  at("filter").value = "";
  at("filter").dispatchEvent(new Event("input"));
  at("more").click();
  seen.more = rows().length;
  seen.focus = document.activeElement === rows()[200];
  at("backend").value = "off";
  at("backend").dispatchEvent(new Event("change"));
  seen.off = new Set(column(4)).size;
  seen.off_engine = column(4).includes("ane");
  seen.unlabeled = [...document.querySelectorAll("input, select")].filter((i) => i.labels.length === 0).length;
  seen.figures = document.querySelectorAll("svg[role=img][aria-label]").length;
  seen.width = innerWidth;
  seen.overflow = document.documentElement.scrollWidth - innerWidth;
  // What would scroll by itself: wider inside than it is. Figures may: smaller ones could not be read.
  seen.scrolls = [...document.querySelectorAll(".scroll:not(:has(svg))")].filter((e) => e.scrollWidth > e.clientWidth + 1).length;
  const tops = (selector) => [...document.querySelectorAll(selector)].map((e) => e.getBoundingClientRect().top + scrollY);
  seen.findings = tops(".finding");
  seen.severities = [...document.querySelectorAll(".finding .severity")].map((e) => e.textContent);
  seen.figures_at = Math.min(...tops("figure"));
  seen.legend = [...document.querySelectorAll(".legend .swatch")].map((e) => getComputedStyle(e).color);
  seen.requests = performance.getEntriesByType("resource").length;
  const pre = document.createElement("pre");
  pre.id = "seen";
  pre.textContent = JSON.stringify(seen);
  document.body.append(pre);
});
</script>
"""


def chromium(browser, folder, page, *flags):
    still = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-sync", *still]
    command += [f"--user-data-dir={folder}/profile", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


def look(browser, folder, page, width):
    # A window is 500 wide at least; a frame is as narrow as it is asked to be.
    framed = folder / f"framed-{width}.html"
    source = html.escape(page.read_text())
    report = "onload=\"setTimeout(() => document.body.append(this.contentDocument.getElementById('seen').cloneNode(true)), 0)\""
    framed.write_text(f'<!doctype html><body><iframe width="{width}" height="900" style="border:0" srcdoc="{source}" {report}></iframe>')
    dom = chromium(browser, folder, framed, f"--window-size={width + 100},1000", "--virtual-time-budget=10000", "--dump-dom")
    return json.loads(html.unescape(dom.split('<pre id="seen">')[1].split("</pre>")[0]))


def judge(seen, width):
    number = lambda text: float(text.replace(",", ""))
    largest = [number(t) for t in seen["largest"]]
    checks = {
        "no errors": seen["errors"] == [],
        "200 rows at first": seen["first"] == 200 and f"200 of {N_OPS} ops" in seen["status"],
        "sorted by time, the longest first": seen["sort"] == "descending" and largest == sorted(largest, reverse=True),
        "and the other way": seen["again"] == "ascending",
        "sorted by name, numbers as numbers": seen["names"] == "ascending" and "layers_10_gated" not in seen["name_order"][:100],
        "filtered": seen["filtered"] == ["layers_7_softmax"],
        "more, with the focus on the first of them": seen["more"] == 400 and seen["focus"],
        "ops off the engine": not seen["off_engine"],
        "every control has a label": seen["unlabeled"] == 0,
        "figures have a name": seen["figures"] >= 2,
        "nothing is fetched": seen["requests"] == 0,
        f"under {MOST_MS} ms": max(seen["sort_ms"], seen["filter_ms"]) < MOST_MS,
    }
    checks |= layout(seen, width)
    report(checks, seen, width)
    print(f"{width} wide: {len(checks)} checks; sort {seen['sort_ms']:.0f} ms, filter {seen['filter_ms']:.0f} ms")


def layout(seen, width):
    return {
        "no wider than the window": seen["overflow"] <= 0 and seen["width"] == width,
        "no table scrolls sideways on a phone": width > 640 or seen["scrolls"] == 0,
        "a legend of six colors": len(set(seen["legend"])) == 6,
    }


def report(checks, seen, width):
    wrong = [name for name, holds in checks.items() if not holds]
    if wrong:
        sys.exit(f"{width} wide: {'; '.join(wrong)}\n{json.dumps(seen)[:2000]}")


def judge_findings(seen, width):
    order = ["error", "warning", "note"].index
    checks = layout(seen, width) | {
        "no errors": seen["errors"] == [],
        "findings stand before figures": seen["findings"] and max(seen["findings"]) < seen["figures_at"],
        "errors first": seen["severities"][0] == "error" and seen["severities"] == sorted(seen["severities"], key=order),
        "a rule stands once for all targets": len(seen["severities"]) == 5,
    }
    report(checks, seen, width)
    print(f"{width} wide, with findings: {len(checks)} checks")


def main():
    thane, browser = sys.argv[1:3]
    pictures = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        mil, page, probed = folder / "model.mil", folder / "page.html", folder / "probed.html"
        mil.write_text(program(N_OPS))
        subprocess.run([thane, "audit", "--quiet", mil, "--format", "html", "-o", page, "--target", "m4"], check=True)
        text = page.read_text()
        probed.write_text(text.replace("</head>", PROBE + "</head>"))
        for width in (1400, 400):
            judge(look(browser, folder, probed, width), width)
        broken = pathlib.Path(__file__).resolve().parents[1] / "example/broken.mil"
        found = folder / "found.html"
        subprocess.run([thane, "audit", "--quiet", broken, "-o", found, "--target", "m4,a19,ios18"], check=True)
        found.write_text(found.read_text().replace("</head>", PROBE + "</head>"))
        for width in (1400, 400):
            judge_findings(look(browser, folder, found, width), width)
        if pictures:
            pictures.mkdir(parents=True, exist_ok=True)
            for name, flags in {"light": [], "dark": ["--force-dark-mode"]}.items():
                for width in (1400, 500):
                    shot = pictures / f"{name}-{width}.png"
                    chromium(browser, folder, page, *flags, f"--window-size={width},2400", f"--screenshot={shot}")
                    print(shot)


if __name__ == "__main__":
    main()
