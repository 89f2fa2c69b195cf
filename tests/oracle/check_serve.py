"""The official client of OpenAI's API, unchanged, against `thane serve` on tiny models: chat with
and without a stream, responses, completions, embeddings, models, and the exceptions of errors. Then
the clients of other APIs (`serve_clients.py`).

Expected answers are those of transformers (`tests/models/tiny-chat/expected.json`), expected
vectors those of `thane embed`.

    python3 tests/oracle/check_serve.py target/debug/thane

Needs openai. Without it, the script says so and ends with 0.
"""

import base64
import json
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile

try:
    import openai
except ImportError:
    print("skipped: openai is not installed (pip install openai)")
    sys.exit(0)

import serve_clients

MODELS = pathlib.Path(__file__).parent.parent / "models"
CHAT, BERT = MODELS / "tiny-chat", MODELS / "tiny-embed/bert-mean"
KEY = "a key"


def same(name, found, expected):
    if found != expected:
        sys.exit(f"{name}: expected {expected!r}, found {found!r}")
    print(f"{name}: ok")


def raises(name, kind, call, **expected):
    try:
        call()
    except kind as error:
        found = {key: getattr(error, key) for key in expected}
        return same(name, found, expected)
    sys.exit(f"{name}: expected {kind.__name__}, found an answer")


def chats(client):
    cases = json.loads((CHAT / "expected.json").read_text())["conversations"]
    for at, case in enumerate(cases):
        fields = {
            "model": "tiny-chat",
            "messages": case["messages"],
            "temperature": 0,
            "max_completion_tokens": len(case["tokens"]),
        }
        answer = client.chat.completions.create(**fields)
        same(f"chat {at}", answer.choices[0].message.content, case["text"])
        usage = answer.usage
        found = (usage.prompt_tokens, usage.completion_tokens)
        same(f"usage {at}", found, (len(case["ids"]), len(case["tokens"])))
        options = {"include_usage": True}
        chunks = list(client.chat.completions.create(**fields, stream=True, stream_options=options))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        same(f"stream {at}", text, case["text"])
        same(f"stream usage {at}", chunks[-1].usage.completion_tokens, len(case["tokens"]))
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
        same(f"finish reason {at}", reasons[-1], answer.choices[0].finish_reason)
        same(f"reasons before {at}", set(reasons[:-1]), {None})
    # The helper of the client that accumulates a stream; it raises if an answer is cut.
    whole = {"model": "tiny-chat", "messages": cases[0]["messages"], "temperature": 0}
    with client.chat.completions.stream(**whole) as stream:
        final = stream.get_final_completion()
    same("accumulated", final.choices[0].message.content, cases[0]["text"])


def completions(client):
    fields = {"model": "tiny-chat", "prompt": "the sea", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**fields)
    chunks = list(client.completions.create(**fields, stream=True))
    text = "".join(chunk.choices[0].text for chunk in chunks)
    same("completion", text, whole.choices[0].text)
    same("finish reason", chunks[-1].choices[0].finish_reason, whole.choices[0].finish_reason)


def responses(client):
    params = openai.types.responses.response_create_params
    serve_clients.documented("Routes", params.ResponseCreateParamsBase, openai.types.EmbeddingCreateParams)
    first, second = json.loads((CHAT / "expected.json").read_text())["conversations"][:2]
    fields = {"model": "tiny-chat", "temperature": 0, "max_output_tokens": len(first["tokens"])}
    answer = client.responses.create(input="hello", **fields)
    same("response", (answer.output_text, answer.status), (first["text"], "incomplete"))
    fields["max_output_tokens"] = len(second["tokens"])
    with client.responses.stream(input="and the sea?", previous_response_id=answer.id, **fields) as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    continued = events[-1].response
    same("response continued", text, second["text"])
    same("response kept", client.responses.retrieve(answer.id).output_text, first["text"])
    form = {"format": {"type": "json_schema", "name": "sky", "schema": serve_clients.SCHEMA, "strict": True}}
    items = client.responses.input_items.list(continued.id, order="asc", limit=1)
    items = [(item.type, item.role, item.content[0].text) for item in items]
    same(
        "items of the input",
        items,
        [
            ("message", "user", "hello"),
            ("message", "assistant", first["text"]),
            ("message", "user", "and the sea?"),
        ],
    )
    found = client.responses.create(model="tiny-chat", input="hello", text=form)
    same("response schema", json.loads(found.output_text)["sky"] in serve_clients.SKIES, True)
    client.responses.delete(answer.id)
    raises("response dropped", openai.NotFoundError, lambda: client.responses.retrieve(answer.id), status_code=404)


def embeddings(client, thane):
    texts = ["a cat", "the sea is deep"]
    args = [thane, "embed", "--json", "--quiet", "--numerics", "f32", str(BERT), *texts]
    expected = json.loads(subprocess.run(args, check=True, capture_output=True).stdout)
    as_f32 = lambda rows: [struct.pack(f"<{len(row)}f", *row) for row in rows]
    for form in ["float", "base64", openai.NOT_GIVEN]:
        found = client.embeddings.create(model="bert-mean", input=texts, encoding_format=form)
        rows = [row.embedding for row in found.data]
        if form == "base64":
            # Asked for by name, the client leaves it as it is.
            packed = [base64.b64decode(row) for row in rows]
            rows = [struct.unpack(f"<{len(row) // 4}f", row) for row in packed]
        same(f"embeddings {form}", as_f32(rows), as_f32(expected["embeddings"]))
    found = client.embeddings.create(model="bert-mean", input=[2, 5, 3], dimensions=4)
    same("tokens and dimensions", (len(found.data[0].embedding), found.usage.prompt_tokens), (4, 3))


def errors(client, address):
    hello = [{"role": "user", "content": "hello"}]
    chat = lambda **fields: client.chat.completions.create(**{"model": "tiny-chat", "messages": hello, **fields})
    raises("no such model", openai.NotFoundError, lambda: chat(model="gpt-4o"), param="model", code="model_not_found")
    tool = {"type": "function", "function": {"name": "f", "parameters": []}}
    raises("tools", openai.BadRequestError, lambda: chat(tools=[tool]), param="tools[0].function.parameters")
    raises("n", openai.BadRequestError, lambda: chat(n=0), param="n")
    raises("audio", openai.BadRequestError, lambda: chat(modalities=["audio"]), code="unsupported_parameter")
    long = [{"role": "user", "content": "x " * 2000}]
    raises("long prompt", openai.BadRequestError, lambda: chat(messages=long), code="context_length_exceeded")
    other = openai.OpenAI(base_url=f"{address}/v1", api_key="another", max_retries=0)
    raises("wrong key", openai.AuthenticationError, other.models.list, status_code=401)


def main():
    thane = sys.argv[1]
    flags = ["--port", "0", "--numerics", "f32", "--api-key", KEY]
    folder = tempfile.TemporaryDirectory()
    models = [CHAT, *serve_clients.chat_models(folder.name), BERT, serve_clients.RERANKER]
    server = subprocess.Popen([thane, "serve", *models, *flags], stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0, timeout=600)
        same("models", [model.id for model in client.models.list()], ["tiny-chat", "tiny-tools", "tiny-plain", "bert-mean", "bert"])
        same("model", client.models.retrieve("bert-mean").owned_by, "thane")
        chats(client)
        completions(client)
        responses(client)
        serve_clients.openai_tools(client)
        embeddings(client, thane)
        errors(client, address)
        print(f"openai {openai.__version__}: all ok")
        serve_clients.check(address, KEY, thane)
        server.send_signal(signal.SIGINT)
        same("exit code", server.wait(timeout=300), 0)
    finally:
        server.kill()
        folder.cleanup()


if __name__ == "__main__":
    main()
