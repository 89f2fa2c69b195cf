//! The fields of a request that say which tools a model can call, and whether it must.

use serde::Deserialize;
use serde_json::{Value, json};
use thane_runtime::chat::Tool;

use crate::body::{Fields, kind};
use crate::error::ApiError;

/// Most tools of a request, as in OpenAI's API.
const MAX_TOOLS: usize = 128;

/// What a request says of tools.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// The tools as the client wrote them, for the chat template.
    pub written: Vec<Value>,
    pub tools: Vec<Tool>,
    /// The tools of which one must be called; empty if none must.
    pub forced: Vec<Tool>,
    /// Whether several calls can be forced.
    pub is_parallel: bool,
}

/// `tool_choice`.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected none, auto, required, or an object that names a function"
)]
enum Choice {
    Word(String),
    Named {
        #[serde(rename = "type")]
        kind: String,
        function: Name,
    },
}

#[derive(Debug, Deserialize)]
struct Name {
    name: String,
}

impl Tools {
    /// Whether the model is told of any tool.
    pub fn has_any(&self) -> bool {
        !self.tools.is_empty()
    }
}

/// Takes `tools`, `tool_choice` and `parallel_tool_calls`.
pub(super) fn take(fields: &mut Fields) -> Result<Tools, ApiError> {
    let written: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let choice: Option<Choice> = fields.take("tool_choice")?;
    let is_parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    if written.len() > MAX_TOOLS {
        let n = written.len();
        let message = format!("`tools`: expected at most {MAX_TOOLS} tools, found {n}");
        return Err(ApiError::field("tools", message));
    }
    let tools = written.iter().enumerate();
    let tools = tools.map(|(idx, tool)| read(tool, idx));
    let tools = tools.collect::<Result<Vec<Tool>, _>>()?;
    let refused = |expected: &str, found: &str| {
        let message = format!("`tool_choice`: expected {expected}, found `{found}`");
        Err(ApiError::field("tool_choice", message))
    };
    let mut is_parallel = is_parallel;
    let forced = match choice {
        None => Vec::new(),
        Some(Choice::Word(word)) => match word.as_str() {
            // The model is not told of tools that it shall not call.
            "none" => return Ok(Tools::default()),
            "auto" => Vec::new(),
            "required" if tools.is_empty() => return refused("`tools` with it", &word),
            "required" => tools.clone(),
            other => return refused("none, auto, required or a function", other),
        },
        Some(Choice::Named { kind, .. }) if kind != "function" => {
            return refused("the type `function`", &kind);
        }
        Some(Choice::Named { function, .. }) => {
            is_parallel = false;
            let named: Vec<Tool> = tools
                .iter()
                .filter(|tool| tool.name == function.name)
                .cloned()
                .collect();
            if named.is_empty() {
                return refused("a function of `tools`", &function.name);
            }
            named
        }
    };
    Ok(Tools {
        written,
        tools,
        forced,
        is_parallel,
    })
}

fn read(tool: &Value, idx: usize) -> Result<Tool, ApiError> {
    let refused = |at: &str, expected: &str, found: &str| {
        let param = format!("tools[{idx}]{at}");
        let message = format!("`{param}`: expected {expected}, found {found}");
        ApiError::field(param, message)
    };
    if tool["type"] != "function" {
        let found = tool["type"].as_str().unwrap_or(kind(&tool["type"]));
        return Err(refused(".type", "function", found));
    }
    let function = &tool["function"];
    let name = function["name"].as_str();
    let name = name.ok_or_else(|| refused(".function.name", "a string", "none"))?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_part) {
        let expected = "1 to 64 letters, digits, underscores, dashes or dots";
        return Err(refused(
            ".function.name",
            expected,
            &json!(name).to_string(),
        ));
    }
    let parameters = match &function["parameters"] {
        Value::Null => json!({"type": "object", "properties": {}}),
        schema @ Value::Object(_) => schema.clone(),
        other => return Err(refused(".function.parameters", "an object", kind(other))),
    };
    Ok(Tool {
        name: name.to_owned(),
        parameters,
    })
}
