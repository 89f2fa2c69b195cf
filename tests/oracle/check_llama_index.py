"""The OpenAI plugins of llama-index, unchanged, against `thane serve` on tiny models. They need an older
openai than `check_serve.py`, and so an environment of their own (`llama-index-requirements.txt`).

    python3 tests/oracle/check_llama_index.py target/debug/thane

Needs llama-index-llms-openai-like and llama-index-embeddings-openai-like. Without them, the script says so
and ends with 0.
"""

import signal
import subprocess
import sys

try:
    import llama_index.core as core
    import llama_index.embeddings.openai_like
    import llama_index.llms.openai_like
except ImportError as error:
    print(f"skipped: {error.name} is not installed")
    sys.exit(0)

import serve_clients

KEY = "a key"


def main():
    thane = sys.argv[1]
    flags = ["--port", "0", "--context", "512", "--numerics", "f32", "--api-key", KEY]
    models = [serve_clients.CHAT, serve_clients.BERT]
    server = subprocess.Popen([thane, "serve", *models, *flags], stdout=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
        serve_clients.llama_index(core, address, KEY, thane)
        print(f"llama_index {core.__version__}: all ok")
        server.send_signal(signal.SIGINT)
        serve_clients.same("exit code", server.wait(timeout=300), 0)
    finally:
        server.kill()


if __name__ == "__main__":
    main()
