#!/usr/bin/env bash
# Environments with the programs that Thane is compared with: bash scripts/peers/setup.sh FOLDER
#
# Each is what pip installs, in an environment of its own below FOLDER: llama.cpp and ik_llama.cpp by their Python bindings
# (built on this machine where there is no wheel, which takes minutes and a C++ compiler), OpenVINO GenAI. Needs network.
set -euo pipefail
folder=${1:?the folder for the environments}
mkdir -p "$folder"
peer() { # name, packages..
    local venv=$folder/$1
    shift
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check numpy "$@"
    "$venv/bin/pip" list --disable-pip-version-check 2>/dev/null | grep -iE 'llama|openvino' | tr -s ' '
}
peer llama.cpp llama-cpp-python==0.3.36
peer ik_llama.cpp ik-llama-cpp-python==0.1.5
peer openvino openvino-genai==2026.4.1.0
