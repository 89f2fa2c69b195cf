"""The rows of the table: what is measured, by which programs, with which commands. Files that are not there are made here.

A new row is a line in `all_rows`; a new program a method of `Commands` that gives its command, and a place in a row.
"""

import dataclasses
import json
import math
import pathlib

import measure

HERE = pathlib.Path(__file__).parent
LANGUAGE = ["smollm2-135m", "gemma3-270m"]
RANDOM = ["random-0.5b-q4_0", "random-0.5b-q8_0", "random-0.5b-bf16"]
# The goals of the issue: how much faster than the best of the others.
GOALS = {"prefill": 1.25, "decode": 1.25, "batch": 1.5, "cold": 1 / 0.6, "embed": 1.3, "random": 1.2}
# Works whose figure is a time: less is better.
TIMES = ("cold", "package")
MINILM_BATCHES = (1, 32, 256)
ENCODER_LENGTH = 512
BATCHES = (8, 32)
BATCH_PROMPT, BATCH_ANSWER = 16, 32


@dataclasses.dataclass
class Row:
    work: str
    model: str
    threads: int
    # Name of a program: a function that gives its command, or raises Fault.
    programs: dict
    goal: float
    batch: int = 1

    @property
    def name(self):
        """What --only matches."""
        work = f"{self.work}-{self.batch}" if self.work in ("batch", "embed", "package") else self.work
        return f"{work}/{self.model}/{self.threads}"


class Commands:
    """How each program is asked, and where its files are."""

    def __init__(self, args):
        self.peers, self.thane, self.seconds = args.peers, args.thane, args.limit
        self.answer, self.int8 = args.answer, args.int8
        self.made = args.peers / "models"
        self.files = {pathlib.Path(file).name: pathlib.Path(file) for file in args.files}
        self.pulled = {}

    def python(self, name):
        path = self.peers / name / "bin/python"
        if not path.exists():
            raise measure.Fault(f"{path} is not there: bash scripts/peers/setup.sh {self.peers}")
        return path

    def make(self, path, *command):
        """A file that is made once."""
        if not path.exists():
            self.made.mkdir(exist_ok=True)
            print(f"making {path.name}", flush=True)
            measure.run(list(command), self.seconds)
        return path

    def prepare(self, kind, model, name, *options):
        path = self.made / name
        return self.make(path, self.python("encoders"), HERE / "prepare.py", kind, model, path, *options)

    def model(self, name):
        """The file or folder of a model: one that was given, made with random weights, or of the catalog."""
        if name in self.files:
            return self.files[name]
        if name in RANDOM:
            kind = name.rsplit("-", 1)[1]
            script = [self.python("llama.cpp"), HERE / "random_model.py", self.made, "--types", kind]
            return self.make(self.made / f"{name}.gguf", *script, "--tokenizer", self.model("smollm2-135m"))
        if name == "encoder":
            folder = self.made / "qwen3-0.6b-random"
            script = HERE.parent / "full_encoder.py"
            self.make(folder / "tokenizer_config.json", self.python("encoders"), script, self.made, "--checkpoint-only")
            return folder
        if name not in self.pulled:
            text = measure.run([self.thane, "pull", name], self.seconds)
            self.pulled[name] = pathlib.Path(text.strip().splitlines()[-1])
        return self.pulled[name]

    def bench(self, what, model, threads, *options):
        return [self.thane, "bench", what, self.model(model), "--threads", threads, "--rounds", 1, *options]

    def language(self, what, model, threads, batch):
        size = ["--batch", batch, "--lengths", BATCH_PROMPT] if what == "batch" else []
        answer = {"batch": BATCH_ANSWER, "decode": self.answer}.get(what)

        def peer(folder, script):
            options = [*size, *(["--answer", answer] if answer else [])]
            return lambda: [self.python(folder), HERE / script, what, self.model(model), "--threads", threads, "--rounds", 1, *options]

        programs = {
            "Thane": lambda: self.bench(what, model, threads, *size, *(["--tokens", answer] if answer else [])),
            "llama.cpp": peer("llama.cpp", "llama.py"),
            "ik_llama.cpp": peer("ik_llama.cpp", "llama.py"),
        }
        if what != "batch":
            programs["OpenVINO GenAI"] = peer("openvino", "genai.py")
        return programs

    def ids(self, low, high, count):
        """Texts of as many tokens as those of `thane bench embed`, each token one that all forms of the models have."""
        path = self.made / f"ids-{low}-{high}-{count}.jsonl"
        if not path.exists():
            self.made.mkdir(exist_ok=True)
            state = generator(1)
            rows = [{"ids": [1000 + next(state) % 3000 for _ in range(n)]} for n in lengths(low, high, count)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def texts(self, model):
        """Texts with their tokens, for cosines."""
        few = ["--count", 3, "--longest", 60] if model == "encoder" else []
        return self.prepare("texts", self.model(model), f"{model}-texts.jsonl", *few)

    def encode(self, program, form, ids, threads, batch, *options):
        """`form` is a function that gives the file."""

        script = [HERE / "encode.py", program]
        how = ["--threads", threads, "--batch", batch, "--rounds", 1, *options]
        return lambda: [self.python("encoders"), *script, form(), "--ids", ids(), *how]

    def minilm(self, numerics, threads, batch, ids):
        thane = self.int8 if numerics == "int8" else "f32"
        onnx = lambda: self.prepare("onnx", self.model("minilm"), "minilm.onnx")
        onnx_int8 = lambda: self.prepare("onnx-int8", onnx(), "minilm-int8.onnx")
        xml = lambda: self.prepare("openvino-int8", onnx(), "minilm-int8.xml", "--ids", self.texts("minilm"))
        int8 = numerics == "int8"
        return thane, {
            "onnxruntime": self.encode("onnxruntime", onnx_int8 if int8 else onnx, ids, threads, batch),
            "OpenVINO": self.encode("openvino", xml if int8 else onnx, ids, threads, batch),
            "torch": self.encode("torch", lambda: self.model("minilm"), ids, threads, batch, "--numerics", numerics),
        }

    def encoder(self, numerics, threads, ids):
        """What runs it in bfloat16 where it can, in fp32 where not; or in 8 bits."""
        form = "q8_0" if numerics == "int8" else "bf16"
        gguf = lambda: self.prepare("gguf", self.model("encoder"), f"encoder-{form}.gguf", "--type", form)
        llama = lambda name: lambda: [
            self.python(name), HERE / "llama.py", "embed", gguf(), "--ids", ids(), "--threads", threads, "--rounds", 1
        ]
        programs = {"llama.cpp": llama("llama.cpp"), "ik_llama.cpp": llama("ik_llama.cpp")}
        onnx = lambda: self.prepare("onnx", self.model("encoder"), "encoder.onnx")
        if numerics == "int8":
            onnx_int8 = lambda: self.prepare("onnx-int8", onnx(), "encoder-int8.onnx")
            xml = lambda: self.prepare("openvino-int8", onnx(), "encoder-int8.xml", "--ids", self.texts("encoder"))
            programs["onnxruntime"] = self.encode("onnxruntime", onnx_int8, ids, threads, 1)
            programs["OpenVINO"] = self.encode("openvino", xml, ids, threads, 1)
            programs["torch"] = self.encode("torch", lambda: self.model("encoder"), ids, threads, 1, "--numerics", "int8")
            return self.int8, programs
        programs["onnxruntime"] = self.encode("onnxruntime", onnx, ids, threads, 1)
        programs["OpenVINO"] = self.encode("openvino", onnx, ids, threads, 1)
        torch = "bf16" if fast_bfloat16() else "f32"
        programs["torch"] = self.encode("torch", lambda: self.model("encoder"), ids, threads, 1, "--numerics", torch)
        return "fast", programs

    def embed(self, model, numerics, threads, batch):
        low, high = (ENCODER_LENGTH, ENCODER_LENGTH) if model == "encoder" else (8, 256)
        count = 1 if model == "encoder" else max(128, batch)
        ids = lambda: self.ids(low, high, count)
        thane, programs = self.encoder(numerics, threads, ids) if model == "encoder" else self.minilm(numerics, threads, batch, ids)
        ours = ["--lengths", f"{low}-{high}", "--batch", batch, "--texts", count, "--numerics", thane]
        return {"Thane": lambda: self.bench("embed", model, threads, *ours)} | programs

    def cosines(self, model, numerics, threads):
        """The commands of a row, for vectors: Thane's prints them, the others' take --vectors. And that of the reference."""
        ids = lambda: self.texts(model)
        thane, programs = self.encoder(numerics, threads, ids) if model == "encoder" else self.minilm(numerics, threads, 1, ids)
        rows = ["embed", "--format", "float", "--threads", threads, "--numerics", thane]
        ours = lambda: [self.thane, *rows, self.model(model), "--file", ids()]
        reference = self.encode("torch", lambda: self.model(model), ids, threads, 1, "--numerics", "f32")
        return {"Thane": ours} | programs, reference


def fast_bfloat16():
    """Whether products of bfloat16 have an instruction here; else torch takes 20 times as long as in fp32."""
    try:
        flags = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def generator(state):
    """That of `thane bench`: the high bits of a linear congruential generator."""
    while True:
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        yield state >> 33


def lengths(low, high, count):
    """Those of `thane bench embed`: equally many in each power of two."""
    state = generator(5)
    at = lambda: math.log(low) + (math.log(high) - math.log(low)) * next(state) / 2**31
    return [min(max(math.floor(math.exp(at()) + 0.5), low), high) for _ in range(count)]


def all_rows(commands, threads):
    """Every row of the issue; of given files, the works of a language model."""
    given = list(commands.files)
    for model in given or LANGUAGE + RANDOM:
        random = model in RANDOM
        works = ["prefill", "decode"] if random else ["prefill", "decode", "batch", "cold"]
        for what in works:
            goal = GOALS["random" if random else what]
            for batch in BATCHES if what == "batch" else (1,):
                yield from (Row(what, model, n, commands.language(what, model, n, batch), goal, batch) for n in threads)
    if given:
        return
    for numerics in ("f32", "int8"):
        for batch in MINILM_BATCHES:
            for n in threads:
                yield Row("embed", f"minilm {numerics}", n, commands.embed("minilm", numerics, n, batch), GOALS["embed"], batch)
    for numerics in ("bf16", "int8"):
        for n in threads:
            yield Row("embed", f"encoder {numerics}", n, commands.embed("encoder", numerics, n, 1), GOALS["embed"])
