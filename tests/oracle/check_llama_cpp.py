"""Compares the tiny GGUF files with llama.cpp: the logits at every position against the golden of the twin.

    pip install llama-cpp-python==0.3.36 gguf
    python3 tests/oracle/check_llama_cpp.py [NAME ...]

The cache is F32, and attention is computed without the fused kernel. llama.cpp rounds activations to the type of the
weights before a product, so F16 and BF16 files are checked in a copy whose matrices are F32. GELU comes from a table of
fp16 values in llama.cpp.

Where llama.cpp computes something else than the model in transformers does, `UNLIKE` says what and why, and the file
is compared in as far as both agree. Constants that llama.cpp takes from the number of layers are checked on `DEEP`
models, which are made here: the file of a model with random weights against transformers. Ends with an error if a file
is off by more than `BOUND`.
"""

import ctypes
import json
import sys
import tempfile
from pathlib import Path

from golden import MODELS, need

need("gguf", "llama_cpp", "numpy", "torch", "transformers")

import gguf
import llama_cpp as api
import numpy
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import make_tiny_gguf

BOUND = 1e-3
# Tokens of the context, which llama.cpp makes a multiple of 256. It decides between the two sets of LongRoPE.
N_CTX = 256

# Name: how many positions are compared, and why not all.
UNLIKE = {
    "arcee": (0, "llama.cpp does not read the bias of the output projection"),
    "cohere": (0, "llama.cpp reads norms of query heads in models of 64 layers and more only (Command R+)"),
    "ernie4_5": (0, "llama.cpp does not read the biases of the feed-forward layer"),
    "exaone4": (0, "llama.cpp lets layers slide in models of 64 layers only (the 32B)"),
    "gemma4": (0, "llama.cpp expects a full layer last of those that have keys and values, and a sliding one before it"),
    "qwen3_5": (0, "llama.cpp expects value heads as large as key heads"),
    "olmo3": (0, "llama.cpp takes neither the base of sliding layers nor the factor of YaRN from the file"),
    "phi3": (8, "llama.cpp has no windows in this architecture"),
}



def layer_types(n_layers, pattern):
    """Each layer slides but every `pattern`-th."""
    return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(n_layers)]


# Changes of a twin's configuration, most of them of its depth. The scale of scores is what llama.cpp makes of hidden size
# and heads.
DEEP = {
    "cohere": {"num_hidden_layers": 64},
    "exaone4": {"num_hidden_layers": 64, "layer_types": layer_types(64, 4)},
    "gemma2": {"num_hidden_layers": 46, "layer_types": layer_types(46, 2), "hidden_size": 36},
    "gemma3-linear": {"num_hidden_layers": 62, "layer_types": layer_types(62, 3)},
    "gemma4": {"num_hidden_layers": 6, "layer_types": layer_types(6, 3), "num_kv_shared_layers": 3},
    # llama.cpp takes the epsilon of the squares of queries and keys from the file, where the model has 1e-6.
    "qwen3_5": {
        "num_hidden_layers": 5, "linear_value_head_dim": 8, "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1],
        },
    },
}
SEED = 501


def widened(path, folder, n_vocab):
    """A copy whose tensors are F32, with the keys that llama.cpp needs of a file without a tokenizer. The copy with the
    short set of LongRoPE says that the model was trained for this context."""
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    copy = Path(folder) / path.name
    writer = gguf.GGUFWriter(copy, architecture)
    for key, value in reader.fields.items():
        if not key.startswith("GGUF.") and not key.endswith((".vocab_size", "general.architecture")):
            sub_type = value.types[-1] if value.types[0] == gguf.GGUFValueType.ARRAY else None
            short = path.stem == "phi3-short" and key.endswith("original_context_length")
            writer.add_key_value(key, N_CTX if short else value.contents(), value.types[0], sub_type=sub_type)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(n_vocab)
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return copy


def value_of(path, name):
    """The value of the architecture's key, if the file has it."""
    fields = gguf.GGUFReader(path).fields
    field = fields.get(f"{fields['general.architecture'].contents()}.{name}")
    return field and field.contents()


class Model:
    def __init__(self, path, n_vocab):
        self.model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {path.name}")
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = N_CTX
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = api.GGML_TYPE_F32
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        # In most architectures llama.cpp does not read these from the file, but takes what published models have.
        for key in ("yarn_beta_fast", "yarn_beta_slow"):
            if value := value_of(path, f"rope.scaling.{key}"):
                setattr(params, key, value)
        self.ctx = api.llama_init_from_model(self.model, params)
        self.batch = api.llama_batch_init(N_CTX, 0, 1)
        self.n_vocab = n_vocab

    def logits(self, ids):
        """The logits at every position // [tokens, vocabulary]"""
        api.llama_memory_clear(api.llama_get_memory(self.ctx), True)
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, True
        if code := api.llama_decode(self.ctx, batch):
            raise SystemExit(f"llama_decode gave {code}")
        return numpy.stack([self.row(i) for i in range(len(ids))])

    def row(self, i):
        row = ctypes.cast(api.llama_get_logits_ith(self.ctx, i), ctypes.POINTER(ctypes.c_float))
        return numpy.ctypeslib.as_array(row, (self.n_vocab,)).copy()

    def close(self):
        api.llama_batch_free(self.batch)
        api.llama_free(self.ctx)
        api.llama_model_free(self.model)


def read_golden(name):
    """Pairs of token ids and logits // [tokens, vocabulary]"""
    twin = MODELS / "tiny" / name / "golden.json"
    path = twin if twin.is_file() else MODELS / "tiny-gguf" / f"{name}.json"
    numbers = numpy.fromfile(path.with_suffix(".bin"), "<f4")
    for sequence in json.loads(path.read_text())["sequences"]:
        at, shape = sequence["logits"]["offset"], sequence["logits"]["shape"]
        yield sequence["ids"], numbers[at : at + numpy.prod(shape)].reshape(shape)


def make_deep(name, path):
    """Writes the file of a deep model, and gives pairs as `read_golden` does."""
    folder = MODELS / "tiny" / name
    if name.startswith("gemma4"):
        # The class replaces sizes of full-attention layers by sizes of the layers that the file has.
        kept = json.loads((folder / "config.json").read_text())
    else:
        kept = AutoConfig.from_pretrained(folder).to_dict()
    config = AutoConfig.for_model(**kept | DEEP[name])
    if hasattr(config, "query_pre_attn_scalar"):
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    random = numpy.random.RandomState(SEED)
    for key, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        size = 0.3 if "norm" in key else 0.5 if "embed" in key else 0.7 / numpy.sqrt(shape[-1])
        has_one = "gemma" in name and "gemma4" not in name or name == "qwen3_5" and "linear_attn" not in key
        middle = 1.0 if "norm" in key and not has_one else 0.0
        parameter.data = torch.from_numpy((middle + size * random.standard_normal(shape)).astype(numpy.float32))
    for key, buffer in model.named_buffers():
        if key.endswith("layer_scalar"):
            buffer.fill_(random.uniform(0.6, 1.4))
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    tensors = {key: value.numpy() for key, value in model.state_dict().items() if key not in tied}
    make_tiny_gguf.write_model(path, config, tensors, "F32")
    for length in (7, 33, 61):
        ids = random.randint(0, config.vocab_size, length).tolist()
        with torch.no_grad():
            yield ids, model(torch.tensor([ids])).logits[0].numpy()


def check(path, pairs, folder, n=None):
    """The greatest relative error over the texts, of the first `n` positions."""
    n_vocab = pairs[0][1].shape[1]
    model, worst = Model(widened(path, folder, n_vocab), n_vocab), 0.0
    for ids, expected in pairs:
        error = model.logits(ids)[:n] - expected[:n]
        worst = max(worst, float(numpy.linalg.norm(error) / numpy.linalg.norm(expected[:n])))
    model.close()
    return worst


def main():
    api.llama_backend_init()
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    api.llama_log_set(quiet, None)
    known = sorted(path.stem for path in (MODELS / "tiny-gguf").glob("*.gguf"))
    names = sys.argv[1:] or known
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            n, why = UNLIKE.get(name, (None, ""))
            if n == 0:
                print(f"{name}: not compared: {why}")
                continue
            error = check(MODELS / "tiny-gguf" / f"{name}.gguf", list(read_golden(name)), folder, n)
            print(f"{name}: {error:.1e}{f', {n} positions: {why}' if n else ''}", flush=True)
            wrong += [name] if error > BOUND else []
        for name in [name for name in DEEP if name in names]:
            path = Path(folder) / f"{name}-deep.gguf"
            pairs = list(make_deep(name, path))
            (copies := Path(folder) / "copies").mkdir(exist_ok=True)
            error = check(path, pairs, copies)
            print(f"{name}, {DEEP[name]['num_hidden_layers']} layers: {error:.1e}", flush=True)
            wrong += [path.stem] if error > BOUND else []
    if wrong:
        sys.exit(f"off by more than {BOUND}: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
