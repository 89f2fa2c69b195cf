"""The auditor in a browser and in Node: the same JSON as `thane audit --json`, byte for byte, for every package of the tests.

    python3 tests/oracle/check_web.py THANE WEB [--browser CHROMIUM] [--node NODE] [--pictures FOLDER]

WEB is the folder of `scripts/web.sh`, which is served on loopback. In Chromium, every case is audited by the module's own interface,
and some are dropped on the page as a user would; no request may leave it. In Node, packages are named by their paths. With
--pictures, pictures of the page are left there: light and dark, wide and narrow.
"""

import argparse
import concurrent.futures
import functools
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

from browser import Browser, axe_source

TESTS = pathlib.Path(__file__).resolve().parents[1]
TARGETS = "m4,a19+ios26"
FOLDERS = ["audit", "fixes", "packages", "model-packages"]
TYPES = {".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html; charset=utf-8", ".css": "text/css"}
# Models as Thane writes them: beside their programs stands how they are called.
CONVERTED = {
    "embedder.mlpackage": ["--task", "embed", "--buckets", "24,48", "models/tiny-embed/bert-mean"],
    "embedder": ["--task", "embed", "--layout", "folder", "--buckets", "24,48", "models/tiny-embed/bert-mean"],
    "decoder.mlpackage": ["--form", "ane", "--context", "64", "--block", "8", "models/tiny/llama-bias"],
    "chunks": ["--form", "ane", "--context", "64", "--block", "8", "--contexts", "24", "--lookup", "host", "--head", "host", "--split", "2", "models/tiny/qwen3"],
    "targets.mlpackage": ["--target", "a18+ios26,a19", "models/tiny/qwen3"],
}
HISTOGRAM = {"3": 500, "9": 900, "17": 250, "30": 20, "55": 1}
TIMES = [(8, 0.25), (16, 0.3125), (32, 0.5), (64, 1.125)]


def holds(name, true, found=""):
    if not true:
        sys.exit(f"{name}: does not hold {str(found)[:2000]!r}")
    print(f"{name}: ok")


def same(name, found, expected):
    holds(name, found == expected, f"expected {expected!r}, found {found!r}")


def run(thane, *args, cwd=None):
    return subprocess.run([thane, *map(str, args)], cwd=cwd, capture_output=True, text=True)


def convert(thane, folder):
    for name, (*flags, model) in CONVERTED.items():
        written = folder.parent / "written" / name
        done = run(thane, "convert", "--quiet", *flags, TESTS / model, "-o", written)
        holds(f"convert {name}", done.returncode == 0, done.stderr)
        # Packages share a weight file by a hard link, which a browser counts as another file.
        shutil.copytree(written, folder / name)
    # A model whose sizes pass 2^32: what is counted in 32 bits shows here.
    (folder / "large.mil").write_text(large())
    return sorted(path for path in folder.iterdir())


def large():
    """Products of weights that are in no file: bits of one pass 2^32, and so do operations and bytes of all."""
    lines, ty = [], "tensor<fp16, [1, 16384, 1, 512]>"
    for i in range(24):
        weight = f'tensor<fp16, [16384, 16384, 1, 1]>(BLOBFILE(path = string("none"), offset = uint64({i})))'
        lines.append(f"tensor<fp16, [16384, 16384, 1, 1]> w{i} = const()[val = {weight}];")
        lines.append(f'{ty} y{i + 1} = conv(x = y{i}, weight = w{i}, pad_type = string("valid"));')
    body = "\n".join(lines)
    return f"program(1.3)\n{{\nfunc main<ios18>({ty} y0) {{\n{body}\n}} -> (y24);\n}}\n"


def expected(thane, case):
    """What the command prints, or its message."""
    done = run(thane, "audit", "--json", "--quiet", "--target", TARGETS, case.name, cwd=case.parent)
    return (done.stdout, None) if done.returncode == 0 else (None, done.stderr)


def files_below(case):
    if case.is_file():
        return [case]
    return sorted(path for path in case.rglob("*") if path.is_file())


class Server(http.server.ThreadingHTTPServer):
    """Serves the page, and the cases below /case/NUMBER."""

    def __init__(self, web, cases):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                parts = self.path.lstrip("/").split("/", 2)
                file = cases[int(parts[1])].parent / parts[2] if parts[0] == "case" else web / (self.path.lstrip("/") or "index.html")
                if not file.is_file():
                    return self.send_error(404)
                body = file.read_bytes()
                self.send_response(200)
                self.send_header("Content-Type", TYPES.get(file.suffix, "application/octet-stream"))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


# Gives the JSON or the message of each case, two at a time.
IN_PAGE = """
(async () => {
  const { audit } = await import("./index.js");
  const cases = %s;
  const found = [];
  const one = async (i) => {
    const files = await Promise.all(cases[i].map(async (path) => [path, await (await fetch(`case/${i}/${path}`)).blob()]));
    try {
      found[i] = [(await audit(files, { targets: %s })).json, null];
    } catch (error) {
      found[i] = [null, error.message];
    }
  };
  let next = 0;
  const lane = async () => { while (next < cases.length) await one(next++); };
  await Promise.all([lane(), lane()]);
  return found;
})()
"""

IN_NODE = """
import { audit, about, buckets } from "%s";
import { readFileSync } from "node:fs";
const { cases, plan } = JSON.parse(readFileSync(0, "utf8"));
const found = [];
for (const path of cases) {
  try {
    found.push([(await audit(path, { targets: "%s" })).json, null]);
  } catch (error) {
    found.push([null, error.message]);
  }
}
console.log(JSON.stringify({ found, chips: (await about()).chips.length, plan: await buckets(plan) }));
"""


def compare(where, cases, found, wanted):
    n_refused = 0
    for case, (json_text, fault), (wanted_text, wanted_fault) in zip(cases, found, wanted, strict=True):
        if wanted_text is None:
            n_refused += 1
            holds(f"{where}: {case.name} is refused", fault is not None, wanted_fault)
        elif json_text != wanted_text:
            place = next((i for i, (a, b) in enumerate(zip(json_text or "", wanted_text)) if a != b), 0)
            shown = (json_text or "")[max(0, place - 80) : place + 80]
            sys.exit(f"{where}: {case.name}: {fault or ''} expected {wanted_text[max(0, place - 80) : place + 80]!r}, found {shown!r}")
    print(f"{where}: {len(cases)} cases, {n_refused} of them refused as by the command: ok")


def zipped(case, to):
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for n, file in enumerate(files_below(case)):
            packed = zipfile.ZIP_STORED if n % 2 else zipfile.ZIP_DEFLATED
            archive.write(file, file.relative_to(case.parent), packed)
    return to


def at(name):
    return f"document.getElementById({json.dumps(name)})"


def audited(browser):
    browser.run(f"{at('go')}.click()")
    browser.until(f"!{at('go')}.disabled && ({at('error')}.textContent || {at('status')}.textContent.startsWith('Done'))")
    return browser.run(f"{at('error')}.textContent")


def check_page(browser, server, folder, plan):
    package = TESTS / "packages/ios16_half.mlpackage"
    browser.open(f"{server.address}/index.html")
    browser.until("document.body.dataset.ready")
    browser.faults()
    same("an audit of nothing", "Expected a model" in audited(browser), True)
    browser.choose_files("#archive", zipped(package, folder / "half.zip"))
    for chip in ("m4", "a19"):
        browser.run(f"document.querySelector('#chips input[value={chip}]').click()")
    same("no error of an archive", audited(browser), "")
    report = json.loads(browser.run(f"fetch({at('save-json')}.href).then((r) => r.text()).catch(() => 'null')"))
    # The policy of the page lets nothing fetch from a blob: the frame shows it, and the link saves it.
    same("the page fetches nothing but its own", report, None)
    same("its name", browser.run(f"{at('result-name')}.textContent"), "Report of ios16_half.mlpackage")
    browser.until(f"{at('report')}.src.startsWith('blob:')")
    for _ in range(200):
        if any(t["type"] == "iframe" for t in browser.call("Target.getTargets", session=False)["targetInfos"]):
            break
        time.sleep(0.05)
    with browser.frame() as inside:
        for _ in range(200):
            if inside("document.readyState === 'complete' && document.querySelector('h1') !== null"):
                break
            time.sleep(0.05)
        title = inside("document.querySelector('h1').textContent")
        same("the report", title, "Audit of ios16_half.mlpackage")
        rows = inside("document.querySelectorAll('#table tbody tr').length")
        holds("its script has filled the table", rows > 0, rows)
    sent = browser.requested()
    faults = [f for f in browser.faults() if "blob:" not in f]
    same("no faults in the console", faults, [])
    check_folders(browser, package, folder)
    check_more(browser, folder, plan)
    axe = axe_source()
    if not axe:
        print("skipped: axe-core is missing (pip install --no-deps axe-playwright-python)")
    for width in (1400, 400):
        for scheme in ("light", "dark"):
            browser.look(width, 1600, scheme)
            over = browser.run("document.documentElement.scrollWidth - innerWidth")
            holds(f"nothing is cut off at {width} px, {scheme}", over <= 0, over)
            if axe:
                same(f"axe at {width} px, {scheme}", browser.violations(axe), [])
    unnamed = browser.run("[...document.querySelectorAll('input, select, textarea')].filter((e) => e.labels.length === 0).map((e) => e.id)")
    same("every field has a label", unnamed, [])
    outside = [url for url in sent + browser.requested() if not url.startswith((server.address, "blob:", "data:", "about:"))]
    same("no request leaves the page", outside, [])


def drop(browser, path):
    """Drops a file or folder on the page, as from a file manager."""
    x, y = browser.run(f"(() => {{ const r = {at('drop')}.getBoundingClientRect(); return [r.x + 20, r.y + 20]; }})()")
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        browser.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)
    browser.until(f"{at('chosen')}.textContent.includes({json.dumps(path.name)})")


def check_folders(browser, package, folder):
    browser.choose_files("#folder", package)
    browser.until(f"{at('chosen')}.textContent.includes('files')")
    same("no error of a folder that is chosen", audited(browser), "")
    drop(browser, folder / "models/chunks")
    same("no error of a folder that is dropped", audited(browser), "")
    same("and its name", browser.run(f"{at('result-name')}.textContent"), "Report of chunks")
    drop(browser, TESTS / "oracle/case.py")
    error = audited(browser)
    holds("what is no model", "found case.py" in error, error)


def check_more(browser, folder, plan):
    broken = folder / "broken.zip"
    broken.write_bytes(b"PK\x03\x04 and nothing more, " * 4)
    browser.choose_files("#archive", broken)
    error = audited(browser)
    holds("an archive that is damaged", error.startswith("The zip archive cannot be read: it has no directory"), error)
    browser.choose_files("#archive", TESTS / "example/broken.mil")
    same("no error of a text", audited(browser), "")
    browser.run(f"{at('release')}.value = '1'")
    same("nor with a system", audited(browser), "")
    # An audit that is stopped in the turn of the click has not ended by then.
    browser.run(f"{at('go')}.click(); {at('stop')}.click()")
    browser.until(f"{at('status')}.textContent === 'Stopped.'")
    same("stopping is no error", browser.run(f"[{at('error')}.textContent, {at('stop')}.hidden]"), ["", True])
    browser.run("document.querySelector('details').open = true")
    browser.run(f"{at('histogram')}.value = {json.dumps(json.dumps(HISTOGRAM))}")
    browser.run(f"{at('times')}.value = {json.dumps(','.join(f'{n}={ms}' for n, ms in TIMES))}")
    browser.run(f"{at('align')}.value = '8'; {at('max-tokens')}.value = '{plan['max_tokens']}'")
    browser.run("document.querySelector('#plan-form button').click()")
    browser.until(f"!{at('plan')}.hidden")
    chosen = browser.run("document.querySelector('tr.chosen td:last-child').textContent")
    knee = next(row for row in plan["plans"] if len(row["buckets"]) == plan["knee"])
    same("lengths that are planned", chosen, ",".join(map(str, knee["buckets"])))


def plan_of(thane, folder):
    """What `thane buckets` proposes for measured times."""
    counts = folder / "counts.json"
    counts.write_text(json.dumps(HISTOGRAM))
    times = ",".join(f"{n}={ms}" for n, ms in TIMES)
    done = run(thane, "buckets", TESTS / "models/tiny-embed/bert-mean", "--histogram", counts, "--times", times, "--align", 8, "--json", "--quiet")
    holds("thane buckets", done.returncode == 0, done.stderr)
    return json.loads(done.stdout)


def check_node(node, web, cases, wanted, plan):
    script = IN_NODE % ((web / "index.js").resolve().as_uri(), TARGETS)
    asked = {"histogram": HISTOGRAM, "times": TIMES, "align": 8, "maxTokens": plan["max_tokens"]}
    given = json.dumps({"cases": [str(case) for case in cases], "plan": asked})
    done = subprocess.run([node, "--input-type=module", "-e", script], input=given, capture_output=True, text=True)
    holds("node", done.returncode == 0, done.stderr)
    found = json.loads(done.stdout)
    compare("node", cases, found["found"], wanted)
    holds("chips in node", found["chips"] > 10, found["chips"])
    for key, value in found["plan"].items():
        same(f"plan: {key}", value, plan[key])


def check_browser(args, folder, cases, wanted, plan):
    server = Server(args.web, cases)
    browser = Browser(args.browser, folder)
    try:
        browser.open(f"{server.address}/index.html")
        browser.until("document.body.dataset.ready")
        paths = [[str(file.relative_to(case.parent)) for file in files_below(case)] for case in cases]
        found = browser.run(IN_PAGE % (json.dumps(paths), json.dumps(TARGETS)))
        compare("browser", cases, found, wanted)
        check_page(browser, server, folder, plan)
        if args.pictures:
            args.pictures.mkdir(parents=True, exist_ok=True)
            for scheme in ("light", "dark"):
                for width in (1400, 400):
                    browser.look(width, 2400, scheme)
                    # The frame is drawn by a process of its own.
                    time.sleep(1)
                    browser.picture(args.pictures / f"{scheme}-{width}.png")
    finally:
        browser.close()
        server.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("thane", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("web", type=pathlib.Path)
    parser.add_argument("--browser")
    parser.add_argument("--node")
    parser.add_argument("--pictures", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in ("models", "written"):
            (folder / name).mkdir()
        cases = [path for name in FOLDERS for path in sorted((TESTS / name).iterdir())] + convert(args.thane, folder / "models")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            wanted = list(pool.map(functools.partial(expected, args.thane), cases))
        plan = plan_of(args.thane, folder)
        refused = [case.name for case, (text, _) in zip(cases, wanted) if text is None]
        same("cases that the command refuses", sorted(refused), ["ANE057.mil", "bound_masks.mil"])
        if args.browser:
            check_browser(args, folder, cases, wanted, plan)
        if args.node:
            check_node(args.node, args.web, cases, wanted, plan)


if __name__ == "__main__":
    main()
