"""The page of `thane serve` in a real browser: chat, embeddings, audit, status, keys, keyboard, wide and narrow, light and dark.

    python3 tests/oracle/check_serve_page.py THANE BROWSER [--picture FILE MODEL..]

BROWSER is a Chromium. Answers must be those of transformers, similarities those of `thane embed`. axe-core finds what keeps
people who use a keyboard or a screen reader out; without axe-playwright-python, which carries it, that part is left out and said so.
With --picture, the page is pictured with an answer of other models instead.
"""

import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from base64 import b64decode

from browser import Browser, axe_source

TESTS = pathlib.Path(__file__).resolve().parents[1]
CHAT, BERT = TESTS / "models/tiny-chat", TESTS / "models/tiny-embed/bert-mean"
PACKAGE = TESTS / "packages/ios16_half.mlpackage"
KEY = "a-long-key"
VIEWS = ["chat", "embed", "audit", "status"]
TEXTS = ["a cat", "the sea is deep", "a cat sleeps"]


def at(name):
    return f"document.getElementById({json.dumps(name)})"


def holds(name, true, found=""):
    if not true:
        sys.exit(f"{name}: does not hold {found!r}")
    print(f"{name}: ok")


def same(name, found, expected):
    holds(name, found == expected, f"expected {expected!r}, found {found!r}")


class Served:
    """A server with the tiny models."""

    def __init__(self, thane, *flags, models=(CHAT, BERT)):
        command = [thane, "serve", *models, "--port", "0", "--quiet", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            sys.exit("the server did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def get(self, path, headers={}):
        with urllib.request.urlopen(urllib.request.Request(self.address + path, headers=headers), timeout=300) as answer:
            return answer.headers, answer.read().decode()


def open_page(browser, server, view=""):
    browser.open(f"{server.address}/{view}")
    browser.until(f"{at('chat-model')}.options.length > 0 || !{at('key-form')}.hidden")


def set_value(browser, name, value):
    browser.run(f"{at(name)}.value = {json.dumps(value)}")


def send(browser, text):
    browser.run(f"{at('message')}.focus()")
    browser.write(text)
    browser.press("Enter", "\r")


def answered(browser):
    browser.until(f"{at('stop')}.hidden && !{at('send')}.disabled")
    # What was said is shown with the next frame.
    browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
    return browser.run("JSON.parse(sessionStorage.getItem('thane-chat') ?? '{\"turns\": []}').turns.map((t) => t.content)")


def check_headers(server):
    headers, _ = server.get("/")
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    same("policy: nothing by default", policy["default-src"], "'none'")
    holds("policy: no inline scripts", "unsafe" not in headers["content-security-policy"])
    same("policy: frames", (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]), ("'none'",) * 3)
    same("nosniff", headers["x-content-type-options"], "nosniff")
    same("referrer", headers["referrer-policy"], "no-referrer")
    same("modules are JavaScript", server.get("/page/main.js")[0]["content-type"], "text/javascript; charset=utf-8")


def check_chat(browser):
    case = json.loads((CHAT / "expected.json").read_text())["conversations"][0]
    messages = case["messages"]
    systems = [m["content"] for m in messages if m["role"] == "system"]
    users = [m["content"] for m in messages if m["role"] != "system"]
    holds("the case has one question", len(users) == 1, users)
    for name, value in {"system": "".join(systems), "temperature": "0", "max_tokens": str(len(case["tokens"]))}.items():
        set_value(browser, name, value)
    send(browser, users[0])
    # The page trims what is written.
    same("answer of transformers", answered(browser), [users[0].strip(), case["text"]])
    facts = browser.run("document.querySelector('.turn.assistant .facts').textContent")
    tokens = f"prompt {len(case['ids'])} tokens, answer {len(case['tokens'])} tokens"
    holds("usage", facts.startswith(tokens) and "first after" in facts, facts)
    browser.call("Browser.grantPermissions", session=False, permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.run("document.querySelector('.turn.assistant button').click()")
    browser.until("document.querySelector('.turn.assistant button').textContent === 'Copied'")
    same("copied", browser.run("navigator.clipboard.readText()"), case["text"])
    same("the field is ready for the next", browser.run("document.activeElement.id"), "message")
    send(browser, "and then?")
    holds("a second turn", len(answered(browser)) == 4)
    holds("whose beginning was cached", "cached)" in browser.run("[...document.querySelectorAll('.facts')].at(-1).textContent"))
    browser.run(f"{at('new-chat')}.click()")
    same("a new conversation is empty", answered(browser), [])


def check_chat_errors(browser):
    set_value(browser, "schema", "{")
    send(browser, "hello")
    error = browser.run(f"{at('chat-error')}.textContent")
    holds("a schema that is not JSON", error.startswith("The JSON schema is not JSON"), error)
    same("the question is still there", browser.run(f"{at('message')}.value"), "hello")
    set_value(browser, "schema", "")
    set_value(browser, "message", "")
    long = "x " * 2000
    send(browser, long)
    same("a refused question leaves no turn", answered(browser), [])
    error = browser.until(f"{at('chat-error')}.textContent")
    holds("and says why", "shorter than the context" in error, error)
    same("and goes back", browser.run(f"{at('message')}.value"), long.strip())
    set_value(browser, "message", "")
    browser.run(f"{at('message')}.focus()")
    browser.write("a")
    browser.press("Enter", "\r", modifiers=8)
    browser.write("b")
    same("shift and enter", browser.run(f"{at('message')}.value"), "a\nb")
    set_value(browser, "message", "")


def check_reload(browser, server):
    """What was said, and the options, are there again in the same tab."""
    set_value(browser, "max_tokens", "6")
    send(browser, "hello")
    before = answered(browser)
    shown = "[...document.querySelectorAll('.turn')].map((t) => t.textContent)"
    turns = browser.run(shown)
    set_value(browser, "message", "a draft")
    browser.run("window.isOld = true; setTimeout(() => location.reload(), 0)")
    browser.until("!window.isOld && document.readyState === 'complete' && document.querySelectorAll('.turn').length === 2")
    same("after a reload: turns", browser.run(shown), turns)
    same("after a reload: options and draft", browser.run(f"[{at('max_tokens')}.value, {at('message')}.value]"), ["6", "a draft"])
    set_value(browser, "message", "")
    send(browser, "and then?")
    same("it goes on", answered(browser)[:2], before)
    holds("from what was cached", "cached)" in browser.run("[...document.querySelectorAll('.facts')].at(-1).textContent"))
    browser.run(f"{at('new-chat')}.click()")


def check_models(browser):
    names = browser.run(f"[...{at('chat-model')}.options].map((o) => o.value)")
    same("only models with a template chat", names, ["tiny-chat"])


# Where CommonMark and the page agree; the page has one level of headings.
MARKDOWN = [
    "One *two* **three** ***four*** `five`\nsix.\n\nSeven __eight__ _nine_ snake_case_name 2*3*4 ** a ** b",
    "# Title #\ntext\n### Sub `x`\n***\n> quoted *text*\n> more\n\nafter",
    "- a\n- b\n  - c\n    1. d\n  - e\n\n    more e\n- f\nlazy\n\n3. x\n4. y\n\n* other\n+ kind",
    "  - a\n  - b\n\n10. ten\n    in ten\n11. eleven",
    "```python\nif a < b:\n    print('*x*')\n\nend\n```\n~~~\n``` x\n~~~\nend\n```\nopen *x*",
    "[a b](https://a.example/x?y=1&z=2) and [c](http://b.example) [no](javascript:alert) [d] (e) [f]",
    "`` a ` b `` ``c` d \\*e\\* \\_ \\q *f **g** h* **i *j* k** *l",
    "<script>alert(1)</script> <b onclick=x>y</b> < & \"z\"",
    "- ```\n  code\n\n  more\n  ```\n- > q\n  > r\n\n1) a\n2) b\n-\n- x",
    "üñí *ö* 世界**界**\n\ttab",
]


def check_markdown(browser):
    """The HTML of a text is that of an implementation of CommonMark, but for what the page leaves out."""
    shown = "import('/page/markdown.js').then((m) => {{ const d = document.createElement('div'); m.showMarkdown(d, {}); return d.innerHTML; }})"
    html = lambda text: browser.run(shown.format(json.dumps(text)))
    same("links to others are text", "<a" in html("[x](javascript:alert(1)) [y](data:text/html,x) [z](//a.example)"), False)
    hostile = ["*" * 50000, "- " * 20000, "> " * 20000, "[" * 50000, "`a``" * 20000, "**a *b " * 20000, "_a __b " * 20000, "http://" * 9000, "\n- a" * 9000]
    for text in hostile:
        holds(f"hostile Markdown {text[:8]!r}", html(text))
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        return print("skipped: Markdown is not compared (pip install markdown-it-py)")
    reader = MarkdownIt("commonmark", {"html": False})
    for text in MARKDOWN:
        same(f"Markdown {text[:24]!r}", plain(html(text)), plain(reader.render(text)))


def plain(html):
    """HTML without what the page has of its own: the level of headings, paragraphs in items, attributes, spaces between tags."""
    html = re.sub(r"(</?h)[1-6]", r"\g<1>4", html).replace("<br>", "\n")
    html = re.sub(r' (target|rel|class|tabindex)="[^"]*"|<p>|</p>\s*', "", html).replace("&quot;", '"').replace(' start="1"', "")
    html = re.sub(r"<(hr|br) ?/>", r"<\1>", html).replace("</code>\n", "</code>").replace("\n</code></pre>", "</code></pre>")
    return re.sub(r"\s*(</?(?:ul|ol|li|pre|blockquote|h4|hr)[^>]*>)\s*", r"\1", html).strip()


def check_narrow(browser):
    """On a telephone: the page follows the answer, and an error is in view."""
    browser.look(400, 700, "light")
    set_value(browser, "max_tokens", "60")
    set_value(browser, "temperature", "0")
    for _ in range(3):
        send(browser, "hello there\n" * 3)
        answered(browser)
    holds("the page is longer than the window", browser.run("document.scrollingElement.scrollHeight > innerHeight + 200"))
    room = f"{at('ask')}.getBoundingClientRect().top - [...document.querySelectorAll('.turn')].at(-1).getBoundingClientRect().bottom"
    holds("the end of the answer is above the field", -1 <= browser.run(room) <= 60, browser.run(room))
    browser.run("scrollTo(0, 0)")
    set_value(browser, "schema", "{")
    send(browser, "hello")
    box = browser.run(f"(({{ top, bottom, height }}) => [top, bottom, height, innerHeight])({at('chat-error')}.getBoundingClientRect())")
    holds("an error is in view", box[2] > 0 and box[0] >= 0 and box[1] <= box[3], box)
    set_value(browser, "schema", "")
    set_value(browser, "message", "")
    browser.run(f"{at('new-chat')}.click()")
    browser.look(1400, 900, "light")


def check_stop(browser):
    set_value(browser, "max_tokens", "400")
    is_busy = f"{at('turns')}.getAttribute('aria-busy') === 'true'"
    was_busy = False
    for _ in range(40):
        send(browser, "sky")
        browser.until("document.querySelector('.turn.assistant .text')?.textContent.length > 5 || " + f"{at('stop')}.hidden")
        was_busy |= browser.run(is_busy)
        browser.press("Escape")
        [_, text] = answered(browser)
        facts = browser.run("document.querySelector('.turn.assistant .facts').textContent")
        if was_busy and "stopped" in facts and len(text) > 5:
            break
        # A short answer has ended by itself.
        browser.run(f"{at('new-chat')}.click()")
    holds("it is told as busy", was_busy)
    holds("escape stops", "stopped" in facts and len(text) > 5, facts)
    same("it is complete", browser.run(f"{at('turns')}.getAttribute('aria-busy')"), "false")


def check_embeddings(browser, thane):
    browser.run(f"{at('tab-embed')}.click()")
    set_value(browser, "texts", "\n".join(TEXTS) + "\n\n")
    browser.run("document.querySelector('#embed-form button').click()")
    browser.until(f"!{at('matrix')}.hidden && {at('embed-status')}.textContent.startsWith('Most alike')")
    cells = browser.run("[...document.querySelectorAll('#matrix tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))")
    command = [thane, "embed", "--json", "--quiet", "--numerics", "f32", BERT, *TEXTS]
    vectors = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["embeddings"]
    unit = [[x / sum(y * y for y in v) ** 0.5 for x in v] for v in vectors]
    cosines = [[sum(x * y for x, y in zip(a, b)) for b in unit] for a in unit]
    near = all(abs(float(c) - x) < 0.0051 for row, line in zip(cells, cosines) for c, x in zip(row[1:], line))
    holds("cosines of thane embed", near and len(cells) == 3, cells)
    same("texts are headers", [row[0] for row in cells], [f"{i + 1} {t}" for i, t in enumerate(TEXTS)])
    scopes = browser.run("[...document.querySelectorAll('#matrix th')].map((t) => t.scope)")
    same("scopes", sorted(scopes), ["col"] * 3 + ["row"] * 3)
    set_value(browser, "texts", "one")
    browser.run("document.querySelector('#embed-form button').click()")
    holds("one text is an error", "found 1" in browser.until(f"{at('embed-error')}.textContent"))


def check_tabs(browser):
    browser.run(f"{at('tab-chat')}.click(); {at('tab-chat')}.focus()")
    state = lambda: browser.run(
        "[document.activeElement.id, document.querySelector('[aria-selected=true]').id, "
        "[...document.querySelectorAll('[role=tabpanel]')].filter((p) => !p.hidden).map((p) => p.id).join()]"
    )
    for key, view in [("ArrowRight", "embed"), ("End", "status"), ("ArrowRight", "chat"), ("ArrowLeft", "status"), ("Home", "chat")]:
        browser.press(key)
        same(f"tabs: {key}", state(), [f"tab-{view}", f"tab-{view}", view])


def check_audit(browser, folder):
    browser.run(f"{at('tab-audit')}.click()")
    button = "document.querySelector('#audit-form button')"
    browser.run(f"{button}.click()")
    holds("nothing chosen", "choose one above" in browser.until(f"{at('audit-error')}.textContent"))
    archive = folder / "model.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as z:
        for path in PACKAGE.rglob("*"):
            z.write(path, path.relative_to(PACKAGE.parent))
    for selector, path in [("#archive", archive), ("#folder", PACKAGE)]:
        browser.choose_files(selector, path)
        browser.run(f"{at('audit-status')}.textContent = ''; {button}.click()")
        said = browser.until(f"{at('audit-error')}.textContent || {at('audit-status')}.textContent.includes('below') && 'done'")
        same(f"audit of {selector}", said, "done")
        browser.until(f"{at('report')}.src.startsWith('blob:')")
    set_value(browser, "targets", "m99")
    browser.run(f"{button}.click()")
    error = browser.until(f"{at('audit-error')}.textContent")
    holds("a chip that does not exist", "m99" in error, error)
    set_value(browser, "targets", "m4")


def check_report(browser):
    """The report in its frame, which has no origin and so a process of its own."""
    with browser.frame() as run:
        browser.until(f"document.readyState === 'complete' && document.title.includes({json.dumps(PACKAGE.name)})")
        same("its script has filled the table", run("document.getElementById('table').tBodies[0].rows.length"), 2)
        same("its style is there", run("getComputedStyle(document.querySelector('.skip')).position"), "absolute")
        run("document.querySelector('.skip').click()")
        same("its links lead to their places", run("document.activeElement.id"), "ops")
        same("it has no origin", run("origin"), "null")


def check_zip(browser):
    """Archives that the page packs, as Python reads them."""
    script = """import('/page/zip.js').then(async ({ zip }) => {
        const files = [['a/ä.txt', new Blob(['hello'])], ['a/empty', new Blob([])], ['b', new Blob([new Uint8Array(70000).map((_, i) => i * 7)])]];
        const bytes = new Uint8Array(await (await zip(files)).arrayBuffer());
        return btoa(bytes.reduce((s, b) => s + String.fromCharCode(b), ''));
    })"""
    with zipfile.ZipFile(io.BytesIO(b64decode(browser.run(script)))) as z:
        same("zip: checksums", z.testzip(), None)
        same("zip: names", z.namelist(), ["a/ä.txt", "a/empty", "b"])
        same("zip: contents", (z.read("a/ä.txt"), z.read("b")), (b"hello", bytes(i * 7 % 256 for i in range(70000))))


def check_status(browser, server):
    browser.run(f"{at('tab-status')}.click()")
    # What was read last may be older than the last answer.
    browser.run(f"{at('models')}.replaceChildren()")
    browser.until("document.querySelectorAll('#models tbody tr').length > 5")
    rows = browser.run("Object.fromEntries([...document.querySelectorAll('#models tbody tr')].map((r) => [r.cells[0].textContent, [...r.cells].slice(1).map((c) => c.textContent)]))")
    labels = browser.run("[...document.querySelectorAll('svg[role=img]')].map((s) => s.getAttribute('aria-label'))")
    holds("charts have names", len(labels) == 3 and labels[0].startswith("Requests, now: running"), labels)
    headers, text = server.get("/metrics")
    same("metrics: type", headers["content-type"], "text/plain; version=0.0.4; charset=utf-8")
    metrics = parsed(text)
    value = lambda name, **labels: metrics[(name, frozenset(labels.items()))]
    for name, row in {"thane_prompt_tokens_total": "prompt tokens", "thane_generated_tokens_total": "generated tokens"}.items():
        same(f"status: {row}", rows[row][0], f"{value(name, model='tiny-chat'):.0f}")
    holds("tokens were counted", value("thane_generated_tokens_total", model="tiny-chat") > 10)
    n = value("thane_time_to_first_token_seconds_count", model="tiny-chat")
    same("each answer has a first token", n, value("thane_requests_total", model="tiny-chat", outcome="completed"))
    holds("embeddings were timed", value("thane_embed_seconds_count", model="bert-mean") == 1)
    holds("memory", value("process_resident_memory_bytes") > 1e6)


def parsed(text):
    """Samples by name and labels; read by the official parser where it is installed."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        print("skipped: the metrics are not read by prometheus_client (pip install prometheus-client)")
        text_string_to_metric_families = None
    if text_string_to_metric_families:
        families = list(text_string_to_metric_families(text))
        holds("every metric has a type and help", all(f.type != "unknown" and f.documentation for f in families))
        return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}
    samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name, _, inner = name.partition("{")
            pairs = [pair.split("=", 1) for pair in inner.rstrip("}").split(",") if pair]
            samples[(name, frozenset((k, v.strip('"')) for k, v in pairs))] = float(value)
    return samples


def fill_chat(browser):
    """A turn, an error and all options, for what looks at the view."""
    browser.run(f"{at('tab-chat')}.click(); document.querySelectorAll('details').forEach((d) => {{ d.open = true; }})")
    send(browser, "hello")
    answered(browser)
    set_value(browser, "schema", "{")
    send(browser, "hello")
    browser.until(f"{at('chat-error')}.textContent")


def check_looks(browser, axe):
    fill_chat(browser)
    for width in (1400, 400):
        for scheme in ("light", "dark"):
            browser.look(width, 900, scheme)
            for view in VIEWS:
                browser.run(f"{at('tab-' + view)}.click()")
                name = f"{view}, {width} wide, {scheme}"
                over = browser.run("document.documentElement.scrollWidth - innerWidth")
                holds(f"{name}: no wider than the window", over <= 0, over)
                if axe:
                    holds_axe(browser, axe, name)
    browser.look(1400, 900, "light")


def holds_axe(browser, axe, name):
    same(f"{name}: axe", browser.violations(axe), [])


def check_key(browser, server, axe):
    open_page(browser, server)
    holds("the page asks for a key", browser.run(f"!{at('key-form')}.hidden && {at('chat')}.hidden"))
    if axe:
        holds_axe(browser, axe, "key")
    for key, is_right in [("wrong", False), (KEY, True)]:
        browser.run(f"{at('key')}.focus()")
        browser.write(key)
        browser.press("Enter", "\r")
        if is_right:
            browser.until(f"{at('key-form')}.hidden && !{at('chat')}.hidden")
        else:
            error = browser.until(f"{at('key-error')}.textContent")
            holds("a wrong key", "none that this server" in error, error)
    same("the key is in this tab alone", browser.run("[sessionStorage.length, localStorage.length, document.cookie]"), [1, 0, ""])
    holds("and in no address", KEY not in " ".join(browser.requested()) + browser.run("location.href"))
    check_stop(browser)


def check_faults(browser, server):
    """Nothing that was not expected in the console, and nothing asked of another address."""
    ours = (server.address, "blob:", "data:", "about:")
    others = [u for u in browser.requested() if not u.startswith(ours)]
    same("nothing is asked of others", others, [])
    refused = "Failed to load resource: the server responded with a status of 4"
    same("no errors", [f for f in browser.faults() if not f.startswith(refused)], [])


def picture(thane, browser, file, models):
    with Served(thane, models=models) as server:
        browser.look(1000, 560, "light")
        open_page(browser, server)
        set_value(browser, "max_tokens", "90")
        set_value(browser, "temperature", "0")
        set_value(browser, "system", "You are a helpful assistant.")
        send(browser, "Explain in two sentences what a neural network is.")
        answered(browser)
        browser.run("document.activeElement.blur()")
        browser.picture(pathlib.Path(file))
        print(file, pathlib.Path(file).stat().st_size)


def main():
    thane, program = sys.argv[1:3]
    axe = axe_source()
    if not axe:
        print("skipped: axe-core is missing (pip install --no-deps axe-playwright-python)")
    folder = pathlib.Path(tempfile.mkdtemp())
    browser = Browser(program, folder)
    try:
        if sys.argv[3:4] == ["--picture"]:
            return picture(thane, browser, sys.argv[4], sys.argv[5:])
        base = folder / "base"
        shutil.copytree(CHAT, base)
        config = json.loads((base / "tokenizer_config.json").read_text())
        del config["chat_template"]
        (base / "tokenizer_config.json").write_text(json.dumps(config))
        with Served(thane, "--context", "512", "--numerics", "f32", models=(CHAT, base, BERT)) as server:
            browser.look(1400, 900, "light")
            check_headers(server)
            open_page(browser, server)
            check_tabs(browser)
            check_chat(browser)
            check_chat_errors(browser)
            check_models(browser)
            check_reload(browser, server)
            check_narrow(browser)
            check_markdown(browser)
            check_embeddings(browser, thane)
            check_audit(browser, folder)
            check_report(browser)
            check_zip(browser)
            check_status(browser, server)
            check_looks(browser, axe)
            check_faults(browser, server)
        # These numerics are slow.
        with Served(thane, "--context", "512", "--numerics", "ane", "--api-key", KEY) as server:
            check_key(browser, server, axe)
            check_faults(browser, server)
    finally:
        browser.close()
        shutil.rmtree(folder, ignore_errors=True)
    print("the page of the server: all ok")


if __name__ == "__main__":
    main()
