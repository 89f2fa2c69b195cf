//! `/v1/responses`: OpenAI's newer API of conversations. The server keeps responses, so that a
//! request can continue one by its id.

mod inputs;
mod items;
mod shape;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thane_runtime::{GrammarSource, Message, Sampling};

use super::ask::{self, Ask, Prompt};
use super::conversation::Conversation;
use super::generate::{check_logprobs, language_model};
use super::table::{Route, routes};
use super::tools::{Declaration, Tools, take_choice};
use super::{Shared, now_s};
use crate::answers::Answers;
use crate::body::{Fields, refused};
use crate::compiling::Form;
use crate::error::{Answered, ApiError, json_response};
use crate::kept::Responses;
use crate::random;
use crate::stream::respond;
use crate::written::written_answer;
use shape::Shape;

/// Functions of the client; tools that run at OpenAI have other types.
const TOOL: Declaration = Declaration {
    kind: "function",
    kind_is_optional: false,
    inner: None,
    schema: "parameters",
    examples: None,
    ignored: &["strict"],
};

/// Fields that do not change an answer.
const IGNORED: &[&str] = &[
    "max_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "stream_options",
    "user",
];

/// Fields that are supported with one value only, which changes nothing.
fn neutral() -> [(&'static str, Value); 3] {
    [
        ("background", json!(false)),
        ("context_management", json!([])),
        ("truncation", json!("disabled")),
    ]
}

/// The routes, each with its whole path.
pub(super) fn routes() -> Vec<Route> {
    routes![
        post "/v1/responses" ["model", "input"]
            create, "Answers messages, and keeps the conversation.";
        post "/v1/responses/input_tokens" ["model", "input"]
            count_tokens, "Counts the tokens of a prompt.";
        get "/v1/responses/{id}" retrieve, "A response that is kept.";
        delete "/v1/responses/{id}" remove, "Drops a response that is kept.";
        get "/v1/responses/{id}/input_items"
            inputs::list, "What a response that is kept answered.";
    ]
}

async fn create(State(app): Shared, body: Body) -> Answered {
    let (mut fields, model, number) = app.read(body).await?;
    let answers = language_model(&model)?;
    let mut about = about(&fields);
    let (id, responses) = (random::id()?, app.responses());
    about.insert("id".to_owned(), json!(format!("resp_{id}")));
    about.insert("model".to_owned(), json!(model.id));
    let Asked {
        messages,
        input,
        conversation,
        form,
    } = Asked::take(&mut fields, &responses, answers, &id)?;
    let sampling = Sampling {
        temperature: fields.take("temperature")?,
        top_p: fields.take("top_p")?,
        seed: number,
        ..Sampling::default()
    };
    let ask = Ask {
        form,
        max_tokens: fields.take("max_output_tokens")?,
        logprobs: logprobs(&mut fields, answers)?,
        ..Ask::new(vec![Prompt::Conversation(conversation)], sampling)
    };
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let is_kept = fields.take("store")?.unwrap_or(true);
    fields.take::<Map<String, Value>>("metadata")?;
    fields.finish(IGNORED, &neutral())?;
    let mut shape = Shape::new(about, id, Arc::clone(&answers.prompts));
    shape.shows_logprobs = ask.logprobs.is_some();
    shape.kept = is_kept.then_some((responses, messages, input));
    let mut choices = ask.begin(answers, "input").await?.choices;
    choices
        .iter_mut()
        .for_each(|choice| choice.drops_markup = true);
    respond(shape, choices, is_stream).await
}

async fn count_tokens(State(app): Shared, body: Body) -> Answered {
    let (mut fields, model, _) = app.read(body).await?;
    let answers = language_model(&model)?;
    let asked = Asked::take(&mut fields, &app.responses(), answers, "")?;
    fields.finish(&[], &[("truncation", json!("disabled"))])?;
    let n = ask::count_tokens(asked.conversation, asked.form, answers, "input").await?;
    let counted = json!({"object": "response.input_tokens", "input_tokens": n});
    Ok(json_response(&counted))
}

/// What a request says of the prompt, and of the form of the answer.
struct Asked {
    /// The conversation that is kept, without instructions.
    messages: Vec<Message>,
    /// The same as the client wrote it, with ids.
    input: Vec<Value>,
    conversation: Conversation,
    form: Option<Form>,
}

impl Asked {
    /// Reads the fields of the response whose items have ids that end with `id`.
    fn take(
        fields: &mut Fields,
        kept: &Responses,
        answers: &Answers,
        id: &str,
    ) -> Result<Self, ApiError> {
        let instructions: Option<String> = fields.take("instructions")?;
        let previous: Option<String> = fields.take("previous_response_id")?;
        let input = fields.require("input")?;
        let messages = messages(kept, previous.as_deref(), &input)?;
        let mut text = fields.nested("text")?;
        let format: Option<Value> = text.take("format")?;
        text.finish(&[], &[("verbosity", json!("medium"))])?;
        let form = format.map_or(Ok(None), |format| form(&format))?;
        let system = instructions.map(|text| Message::new("system", text));
        let asked = system.into_iter().chain(messages.iter().cloned());
        Ok(Self {
            input: inputs::before_answer(previous.as_deref(), &input, kept, id),
            conversation: conversation(fields, asked.collect(), answers)?,
            messages,
            form,
        })
    }
}

/// The fields of a response that do not change: most are those of the request.
fn about(fields: &Fields) -> Map<String, Value> {
    let or = |name: &str, default: Value| match fields.peek(name) {
        Value::Null => default,
        given => given.clone(),
    };
    let format = match &fields.peek("text")["format"] {
        Value::Null => json!({"type": "text"}),
        given => given.clone(),
    };
    let about = json!({
        "object": "response",
        "created_at": now_s(),
        "background": false,
        "error": null,
        "instructions": fields.peek("instructions"),
        "max_output_tokens": fields.peek("max_output_tokens"),
        "metadata": or("metadata", json!({})),
        "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
        "previous_response_id": fields.peek("previous_response_id"),
        "reasoning": {"effort": fields.peek("reasoning")["effort"], "summary": null},
        "store": or("store", json!(true)),
        "temperature": fields.peek("temperature"),
        "text": {"format": format},
        "tool_choice": or("tool_choice", json!("auto")),
        "tools": or("tools", json!([])),
        "top_logprobs": or("top_logprobs", json!(0)),
        "top_p": fields.peek("top_p"),
        "truncation": "disabled",
    });
    match about {
        Value::Object(about) => about,
        _ => Map::new(),
    }
}

/// The prompt, with tools and with how much the model thinks.
fn conversation(
    fields: &mut Fields,
    messages: Vec<Message>,
    answers: &Answers,
) -> Result<Conversation, ApiError> {
    let choice = take_choice(fields, |object| &object["name"])?;
    let is_parallel = fields.take("parallel_tool_calls")?;
    let mut conversation = Conversation {
        tools: Tools::take(fields, &TOOL, (choice, is_parallel))?,
        ..Conversation::new(messages)
    };
    let mut reasoning = fields.nested("reasoning")?;
    let effort = reasoning.take("effort")?;
    reasoning.finish(&[], &[])?;
    conversation.set_effort(effort, "reasoning.effort", answers)?;
    Ok(conversation)
}

/// `include` and `top_logprobs`: how many likely tokens are shown beside each.
fn logprobs(fields: &mut Fields, answers: &Answers) -> Result<Option<usize>, ApiError> {
    const LOGPROBS: &str = "message.output_text.logprobs";
    // Thoughts are given as they are.
    const ENCRYPTED: &str = "reasoning.encrypted_content";
    let include: Vec<String> = fields.take("include")?.unwrap_or_default();
    if let Some(other) = include
        .iter()
        .find(|name| *name != LOGPROBS && *name != ENCRYPTED)
    {
        return Err(refused("include", LOGPROBS, format!("`{other}`")));
    }
    let n_top = fields.take("top_logprobs")?.unwrap_or(0);
    let shows = include.iter().any(|name| name == LOGPROBS);
    if n_top > 0 && !shows {
        let message = format!("`top_logprobs` needs `include` to have {LOGPROBS}");
        return Err(ApiError::field("top_logprobs", message));
    }
    let n_top = shows.then_some(n_top);
    check_logprobs(n_top, "top_logprobs", answers)?;
    Ok(n_top)
}

/// `text.format`.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    Text,
    JsonObject,
    JsonSchema {
        schema: Value,
        #[serde(rename = "name")]
        _name: Option<String>,
        #[serde(rename = "description")]
        _description: Option<String>,
        /// Answers always follow the schema.
        #[serde(rename = "strict")]
        _strict: Option<bool>,
    },
}

fn form(format: &Value) -> Result<Option<Form>, ApiError> {
    let field = "text.format";
    let refused = |e: serde_json::Error| ApiError::field(field, format!("`{field}`: {e}"));
    let source = match Format::deserialize(format).map_err(refused)? {
        Format::Text => return Ok(None),
        Format::JsonObject => GrammarSource::json_object(),
        Format::JsonSchema { schema, .. } => GrammarSource::JsonSchema(schema),
    };
    Ok(Some(Form { source, field }))
}

/// The conversation so far: that of the previous response, and the input.
fn messages(
    responses: &Responses,
    previous: Option<&str>,
    input: &Value,
) -> Result<Vec<Message>, ApiError> {
    let mut messages = match previous {
        Some(id) => {
            let unknown = || unknown(id).with_param("previous_response_id");
            responses.get(id).ok_or_else(unknown)?.messages.clone()
        }
        None => Vec::new(),
    };
    match input {
        Value::String(text) => messages.push(Message::new("user", text.as_str())),
        list => messages = items::read(list, messages, responses)?,
    }
    if messages.is_empty() {
        let message = "`input`: expected a text or at least one message, found none";
        return Err(ApiError::field("input", message));
    }
    Ok(messages)
}

fn unknown(id: &str) -> ApiError {
    let message = format!(
        "expected the id of a response that is kept, found `{id}`: the server keeps the newest in \
         memory"
    );
    ApiError::new(StatusCode::NOT_FOUND, message)
}

async fn retrieve(
    State(app): Shared,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Answered {
    let query = query.unwrap_or_default();
    if query.split('&').any(|pair| pair == "stream=true") {
        let found = "true: a response that is kept comes in one piece";
        return Err(refused("stream", "false", found));
    }
    let kept = app.responses().get(&id).ok_or_else(|| unknown(&id))?;
    Ok(written_answer(Arc::clone(&kept.response)))
}

async fn remove(State(app): Shared, Path(id): Path<String>) -> Answered {
    if !app.responses().remove(&id) {
        return Err(unknown(&id));
    }
    let removed = json!({"id": id, "object": "response", "deleted": true});
    Ok(json_response(&removed))
}
