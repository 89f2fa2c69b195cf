"""What is attacked: for each parser how many inputs it gets, and how one is made."""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import formats, lying_hub, mutate, templates, tokenizers

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ROOT / "tests"
TINY = TESTS / "models"
CHAT = TINY / "tiny-chat"

# A verb that was given an input that is damaged ends with 2; 1 is for what a gate denies.
READS = frozenset({0, 2})
JUDGES = frozenset({0, 1, 2})
FETCHES = frozenset({0, 1, 2, 5})


@dataclass
class Case:
    """A command over the files that lie in its folder, and what may be the end of it."""

    args: list
    codes: frozenset = READS
    # A file of the folder that is read from there.
    stdin: str = ""
    env: dict = field(default_factory=dict)
    # Files that may be there after a failure: what a run that goes on needs.
    keeps: tuple = ()
    limit_s: float = 10


class Seeds:
    """Valid inputs: those of the repository, and those that thane itself writes. Made once, in `folder`."""

    def __init__(self, thane, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True)
        run = lambda *args: (
            subprocess.run(
                [thane, *map(str, args)], check=True, capture_output=True, cwd=folder
            ).stdout
        )
        run("convert", CHAT, "-o", "chat.mlpackage", "--context", "64")
        run(
            "convert",
            CHAT,
            "-o",
            "engine.mlpackage",
            "--form",
            "ane",
            "--context",
            "64",
            "--block",
            "8",
        )
        run("convert", CHAT, "-o", "chat.mlmodelc", "--context", "64")
        run("convert", TINY / "tiny" / "llama-linear", "-o", "linear.mlmodelc", "--context", "64")
        embed = TINY / "tiny-embed" / "bert-mean"
        run(
            "convert",
            embed,
            "-o",
            "bundle",
            "--task",
            "embed",
            "--layout",
            "folder",
            "--buckets",
            "24",
        )
        run("convert", embed, "-o", "embed.mlpackage", "--task", "embed", "--buckets", "24")
        self.broken = TESTS / "example" / "broken.mil"
        self.baseline = run("audit", self.broken, "--format", "json").decode()
        self.analytics = run("audit", self.broken, "--format", "mil").decode()
        self.journal = self._journal(thane, embed)
        self.gguf = [p.read_bytes() for p in sorted(Path(ROOT / "fuzz/seeds/gguf").iterdir())]
        self.gguf += [p.read_bytes() for p in sorted((TINY / "tiny-gguf").glob("*.gguf"))]
        self.chat_gguf = (CHAT / "tiny-chat.gguf").read_bytes()
        texts = [
            *(ROOT / "fuzz/seeds").glob("*/*.mil"),
            *TESTS.glob("audit/*.mil"),
            *TESTS.glob("fixes/*.mil"),
        ]
        texts += [
            *TESTS.glob("ops/*.mil"),
            *TESTS.glob("passes/*/*.mil"),
            *TESTS.glob("fused/*.mil"),
        ]
        self.mil = [p.read_text() for p in sorted(texts)]
        self.packages = sorted((TESTS / "packages").glob("*.mlpackage")) + [
            self.folder / "chat.mlpackage"
        ]
        self.compiled = [self.folder / "chat.mlmodelc", self.folder / "linear.mlmodelc"]
        self.folders = sorted(p.parent for p in (TINY / "tiny").glob("*/config.json")) + [CHAT]
        self.encoders = [
            TINY / "tiny-embed" / n
            for n in [
                "bert-cls",
                "bert-mean",
                "embeddinggemma",
                "modernbert-cls",
                "qwen3-embedding",
            ]
        ]
        self.tokenizers = [p.read_text() for p in sorted(TINY.glob("*/tokenizer.json"))]
        self.tokenizers += [p.read_text() for p in sorted(TINY.glob("*/*/tokenizer.json"))]

    def _journal(self, thane, model):
        """What a run that was killed leaves: (settings and windows, the texts)."""
        rows, out = self.folder / "rows.jsonl", self.folder / "journal"
        rows.write_text("".join(json.dumps({"text": f"row {i} " * 6}) + "\n" for i in range(6000)))
        out.mkdir()
        command = [
            thane,
            "embed",
            "--quiet",
            model,
            "-f",
            rows,
            "-o",
            "out.npy",
            "--batch-tokens",
            "64",
        ]
        job = subprocess.Popen(command, cwd=out)
        for _ in range(3000):
            found = list(out.iterdir())
            if found and found[0].stat().st_size > 4000 or job.poll() is not None:
                break
            time.sleep(0.01)
        job.send_signal(signal.SIGKILL)
        job.wait()
        assert found, "embed left no journal"
        return found[0].name, found[0].read_bytes()[:100_000]


def copy_folder(source, to, leave_out=()):
    """A folder's files, without what is not a part of the model."""
    to.mkdir()
    for path in source.iterdir():
        if path.is_dir():
            copy_folder(path, to / path.name)
        elif (
            not path.name.startswith("golden.")
            and path.suffix != ".gguf"
            and path.name not in leave_out
        ):
            shutil.copyfile(path, to / path.name)
    return to


# What is done with a model; the last word is where it goes in.
def _use(rng, model, prompts=("hello", "a", "", "the\0", "日本語 é", "<|im_start|>x", "a " * 200)):
    prompt = rng.choice(prompts).replace("\0", "")
    verbs = [
        ["show", model],
        ["show", "--tensors", model],
        ["run", "--raw", "--max-tokens", "1", model, prompt or "x"],
        ["run", "--raw", "--max-tokens", "1", model, prompt or "x"],
        ["run", "--max-tokens", "1", model, prompt or "x"],
        ["inspect", "--stats", model],
        ["convert", model, "-o", "out.mlpackage"],
        [
            "convert",
            model,
            "-o",
            "out.mlpackage",
            "--form",
            "ane",
            "--context",
            "16",
            "--block",
            "4",
        ],
        ["audit", model],
    ]
    args = rng.choice(verbs)
    return Case(args, JUDGES if args[0] == "audit" else READS)


def gguf(rng, folder, seeds):
    seed = rng.choice(seeds.gguf)
    if rng.random() < 0.5:
        data = mutate.change_bytes(rng, seed, seeds.gguf, head=2048)
    else:
        data = formats.change_gguf(rng, seed)
    (folder / "m.gguf").write_bytes(data)
    return _use(rng, "m.gguf")


def vocabulary(rng, folder, seeds):
    file = formats.Gguf(seeds.chat_gguf)
    tokenizers.vocabulary_keys(rng, file)
    (folder / "m.gguf").write_bytes(file.pack())
    texts = ["hello", "The 12 quick é 日本", "<s></s><|im_end|>", "a" * 3000, "\t\n  ", "x"]
    raw = rng.choice([["--raw"], ["--raw"], []])
    return Case(["run", *raw, "--max-tokens", "1", "m.gguf", rng.choice(texts)])


def safetensors(rng, folder, seeds):
    to = copy_folder(rng.choice(seeds.folders), folder / "m")
    path = rng.choice(sorted(to.glob("*.safetensors")))
    data = path.read_bytes()
    kind = rng.random()
    if kind < 0.35:
        data = mutate.change_bytes(rng, data)
    else:
        header, rest = formats.split_safetensors(data)
        header = mutate.change_json(rng, header, {"shape", "data_offsets", "dtype"})
        size = None if kind < 0.9 else rng.choice(mutate.INTEGERS)
        data = formats.join_safetensors(header, rest, size)
    path.write_bytes(data)
    return _use(rng, "m")


def config(rng, folder, seeds):
    to = copy_folder(rng.choice(seeds.folders), folder / "m")
    (to / "generation_config.json").write_text(
        '{"eos_token_id": [0, 2], "temperature": 0.6, "top_p": 0.9, "top_k": 20}'
    )
    sides = ["generation_config.json", "tokenizer_config.json", "special_tokens_map.json"]
    names = ["config.json"] * 6 + [n for n in sides if (to / n).exists()]
    path = to / rng.choice(names)
    path.write_text(mutate.change_json(rng, path.read_text()), errors="surrogatepass")
    return _use(rng, "m")


def index(rng, folder, seeds):
    to = copy_folder(TINY / "tiny" / "llama-linear", folder / "m")
    path = to / "model.safetensors.index.json"
    change = rng.randrange(5)
    if change == 0:
        shards = sorted(to.glob("model-*"))
        rng.choice(
            [
                lambda: shards[0].unlink(),
                lambda: shards[1].write_bytes(b""),
                lambda: shutil.copyfile(shards[0], shards[1]),
            ]
        )()
    elif change == 1:
        value = json.loads(path.read_text())
        names = [
            "../m/config.json",
            "/etc/passwd",
            "",
            ".",
            "config.json",
            "a\0b",
            "x" * 5000,
            "model-00001-of-00003.safetensors",
        ]
        for key in rng.sample(list(value["weight_map"]), rng.choice([1, 3])):
            value["weight_map"][key] = rng.choice(names)
        path.write_text(json.dumps(value))
    else:
        path.write_text(mutate.change_json(rng, path.read_text()), errors="surrogatepass")
    return _use(rng, "m")


def sentence(rng, folder, seeds):
    to = copy_folder(rng.choice(seeds.encoders), folder / "m")
    files = (
        sorted(p for p in to.rglob("*.json") if p.name != "tokenizer.json")
        + [to / "modules.json"] * 3
    )
    path = rng.choice(files)
    path.write_text(mutate.change_json(rng, path.read_text()), errors="surrogatepass")
    verbs = [
        ["embed", "m", "a b"],
        ["show", "m"],
        ["convert", "m", "-o", "out.mlpackage", "--task", "embed", "--buckets", "8"],
    ]
    return Case(rng.choice(verbs))


def tokenizer(rng, folder, seeds):
    source = CHAT if rng.random() < 0.6 else rng.choice(seeds.encoders)
    # Now and then another model's.
    valid = (
        (source / "tokenizer.json").read_text()
        if rng.random() < 0.95
        else rng.choice(seeds.tokenizers)
    )
    kind = rng.random()
    if kind < 0.4:
        text = tokenizers.random(rng, valid)
    else:
        text = valid
        places = {
            "normalizer",
            "pre_tokenizer",
            "post_processor",
            "decoder",
            "truncation",
            "padding",
            "added_tokens",
            "merges",
        }
        text = mutate.truncate(rng, text) if kind < 0.55 else mutate.change_json(rng, text, places)
    to = copy_folder(source, folder / "m", ["tokenizer.json"])
    (to / "tokenizer.json").write_text(text, errors="surrogatepass")
    words = rng.choice(
        [
            "hello world",
            "The 12 quick é 日本 [CLS]",
            "a" * 5000,
            "  \t ",
            "<|im_start|>",
            "aaaa bbb" * 200,
            "x",
        ]
    )
    if source == CHAT:
        return Case(["run", *rng.choice([["--raw"], []]), "--max-tokens", "2", "m", words])
    verbs = [
        ["embed", "m", words],
        ["embed", "m", words],
        ["convert", "m", "-o", "out.mlpackage", "--task", "embed", "--buckets", "8"],
    ]
    return Case(rng.choice(verbs))


def template(rng, folder, seeds):
    kind = rng.random()
    text = templates.crafted(rng) if kind < 0.5 else templates.random(rng)
    if kind > 0.9:
        text = mutate.change_text(rng, text)
    where = rng.randrange(3)
    model = "m" if where else "m.gguf"
    if where == 0:
        file = formats.Gguf(seeds.chat_gguf)
        file.set(b"tokenizer.chat_template", formats.STRING, formats.string(text))
        (folder / model).write_bytes(file.pack())
    else:
        to = copy_folder(CHAT, folder / model)
        settings = json.loads((to / "tokenizer_config.json").read_text())
        if where == 1:
            named = [{"name": "default", "template": text}, {"name": "tool_use", "template": text}]
            settings["chat_template"] = rng.choice([text, text, text, named])
        else:
            del settings["chat_template"]
            (to / "chat_template.jinja").write_text(text, errors="surrogatepass")
        (to / "tokenizer_config.json").write_text(json.dumps(settings))
    raw = ["--raw"] if rng.random() < 0.1 else rng.choice([[], [], ["--system", "Be brief."]])
    verb = ["run", *raw, "--max-tokens", "1", model, rng.choice(["hello", "{{ 1 }}", "a" * 1000])]
    return Case(verb if rng.random() < 0.95 else ["convert", model, "-o", "out.mlpackage"])


def mil(rng, folder, seeds):
    text = mutate.change_text(rng, rng.choice(seeds.mil), seeds.mil)
    (folder / "p.mil").write_text(text, errors="surrogatepass")
    verbs = [["audit", "p.mil"]] * 5 + [
        ["audit", "p.mil", "--fix", "-o", "out.mil"],
        ["audit", "p.mil", "--fix", "-o", "out.mlpackage"],
    ]
    verbs += [
        ["audit", "p.mil", "--format", "mil"],
        ["explain", "-14", "p.mil"],
        ["bisect", "p.mil", "-o", "out.mil"],
    ]
    return Case(rng.choice(verbs), JUDGES)


def _package_verbs(rng, name):
    verbs = [
        ["check", name],
        ["inspect", name],
        ["inspect", "--stats", name],
        ["predict", name, "--out", "out"],
    ]
    verbs += [
        ["predict", name, "--out", "out"],
        ["audit", name],
        ["diff", name, name],
        ["run", name, "hello", "--max-tokens", "1"],
    ]
    args = rng.choice(verbs)
    return Case(args, JUDGES if args[0] in ("check", "audit", "diff") else READS)


def package(rng, folder, seeds):
    to = folder / "p.mlpackage"
    shutil.copytree(rng.choice(seeds.packages), to)
    data = to / "Data/com.apple.CoreML"
    kind = rng.random()
    if kind < 0.15:
        path = to / "Manifest.json"
        path.write_text(mutate.change_json(rng, path.read_text()), errors="surrogatepass")
    elif kind < 0.35 and (data / "weights/weight.bin").exists():
        path = data / "weights/weight.bin"
        path.write_bytes(mutate.change_bytes(rng, path.read_bytes(), head=256))
    else:
        path = data / "model.mlmodel"
        bytes_ = path.read_bytes()
        for _ in range(rng.choice([1, 1, 1, 3])):
            bytes_ = (
                mutate.change_message(rng, bytes_)
                if rng.random() < 0.85
                else mutate.change_bytes(rng, bytes_)
            )
        path.write_bytes(bytes_)
    return _package_verbs(rng, to.name)


def compiled(rng, folder, seeds):
    to = folder / "p.mlmodelc"
    shutil.copytree(rng.choice(seeds.compiled), to)
    path = rng.choice([to / "model.mil"] * 4 + sorted(p for p in to.rglob("*") if p.is_file()))
    if path.suffix == ".mil":
        path.write_text(mutate.change_text(rng, path.read_text()), errors="surrogatepass")
    elif path.suffix == ".json":
        path.write_text(mutate.change_json(rng, path.read_text()), errors="surrogatepass")
    else:
        path.write_bytes(mutate.change_bytes(rng, path.read_bytes(), head=256))
    return _package_verbs(rng, to.name)


def contract(rng, folder, seeds):
    """What lies beside the model in packages of thane's own."""
    to = folder / "p.mlpackage"
    name = rng.choice(["chat", "engine", "embed"])
    shutil.copytree(seeds.folder / f"{name}.mlpackage", to)
    paths = sorted((to / "Data/ai.thane").iterdir())
    path = rng.choice(paths)
    path.write_text(mutate.change_json(rng, path.read_text()), errors="surrogatepass")
    if rng.random() < 0.7 and path.name != "contract.json":
        # With the hash put right, so that what it says counts.
        facts = json.loads((to / "Data/ai.thane/contract.json").read_text())
        for file in facts["files"]:
            if file["path"].endswith(path.name):
                file |= {
                    "sha256": lying_hub.sha256(path.read_bytes()),
                    **({"bytes": path.stat().st_size} if "bytes" in file else {}),
                }
        (to / "Data/ai.thane/contract.json").write_text(json.dumps(facts))
    if name == "embed":
        return Case(
            rng.choice([["embed", to.name, "a b"], ["verify", to.name], ["check", to.name]]), JUDGES
        )
    return Case(
        rng.choice(
            [["run", "--max-tokens", "1", to.name, "hello"], ["show", to.name], ["check", to.name]]
        ),
        JUDGES,
    )


def bundle(rng, folder, seeds):
    to = folder / "b"
    shutil.copytree(seeds.folder / "bundle", to)
    path = to / "manifest.json"
    if rng.random() < 0.8:
        path.write_text(mutate.change_json(rng, path.read_text()), errors="surrogatepass")
    else:
        path = rng.choice(sorted(p for p in to.rglob("*") if p.is_file()))
        path.write_bytes(mutate.change_bytes(rng, path.read_bytes()))
    return Case(
        rng.choice([["embed", "b", "a b"], ["verify", "b"], ["audit", "b"], ["show", "b"]]), JUDGES
    )


PORTS = [
    ("ios18_state", "--input", "x"),
    ("ios18_state", "--state", "cache"),
    ("multifunction", "--input", "x"),
]
PORTS += [("described", "--input", "x"), ("ranges", "--input", "x")]


def npy(rng, folder, seeds):
    data = formats.npy(rng)
    if rng.random() < 0.5:
        descr, shape, n_bytes = rng.choice(
            [("<f4", "(3, 4)", 48), ("<f4", "(3, 5)", 60), ("<f2", "(2, 11)", 44)]
        )
        head = f"\x93NUMPY\x01\x00v\x00{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode(
            "latin-1"
        )
        data = mutate.change_bytes(
            rng, head + b" " * (127 - len(head)) + b"\n" + bytes(n_bytes), head=200
        )
    (folder / "x.npy").write_bytes(data)
    name, where, port = rng.choice(PORTS)
    return Case(
        [
            "predict",
            TESTS / "packages" / f"{name}.mlpackage",
            where,
            f"{port}=x.npy",
            "--out",
            "out",
        ]
    )


TEXTS = [
    "hello",
    "",
    "two words",
    "é 日本",
    "x" * 500,
    "a\nb",
    '"quoted", with commas',
    "\0",
    "🦀" * 40,
]


def _embed_rows(rng, folder, name, extra=()):
    model = TINY / "tiny-embed" / "bert-mean"
    out = rng.choice([[], ["-o", "out.npy"], ["-o", "out.parquet"], ["-o", "out.jsonl"]])
    kind = rng.random()
    if kind < 0.1:
        return Case(["buckets", model, "-f", name])
    if kind < 0.2 and name in ("x.jsonl", "x.txt"):
        field = ["--field", "text"] if name == "x.jsonl" else []
        return Case(["embed", model, *field, *extra], stdin=name)
    cut = rng.choice([[], ["--truncate"]])
    return Case(["embed", model, "-f", name, *extra, *out, *cut], keeps=("out",))


def jsonl(rng, folder, seeds):
    rows = [
        json.dumps(
            {"id": i, "text": rng.choice(TEXTS), "n": [1, {"a": None}]},
            ensure_ascii=rng.random() < 0.5,
        )
        for i in range(6)
    ]
    chunks = rng.random() < 0.2
    if chunks:
        rows = [json.dumps({"text": [rng.choice(TEXTS), "b"]}) for _ in range(4)]
    at = rng.randrange(len(rows))
    kind = rng.random()
    if kind < 0.7:
        rows[at] = mutate.change_json(rng, rows[at])
    elif kind < 0.72:
        # A line of tens of megabytes, of one string or of a million small things.
        rows[at] = rng.choice(
            [
                '{"text": "' + "a" * 60_000_000 + '"}',
                '{"x": [' + "1," * 15_000_000 + '1], "text": "a"}',
                '{"text": "a", "x": ' + "[" * 3_000_000,
            ]
        )
    data = "\n".join(rows).encode("utf-8", "surrogatepass")
    if kind >= 0.72:
        data = mutate.change_bytes(rng, data)
    (folder / "x.jsonl").write_bytes(data)
    return _embed_rows(rng, folder, "x.jsonl", ["--chunks"] if chunks else [])


def text_rows(rng, folder, seeds):
    data = "\n".join(rng.choice(TEXTS) for _ in range(8)).encode()
    if rng.random() < 0.9:
        data = mutate.change_bytes(rng, data)
    else:
        data = rng.choice(
            [
                b"",
                b"\n" * 20000,
                b"a" * 3_000_000,
                b"\xff\xfe" * 100,
                b"\xef\xbb\xbf" * 50,
                b"\0" * 5000,
                b"a\r" * 999,
            ]
        )
    (folder / "x.txt").write_bytes(data)
    return _embed_rows(rng, folder, "x.txt")


ODD_ROWS = [
    "5",
    '6,"open',
    "7,a,b",
    ",",
    '"',
    "\0,\0",
    "8," + "x" * 5000,
    '9,"a"b',
    "",
    "10,\udcff",
]


def csv(rng, folder, seeds):
    odd = ["text,text", '"text"', "", "id;text", "a," * 3000 + "text", "text"]
    header = rng.choice(["id,text"] * 4 + ["\ufeffid,text", *odd])
    rows = ["1,hello", '2,"a, b"', '3,"two\nlines"', '4,"say ""x"""']
    if rng.random() < 0.4:
        rows.insert(rng.randrange(5), rng.choice(ODD_ROWS))
    text = rng.choice(["\n", "\n", "\r\n", "\r"]).join([header, *rows])
    data = text.encode("utf-8", "surrogateescape")
    if rng.random() < 0.4:
        data = mutate.change_bytes(rng, data)
    elif rng.random() < 0.02:
        data = b'text\n"' + b"a" * 60_000_000
    (folder / "x.csv").write_bytes(data)
    return _embed_rows(rng, folder, "x.csv")


def parquet(rng, folder, seeds):
    texts = [rng.choice(TEXTS) for _ in range(rng.choice([0, 1, 3, 17]))]
    data = formats.parquet(rng, texts, rng.random() < 0.8)
    if rng.random() < 0.2:
        data = mutate.change_bytes(rng, data, head=len(data) + 1)
    (folder / "x.parquet").write_bytes(data)
    return _embed_rows(rng, folder, "x.parquet")


def journal(rng, folder, seeds):
    name, data = seeds.journal
    kind = rng.random()
    windows = data.split(b"\n", 1)
    if kind < 0.2:
        data = (
            mutate.change_json(rng, windows[0].decode()).encode("utf-8", "surrogatepass")
            + b"\n"
            + windows[1]
        )
    elif kind < 0.6:
        # Counts, lengths and rows of the first window, with its hash put right.
        line, rest = windows[1].split(b"\n", 1)
        window = json.loads(line)
        rows = bytearray(rest[: window["bytes"]])
        if rng.random() < 0.6:
            rows[:4] = struct.pack("<I", rng.choice(mutate.INTEGERS) % 2**32)
        rest = rest[window["bytes"] :]
        change = rng.randrange(4)
        key = rng.choice(["rows", "vectors", "tokens", "truncated"])
        if change == 0:
            window["counts"][key] = rng.choice(mutate.INTEGERS) % 2**64
        elif change == 1:
            window["bytes"] = rng.choice(mutate.INTEGERS) % 2**64
        elif change == 2:
            rows = rows[: rng.randrange(len(rows))]
            window["bytes"] = len(rows)
        window["sha256"] = lying_hub.sha256(bytes(rows))
        rest = rng.choice([rest, b""])
        data = windows[0] + b"\n" + json.dumps(window).encode() + b"\n" + bytes(rows) + rest
    else:
        data = mutate.change_bytes(rng, data, head=2000)
    (folder / name).write_bytes(data)
    rows = (seeds.folder / "rows.jsonl").read_text().splitlines(keepends=True)
    (folder / "rows.jsonl").write_text("".join(rows[:40]))
    command = [
        "embed",
        TINY / "tiny-embed" / "bert-mean",
        "-f",
        rng.choice([seeds.folder / "rows.jsonl", "rows.jsonl"]),
        "-o",
        "out.npy",
        "--batch-tokens",
        "64",
    ]
    return Case(command, keeps=("out", ".out"), limit_s=60 if "rows.jsonl" not in command else 10)


def baseline(rng, folder, seeds):
    text = mutate.change_json(rng, seeds.baseline)
    (folder / "base.json").write_text(text, errors="surrogatepass")
    return Case(
        ["audit", seeds.broken, "--baseline", "base.json", *rng.choice([[], ["--deny", "note"]])],
        JUDGES,
    )


PLANS = [
    '[{"output": "q", "preferred": "gpu", "supported": ["cpu", "gpu"], "cost": 0.5}, {"output": "z", "preferred": "cpu"}]'
]
PLANS += [
    '{"functions": {"main": {"operations": [{"outputs": ["q"], "preferred": {"name": "MLNeuralEngineComputeDevice"}, "cost": {"weight": 0.1}}]}}}'
]


def analytics(rng, folder, seeds):
    if rng.random() < 0.6:
        name, text = "x.mil", mutate.change_text(rng, seeds.analytics, seeds.mil)
    else:
        name, text = "x.json", mutate.change_json(rng, rng.choice(PLANS))
    (folder / name).write_text(text, errors="surrogatepass")
    return Case(["audit", seeds.broken, "--compare", name], JUDGES)


CATALOGUE = [
    {
        "name": "mine",
        "description": "a line",
        "license": "MIT",
        "file": "mine.gguf",
        "bytes": 98,
        "sha256": "0" * 64,
    }
]
CATALOGUE[0]["sources"] = [{"hf": {"repo": "org/name", "revision": "main", "file": "mine.gguf"}}]
CATALOGUE[0]["beside"] = [{"file": "config.json", "bytes": 6, "sha256": "1" * 64}]


def catalogue(rng, folder, seeds):
    text = mutate.change_json(rng, json.dumps(CATALOGUE))
    (folder / "c.json").write_text(text, errors="surrogatepass")
    verbs = [
        ["ls"],
        ["show", "mine", "--offline"],
        ["pull", "mine", "--attempts", "1"],
        ["rm", "mine"],
    ]
    # A pull leaves a lock there.
    return Case([*rng.choice(verbs), "--catalogue", "c.json"], FETCHES, keeps=("cache",))


def histogram(rng, folder, seeds):
    text = mutate.change_json(rng, json.dumps({"128": 5, "300": 2, "8": 1000}))
    (folder / "h.json").write_text(text, errors="surrogatepass")
    return Case(["buckets", TINY / "tiny-embed" / "bert-mean", "--histogram", "h.json"])


def odd_file(rng, folder, seeds):
    """Something that is no file of its kind in the place of one: a pipe, a folder, a link to itself, a device, nothing."""
    to = copy_folder(CHAT, folder / "m")
    shutil.copytree(TESTS / "packages" / "described.mlpackage", folder / "p.mlpackage")
    for name, text in {
        "x.jsonl": '{"text": "a"}',
        "b.json": seeds.baseline,
        "c.json": json.dumps(CATALOGUE),
        "p.mil": seeds.broken.read_text(),
    }.items():
        (folder / name).write_text(text)
    shutil.copyfile(CHAT / "tiny-chat.gguf", folder / "m.gguf")
    embed = ["embed", TINY / "tiny-embed" / "bert-mean", "-f", "x.jsonl"]
    of_folder = [
        ["show", "m"],
        ["run", "--max-tokens", "1", "m", "a"],
        ["convert", "m", "-o", "out.mlpackage"],
    ]
    of_package = [
        ["check", "p.mlpackage"],
        ["inspect", "p.mlpackage"],
        ["predict", "p.mlpackage", "--out", "out"],
    ]
    uses = {
        name: of_folder
        for name in [
            "m/config.json",
            "m/tokenizer.json",
            "m/tokenizer_config.json",
            "m/model.safetensors",
        ]
    }
    uses |= {
        f"p.mlpackage/{name}": of_package
        for name in [
            "Manifest.json",
            "Data/com.apple.CoreML/model.mlmodel",
            "Data/com.apple.CoreML/weights/weight.bin",
        ]
    }
    uses |= {
        "x.jsonl": [embed],
        "b.json": [["audit", "p.mil", "--baseline", "b.json"]],
        "c.json": [["ls", "--catalogue", "c.json"]],
    }
    uses |= {
        "p.mil": [["audit", "p.mil"]],
        "m.gguf": [["run", "--raw", "--max-tokens", "1", "m.gguf", "a"], ["show", "m.gguf"]],
    }
    name = rng.choice(sorted(uses))
    path = folder / name
    path.unlink()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234567\n"
    kinds = [
        lambda: os.mkfifo(path),
        path.mkdir,
        lambda: path.symlink_to(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: None,
    ]
    kinds += [
        lambda: path.symlink_to("/dev/null"),
        lambda: path.write_bytes(b""),
        lambda: path.write_text(pointer),
    ]
    kinds += [
        lambda: path.symlink_to("/proc/self/mem"),
        lambda: path.open("wb").truncate(200 << 30),
    ]
    rng.choice(kinds)()
    del to
    return Case(rng.choice(uses[name]), FETCHES - {5})


class Hub:
    """Answers of a Hub; a server for each process that runs inputs."""

    server = None

    @classmethod
    def start(cls):
        if cls.server is None:
            small = {
                "config.json": (CHAT / "config.json").read_bytes(),
                "tokenizer.json": (CHAT / "tokenizer.json").read_bytes(),
            }
            cls.server = lying_hub.LyingHub(
                {**small, "model.safetensors": (CHAT / "model.safetensors").read_bytes()}
            )
        return cls.server

    @classmethod
    def case(cls, plan, slow=False):
        cls.start().begin(plan, slow)
        args = ["pull", "hf:org/name", "--attempts", "2"]
        return Case(args, FETCHES, env={"HF_ENDPOINT": cls.server.url}, keeps=("cache",))


def hub(rng, folder, seeds):
    case = Hub.case(lying_hub.plan(rng))
    if rng.random() < 0.2:
        case.args = ["run", "hf:org/name", "hello", "--max-tokens", "1", "--attempts", "1"]
    return case


def slow_hub(rng, folder, seeds):
    case = Hub.case([], slow=True)
    case.args = ["pull", "hf:org/name", "--attempts", "1", "--timeout", rng.choice(["1", "2", "3"])]
    return case


# Inputs of a run of 16,000; a run of another length takes its share of each.
PARSERS = {
    "gguf": (1700, gguf),
    "vocabulary": (900, vocabulary),
    "safetensors": (1100, safetensors),
    "config": (1300, config),
    "index": (350, index),
    "sentence": (600, sentence),
    "tokenizer": (2300, tokenizer),
    "template": (2300, template),
    "mil": (1300, mil),
    "package": (1200, package),
    "compiled": (500, compiled),
    "contract": (400, contract),
    "bundle": (150, bundle),
    "npy": (400, npy),
    "jsonl": (350, jsonl),
    "text": (150, text_rows),
    "csv": (200, csv),
    "parquet": (600, parquet),
    "journal": (200, journal),
    "baseline": (150, baseline),
    "analytics": (200, analytics),
    "catalogue": (150, catalogue),
    "histogram": (50, histogram),
    "odd-file": (200, odd_file),
    "hub": (630, hub),
    "slow-hub": (20, slow_hub),
}
TOTAL = sum(n for n, _ in PARSERS.values())


def make(name, seed, number, folder, seeds):
    """The input `number` of a parser, in `folder`; the same for the same seed."""
    rng = random.Random(f"{seed}/{name}/{number}")
    return PARSERS[name][1](rng, Path(folder), seeds)
