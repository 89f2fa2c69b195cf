"""The official client of OpenAI's API, unchanged, against `thane serve` on the tiny chat model: log
probabilities against transformers, JSON schemas against jsonschema, pydantic, and tools.

    python3 tests/oracle/check_structured.py target/debug/thane [JSON-SCHEMA-TEST-SUITE/tests/draft2020-12]

The model's weights are random, and answers are sampled at temperature 1.5: what makes them valid
are the grammars. With the folder of the JSON Schema Test Suite, each of its schemas that the server
takes is answered too.

Needs openai and jsonschema; without torch and transformers, it leaves log probabilities out and says so.
"""

import collections
import json
import math
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Literal

import jsonschema
import openai
import pydantic

CHAT = pathlib.Path(__file__).parent.parent / "models" / "tiny-chat"
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"
)
USER = [{"role": "user", "content": "the sea"}]
SAMPLED = {"model": "tiny-chat", "messages": USER, "temperature": 1.5}

# Keywords that the grammar enforces.
SCHEMAS = [
    True,
    {"type": "null"},
    {"type": ["string", "boolean"], "maxLength": 4},
    {"enum": ["a", 1, None, [2], {"b": 3}]},
    {"const": {"x": [True, "y"]}},
    {"type": "integer", "minimum": -3, "maximum": 40},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 30},
    {"type": "string", "minLength": 3, "maxLength": 6},
    {"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,3}$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "email", "maxLength": 30},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"const": 1}, {"type": "null"}], "items": False},
    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^x": {"const": 1}}, "additionalProperties": False, "maxProperties": 2},
    {"anyOf": [{"type": "boolean"}, {"enum": ["p", "q"]}]},
    {"oneOf": [{"const": "left"}, {"const": "right"}]},
    {"allOf": [{"type": "integer", "minimum": 4}, {"maximum": 6}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {
        "type": "object", "properties": {"leaf": {"type": "boolean"}, "next": {"anyOf": [
            {"type": "null"}, {"$ref": "#/$defs/tree"}]}},
        "required": ["leaf", "next"], "additionalProperties": False}}},
    {"type": "object", "properties": {"k": {"enum": ["v"]}, "l": {"type": "array", "items": {
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["n"], "additionalProperties": False}, "maxItems": 2}},
     "required": ["k", "l"], "additionalProperties": False},
]


class Trip(pydantic.BaseModel):
    city: Literal["Rome", "Oslo"]
    days: list[Literal["Monday", "Friday"]] = pydantic.Field(max_length=3)
    train: bool


def same(name, found, expected):
    if found != expected:
        sys.exit(f"{name}: expected {expected!r}, found {found!r}")
    print(f"{name}: ok")


def check_logprobs(client):
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"skipped: log probabilities: {error.name} is not installed (pip install torch transformers)")
        return
    model = transformers.AutoModelForCausalLM.from_pretrained(CHAT, dtype=torch.float32)
    prompt = [5, 9, 70, 33, 120]
    answer = client.completions.create(
        model="tiny-chat", prompt=prompt, max_tokens=8, temperature=0, logprobs=5, echo=True,
        extra_body={"repetition_penalty": 1.3}).choices[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHAT)
    spelled = {tokenizer.decode([i]): i for i in range(len(tokenizer))}
    ids = prompt + [spelled[text] for text in answer.logprobs.tokens[len(prompt):]]
    with torch.no_grad():
        due = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    worst = 0.0
    same("no log probability of the first token", answer.logprobs.token_logprobs[0], None)
    for at, found in enumerate(answer.logprobs.token_logprobs[1:], 1):
        row = due[at - 1]
        worst = max(worst, abs(found - row[ids[at]].item()))
        top = sorted(answer.logprobs.top_logprobs[at].values(), reverse=True)
        worst = max([worst] + [abs(a - b) for a, b in zip(top, row.topk(5).values.tolist())])
    same("tokens of prompt and answer", len(answer.logprobs.tokens), len(ids))
    if not worst < 1e-4:
        sys.exit(f"log probabilities: {worst} off those of transformers")
    print(f"log probabilities: ok, {worst:.1e} off those of transformers")


def answer_of(client, schema, seed, **fields):
    """The answer as JSON; None if it was cut. A number beyond fp64 counts as cut."""
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    choice = client.chat.completions.create(
        **SAMPLED, seed=seed, max_tokens=300, response_format=shape, **fields).choices[0]
    if choice.finish_reason != "stop":
        return None
    value = json.loads(choice.message.content)
    numbers = [value]
    while numbers:
        one = numbers.pop()
        numbers.extend(one if isinstance(one, list) else one.values() if isinstance(one, dict) else [])
        if isinstance(one, float) and math.isinf(one):
            return None
    return [value]


def check_schemas(client):
    n = cut = 0
    for schema in SCHEMAS:
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        for seed in range(4):
            found = answer_of(client, schema, seed)
            n, cut = n + 1, cut + (found is None)
            if found is not None and not validator.is_valid(found[0]):
                sys.exit(f"{schema}: {found[0]!r} is not valid")
    if cut > n // 4:
        sys.exit(f"{cut} of {n} answers were cut")
    print(f"{len(SCHEMAS)} schemas: ok, {n - cut} answers are valid, {cut} were cut")


def check_suite(client, folder):
    counts, refused, invalid = collections.Counter(), collections.Counter(), []
    for path in sorted(folder.glob("*.json")):
        for case in json.loads(path.read_text()):
            schema = case["schema"]
            try:
                found = [answer_of(client, schema, seed) for seed in range(2)]
            except openai.BadRequestError:
                refused[path.stem] += 1
                counts["refused"] += 1
                continue
            counts["taken"] += 1
            for value in found:
                counts["cut" if value is None else "whole"] += 1
                if value is None:
                    continue
                try:
                    is_valid = jsonschema.Draft202012Validator(schema).is_valid(value[0])
                except Exception:  # a reference that only the suite's server resolves
                    counts["unresolved"] += 1
                    continue
                if not is_valid:
                    invalid.append((path.stem, case["description"], value[0]))
    print(f"JSON Schema Test Suite: {dict(counts)}, invalid {len(invalid)}")
    for name, n in collections.Counter(name for name, _, _ in invalid).items():
        print(f"  invalid in {name}: {n}")
    for one in invalid[:40]:
        print("   ", *one, sep=" | ")
    print("  refused:", dict(refused))


def check_pydantic(client):
    for seed in range(5):
        answer = client.chat.completions.parse(**SAMPLED, seed=seed, max_tokens=300, response_format=Trip)
        trip = answer.choices[0].message.parsed
        if not isinstance(trip, Trip):
            sys.exit(f"expected a trip, found {answer}")
    print("pydantic: ok")


def check_tools(client):
    tools = [openai.pydantic_function_tool(Trip, name="book")]
    choice = {"type": "function", "function": {"name": "book"}}
    answer = client.chat.completions.parse(**SAMPLED, seed=1, max_tokens=300, tools=tools, tool_choice=choice)
    message = answer.choices[0].message
    call = message.tool_calls[0]
    same("kind of the arguments", type(call.function.parsed_arguments), Trip)
    same("finish reason", answer.choices[0].finish_reason, "tool_calls")
    with client.chat.completions.stream(**SAMPLED, seed=1, max_tokens=300, tools=tools, tool_choice=choice) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    same("a streamed call", streamed.function.parsed_arguments, call.function.parsed_arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "booked"}
    talk = [*USER, {"role": "assistant", "content": None, "tool_calls": [
        {"id": call.id, "type": "function", "function": {"name": "book", "arguments": call.function.arguments}}]}, result]
    again = client.chat.completions.create(model="tiny-chat", messages=talk, tools=tools, max_tokens=3, temperature=0)
    same("an answer to a result", again.choices[0].message.role, "assistant")
    several = client.chat.completions.create(**SAMPLED, n=3, seed=4, max_tokens=9, logprobs=True, top_logprobs=2)
    same("choices", [choice.index for choice in several.choices], [0, 1, 2])
    same("top log probabilities", {len(t.top_logprobs) for c in several.choices for t in c.logprobs.content}, {2})


def main():
    binary, suite = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "tiny-chat"
        shutil.copytree(CHAT, model)
        config = json.loads((model / "tokenizer_config.json").read_text())
        config["chat_template"] = TEMPLATE
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        command = [binary, "serve", str(model), "--port", "0", "--numerics", "f32", "--context", "512"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            address = server.stdout.readline().strip()
            client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
            check_logprobs(client)
            check_pydantic(client)
            check_tools(client)
            check_schemas(client)
            if suite:
                check_suite(client, pathlib.Path(suite[0]))
        finally:
            server.send_signal(signal.SIGINT)
        same("exit code", server.wait(timeout=300), 0)


main()
