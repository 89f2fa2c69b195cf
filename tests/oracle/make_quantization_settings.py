"""Makes tests/models/quantization-settings.json: `quantization_config` as transformers writes it.

    python3 tests/oracle/make_quantization_settings.py

By the name of a checkpoint in tests/models/tiny, the whole dictionary that transformers makes of the settings that the
checkpoint was quantized with (make_tiny_quantized.py). Needs transformers.
"""

import json

from golden import MODELS, need

need("transformers")

from transformers import AwqConfig, FineGrainedFP8Config, GPTQConfig

SETTINGS = {
    "awq": AwqConfig(bits=4, group_size=16),
    "fp8": FineGrainedFP8Config(weight_block_size=(32, 16), modules_to_not_convert=["lm_head"]),
    "gptq": GPTQConfig(bits=4, group_size=16, sym=False),
}


def main():
    def plain(value):
        return getattr(value, "value", value)

    written = {
        name: {key: plain(value) for key, value in settings.to_dict().items()} for name, settings in SETTINGS.items()
    }
    text = json.dumps(written, indent=1, sort_keys=True)
    (MODELS / "quantization-settings.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
