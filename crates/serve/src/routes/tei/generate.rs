//! Text generation as `huggingface_hub` asks for it: the API of Text Generation Inference.

use serde::Deserialize;
use serde_json::{Value, json};
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::Usage;
use thane_runtime::chat::Part;
use thane_runtime::{GrammarSource, Sampling};

use super::super::ask::{Ask, Prompt};
use super::super::generate::language_model;
use super::super::sampling::{self, take_stops};
use crate::body::Fields;
use crate::compiling::Form;
use crate::dialect::Dialect;
use crate::error::{Answered, ApiError};
use crate::model::Served;
use crate::random;
use crate::stream::{Answer, End, Render, respond};
use crate::written::Writer;

/// Most tokens of an answer whose request does not say, as in the API.
const MAX_TOKENS: usize = 100;

/// `parameters.grammar`.
#[derive(Deserialize)]
#[serde(
    tag = "type",
    content = "value",
    rename_all = "snake_case",
    deny_unknown_fields
)]
enum Grammar {
    Json(Value),
    Regex(String),
}

/// Fields of `parameters` that are supported with one value only, which changes nothing.
fn neutral() -> [(&'static str, Value); 6] {
    [
        ("best_of", json!(1)),
        ("decoder_input_details", json!(false)),
        ("details", json!(false)),
        ("return_full_text", json!(false)),
        ("top_n_tokens", json!(0)),
        ("watermark", json!(false)),
    ]
}

/// Continues a text, without the chat template.
pub(super) async fn generate(model: &Served, mut fields: Fields) -> Answered {
    let answers = language_model(model)?;
    let text: String = fields.require("inputs")?;
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let mut parameters = fields.nested("parameters")?;
    fields.finish(&[], &[])?;
    let stop = take_stops(&mut parameters, "stop", "parameters.stop")?;
    let max_tokens = parameters.take("max_new_tokens")?.unwrap_or(MAX_TOKENS);
    let grammar: Option<Grammar> = parameters.take("grammar")?;
    let is_greedy = parameters.take("do_sample")? == Some(false);
    let mut sampling: Sampling = sampling::take(&mut parameters, answers, random::number()?)?;
    if is_greedy && sampling.temperature.is_none() {
        sampling.temperature = Some(0.0);
    }
    parameters.finish(&[], &neutral())?;
    let ask = Ask {
        form: grammar.map(|grammar| Form {
            source: match grammar {
                Grammar::Json(schema) => GrammarSource::JsonSchema(schema),
                Grammar::Regex(regex) => GrammarSource::Regex(regex),
            },
            field: "parameters.grammar",
        }),
        stop,
        max_tokens: Some(max_tokens),
        ..Ask::new(vec![Prompt::Text(text)], sampling)
    };
    let begun = ask.begin(answers, "inputs").await?;
    respond(Shape::default(), begun.choices, is_stream).await
}

/// The JSON of an answer.
#[derive(Default)]
struct Shape {
    /// The answer so far.
    text: String,
    n_pieces: usize,
}

impl Shape {
    /// An event. A piece may be several tokens, so it has neither an id nor a probability.
    fn event(&mut self, piece: &str, is_special: bool, text: Value, details: Value) -> Value {
        self.n_pieces += 1;
        json!({
            "index": self.n_pieces,
            "token": {"id": null, "text": piece, "logprob": null, "special": is_special},
            "generated_text": text,
            "details": details,
        })
    }
}

impl Render for Shape {
    fn whole(&mut self, answers: Vec<Answer>, _: &Usage, into: &mut Writer) {
        let shown = |answer: &Answer| json!({"generated_text": answer.text()});
        into.json(&answers.iter().map(shown).collect::<Vec<_>>());
    }

    fn part(&mut self, _: usize, part: Part, _: Vec<TokenLogprob>, into: &mut Writer) {
        let Part::Text(text) = part else {
            return;
        };
        self.text.push_str(&text);
        into.data(&self.event(&text, false, Value::Null, Value::Null));
    }

    fn end(&mut self, _: usize, end: &End, _: Vec<TokenLogprob>, into: &mut Writer) {
        let reason = match end.is_complete() {
            _ if end.usage.stop_idx.is_some() => "stop_sequence",
            true => "eos_token",
            false => "length",
        };
        let details = json!({
            "finish_reason": reason,
            "generated_tokens": end.usage.answer_tokens,
            "seed": null,
        });
        let text = json!(self.text);
        into.data(&self.event("", true, text, details));
    }

    fn failure(&mut self, error: &ApiError, into: &mut Writer) {
        into.data(&Dialect::Tei.error(error));
    }
}
