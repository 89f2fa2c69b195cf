//! The tools of a request, as each API declares them, and whether the model must call one.

use serde_json::{Map, Value, json};
use thane_runtime::chat::Tool;

use crate::body::{Fields, kind, memory_of, most_memory_of, refused};
use crate::error::ApiError;
use crate::log::hold_more;

/// Most tools of a request, as in OpenAI's API.
const MAX_TOOLS: usize = 128;

/// How an API declares a tool.
pub(super) struct Declaration {
    /// The value of `type`.
    pub kind: &'static str,
    /// Whether `type` may be left out.
    pub kind_is_optional: bool,
    /// The field that has name, description and schema; `None` if they are beside `type`.
    pub inner: Option<&'static str>,
    /// The field of the schema.
    pub schema: &'static str,
    /// The field of examples of arguments; they are annotations of the schema.
    pub examples: Option<&'static str>,
    /// Fields beside those that do not change the answer.
    pub ignored: &'static [&'static str],
}

/// OpenAI's chats, and Ollama's.
pub(super) const FUNCTION: Declaration = Declaration {
    kind: "function",
    kind_is_optional: false,
    inner: Some("function"),
    schema: "parameters",
    examples: None,
    ignored: &[],
};

/// Which tools an answer calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolChoice {
    /// None: the model is not told of tools.
    None,
    /// As the model likes.
    Auto,
    /// At least one.
    Required,
    /// The one of this name.
    Named(String),
}

/// What a request says of tools.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// The tools as chat templates know them.
    pub written: Vec<Value>,
    pub tools: Vec<Tool>,
    /// The tools of which one must be called; empty if none must.
    pub forced: Vec<Tool>,
    /// Most calls of an answer.
    pub max_calls: usize,
    /// Whether the client asks for several calls, and does not only allow them.
    asks_parallel: bool,
}

impl Tools {
    /// The tools of the field `tools`, which `declaration` describes. `is_parallel` is what the
    /// client says of several calls in an answer, which are allowed without that.
    pub fn take(
        fields: &mut Fields,
        declaration: &Declaration,
        (choice, is_parallel): (ToolChoice, Option<bool>),
    ) -> Result<Self, ApiError> {
        let list: Vec<Value> = fields.take("tools")?.unwrap_or_default();
        if list.len() > MAX_TOOLS {
            let expected = format!("at most {MAX_TOOLS} tools");
            return Err(refused("tools", &expected, list.len()));
        }
        let places = (0..).map(|idx| format!("tools[{idx}]"));
        let mut given = Self::default();
        for (tool, place) in list.into_iter().zip(places) {
            let (tool, written) = declaration.read(tool, &place)?;
            if given.tools.iter().any(|other| other.name == tool.name) {
                let found = format!("`{}` twice", tool.name);
                return Err(refused(&place, "tools with different names", &found));
            }
            given.tools.push(tool);
            given.written.push(written);
        }
        given.max_calls = if is_parallel == Some(false) {
            1
        } else {
            usize::MAX
        };
        given.asks_parallel = is_parallel == Some(true);
        given.choose(choice)
    }

    fn choose(mut self, choice: ToolChoice) -> Result<Self, ApiError> {
        match choice {
            // The model is not told of tools that it shall not call.
            ToolChoice::None => return Ok(Self::default()),
            ToolChoice::Auto => {}
            ToolChoice::Required if self.tools.is_empty() => {
                return Err(refused("tool_choice", "`tools` with it", "none"));
            }
            ToolChoice::Required => self.forced.clone_from(&self.tools),
            ToolChoice::Named(name) => {
                let named = self.tools.iter().find(|tool| tool.name == name);
                let unknown = || refused("tool_choice", "a tool of `tools`", format!("`{name}`"));
                self.forced = vec![named.ok_or_else(unknown)?.clone()];
                self.max_calls = 1;
            }
        }
        match self.forced.iter().find(|tool| !tool.takes_object()) {
            Some(Tool { name, .. }) => {
                let expected = "forced tools whose parameters can be an object";
                let found = format!("`{name}`, whose parameters cannot");
                Err(refused("tool_choice", expected, found))
            }
            None => Ok(self),
        }
    }

    /// Whether the model is told of any tool.
    pub fn has_any(&self) -> bool {
        !self.tools.is_empty()
    }

    /// Whether several calls can be forced. Models that never learned to call tools may not stop,
    /// so in the generic form the client has to ask.
    pub fn is_parallel(&self, is_generic: bool) -> bool {
        self.max_calls > 1 && (self.asks_parallel || !is_generic)
    }
}

impl Declaration {
    /// A tool, and what chat templates are told of it.
    fn read(&self, tool: Value, place: &str) -> Result<(Tool, Value), ApiError> {
        let Value::Object(mut fields) = tool else {
            return Err(refused(place, "an object", kind(&tool)));
        };
        match fields.get("type") {
            None | Some(Value::Null) if self.kind_is_optional => {
                fields.insert("type".to_owned(), self.kind.into());
            }
            Some(found) if found == self.kind => {}
            found => {
                let found = found.unwrap_or(&Value::Null);
                let found = found.as_str().unwrap_or(kind(found));
                return Err(refused(format!("{place}.type"), self.kind, found));
            }
        }
        let Some(inner) = self.inner else {
            fields.remove("type");
            return self.function(fields, place);
        };
        let place = format!("{place}.{inner}");
        match fields.get(inner) {
            // Templates are told all that the client says.
            Some(Value::Object(function)) => {
                let tool = self.tool(function, &place)?;
                Ok((tool, Value::Object(fields)))
            }
            other => Err(refused(&place, "an object", other.map_or("none", kind))),
        }
    }

    /// A tool whose fields are refused if they are unknown, as OpenAI's chats write it.
    fn function(
        &self,
        mut fields: Map<String, Value>,
        place: &str,
    ) -> Result<(Tool, Value), ApiError> {
        let tool = self.tool(&fields, place)?;
        let mut function = json!({});
        for (name, written) in [
            ("name", "name"),
            ("description", "description"),
            (self.schema, "parameters"),
        ] {
            if let Some(value) = fields.remove(name).filter(|value| !value.is_null()) {
                function[written] = value;
            }
        }
        let mut rest = Fields::new(fields, format!("{place}."));
        let examples = self.examples.map(|name| rest.take::<Vec<Value>>(name));
        if let Some(examples) = examples.transpose()?.flatten() {
            function["parameters"]["examples"] = examples.into();
        }
        let neutral = [
            ("allowed_callers", json!(["direct"])),
            ("defer_loading", json!(false)),
        ];
        rest.finish(self.ignored, &neutral)?;
        Ok((tool, json!({"type": "function", "function": function})))
    }

    fn tool(&self, fields: &Map<String, Value>, place: &str) -> Result<Tool, ApiError> {
        let found = fields.get("name");
        let name = found.and_then(Value::as_str);
        let no_name = || {
            refused(
                format!("{place}.name"),
                "a string",
                found.map_or("none", kind),
            )
        };
        let name = name.ok_or_else(no_name)?;
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_part) {
            let expected = "1 to 64 letters, digits, underscores, dashes or dots";
            let found = json!(name).to_string();
            return Err(refused(format!("{place}.name"), expected, &found));
        }
        let description = fields.get("description").unwrap_or(&Value::Null);
        if !description.is_null() && !description.is_string() {
            let place = format!("{place}.description");
            return Err(refused(&place, "a string", kind(description)));
        }
        let parameters = match fields.get(self.schema) {
            None | Some(Value::Null) => json!({"type": "object", "properties": {}}),
            Some(schema @ Value::Object(_)) => schema.clone(),
            Some(other) => {
                let place = format!("{place}.{}", self.schema);
                return Err(refused(&place, "an object", kind(other)));
            }
        };
        Ok(Tool {
            name: name.to_owned(),
            parameters,
        })
    }
}

/// `tool_choice` of OpenAI's APIs: a word, or an object that names a function. `name_of` finds the
/// name in the object.
pub(super) fn take_choice(
    fields: &mut Fields,
    name_of: impl Fn(&Value) -> &Value,
) -> Result<ToolChoice, ApiError> {
    let expected = "none, auto, required, or an object that names a function";
    let refused = |found: &str| Err(refused("tool_choice", expected, found));
    match fields.take::<Value>("tool_choice")? {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Required),
            other => refused(&format!("`{other}`")),
        },
        Some(object @ Value::Object(_)) if object["type"] == "function" => match name_of(&object) {
            Value::String(name) => Ok(ToolChoice::Named(name.clone())),
            _ => refused("an object without a name"),
        },
        Some(object @ Value::Object(_)) => refused(&format!("the type {}", object["type"])),
        Some(other) => refused(kind(&other)),
    }
}

/// A call as chat templates read it: arguments are an object, not its text.
pub(super) fn call_json(id: Option<&str>, name: &str, arguments: Map<String, Value>) -> Value {
    let mut call = json!({
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    });
    if let Some(id) = id {
        call["id"] = id.into();
    }
    call
}

/// The arguments of a call: an object, or its text. They count as memory of the request.
pub(super) fn arguments(value: &Value, place: &str) -> Result<Map<String, Value>, ApiError> {
    let most = match value {
        Value::String(text) => most_memory_of(text.as_bytes()),
        value => memory_of(value),
    };
    hold_more(most, || "the arguments of a call".to_owned())?;
    let arguments = match value {
        Value::Null => return Ok(Map::new()),
        Value::String(text) if text.trim().is_empty() => return Ok(Map::new()),
        Value::Object(arguments) => return Ok(arguments.clone()),
        Value::String(text) => serde_json::from_str(text).ok(),
        _ => None,
    };
    let other = || refused(place, "a JSON object, or its text", "something else");
    arguments.ok_or_else(other)
}

/// A list of calls as OpenAI's chats and Ollama's write them, for chat templates.
pub(super) fn calls(list: &Value, place: &str) -> Result<Value, ApiError> {
    let Value::Array(list) = list else {
        return Err(refused(place, "a list of calls", kind(list)));
    };
    let call = |(idx, call): (usize, &Value)| {
        let place = format!("{place}[{idx}].function");
        let function = &call["function"];
        let name = function["name"].as_str();
        let name = name.ok_or_else(|| refused(format!("{place}.name"), "a string", "none"))?;
        let place = format!("{place}.arguments");
        let arguments = arguments(&function["arguments"], &place)?;
        Ok(call_json(call["id"].as_str(), name, arguments))
    };
    let calls = list.iter().enumerate().map(call);
    calls.collect::<Result<Vec<Value>, _>>().map(Value::from)
}
