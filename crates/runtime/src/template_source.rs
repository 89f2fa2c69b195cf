//! Finds the chat template among the files of a model, as transformers (5.24) does: the template
//! named `default`, and for conversations with tools the one named `tool_use`, if there is one
//! beside it. Which file has the default:
//!
//! 1. `additional_chat_templates/default.jinja`.
//! 2. `chat_template.jinja`.
//! 3. `chat_template` of `tokenizer_config.json`, if there is no other file with a template.
//!
//! `tool_use` comes from the same folder, or in case 3 from the same list.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thane_engine::text::{ChatTemplate, NamedTemplates, TemplateError, TokenizerConfig};

use crate::error::{ContractError, LanguageError};
use crate::files::read;

/// The folder of templates by name.
const FOLDER: &str = "additional_chat_templates";

/// The source of a chat template, and its spelling of the tokens that begin and end a text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateSource {
    /// Jinja source; empty if there is none to choose.
    pub text: String,
    /// Jinja source for conversations with tools, if it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use: Option<String>,
    /// Text of the token that begins a text.
    pub bos: String,
    /// Text of the token that ends a text.
    pub eos: String,
    /// Texts of all tokens that the files or the tokenizer's class name, by their keys, such as
    /// `pad_token`. Packages of older versions have none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens: BTreeMap<String, String>,
    /// The templates that there are, if none of them is `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_default: Option<NamedTemplates>,
}

impl TemplateSource {
    /// Parses the source. A model whose templates leave no choice is refused here, not where its
    /// files are read: prompts without a template and vectors need none.
    pub fn parse(&self) -> Result<ChatTemplate, TemplateError> {
        if let Some(templates) = &self.no_default {
            return Err(TemplateError::NoDefault(templates.clone()));
        }
        let mut template = ChatTemplate::new(&self.text, &self.bos, &self.eos)?;
        if let Some(source) = &self.tool_use {
            template = template.with_tool_use(source)?;
        }
        Ok(template.with_tokens(self.tokens.clone()))
    }

    /// The sources of all templates, one after another, to be searched.
    pub fn all_text(&self) -> Cow<'_, str> {
        match &self.tool_use {
            None => Cow::Borrowed(&self.text),
            Some(source) => Cow::Owned([self.text.as_str(), source].join("\n")),
        }
    }

    /// The template of settings.
    pub fn of(config: &TokenizerConfig) -> Option<Self> {
        let no_default = config.named_templates.clone();
        if config.chat_template.is_none() && no_default.is_none() {
            return None;
        }
        Some(Self {
            text: config.chat_template.clone().unwrap_or_default(),
            tool_use: config.tool_template.clone(),
            bos: config.bos_text().to_owned(),
            eos: config.eos_text().to_owned(),
            tokens: config.special_tokens(),
            no_default,
        })
    }
}

/// Replaces the template of `tokenizer_config.json` by the one of other files, if there is such a
/// file. `usual` is the path of `chat_template.jinja`.
pub fn read_files(
    config: &mut TokenizerConfig,
    folder: &Path,
    usual: Option<&Path>,
) -> Result<(), LanguageError> {
    let folder = folder.join(FOLDER);
    let names = names(&folder)?;
    let default = Some(folder.join("default.jinja")).filter(|_| names.contains("default"));
    let text = |path: &Path| {
        String::from_utf8(read(path)?).map_err(|_| LanguageError::NotUtf8(path.to_owned()))
    };
    let has_tool_use = names.contains("tool_use");
    if let Some(path) = default.as_deref().or(usual) {
        config.chat_template = Some(text(path)?);
        let tool_use = has_tool_use.then(|| text(&folder.join("tool_use.jinja")));
        config.tool_template = tool_use.transpose()?;
        config.named_templates = None;
    } else if !names.is_empty() {
        (config.chat_template, config.tool_template) = (None, None);
        config.named_templates = Some(NamedTemplates {
            file: FOLDER.to_owned(),
            names: names.into_iter().collect(),
        });
    }
    Ok(())
}

/// The names of the templates in a folder, which need not exist.
fn names(folder: &Path) -> Result<BTreeSet<String>, LanguageError> {
    let failed = |source| ContractError::Read {
        path: folder.to_owned(),
        source,
    };
    let entries = match fs::read_dir(folder) {
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
            return Ok(BTreeSet::new());
        }
        entries => entries.map_err(failed)?,
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_str().and_then(|name| name.strip_suffix(".jinja"));
        names.extend(name.map(str::to_owned));
    }
    Ok(names)
}
