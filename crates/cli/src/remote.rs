//! A running server in place of a model on this machine: `--server` of `run` and `embed`.

use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::{Map, Value, json};
use thane_runtime::GrammarSource;
use thane_serve::{Client, ClientError};

use crate::app::App;
use crate::exit::{Code, Failure, Outcome, interrupted};
use crate::talk::Shown;

/// The flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "A running server")]
pub struct ServerFlags {
    /// Ask the server at this address, whose MODEL it is, such as http://127.0.0.1:8080.
    ///
    /// Any server with the routes of OpenAI's API will do. What no flag says is as the server has
    /// it.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Key of the server.
    ///
    /// Other users of this machine can see flags; they cannot see variables.
    #[arg(long, value_name = "KEY", requires = "server")]
    pub api_key: Option<String>,
}

impl ServerFlags {
    /// The client of the server, if one is given.
    pub fn client(&self, app: &App) -> Result<Option<Client>, Failure> {
        let client = |url: &String| Client::new(url, self.api_key.as_deref(), app.hub.tls());
        Ok(self.server.as_ref().map(client).transpose()?)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let (code, remedy) = match &error {
            ClientError::Address(_) => (Code::Usage, None),
            ClientError::Unreachable { reason, .. } if reason.contains("certificate") => (
                Code::Network,
                Some(
                    "--ca-file FILE, with the certificate to trust; on this machine http:// without one",
                ),
            ),
            ClientError::Unreachable { .. } => (
                Code::Network,
                Some("thane serve MODEL, which prints the address; or without --server"),
            ),
            ClientError::Refused { status: 401, .. } => (Code::Usage, Some("--api-key KEY")),
            ClientError::Refused {
                status: 400..=428, ..
            } => (Code::Usage, None),
            ClientError::Broken { .. }
            | ClientError::Refused { .. }
            | ClientError::Answer { .. }
            | ClientError::Vector { .. } => (Code::Network, None),
        };
        let failure = Failure::new(code, error);
        match remedy {
            Some(remedy) => failure.remedy(remedy),
            None => failure,
        }
    }
}

/// How long an answer may take to end by itself after an interrupt.
const GRACE: Duration = Duration::from_millis(300);

/// A prompt for a server.
pub struct Ask<'a> {
    pub model: &'a str,
    pub prompt: String,
    pub system: Option<&'a str>,
    /// Whether the prompt is continued without the chat template.
    pub is_raw: bool,
    pub max_tokens: usize,
    pub grammar: Option<GrammarSource>,
    /// Other fields: sampling, stops.
    pub fields: Map<String, Value>,
}

impl Ask<'_> {
    /// Prints the answer as it comes.
    pub fn run(self, client: &Client, app: &App) -> Outcome {
        let max_tokens = self.max_tokens;
        let (path, body) = self.request();
        let _cooperative = app.interrupt.cooperate(Some(GRACE));
        app.output.busy(&format!("asking {}", client.shown_url()));
        let mut text = Text::default();
        let mut shown = Shown::new(&app.output);
        let streamed = client.stream(path, &body, &mut |event| {
            let piece = text.piece(&event);
            let _printing = app.interrupt.printing();
            match app.interrupt.is_set() {
                true => ControlFlow::Break(()),
                false if piece.is_empty() => ControlFlow::Continue(()),
                false => shown.push(&piece),
            }
        });
        let _printing = app.interrupt.printing();
        app.output.clear();
        shown.finish(matches!(streamed, Ok(true)))?;
        if app.interrupt.is_set() {
            return Err(interrupted());
        }
        streamed?;
        if text.finish_reason == "length" {
            app.output.say(&format!(
                "thane: the answer was cut after --max-tokens {max_tokens}, or the context is full"
            ));
        }
        Ok(())
    }

    fn request(self) -> (&'static str, Value) {
        let mut body = self.fields;
        body.insert("model".to_owned(), self.model.into());
        body.insert("stream".to_owned(), true.into());
        body.insert("max_tokens".to_owned(), self.max_tokens.into());
        let form = match self.grammar {
            // Either form is that of tools, for which there is no flag.
            None | Some(GrammarSource::Either { .. }) => None,
            Some(GrammarSource::JsonSchema(schema)) => Some((
                "response_format",
                json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}),
            )),
            Some(GrammarSource::Regex(regex)) => {
                Some(("structured_outputs", json!({"regex": regex})))
            }
            Some(GrammarSource::Lark(lark)) => {
                Some(("structured_outputs", json!({"grammar": lark})))
            }
        };
        body.extend(form.map(|(field, form)| (field.to_owned(), form)));
        if self.is_raw {
            body.insert("prompt".to_owned(), self.prompt.into());
            return ("/v1/completions", body.into());
        }
        let system = self
            .system
            .map(|text| json!({"role": "system", "content": text}));
        let user = json!({"role": "user", "content": self.prompt});
        let messages: Vec<Value> = system.into_iter().chain([user]).collect();
        body.insert("messages".to_owned(), messages.into());
        ("/v1/chat/completions", body.into())
    }
}

/// Makes text of the events of a stream.
#[derive(Default)]
struct Text {
    is_thinking: bool,
    finish_reason: String,
}

impl Text {
    /// The text of an event. Thoughts are in tags, as models have them.
    fn piece(&mut self, event: &Value) -> String {
        let choice = &event["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            reason.clone_into(&mut self.finish_reason);
        }
        let thought = choice["delta"]["reasoning_content"].as_str().unwrap_or("");
        let text = choice["delta"]["content"].as_str();
        let text = text.or(choice["text"].as_str()).unwrap_or("");
        let mut piece = String::new();
        if !thought.is_empty() && !std::mem::replace(&mut self.is_thinking, true) {
            piece += "<think>\n";
        }
        piece += thought;
        if !text.is_empty() && std::mem::take(&mut self.is_thinking) {
            piece += "\n</think>\n\n";
        }
        piece + text
    }
}
