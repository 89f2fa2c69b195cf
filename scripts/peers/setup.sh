#!/usr/bin/env bash
# Environments with the programs that Thane is compared with: bash scripts/peers/setup.sh FOLDER
#
# Each is what pip installs, in an environment of its own below FOLDER: llama.cpp and ik_llama.cpp by their Python bindings
# (built on this machine where there is no wheel, which takes minutes and a C++ compiler), OpenVINO GenAI, and in `encoders`
# onnxruntime, OpenVINO and torch with what writes their forms of a model, in `packages-env` onnxruntime with what
# makes the Core ML packages that packages.py measures. Needs network and 14 GB.
set -euo pipefail
folder=${1:?the folder for the environments}
mkdir -p "$folder"
peer() { # name, packages..
    local venv=$folder/$1
    shift
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check numpy "$@"
    "$venv/bin/pip" list --disable-pip-version-check 2>/dev/null |
        grep -iE '^(llama|ik.llama|openvino|onnxruntime|torch|transformers|nncf)' | tr -s ' '
}
peer llama.cpp llama-cpp-python==0.3.36 gguf==0.19.0
peer ik_llama.cpp ik-llama-cpp-python==0.1.5
peer openvino openvino-genai==2026.4.1.0
peer encoders torch==2.15.0 transformers==5.23.0 tokenizers safetensors onnx==1.23.2 onnxruntime==1.31.1 openvino==2026.4.1 nncf==3.4.0 \
    gguf==0.19.0 accelerate==1.15.0
# What makes the models of packages.py, and runs their ONNX form.
peer packages-env torch==2.15.0 torchvision==0.29.2 transformers==5.24.0 coremltools==9.0 onnx==1.23.2 \
    onnxscript==0.7.2 onnxruntime==1.32.0
