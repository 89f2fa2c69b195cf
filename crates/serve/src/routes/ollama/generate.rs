//! `POST /api/generate` and `POST /api/chat`.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::Response;
use serde_json::{Value, json};
use thane_engine::generate::FinishReason;
use thane_engine::schedule::Usage;
use thane_runtime::{GrammarSource, Message, Sampling, rfc3339};

use super::super::App;
use super::super::ask::{Ask, Prompt};
use super::super::format::Form;
use super::super::generate::language_model;
use super::super::turns::Turns;
use super::{LOAD_OPTIONS, model_of, ns};
use crate::answers::Answers;
use crate::body::Fields;
use crate::dialect::Dialect;
use crate::error::{ApiError, json_response};
use crate::stream::{Render, respond};

const TURNS: Turns = Turns {
    field: "messages",
    roles: &[
        ("system", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
    ],
    parts: &[],
    item_type: None,
    ignored: &["thinking"],
};

/// Models stay loaded.
const IGNORED: &[&str] = &[];

/// Fields that are supported with one value only, which changes nothing.
fn neutral() -> [(&'static str, Value); 9] {
    [
        ("context", json!([])),
        ("images", json!([])),
        ("logprobs", json!(false)),
        ("suffix", json!("")),
        ("template", json!("")),
        ("think", json!(false)),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("truncate", json!(false)),
    ]
}

pub(super) async fn generate(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let call = Call::read(&app, body, "response").await?;
    call.answer(&app, |fields, answers| {
        let prompt: String = fields.take("prompt")?.unwrap_or_default();
        let system: Option<String> = fields.take("system")?;
        let system = system.filter(|system| !system.is_empty());
        let is_raw = fields.take("raw")?.unwrap_or(false);
        if is_raw && system.is_some() {
            let message = "`system`: expected none, because `raw` asks for the prompt alone";
            return Err(ApiError::field("system", message));
        }
        if prompt.is_empty() {
            return Ok(None);
        }
        if is_raw || system.is_none() && !answers.prompts.has_template() {
            return Ok(Some(Prompt::Text(prompt)));
        }
        let system = system.map(|system| Message::new("system", system));
        let messages = system.into_iter().chain([Message::new("user", prompt)]);
        Ok(Some(Prompt::Messages(messages.collect())))
    })
    .await
}

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let call = Call::read(&app, body, "message").await?;
    call.answer(&app, |fields, _| {
        let messages = TURNS.read(&fields.take("messages")?.unwrap_or(json!([])))?;
        Ok((!messages.is_empty()).then_some(Prompt::Messages(messages)))
    })
    .await
}

/// A request that was read.
struct Call {
    fields: Fields,
    arrived: Instant,
    /// The field of the answer's text.
    text_field: &'static str,
}

impl Call {
    async fn read(app: &App, body: Body, text_field: &'static str) -> Result<Self, ApiError> {
        Ok(Self {
            fields: Fields::read(body, app.body).await?,
            arrived: Instant::now(),
            text_field,
        })
    }

    /// Answers the prompt that `prompt` takes from the fields. Without one, a client wants the
    /// model to be loaded, and it is.
    async fn answer(
        mut self,
        app: &App,
        prompt: impl FnOnce(&mut Fields, &Answers) -> Result<Option<Prompt>, ApiError>,
    ) -> Result<Response<Body>, ApiError> {
        let model = &*model_of(app, &mut self.fields).await?;
        let answers = language_model(model)?;
        let is_stream = self.fields.take("stream")?.unwrap_or(true);
        let mut options = self.fields.nested("options")?;
        let stop: Vec<String> = options.take("stop")?.unwrap_or_default();
        let max_tokens = max_tokens(options.take("num_predict")?)?;
        let sampling = sampling(&mut options, answers, app.next_request())?;
        check_context(options.take("num_ctx")?, answers)?;
        finish(options)?;
        let form = form(&mut self.fields)?;
        let prompt = prompt(&mut self.fields, answers)?;
        self.fields.finish(IGNORED, &neutral())?;
        let shape = Shape {
            model: model.id.clone(),
            text_field: self.text_field,
            arrived: self.arrived,
            first_piece: None,
        };
        let Some(prompt) = prompt else {
            let mut loaded = shape.object("", true);
            loaded["done_reason"] = json!("load");
            return Ok(json_response(&loaded));
        };
        let ask = Ask {
            prompt,
            sampling,
            form,
            stop,
            max_tokens,
        };
        let prompt_field = match shape.text_field {
            "message" => "messages",
            _ => "prompt",
        };
        let begun = ask.begin(answers, (prompt_field, "options.stop")).await?;
        respond(shape, begun.events, is_stream).await
    }
}

fn sampling(options: &mut Fields, answers: &Answers, number: u64) -> Result<Sampling, ApiError> {
    let sampling = super::super::sampling::take(options, answers, number)?;
    let penalty = options.take("repeat_penalty")?;
    Ok(Sampling {
        repetition_penalty: penalty.or(sampling.repetition_penalty),
        ..sampling
    })
}

/// `format`: `json`, or a schema.
fn form(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    let field = "format";
    let source = match fields.take::<Value>(field)? {
        None => return Ok(None),
        Some(Value::String(name)) if name.is_empty() => return Ok(None),
        Some(Value::String(name)) if name == "json" => GrammarSource::json_object(),
        Some(schema @ Value::Object(_)) => GrammarSource::JsonSchema(schema),
        Some(_) => {
            let message = "`format`: expected json or a JSON schema, found another value";
            return Err(ApiError::field(field, message));
        }
    };
    Ok(Some(Form { source, field }))
}

/// -1 and -2 are as many as fit.
fn max_tokens(asked: Option<i64>) -> Result<Option<usize>, ApiError> {
    match asked {
        None | Some(-2 | -1) => Ok(None),
        Some(n) => usize::try_from(n).map(Some).map_err(|_| {
            let message = format!("`options.num_predict`: expected -2, -1 or more, found {n}");
            ApiError::field("options.num_predict", message)
        }),
    }
}

/// The context is what the server was started with; a smaller one would only cut conversations.
fn check_context(asked: Option<usize>, answers: &Answers) -> Result<(), ApiError> {
    let most = answers.context;
    match asked {
        Some(n) if n > most => {
            let message = format!(
                "`options.num_ctx`: expected at most {most}, found {n}: `thane serve --context` \
                 sets the context"
            );
            Err(ApiError::field("options.num_ctx", message))
        }
        _ => Ok(()),
    }
}

fn finish(options: Fields) -> Result<(), ApiError> {
    let neutral = [("penalize_newline", json!(true)), ("tfs_z", json!(1))];
    options.finish(LOAD_OPTIONS, &neutral)
}

/// The JSON of an answer: a line for each piece, and one with the counts.
struct Shape {
    model: String,
    /// `response` or `message`.
    text_field: &'static str,
    arrived: Instant,
    /// When the first piece was made: what was before was for the prompt.
    first_piece: Option<Instant>,
}

impl Shape {
    fn object(&self, text: &str, is_done: bool) -> Value {
        let mut object = json!({
            "model": self.model,
            "created_at": rfc3339(SystemTime::now()),
            "done": is_done,
        });
        object[self.text_field] = match self.text_field {
            "message" => json!({"role": "assistant", "content": text}),
            _ => json!(text),
        };
        object
    }

    fn done(&self, text: &str, reason: FinishReason, usage: &Usage) -> Value {
        let total = self.arrived.elapsed();
        let prompt = self.first_piece.map_or(total, |at| at - self.arrived);
        let mut object = self.object(text, true);
        object["done_reason"] = match reason {
            FinishReason::Stop | FinishReason::Interrupted => json!("stop"),
            FinishReason::Length | FinishReason::Context => json!("length"),
        };
        object["total_duration"] = ns(total);
        object["load_duration"] = ns(Duration::ZERO);
        object["prompt_eval_count"] = usage.prompt_tokens.into();
        object["prompt_eval_duration"] = ns(prompt);
        object["eval_count"] = usage.answer_tokens.into();
        object["eval_duration"] = ns(total - prompt);
        object
    }
}

fn line(value: &Value) -> Bytes {
    Bytes::from(format!("{value}\n"))
}

impl Render for Shape {
    const STREAM_TYPE: &'static str = "application/x-ndjson";

    fn whole(&mut self, text: &str, reason: FinishReason, usage: &Usage) -> Value {
        self.done(text, reason, usage)
    }

    fn first(&mut self) -> Vec<Bytes> {
        Vec::new()
    }

    fn piece(&mut self, text: &str) -> Bytes {
        self.first_piece.get_or_insert_with(Instant::now);
        line(&self.object(text, false))
    }

    fn last(&mut self, reason: FinishReason, usage: &Usage) -> Vec<Bytes> {
        vec![line(&self.done("", reason, usage))]
    }

    fn failure(&mut self, error: &ApiError) -> Bytes {
        line(&Dialect::Ollama.error(error))
    }
}
