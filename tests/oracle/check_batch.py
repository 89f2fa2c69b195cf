"""`thane batch` on tiny models: each row has the shape that OpenAI's batch API documents, bodies are
valid for the types of OpenAI's client, and answers are those of transformers
(`tests/models/tiny-chat/expected.json`).

    python3 tests/oracle/check_batch.py target/debug/thane

Needs openai. Without it, the script says so and ends with 0.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    from openai.types import Completion, CreateEmbeddingResponse
    from openai.types.chat import ChatCompletion
except ImportError:
    print("skipped: openai is not installed (pip install openai)")
    sys.exit(0)

MODELS = pathlib.Path(__file__).parent.parent / "models"
CHAT, BERT = MODELS / "tiny-chat", MODELS / "tiny-embed/bert-mean"
TYPES = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/embeddings": CreateEmbeddingResponse,
}


def requests(cases):
    for at, case in enumerate(cases):
        body = {"messages": case["messages"], "max_tokens": len(case["tokens"])}
        yield f"chat {at}", "/v1/chat/completions", {"model": "gpt-4o", "temperature": 0, **body}
    yield "text", "/v1/completions", {"model": "gpt-4o", "prompt": "the sea", "max_tokens": 4}
    yield "vector", "/v1/embeddings", {"model": "bert-mean", "input": ["a cat", "the sea"]}


def main(thane):
    cases = json.loads((CHAT / "expected.json").read_text())["conversations"]
    asked = {name: (url, body) for name, url, body in requests(cases)}
    with tempfile.TemporaryDirectory() as folder:
        file, out = pathlib.Path(folder, "in.jsonl"), pathlib.Path(folder, "out.jsonl")
        lines = (
            json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})
            for name, (url, body) in asked.items()
        )
        file.write_text("\n".join(lines))
        models = ["--model", f"gpt-4o={CHAT}", "--model", str(BERT), "--numerics", "f32"]
        subprocess.run([thane, "batch", "-q", file, "-o", out, *models], check=True)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    found = [row["custom_id"] for row in rows]
    if found != list(asked):
        sys.exit(f"expected rows {list(asked)}, found {found}")
    for row in rows:
        name = row["custom_id"]
        if list(row) != ["id", "custom_id", "response", "error"] or row["error"] is not None:
            sys.exit(f"{name}: expected a row without an error, found {row}")
        response = row["response"]
        if list(response) != ["status_code", "request_id", "body"] or response["status_code"] != 200:
            sys.exit(f"{name}: expected an answer, found {response}")
        body = TYPES[asked[name][0]].model_validate(response["body"], strict=True)
        if name.startswith("chat"):
            expected = cases[int(name.split()[1])]["text"]
            if body.choices[0].message.content != expected:
                sys.exit(f"{name}: expected {expected!r}, found {body}")
        print(f"{name}: ok")


if __name__ == "__main__":
    main(sys.argv[1])
