"""Write a GGUF file whose quantized tensors are fp16, with the same metadata.

    python3 scripts/peers/widen_gguf.py MODEL.gguf OUT.gguf

The portable form of this file has the weights that the form for the Neural Engine of MODEL has, so that both forms can be
timed with weights of one size: `thane bench decode`, `thane bench prefill`. Needs gguf (pip).
"""

import sys

import gguf
import numpy as np


def main():
    source, target = sys.argv[1:]
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE).contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE:
            continue
        kind = field.types[0]
        item = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = gguf.LlamaFileType.MOSTLY_F16 if field.name == gguf.Keys.General.FILE_TYPE else field.contents()
        writer.add_key_value(field.name, value, kind, sub_type=item)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        kept = np.float32 if tensor.tensor_type == gguf.GGMLQuantizationType.F32 else np.float16
        writer.add_tensor(tensor.name, values.reshape(tensor.shape[::-1]).astype(kept))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
