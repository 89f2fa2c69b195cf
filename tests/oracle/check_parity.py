"""Runs scripts/parity.py end to end on small stand-ins of the checkpoints in its list, from a Hub on loopback.

    python3 tests/oracle/check_parity.py THANE [NAME ...]

A stand-in has the layout of its checkpoint: the class of its family with random weights as transformers saves them, or the
folder of sentence-transformers. Each is compared as a checkpoint and as a package for a chip. At the end, a program whose
log probabilities and vectors are wrong must be found out. Needs what scripts/parity.py needs.
"""

import functools
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from golden import MODELS as TESTS, need

need("torch", "transformers", "sentence_transformers", "huggingface_hub")

import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import parity

# The folder of tests/models with the configuration, or with the whole model.
STAND_INS = {
    "pplx-embed-v1-0.6b": "tiny-embed/qwen3-pplx", "pplx-embed-context-v1-0.6b": "tiny-embed/qwen3-pplx-context",
    "qwen2.5-0.5b": "tiny/qwen2", "qwen3-0.6b": "tiny/qwen3", "llama-3.2-1b": "tiny/llama-rope3", "gemma-4-e2b": "tiny/gemma4",
    "lfm2-350m": "tiny/lfm2", "qwen3.5-0.8b": "tiny/qwen3_5",
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Its reports are wrong.
LIAR = """#!{python}
import json, subprocess, sys
args = sys.argv[1:]
done = subprocess.run([{thane!r}, *args], capture_output=True, text=True)
out = done.stdout
if args[0] == "run":
    found = json.loads(out)
    found["logprobs"][1]["top"][0]["logprob"] -= 0.25
    out = json.dumps(found)
if args[0] == "embed":
    first, *rest = [json.loads(line) for line in out.splitlines()]
    first = [first[0][::-1], *first[1:]] if isinstance(first[0], list) else first[::-1]
    out = "\\n".join(json.dumps(row) for row in [first, *rest])
sys.stdout.write(out)
sys.stderr.write(done.stderr)
sys.exit(done.returncode)
"""


def decoder(source, folder, seed):
    """Random weights whose logits are as far apart as those of a trained model, with the tokenizer of the tiny chat model."""
    config = transformers.AutoConfig.from_pretrained(source)
    chat = TESTS / "tiny-chat"
    text = config.get_text_config()
    text.vocab_size = json.loads((chat / "config.json").read_text())["vocab_size"]
    if getattr(text, "vocab_size_per_layer_input", None):
        text.vocab_size_per_layer_input = text.vocab_size
    text.bos_token_id, text.eos_token_id, text.pad_token_id = None, 0, None
    text.max_position_embeddings = 512
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                weight.normal_(std=(3.0 if "lm_head" in name else 1.0) / weight.shape[1] ** 0.5)
            elif weight.ndim == 2:
                weight.normal_(std=0.5)
            elif weight.ndim == 1:
                weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(chat / name, folder / name)


# What the repositories of pplx-embed have beside the weights.
CODE = {
    "configuration.py": """from transformers import Qwen3Config


class PPLXQwen3Config(Qwen3Config):
    model_type = "bidirectional_pplx_qwen3"

    def __init__(self, **more):
        super().__init__(**more)
        self.is_causal = False
""",
    "modeling.py": """from transformers import Qwen3Model

from .configuration import PPLXQwen3Config


class PPLXQwen3Model(Qwen3Model):
    config_class = PPLXQwen3Config


class PPLXQwen3ContextualModel(PPLXQwen3Model):
    pass
""",
}


def embedder(source, folder):
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("golden.*", "lengths.*"))
    for name, text in CODE.items():
        (folder / name).write_text(text)


class Hub(http.server.BaseHTTPRequestHandler):
    def __init__(self, folder, *args):
        self.folder = folder
        super().__init__(*args)

    def log_message(self, *_):
        pass

    def answer(self, has_body):
        path = self.path.split("?")[0].strip("/")
        if path.startswith("api/models/"):
            parts = path.split("/")
            repository = "/".join(parts[2:4])
            root = self.folder / repository
            files = [str(file.relative_to(root)) for file in sorted(root.rglob("*")) if file.is_file()]
            rows = [{"rfilename": name} for name in files]
            if "tree" in parts:
                rows = [{"type": "file", "path": name, "size": (root / name).stat().st_size, "oid": name} for name in files]
                return self.send(200, json.dumps(rows).encode(), {}, has_body)
            about = {"id": repository, "sha": COMMIT, "siblings": rows, "private": False, "downloads": 0, "tags": []}
            return self.send(200 if files else 404, json.dumps(about).encode(), {}, has_body)
        parts = path.split("/")
        file = self.folder / "/".join(parts[:2]) / "/".join(parts[4:])
        if not file.is_file():
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"}, has_body)
        content = file.read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        self.send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, has_body)

    def send(self, status, content, headers, has_body):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if has_body:
            self.wfile.write(content)

    def do_GET(self):
        self.answer(True)

    def do_HEAD(self):
        self.answer(False)


def compare(name, thane, scratch, endpoint, *flags):
    record = scratch / f"{name}.json"
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(scratch / "cache"), "THANE_CACHE": str(scratch / "thane")}
    command = [sys.executable, ROOT / "scripts/parity.py", name, thane, "--out", record, *flags]
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
    return done, json.loads(record.read_text()) if record.exists() else None


def main():
    thane = Path(sys.argv[1]).resolve()
    names = sys.argv[2:] or list(STAND_INS)
    faults = []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        for seed, name in enumerate(names):
            repository, task = parity.MODELS[name]
            folder = scratch / "hub" / repository
            folder.parent.mkdir(parents=True, exist_ok=True)
            source = TESTS / STAND_INS[name]
            decoder(source, folder, seed) if task == "generate" else embedder(source, folder)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Hub, scratch / "hub"))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        for name in names:
            done, record = compare(name, thane, scratch, endpoint, "--target", "m4")
            print(done.stdout.rsplit("\n", 2)[0])
            if done.returncode or record is None or not record["files"]:
                faults.append(f"{name}: {done.stderr[-2000:]}")
        liar = scratch / "liar"
        liar.write_text(LIAR.format(python=sys.executable, thane=str(thane)))
        liar.chmod(0o755)
        for name in names:
            done, record = compare(name, liar, scratch, endpoint)
            if done.returncode != 1 or record is None or not record["checkpoint"]["faults"]:
                faults.append(f"{name}: wrong numbers were not found out: {done.stdout} {done.stderr[-2000:]}")
    for fault in faults:
        print(fault)
    print(f"{len(names)} stand-ins, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
