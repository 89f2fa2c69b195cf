//! The prompt that an embedding model puts before each text.

use thane_models::EncoderInfo;

use crate::error::RuntimeError;

/// A prompt of an embedding model. Without a prompt, the name is `None` and the text empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Name of the prompt.
    pub name: Option<String>,
    /// Text that is put before each text.
    pub text: String,
}

impl Prompt {
    /// Chooses a prompt by name; `None` for the model's default, an empty name for no prompt.
    /// `query` and `document` are empty where the model does not name them, as in
    /// sentence-transformers.
    pub fn choose(name: Option<&str>, info: &EncoderInfo) -> Result<Self, RuntimeError> {
        let name = match name {
            Some("") => None,
            // The name of the default may be empty.
            name => name.or(info.default_prompt.as_deref()),
        };
        let Some(name) = name else {
            return Ok(Self::default());
        };
        let text = match info.prompts.get(name) {
            Some(text) => text.clone(),
            None if ["query", "document"].contains(&name) => String::new(),
            None => {
                return Err(RuntimeError::UnknownPrompt {
                    name: name.to_owned(),
                    known: info.prompts.keys().cloned().collect(),
                });
            }
        };
        Ok(Self {
            name: Some(name.to_owned()),
            text,
        })
    }
}
