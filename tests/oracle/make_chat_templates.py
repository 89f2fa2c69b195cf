"""Makes tests/models/chat-templates.json: which of several chat templates transformers takes.

    python3 tests/oracle/make_chat_templates.py

A row has `chat_template` of tokenizer_config.json, the other files of the folder, and what `apply_chat_template` answers without
tools and with a tool; null where it refuses to choose.
Needs transformers.
"""

import json
import shutil
import tempfile
from pathlib import Path

from golden import MODELS, need, write_json

need("transformers")

from transformers import AutoTokenizer

DEFAULT = {"additional_chat_templates/default.jinja": "AD"}
RAG = {"additional_chat_templates/rag.jinja": "AR"}
TOOLS = {"additional_chat_templates/tool_use.jinja": "AT{{ tools | length }}"}
JINJA = {"chat_template.jinja": "J{% if tools %}+{% endif %}"}
TOKENS = {"pad_token": "<|im_end|>", "image_token": "<|im_start|>"}
TOOL = {"type": "function", "function": {"name": "f", "description": "f", "parameters": {"type": "object", "properties": {}}}}


def listed(**templates):
    return [{"name": name, "template": text} for name, text in templates.items()]


CASES = [
    (listed(rag="R"), {}),
    (listed(rag="R", tool_use="U"), {}),
    (listed(rag="R", default="D"), {}),
    (listed(tool_use="U{{ tools | length }}", default="D"), {}),
    (listed(tool_use="U", default="D"), JINJA),
    (listed(tool_use="U", default="D"), DEFAULT),
    ({"default": "D", "rag": "R"}, {}),
    ({"default": "D", "tool_use": "{{ pad_token }}"}, {}),
    ({"rag": "R"}, {}),
    ([], {}),
    (None, DEFAULT),
    (None, DEFAULT | JINJA),
    (None, DEFAULT | TOOLS),
    (None, JINJA | TOOLS),
    (None, TOOLS),
    ("T", {}),
    ("T", TOOLS),
    ("T", RAG),
    ("T", RAG | JINJA),
    ("T", RAG | DEFAULT),
    ("T", RAG | JINJA | TOOLS | DEFAULT),
    (listed(rag="R"), JINJA),
    ("{{ pad_token }}{{ image_token }}", {}),
]


def answers(template, files):
    with tempfile.TemporaryDirectory() as other:
        other = Path(other)
        (other / "additional_chat_templates").mkdir()
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(MODELS / "tiny-chat" / name, other / name)
        config = json.loads((MODELS / "tiny-chat/tokenizer_config.json").read_text()) | TOKENS
        (other / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
        for name, text in files.items():
            (other / name).write_text(text)
        tokenizer = AutoTokenizer.from_pretrained(other)
        return {"alone": answer(tokenizer, None), "with_tool": answer(tokenizer, [TOOL])}


def answer(tokenizer, tools):
    try:
        return tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tools=tools, tokenize=False)
    except ValueError:
        return None


def main():
    rows = [{"chat_template": template, "files": files} | answers(template, files) for template, files in CASES]
    write_json(MODELS / "chat-templates.json", {"tokens": TOKENS, "tool": TOOL, "rows": rows})


if __name__ == "__main__":
    main()
