//! Describes a file whose first bytes are not those of the expected format.

/// Says what the first bytes of a file look like and what to do about it. The text continues a
/// sentence such as "not a GGUF file: ".
pub(super) fn describe(head: &[u8]) -> String {
    if let Some(pointer) = thane_mil::package::lfs_pointer(head) {
        return format!("it {pointer}");
    }
    let known = known(head);
    if let Some(known) = known {
        return known.to_owned();
    }
    let shown = &head[..head.len().min(8)];
    let bytes: Vec<String> = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "it starts with the bytes {} instead of \"GGUF\": give a GGUF file or a Hugging Face \
         folder",
        bytes.join(" ")
    )
}

/// The description of a known format, or `None` if the bytes are not recognized.
fn known(head: &[u8]) -> Option<&'static str> {
    if head.is_empty() {
        return Some("it is empty: fetch it again");
    }
    if head.len() < 4 && b"GGUF".starts_with(head) {
        return Some("it ends within the magic \"GGUF\": fetch it again");
    }
    let text = head
        .iter()
        .position(|byte| !byte.is_ascii_whitespace())
        .map_or(head, |start| &head[start..]);
    Some(match () {
        () if text.starts_with(b"program(") => {
            "it looks like MIL text, which is a program and not a checkpoint"
        }
        () if looks_like_onnx(head) => ONNX,
        () if looks_like_core_ml(head) => {
            "it looks like a Core ML .mlmodel file (a neural network, a tree or a pipeline), which \
             no command reads: give the checkpoint, or convert it with coremltools, \
             convert_to=\"mlprogram\""
        }
        () if head.starts_with(b"PK\x03\x04") => {
            "it looks like a zip archive (a PyTorch .bin or .pt file is one, so is a wheel): \
             unpack it, or convert the model to safetensors"
        }
        () if starts_with_ignoring_case(text, b"<!doctype")
            || starts_with_ignoring_case(text, b"<html") =>
        {
            "it looks like an HTML page, probably an error or login page saved in place of the \
             file: fetch it again"
        }
        () if looks_like_safetensors(head) => {
            "it looks like a safetensors file: name it .safetensors and put it beside its \
             config.json"
        }
        () if head.starts_with(b"tjgg")
            || head.starts_with(b"lmgg")
            || head.starts_with(b"fmgg") =>
        {
            "it looks like a GGML file from before GGUF: convert the model again with a current \
             llama.cpp"
        }
        () if head.starts_with(b"\x1f\x8b") => "it looks like a gzip file: unpack it",
        () if head.starts_with(b"\x28\xb5\x2f\xfd") => "it looks like a zstd file: unpack it",
        () if head.starts_with(b"\x80\x02") => {
            "it looks like a Python pickle: convert the model to safetensors"
        }
        () if head.iter().all(|&byte| byte == 0) => {
            "it starts with zeros only, like an unfinished download: fetch it again"
        }
        () if text.starts_with(b"{") => {
            "it looks like JSON: give the folder that holds it, or the file with the weights"
        }
        () => return None,
    })
}

/// The description of an ONNX model, and what to give instead.
const ONNX: &str = "it looks like an ONNX model, which no command reads: Thane reads GGUF files, Hugging Face \
     folders with safetensors, and Core ML packages: give the checkpoint that the ONNX model was \
     exported from";

/// Whether the bytes start like the protocol buffer of an ONNX model: the version of the format,
/// then the name of a program, or a field that Core ML models do not have.
fn looks_like_onnx(head: &[u8]) -> bool {
    match head {
        // A description of a Core ML model begins with the tag of a field, which is no letter.
        [0x08, 1..=127, 0x12, len, name @ ..] => {
            let name = &name[..name.len().min((*len).into())];
            !name.is_empty() && name.iter().all(|b| b.is_ascii_graphic() || *b == b' ')
        }
        [0x08, 1..=127, tag, ..] => [0x1a, 0x22, 0x28, 0x3a, 0x42].contains(tag),
        _ => false,
    }
}

/// Whether the bytes start like the protocol buffer of a Core ML model: a specification version,
/// then a description.
fn looks_like_core_ml(head: &[u8]) -> bool {
    matches!(head, [0x08, 1..=32, 0x12, ..])
}

/// Whether the bytes start like safetensors: a plausible header length, then the start of the JSON
/// header.
fn looks_like_safetensors(head: &[u8]) -> bool {
    let Some((len, rest)) = head.split_first_chunk::<8>() else {
        return false;
    };
    rest.starts_with(b"{")
        && (2..=super::limits::MAX_HEADER_LEN).contains(&u64::from_le_bytes(*len))
}

fn starts_with_ignoring_case(text: &[u8], prefix: &[u8]) -> bool {
    text.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}
