//! The tokenizer and the chat template of a GGUF file, from its `tokenizer.*` keys.

use std::collections::BTreeMap;

use thane_engine::text::{NamedTemplates, Texts, Vocab};
use thane_models::checkpoint::Gguf;

use super::{LanguageData, TokenizerData};
use crate::error::LanguageError;
use crate::template_source::TemplateSource;

/// The key of the chat template, and with a dot and a name behind it, of a further one.
const TEMPLATE: &str = "tokenizer.chat_template";

/// Reads the data for a model whose embedding table has `n_vocab` rows; `None` if the file has no
/// tokenizer.
pub(super) fn read(gguf: &Gguf, n_vocab: usize) -> Result<Option<LanguageData>, LanguageError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| gguf.opt_u32(&key(name));
    let flag = |name: &str| gguf.opt_bool(&key(name));
    let texts = |name: &str| -> Result<Option<Texts>, LanguageError> {
        Ok(gguf
            .opt_strings(&key(name))?
            .map(|texts| texts.into_iter().collect()))
    };
    let Some(tokens) = texts("tokens")? else {
        return Ok(None);
    };
    let (bos, eos) = (id("bos_token_id")?, id("eos_token_id")?);
    let template = template(gguf, &tokens, [bos, eos])?;
    let token_types = gguf.opt_i32s(&key("token_type"))?;
    // llama.cpp ends an answer with these too.
    let ends = [
        id("fim_pad_token_id")?,
        id("fim_rep_token_id")?,
        id("fim_sep_token_id")?,
    ];
    let vocab = Vocab {
        model: gguf.str(&key("model"))?.to_owned(),
        pre: gguf.opt_str(&key("pre"))?.map(str::to_owned),
        scores: gguf.opt_f32s(&key("scores"))?,
        merges: texts("merges")?,
        bos,
        eos,
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        ends: ends.into_iter().flatten().collect(),
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        cls: id("cls_token_id")?,
        sep: id("seperator_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        inner: Vec::new(),
        lowercase: flag("normalizer.lowercase")?,
        strip_accents: flag("normalizer.strip_accents")?,
        rstrip: rstrip(gguf, &tokens, token_types.as_deref())?,
        chat_template: template.as_ref().map(|t| t.all_text().into_owned()),
        token_types,
        tokens,
        n_vocab,
    };
    Ok(Some(LanguageData {
        tokenizer: TokenizerData::Lists(vocab),
        template,
    }))
}

/// The chat template, and the one for tools. Where there is only that one, llama.cpp takes it for
/// all messages (`common_chat_templates_init` of common/chat.cpp).
fn template(
    gguf: &Gguf,
    tokens: &Texts,
    [bos, eos]: [Option<u32>; 2],
) -> Result<Option<TemplateSource>, LanguageError> {
    let prefix = format!("{TEMPLATE}.");
    let keys = gguf.metadata.keys();
    let names: Vec<String> = keys
        .filter_map(|key| key.strip_prefix(&prefix).map(str::to_owned))
        .collect();
    let usual = gguf.opt_str(TEMPLATE)?;
    let tool_use = gguf.opt_str(&format!("{prefix}tool_use"))?;
    let (text, tool_use) = match (usual, tool_use) {
        (None, Some(only)) => (Some(only), None),
        both => both,
    };
    if text.is_none() && names.is_empty() {
        return Ok(None);
    }
    let text_of = |id: Option<u32>| {
        id.and_then(|id| tokens.get(id as usize))
            .unwrap_or_default()
            .to_owned()
    };
    Ok(Some(TemplateSource {
        text: text.unwrap_or_default().to_owned(),
        tool_use: tool_use.map(str::to_owned),
        bos: text_of(bos),
        eos: text_of(eos),
        tokens: BTreeMap::new(),
        no_default: text.is_none().then(|| NamedTemplates {
            file: format!("the keys {prefix}*"),
            names,
        }),
    }))
}

/// The tokens that take the white space behind them. The file does not say: llama.cpp goes by the
/// name of the model, and has it so for Phi-3 (`llama_vocab::impl::load`), as its `tokenizer.json`.
fn rstrip(gguf: &Gguf, tokens: &Texts, types: Option<&[i32]>) -> Result<Vec<u32>, LanguageError> {
    const KEPT: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];
    const UNKNOWN: i32 = 2;
    const USER_DEFINED: i32 = 4;
    let name = gguf.opt_str("general.name")?.unwrap_or_default();
    let name = name.to_ascii_lowercase();
    if !["phi-3", "phi3"].iter().any(|part| name.contains(part)) {
        return Ok(Vec::new());
    }
    let is_special = |(token, kind): &(&str, &i32)| {
        (UNKNOWN..=USER_DEFINED).contains(*kind) && !KEPT.contains(token)
    };
    let rows = tokens.iter().zip(types.unwrap_or_default());
    let ids = (0..).zip(rows).filter(|(_, row)| is_special(row));
    Ok(ids.map(|(id, _)| id).collect())
}
