//! Renders a conversation with a model's chat template and prints the prompt and its token ids.
//!
//!     cargo run -p thane-engine --example chat_prompt -- FOLDER
//!
//! FOLDER contains `tokenizer.json`, `tokenizer_config.json` and `config.json` of a Hugging Face
//! model. Without an argument the example uses a tiny model of the tests.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use thane_engine::text::{ChatTemplate, Message, Tokenizer, TokenizerConfig};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/tiny-chat");

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os()
        .nth(1)
        .map_or_else(|| PathBuf::from(TINY), PathBuf::from);
    let model: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("config.json"))?)?;
    let n_vocab = model["vocab_size"]
        .as_u64()
        .ok_or("config.json: expected an integer vocab_size")?;
    let config = TokenizerConfig::from_tokenizer_config(
        &fs::read(folder.join("tokenizer_config.json"))?,
        usize::try_from(n_vocab)?,
    )?;
    let source = config
        .chat_template
        .clone()
        .ok_or("tokenizer_config.json: expected a chat_template")?;
    let template = ChatTemplate::new(
        &source,
        config.bos_token.as_deref().unwrap_or_default(),
        config.eos_token.as_deref().unwrap_or_default(),
    )?;
    let tokenizer = Tokenizer::from_json(&fs::read(folder.join("tokenizer.json"))?, config)?;
    let messages = [Message::new("user", "What is a <|im_end|> token?")];
    let prompt = template.render(&messages, true)?;
    println!("{}", prompt.text);
    // The spelling of a control token in a message is encoded as plain text.
    println!("{:?}", tokenizer.encode_rendered(&prompt)?);
    Ok(())
}
