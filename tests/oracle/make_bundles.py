"""Makes tests/bundles/<name>: tiny models in the bundle layouts of other projects, and what transformers answers.

    python3 tests/oracle/make_bundles.py [NAME ...]

A bundle's packages are traced and converted by coremltools in float16, written from a description of the published layout.
golden.json has prompts, the greedy tokens of transformers with the same checkpoint in float32, and its logits after each
token. The seed is the first with which no choice of a token is closer than `bundle_case.GAP`. Needs torch, transformers,
coremltools, numpy. CPU only.
"""

import shutil

from golden import make_named, need

need("torch", "transformers", "coremltools", "numpy")

import bundle_anemll
import bundle_coreml_llm
from bundle_case import BUNDLES, answers, copy_tokenizer, write_golden

CASES = {
    "anemll-chat": bundle_anemll.chat,
    "anemll-monolithic": bundle_anemll.monolithic,
    "anemll-rotating": bundle_anemll.rotating,
    "coreml-llm-chunks": bundle_coreml_llm.chunks,
    "coreml-llm-merged": bundle_coreml_llm.merged,
    "coreml-llm-monolithic": bundle_coreml_llm.monolithic,
}


def make(name, case):
    folder = BUNDLES / name
    shutil.rmtree(folder, ignore_errors=True)
    copy_tokenizer(folder if name.startswith("anemll") else folder / "hf_model")
    (seed, model), build, context = case(folder)
    build(model)
    found = answers(model, context)
    assert found, "a choice is close"
    write_golden(folder, seed, *found)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{name}: seed {seed}, {size} bytes, answers {[row['text'] for row in found[0]]}")


if __name__ == "__main__":
    make_named(CASES, make)
