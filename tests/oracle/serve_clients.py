"""Official clients of other APIs than OpenAI's, unchanged, against `thane serve`: anthropic, ollama,
perplexityai, huggingface_hub, cohere and langchain, and frameworks that call tools: pydantic-ai and
instructor. `check_serve.py` starts the server and calls `check`; a client that is not installed is
named and left out. `check_llama_index.py` does so for llama-index.

Expected answers are those of transformers (`tests/models/tiny-chat/expected.json`), expected vectors
and bytes those of `thane embed`, expected scores those of sentence-transformers
(`tests/models/tiny-rerank/bert/golden.json`).
"""

import base64
import contextlib
import fnmatch
import importlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import typing
import urllib.request

MODELS = pathlib.Path(__file__).parent.parent / "models"
CHAT, BERT = MODELS / "tiny-chat", MODELS / "tiny-embed/bert-mean"
CONTEXT, RERANKER = MODELS / "tiny-embed/qwen3-pplx-context", MODELS / "tiny-rerank/bert"
PPLX, PPLX_CONTEXT = "pplx-embed-v1-0.6b", "pplx-embed-context-v1-0.6b"
SKIES = ["blue", "gray"]
SCHEMA = {"type": "object", "properties": {"sky": {"enum": SKIES}}, "required": ["sky"], "additionalProperties": False}
DOCS = MODELS.parent.parent / "docs/serve.md"
TEXTS = ["a cat", "the sea is deep"]


def same(name, found, expected):
    if found != expected:
        sys.exit(f"{name}: expected {expected!r}, found {found!r}")
    print(f"{name}: ok")


def near(name, found, expected, tolerance=1e-5):
    """Numbers, or lists of them, up to rounding."""
    flat = lambda value: [x for v in value for x in flat(v)] if hasattr(value, "__iter__") else [value]
    found, expected = flat(found), flat(expected)
    most = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    if not most < tolerance:
        sys.exit(f"{name}: expected {expected!r}, found {found!r}")
    print(f"{name}: ok, differs by {most:.1e}")


def raises(name, kind, call, **expected):
    try:
        call()
    except kind as error:
        return same(name, {key: getattr(error, key) for key in expected}, expected)
    sys.exit(f"{name}: expected {kind.__name__}, found an answer")


TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.reasoning_content or '' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}"
)
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
HELLO = [{"role": "user", "content": "hello"}]


def chat_models(folder):
    """The tiny chat model with a template that knows tools and thoughts, and with its own; both have room for what
    frameworks tell a model of tools."""
    config = json.loads((CHAT / "tokenizer_config.json").read_text())
    context = {"max_position_embeddings": 2048}
    for name, template in [("tiny-tools", TEMPLATE), ("tiny-plain", config["chat_template"])]:
        model = pathlib.Path(folder) / name
        model.mkdir()
        for file in ["model.safetensors", "tokenizer.json"]:
            (model / file).symlink_to((CHAT / file).resolve())
        (model / "config.json").write_text(json.dumps({**json.loads((CHAT / "config.json").read_text()), **context}))
        (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
        yield model


def called(name, tool, arguments):
    same(name, (tool, arguments["city"] in ["Rome", "Oslo"]), ("weather", True))


def cases():
    return json.loads((CHAT / "expected.json").read_text())["conversations"]


def embedded(thane, *flags, model=BERT):
    args = [thane, "embed", "--json", "--quiet", "--numerics", "f32", str(model), *flags, *TEXTS]
    return json.loads(subprocess.run(args, check=True, capture_output=True).stdout)["embeddings"]


def unpack(text, signed):
    return [int.from_bytes([b], "big", signed=signed) for b in base64.b64decode(text)]


def documented(section, *schemas):
    """Each field of the client's types must be in the tables of a section of docs/serve.md."""
    parts = re.split(r"^## ", re.sub(r"```.*?```", "", DOCS.read_text(), flags=re.DOTALL), flags=re.MULTILINE)
    (text,) = [part for part in parts if part.startswith(section)]
    names = {re.split(r"\W*:", name)[0].split(".")[-1] for name in re.findall(r"`([^`]+)`", text)}
    fields = {field for schema in schemas for field in getattr(schema, "model_fields", schema.__annotations__)}
    missing = {f for f in fields if not any(fnmatch.fnmatch(f, name) for name in names)}
    same(f"fields of {section} without a line", missing, set())


def anthropic(module, address, key, thane):
    params = module.types
    documented("Anthropic", params.message_create_params.MessageCreateParamsBase, params.MessageCountTokensParams)
    client = module.Anthropic(base_url=address, api_key=key, max_retries=0, timeout=600)
    for at, case in enumerate(cases()):
        messages = [dict(m) for m in case["messages"]]
        fields = {"model": "tiny-chat", "max_tokens": len(case["tokens"]), "extra_body": {"temperature": 0}}
        if messages[0]["role"] == "system":
            fields["system"] = messages.pop(0)["content"]
        fields["messages"] = messages
        answer = client.messages.create(**fields)
        same(f"anthropic {at}", answer.content[0].text, case["text"])
        same(f"anthropic reason {at}", answer.stop_reason, "max_tokens")
        with client.messages.stream(**fields) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        same(f"anthropic stream {at}", (text, final.content[0].text), (case["text"], case["text"]))
        same(f"anthropic stream tokens {at}", final.usage.output_tokens, len(case["tokens"]))
        counted = {k: v for k, v in fields.items() if k in ("model", "messages", "system")}
        same(f"anthropic count {at}", client.messages.count_tokens(**counted).input_tokens, len(case["ids"]))
    stop = case["text"][3:5]
    answer = client.messages.create(**{**fields, "stop_sequences": [stop]})
    same("anthropic stop", (answer.stop_reason, answer.stop_sequence), ("stop_sequence", stop))
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = client.messages.create(**{**fields, "max_tokens": 100}, output_config=config)
    same("anthropic schema", json.loads(answer.content[0].text)["sky"] in SKIES, True)
    raises("anthropic model", module.NotFoundError, lambda: client.messages.create(**{**fields, "model": "x"}), status_code=404, type="not_found_error")
    tool = {"name": "f", "input_schema": []}
    anthropic_tools(client)
    raises("anthropic tools", module.BadRequestError, lambda: client.messages.create(**fields, tools=[tool]), type="invalid_request_error")
    other = module.Anthropic(base_url=address, api_key="another", max_retries=0)
    raises("anthropic key", module.AuthenticationError, lambda: other.messages.create(**fields), type="authentication_error")


def anthropic_tools(client):
    tool = {"name": "weather", "description": "Rain?", "input_schema": WEATHER}
    fields = {"model": "tiny-tools", "max_tokens": 200, "tools": [tool], "messages": HELLO}
    fields["tool_choice"] = {"type": "tool", "name": "weather"}
    answer = client.messages.create(**fields)
    (call,) = answer.content
    called("anthropic call", call.name, call.input)
    same("anthropic call reason", (call.type, answer.stop_reason), ("tool_use", "tool_use"))
    with client.messages.stream(**fields) as stream:
        (streamed,) = stream.get_final_message().content
    called("anthropic call streamed", streamed.name, streamed.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    turns = [*HELLO, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    fields = {**fields, "tool_choice": {"type": "none"}, "messages": turns}
    counted = client.messages.count_tokens(**{k: v for k, v in fields.items() if k != "max_tokens"}).input_tokens
    usage = client.messages.create(**{**fields, "max_tokens": 5}).usage
    same("anthropic result", usage.input_tokens + usage.cache_read_input_tokens, counted)
    thinking = {"model": "tiny-tools", "max_tokens": 9, "messages": HELLO, "thinking": {"type": "adaptive"}}
    thinking["extra_body"] = {"temperature": 0}
    with client.messages.stream(**thinking) as stream:
        kinds = {event.type for event in stream}
        (block,) = stream.get_final_message().content
    same("anthropic thoughts", (block.type, bool(block.thinking), "thinking" in kinds), ("thinking", True, True))
    anthropic_runner(client)
    begun = [*HELLO, {"role": "assistant", "content": "the se"}]
    answer = client.messages.create(model="tiny-tools", max_tokens=9, messages=begun, extra_body={"temperature": 0})
    same("anthropic begun", answer.content[0].type, "text")


def anthropic_runner(client):
    """Asks the server to keep the conversation, and goes on without it where the server says so."""
    cities = []

    @importlib.import_module("anthropic").beta_tool
    def weather(city: typing.Literal["Rome", "Oslo"]) -> str:
        """Rain?"""
        cities.append(city)
        return "rain"

    choice = {"type": "tool", "name": "weather"}
    runner = client.beta.messages.tool_runner(
        model="tiny-tools", max_tokens=200, tools=[weather], messages=HELLO, tool_choice=choice, max_iterations=2
    )
    answers = list(runner)
    kinds = [[block.type for block in answer.content] for answer in answers]
    same("anthropic runner", (kinds[0], set(cities) <= {"Rome", "Oslo"}, bool(cities)), (["tool_use"], True, True))


def ollama_tools(client):
    function = {"name": "weather", "description": "Rain?", "parameters": WEATHER}
    options = {"temperature": 0, "num_predict": 9}
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    turns = [*HELLO, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_name": "weather", "content": "rain"}]
    tools = [{"type": "function", "function": function}]
    fields = {"model": "tiny-tools", "options": options}
    told = client.chat(messages=HELLO, tools=tools, **fields).prompt_eval_count
    plain = client.chat(messages=HELLO, **fields).prompt_eval_count
    said = client.chat(messages=turns, **fields).prompt_eval_count
    same("ollama tools", (told > plain + 40, said > plain + 20), (True, True))
    answer = client.chat(messages=HELLO, think=True, logprobs=True, top_logprobs=2, **fields)
    same("ollama thoughts", (bool(answer.message.thinking), answer.message.content), (True, ""))
    same("ollama logprobs", [len(token.top_logprobs) for token in answer.logprobs], [2] * 9)
    parts = list(client.chat(messages=HELLO, think=True, stream=True, **fields))
    same("ollama thoughts streamed", "".join(p.message.thinking or "" for p in parts), answer.message.thinking)
    same("ollama capabilities", client.show("tiny-tools").capabilities, ["completion", "tools", "thinking"])


def openai_tools(client):
    tool = {"type": "function", "name": "weather", "description": "Rain?", "parameters": WEATHER, "strict": True}
    choice = {"type": "function", "name": "weather"}
    fields = {"model": "tiny-tools", "tools": [tool], "tool_choice": choice}
    answer = client.responses.create(input="hello", **fields)
    (call,) = answer.output
    called("response call", call.name, json.loads(call.arguments))
    with client.responses.stream(input="hello", **fields) as stream:
        kinds = {event.type for event in stream}
        (streamed,) = stream.get_final_response().output
    called("response call streamed", streamed.name, json.loads(streamed.arguments))
    same("response call events", "response.function_call_arguments.delta" in kinds, True)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    short = {"model": "tiny-tools", "max_output_tokens": 5}
    kept = client.responses.create(input=[output], previous_response_id=answer.id, **short)
    listed = client.responses.create(input=[*HELLO, call, output], **short)
    same("response output", kept.usage.input_tokens, listed.usage.input_tokens)
    include = ["message.output_text.logprobs"]
    answer = client.responses.create(input="hello", include=include, top_logprobs=2, temperature=0, **short)
    same("response logprobs", [len(t.top_logprobs) for t in answer.output[0].content[0].logprobs], [2] * 5)
    tools = [{"type": "function", "function": {k: tool[k] for k in ("name", "parameters")}}]
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = client.chat.completions.create(model="tiny-tools", messages=HELLO, tools=tools, tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    called("chat call", call.function.name, json.loads(call.function.arguments))


def ollama(module, address, key, thane):
    types = importlib.import_module("ollama._types")
    requests = [types.ChatRequest, types.GenerateRequest, types.EmbedRequest, types.EmbeddingsRequest]
    documented("Ollama", *requests, types.Options)
    client = module.Client(host=address, headers={"authorization": f"Bearer {key}"})
    for at, case in enumerate(cases()):
        options = {"temperature": 0, "num_predict": len(case["tokens"])}
        fields = {"model": "tiny-chat", "messages": case["messages"], "options": options}
        answer = client.chat(**fields, keep_alive="5m")
        same(f"ollama {at}", (answer.message.content, answer.eval_count), (case["text"], len(case["tokens"])))
        parts = list(client.chat(**fields, stream=True))
        same(f"ollama stream {at}", "".join(p.message.content for p in parts), case["text"])
        same(f"ollama done {at}", (parts[-1].done, parts[-1].done_reason), (True, "length"))
    case = cases()[2]
    system, user = (m["content"] for m in case["messages"])
    answer = client.generate(model="tiny-chat", prompt=user, system=system, options=options)
    same("ollama generate", answer.response, case["text"])
    answer = client.chat(model="tiny-chat", messages=fields["messages"], format=SCHEMA)
    same("ollama schema", json.loads(answer.message.content)["sky"] in SKIES, True)
    near("ollama embed", client.embed(model="bert-mean", input=TEXTS).embeddings, embedded(thane))
    near("ollama embeddings", client.embeddings(model="bert-mean", prompt=TEXTS[0]).embedding, embedded(thane)[0])
    same("ollama list", [m.model for m in client.list().models], ["tiny-chat", "tiny-tools", "tiny-plain", "bert-mean", "bert"])
    same("ollama ps", len(client.ps().models), 5)
    same("ollama show", client.show("tiny-chat").capabilities, ["completion", "tools"])
    ollama_tools(client)
    raises("ollama model", module.ResponseError, lambda: client.chat(**{**fields, "model": "x"}), status_code=404)
    raises("ollama format", module.ResponseError, lambda: client.chat(**fields, format={"type": 5}), status_code=400)
    raises("ollama pull", module.ResponseError, lambda: client.pull("x"), status_code=403)


@contextlib.contextmanager
def pplx_server(thane, key):
    """A server of tiny models under the only names that the client takes."""
    with tempfile.TemporaryDirectory() as folder:
        models = [pathlib.Path(folder) / name for name in (PPLX, PPLX_CONTEXT)]
        models[0].symlink_to(BERT.resolve())
        models[1].symlink_to(CONTEXT.resolve())
        flags = ["--port", "0", "--numerics", "f32", "--api-key", key]
        server = subprocess.Popen([thane, "serve", *models, *flags], stdout=subprocess.PIPE, text=True)
        try:
            yield server.stdout.readline().strip() + "/perplexity"
        finally:
            server.kill()


def perplexity(module, _, key, thane):
    types = module.types
    documented("Perplexity", types.EmbeddingCreateParams, types.ContextualizedEmbeddingCreateParams)
    with pplx_server(thane, key) as address:
        client = module.Perplexity(base_url=address, api_key=key, max_retries=0, timeout=600)
        perplexity_embeddings(module, client, thane)


def perplexity_embeddings(module, client, thane):
    int8 = ("--format", "int8")
    bits = ("--format", "ubinary", "--packing", "lsb")
    for encoding, flags, signed in [("base64_int8", int8, True), ("base64_binary", bits, False)]:
        found = client.embeddings.create(input=TEXTS, model=PPLX, encoding_format=encoding)
        rows = [unpack(row.embedding, signed) for row in found.data]
        same(f"perplexity {encoding}", rows, embedded(thane, *flags))
        create = client.contextualized_embeddings.create
        found = create(input=[TEXTS, TEXTS[:1]], model=PPLX_CONTEXT, encoding_format=encoding)
        rows = [unpack(row.embedding, signed) for row in found.data[0].data]
        same(f"perplexity chunks {encoding}", rows, embedded(thane, "--chunks", *flags, model=CONTEXT)[0])
        same("perplexity documents", [len(document.data) for document in found.data], [2, 1])
    found = client.embeddings.create(input=TEXTS[0], model=PPLX)
    same("perplexity default", [unpack(row.embedding, True) for row in found.data], embedded(thane, *int8)[:1])
    create = client.embeddings.create
    raises("perplexity empty", module.BadRequestError, lambda: create(input=[""], model=PPLX), status_code=400)
    raises("perplexity model", module.NotFoundError, lambda: create(input="a", model="pplx-embed-v1-4b"), status_code=404)


def huggingface_hub(module, address, key, thane):
    expected = embedded(thane)
    for name, url in [("root", address), ("models", f"{address}/models/bert-mean"), ("tei", f"{address}/tei/bert-mean")]:
        client = module.InferenceClient(base_url=url, token=key, timeout=600)
        near(f"hub vectors at {name}", client.feature_extraction(TEXTS, normalize=True, truncate=True).tolist(), expected)
        cosine = sum(a * b for a, b in zip(*expected))
        near(f"hub similarity at {name}", client.sentence_similarity(TEXTS[0], [TEXTS[1]]), [cosine])
    client = module.InferenceClient(base_url=address, token=key, timeout=600)
    case = cases()[0]
    answer = client.chat_completion(case["messages"], model="tiny-chat", temperature=0, max_tokens=len(case["tokens"]))
    same("hub chat", answer.choices[0].message.content, case["text"])
    at = {"model": f"{address}/models/tiny-chat", "max_new_tokens": 9}
    whole = client.text_generation("the sea", **at)
    same("hub text", "".join(client.text_generation("the sea", stream=True, **at)), whole)
    error = module.errors.HfHubHTTPError
    raises("hub error", error, lambda: client.feature_extraction("word " * 400))


def langchain_perplexity(module, _, key, thane):
    expected = embedded(thane, "--format", "int8")
    with pplx_server(thane, key) as address:
        model = module.PerplexityEmbeddings(model=PPLX, pplx_api_key=key)
        model.client = importlib.import_module("perplexity").Perplexity(base_url=address, api_key=key)
        found = model.embed_documents(TEXTS)
    # It gives int8 as fractions, or as they are.
    scale = max(map(max, expected)) / max(map(max, found))
    near("langchain_perplexity", [[x * scale for x in row] for row in found], expected)


def langchain_openai(module, address, key, thane):
    case = cases()[0]
    base = {"base_url": f"{address}/v1", "api_key": key, "max_retries": 0}
    chat = module.ChatOpenAI(model="tiny-chat", temperature=0, max_tokens=len(case["tokens"]), **base)
    same("langchain_openai chat", chat.invoke("hello").content, case["text"])
    same("langchain_openai stream", "".join(c.content for c in chat.stream("hello")), case["text"])
    responses = chat.model_copy(update={"use_responses_api": True})
    same("langchain_openai responses", responses.invoke("hello").text, case["text"])
    vectors = module.OpenAIEmbeddings(model="bert-mean", check_embedding_ctx_length=False, **base)
    near("langchain_openai embeddings", vectors.embed_documents(TEXTS), embedded(thane))


def city():
    """What frameworks ask for as the arguments of a tool."""
    cities = (typing.Literal["Rome", "Oslo"], ...)
    return importlib.import_module("pydantic").create_model("City", __config__={"extra": "forbid"}, city=cities)


def instructor(module, address, key, thane):
    """Needs an older openai than `check_serve.py`, so it runs where somebody has installed both."""
    client = importlib.import_module("openai").OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
    create = module.from_openai(client, mode=module.Mode.TOOLS).chat.completions.create
    for name in ("tiny-plain", "tiny-tools"):
        found = create(model=name, response_model=city(), messages=HELLO, max_retries=0)
        same(f"instructor, {name}", found.city in ("Rome", "Oslo"), True)


def pydantic_ai(module, address, key, thane):
    models = importlib.import_module("pydantic_ai.models.openai")
    provider = importlib.import_module("pydantic_ai.providers.openai").OpenAIProvider(base_url=f"{address}/v1", api_key=key)
    for kind in (models.OpenAIChatModel, models.OpenAIResponsesModel):
        for name in ("tiny-plain", "tiny-tools"):
            settings = {"parallel_tool_calls": False}
            agent = module.Agent(kind(name, provider=provider), output_type=city(), model_settings=settings)
            found = agent.run_sync("hello").output
            same(f"pydantic_ai {kind.__name__}, {name}", found.city in ("Rome", "Oslo"), True)


def llama_index(module, address, key, thane):
    """Called by `check_llama_index.py`, in an environment of its own."""
    case = cases()[0]
    base = {"api_base": f"{address}/v1", "api_key": key, "max_retries": 0}
    like = importlib.import_module("llama_index.llms.openai_like").OpenAILike
    chat = like(model="tiny-chat", is_chat_model=True, temperature=0, max_tokens=len(case["tokens"]), **base)
    messages = [importlib.import_module("llama_index.core.llms").ChatMessage(role="user", content="hello")]
    same("llama_index chat", chat.chat(messages).message.content, case["text"])
    same("llama_index stream", "".join(c.delta for c in chat.stream_chat(messages)), case["text"])
    like = importlib.import_module("llama_index.embeddings.openai_like").OpenAILikeEmbedding
    near("llama_index embeddings", like(model_name="bert-mean", **base).get_text_embedding_batch(TEXTS), embedded(thane))


def rerank(address, key):
    golden = json.loads((RERANKER / "golden.json").read_text())
    body = {"query": golden["query"], "texts": [t["text"] for t in golden["texts"]], "truncate": True, "raw_scores": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{address}/rerank", json.dumps(body).encode(), headers)
    found = json.load(urllib.request.urlopen(request))
    same("rerank order", [row["index"] for row in found], golden["order"])
    near("rerank scores", [row["score"] for row in found], [golden["texts"][i]["logit"] for i in golden["order"]])


def cohere(module, address, key, thane):
    golden = json.loads((RERANKER / "golden.json").read_text())
    texts = [t["text"] for t in golden["texts"]]
    for name, client in [("Client", module.Client), ("ClientV2", module.ClientV2)]:
        rank = client(api_key=key, base_url=address).rerank
        found = rank(model="bert", query=golden["query"], documents=texts, top_n=3).results
        same(f"cohere {name}", [row.index for row in found], golden["order"][:3])


def check(address, key, thane):
    rerank(address, key)
    for name, run in [
        ("anthropic", anthropic),
        ("ollama", ollama),
        ("perplexity", perplexity),
        ("huggingface_hub", huggingface_hub),
        ("cohere", cohere),
        ("langchain_openai", langchain_openai),
        ("langchain_perplexity", langchain_perplexity),
        ("pydantic_ai", pydantic_ai),
        ("instructor", instructor),
    ]:
        try:
            module = importlib.import_module(name)
        except ImportError:
            print(f"skipped: {name} is not installed")
            continue
        run(module, address, key, thane)
        print(f"{name} {getattr(module, '__version__', '')}: all ok")
