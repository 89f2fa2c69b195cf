//! Errors, by default in the shape of OpenAI's API: `{"error": {message, type, param, code}}`. The
//! response keeps the error, so that `guard` can show it in the shape of another API
//! ([`Dialect`](crate::dialect::Dialect)).

use std::error::Error;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use thane_audit::format::wrap::shorten;
use thane_mil::budget::OverBudget;
use thane_runtime::RuntimeError;

/// The code of inputs that are longer, or more, than a model or a request may have.
pub(crate) const TOO_LARGE: &str = "input_too_large";

/// The code of a conversation that the server shall keep, in Anthropic's API. Its clients send such
/// a request again with all messages.
pub(crate) const NO_THREADS: &str = "thread_unsupported_request";

/// Most characters of a message, which may repeat what the client sent, and of a field's name.
const MAX_CHARS: usize = 1000;

/// The answer of a handler.
pub(crate) type Answered = Result<Response<Body>, ApiError>;

/// A refusal or failure of a request.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The field at fault.
    param: Option<String>,
    pub code: Option<&'static str>,
    /// Seconds after which the same request may succeed.
    retry_after: Option<u32>,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: shorten(&message.into(), MAX_CHARS),
            param: None,
            code: None,
            retry_after: None,
        }
    }

    /// The client can change the request.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field has a value that it cannot have.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(message).with_param(param)
    }

    /// A failure of the server, not of the request.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(shorten(&param.into(), MAX_CHARS));
        self
    }

    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// What kind of error it is, in OpenAI's API.
    pub fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The body of the answer.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = json_response(&self.body());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, bearer);
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// A small answer of JSON. Large ones are for `written::json_answer`.
pub(crate) fn json_response(body: &Value) -> Response<Body> {
    json_body(body.to_string())
}

/// An answer of JSON that was written before.
pub(crate) fn json_body(text: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(text.into());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// What a client is told of an error: what `shown` makes of its text, unless memory is full, which
/// it may not be later.
pub(crate) fn of_cause(
    error: &(dyn Error + 'static),
    shown: impl FnOnce(String) -> ApiError,
) -> ApiError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let over = match error.downcast_ref() {
            Some(RuntimeError::Budget(over)) => Some(over),
            _ => error.downcast_ref(),
        };
        if let Some(over) = over {
            return lacks_memory(over);
        }
        cause = error.source();
    }
    shown(error_chain(error))
}

impl From<OverBudget> for ApiError {
    fn from(error: OverBudget) -> Self {
        lacks_memory(&error)
    }
}

/// The refusal of a request for which there is no memory, now or ever.
fn lacks_memory(error: &OverBudget) -> ApiError {
    if error.needed_bytes > error.limit_bytes {
        return ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string());
    }
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
        .with_code("memory_full")
        .retry_after(5)
}

/// The code of a model whose thread has ended.
pub(crate) const STOPPED: &str = "model_stopped";

/// The error of a model whose thread has ended.
pub(crate) fn stopped() -> ApiError {
    ApiError::failed("the model has stopped because of a failure: restart the server")
        .with_code(STOPPED)
}

/// An error with its causes in a line. Some errors repeat their cause in their own text.
pub(crate) fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !said.ends_with(&text) {
            said = format!("{said}: {text}");
        }
        next = cause.source();
    }
    said
}
