//! Whose API a path belongs to, and how that API shows errors.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::error::{ApiError, NO_THREADS, TOO_LARGE};

/// An API with its own shape of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `{"error": {message, type, param, code}}`.
    OpenAi,
    /// `{"type": "error", "error": {type, message}}`.
    Anthropic,
    /// `{"error": "the message"}`.
    Ollama,
    /// `{"error": {message, type, code}}`, where the code is the status.
    Perplexity,
    /// Text Embeddings Inference: `{"error": "the message", "error_type": "Validation"}`.
    Tei,
}

/// Paths of Text Embeddings Inference beside those below `/tei` and `/models`.
const TEI_PATHS: &[&str] = &[
    "/",
    "/embed",
    "/embed_all",
    "/similarity",
    "/tokenize",
    "/decode",
    "/info",
    "/rerank",
];

impl Dialect {
    /// The API of a path; OpenAI's if no other has it.
    pub fn of(path: &str) -> Self {
        let is_within = |folder: &str| {
            let rest = path.strip_prefix(folder);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if is_within("/v1/messages") {
            Self::Anthropic
        } else if is_within("/api") {
            Self::Ollama
        } else if is_within("/perplexity") {
            Self::Perplexity
        } else if TEI_PATHS.contains(&path) || is_within("/tei") || is_within("/models") {
            Self::Tei
        } else {
            Self::OpenAi
        }
    }

    pub fn status(self, error: &ApiError) -> StatusCode {
        match (self, error.status) {
            (Self::Tei, StatusCode::BAD_REQUEST) if error.code == Some(TOO_LARGE) => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            (Self::Tei, StatusCode::BAD_REQUEST) => StatusCode::UNPROCESSABLE_ENTITY,
            (Self::Tei, StatusCode::INTERNAL_SERVER_ERROR) => StatusCode::FAILED_DEPENDENCY,
            (_, status) => status,
        }
    }

    /// An error as this API shows it.
    pub fn error(self, error: &ApiError) -> Value {
        let message = &error.message;
        match self {
            Self::OpenAi => error.body(),
            Self::Anthropic => {
                let mut shown = json!({"type": anthropic_type(error.status), "message": message});
                if error.code == Some(NO_THREADS) {
                    shown["details"] = json!({"error_code": NO_THREADS, "unsupported": ["thread"]});
                }
                json!({"type": "error", "error": shown})
            }
            Self::Ollama => json!({"error": message}),
            Self::Perplexity => {
                let (kind, code) = (error.kind(), error.status.as_u16());
                json!({"error": {"message": message, "type": kind, "code": code}})
            }
            Self::Tei => json!({"error": message, "error_type": tei_type(error.status)}),
        }
    }
}

fn anthropic_type(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}

fn tei_type(status: StatusCode) -> &'static str {
    match status {
        StatusCode::TOO_MANY_REQUESTS => "Overloaded",
        status if status.is_server_error() => "Backend",
        _ => "Validation",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_the_errors_of_their_api() {
        for (path, dialect) in [
            ("/v1/messages", Dialect::Anthropic),
            ("/v1/messages/count_tokens", Dialect::Anthropic),
            ("/api/chat", Dialect::Ollama),
            ("/perplexity/v1/embeddings", Dialect::Perplexity),
            ("/", Dialect::Tei),
            ("/tei/minilm/embed", Dialect::Tei),
            ("/v1/messages2", Dialect::OpenAi),
            ("/v1/chat/completions", Dialect::OpenAi),
            ("/nothing", Dialect::OpenAi),
        ] {
            assert_eq!(Dialect::of(path), dialect, "{path}");
        }
    }
}
