//! Grammars of answers that call tools: for requests that require a call.

use std::fmt::Write;

use serde_json::{Value, json};
use thane_engine::choose::GrammarError;
use thane_engine::text::Tokenizer;
use thane_models::chat::{CallBody, CallSyntax};

use super::Tool;
use crate::grammar::{GrammarSource, MAX_TEXT_BYTES, check_numbers, with_spacing};

impl Tool {
    /// Refuses a tool whose arguments a grammar would round.
    pub fn check(&self) -> Result<(), GrammarError> {
        let named = |error: GrammarError| GrammarError(format!("{}: {}", self.name, error.0));
        check_numbers(&self.parameters).map_err(named)
    }

    /// The grammar of answers that call some of `tools`, once or, if `is_parallel`, more often.
    pub fn grammar(
        tools: &[Self],
        syntax: &CallSyntax,
        tokenizer: &Tokenizer,
        is_parallel: bool,
    ) -> GrammarSource {
        let rules = Self::rules(tools, syntax, tokenizer, is_parallel);
        GrammarSource::Lark(format!("start: calls\n{rules}"))
    }

    /// The grammar of answers that call some of `tools`, or have another form. `None` if what comes
    /// first does not tell calls from texts.
    pub fn grammar_or(
        tools: &[Self],
        syntax: &CallSyntax,
        tokenizer: &Tokenizer,
        is_parallel: bool,
        form: GrammarSource,
    ) -> Option<GrammarSource> {
        if syntax.begin.is_empty() {
            return None;
        }
        let rules = Self::rules(tools, syntax, tokenizer, is_parallel);
        let lark = format!("start: calls | @form\n{rules}");
        let form = Box::new(form);
        Some(GrammarSource::Either { lark, form })
    }

    /// The rules of `calls`.
    fn rules(
        tools: &[Self],
        syntax: &CallSyntax,
        tokenizer: &Tokenizer,
        is_parallel: bool,
    ) -> String {
        let text = |text: &str| match tokenizer.id_of(text) {
            Some(id) if tokenizer.is_special(id) => format!("<[{id}]>"),
            _ => json!(text).to_string(),
        };
        let mut lark = Lark {
            rules: String::new(),
            text: &text,
        };
        let calls: Vec<String> = match syntax.body {
            CallBody::Json { arguments } => vec![lark.json(tools, arguments)],
            body => {
                let tools = tools.iter().enumerate();
                tools
                    .map(|(idx, tool)| lark.tool(idx, tool, body))
                    .collect()
            }
        };
        let one = format!("({})", calls.join(" | "));
        let around = |inner: &str| match (syntax.begin, syntax.body) {
            ("", _) => inner.to_owned(),
            (begin, CallBody::Json { .. } | CallBody::Tags) => {
                let (begin, end) = (text(begin), text(syntax.end));
                format!("{begin} \"\\n\" {inner} \"\\n\" {end}")
            }
            (begin, _) => format!("{} {inner} {}", text(begin), text(syntax.end)),
        };
        let more = |separator: &str| match is_parallel {
            true => format!(" ({separator} call)*"),
            false => String::new(),
        };
        let calls = match syntax.body {
            // All calls are in one list.
            CallBody::Python => around(&format!("\"[\" call{} \"]\"", more("\", \""))),
            _ if syntax.begin.is_empty() => format!("call{}", more("\"; \"")),
            CallBody::Braces { .. } => format!("call{}", more("\"\"")),
            _ => format!("call{}", more("\"\\n\"")),
        };
        let call = match syntax.body {
            CallBody::Python => one,
            _ => around(&one),
        };
        format!("calls: {calls}\ncall: {call}\n{}", lark.rules)
    }

    /// Whether the arguments can be an object, which those of a call are. References are not
    /// followed.
    pub fn takes_object(&self) -> bool {
        admits_object(&self.parameters, 0)
    }

    /// The schema of the arguments as a definition of another schema, at `#/$defs/{place}`.
    fn definition(&self, place: &str) -> Value {
        let mut schema = match &self.parameters {
            Value::Object(_) => self.parameters.clone(),
            _ => json!({"type": "object"}),
        };
        move_refs(&mut schema, &format!("#/$defs/{place}"));
        schema
    }
}

/// Whether a schema admits any object, as far as its types and values tell.
fn admits_object(schema: &Value, depth: usize) -> bool {
    /// The parser of requests refuses deeper ones.
    const MOST_DEPTH: usize = 128;
    let Value::Object(fields) = schema else {
        return *schema != Value::Bool(false);
    };
    if depth > MOST_DEPTH {
        return true;
    }
    let listed = |name: &str| fields.get(name).and_then(Value::as_array);
    let admits = |schema: &Value| admits_object(schema, depth + 1);
    let by_type = match fields.get("type") {
        Some(Value::String(kind)) => kind == "object",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        _ => true,
    };
    by_type
        && fields.get("const").is_none_or(Value::is_object)
        && listed("enum").is_none_or(|values| values.iter().any(Value::is_object))
        && listed("anyOf").is_none_or(|schemas| schemas.iter().any(admits))
        && listed("oneOf").is_none_or(|schemas| schemas.iter().any(admits))
        && listed("allOf").is_none_or(|schemas| schemas.iter().all(admits))
}

/// Prefixes what refers to the root of a schema with a place.
fn move_refs(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if name == "$ref" && text.starts_with('#') => {
                        *text = format!("{place}{}", &text[1..]);
                    }
                    _ => move_refs(field, place),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| move_refs(item, place)),
        _ => {}
    }
}

/// Rules of a grammar that is being written.
struct Lark<'f> {
    rules: String,
    /// A text as the grammar writes it; some are control tokens.
    text: &'f dyn Fn(&str) -> String,
}

impl Lark<'_> {
    /// One JSON object for a call of any of the tools.
    fn json(&mut self, tools: &[Tool], arguments: &str) -> String {
        let places = tools.iter().enumerate();
        let places = places.map(|(idx, tool)| (format!("t{idx}"), tool));
        let (mut calls, mut definitions) = (Vec::new(), json!({}));
        for (place, tool) in places {
            calls.push(json!({
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    arguments: {"$ref": format!("#/$defs/{place}")},
                },
                "required": ["name", arguments],
                "additionalProperties": false,
            }));
            definitions[&place] = tool.definition(&place);
        }
        let schema = json!({"anyOf": calls, "$defs": definitions});
        format!("%json {}", with_spacing(&schema))
    }

    /// A call of one tool; its arguments come in the order of the schema.
    fn tool(&mut self, idx: usize, tool: &Tool, body: CallBody) -> String {
        let name = |format: String| json!(format).to_string();
        let properties = tool.parameters["properties"].as_object();
        let properties: Vec<&String> = properties.into_iter().flat_map(|p| p.keys()).collect();
        let required = tool.parameters["required"].as_array();
        let is_required = |key: &str| required.is_some_and(|list| list.iter().any(|r| r == key));
        let separator = match body {
            CallBody::Python => "\", \"",
            CallBody::Braces { .. } => "\",\"",
            _ => "\"\"",
        };
        let n = properties.len();
        for (at, key) in properties.iter().enumerate() {
            // Each argument repeats the whole schema. A longer grammar is refused.
            if self.rules.len() > MAX_TEXT_BYTES {
                break;
            }
            let item = self.argument(&format!("t{idx}"), tool, key, body);
            for (has_some, before) in [(0, "\"\""), (1, separator)] {
                let next = at + 1;
                let given = format!("{before} {item} t{idx}_{next}_1");
                let rule = match is_required(key) {
                    true => given,
                    false => format!("{given} | t{idx}_{next}_{has_some}"),
                };
                let _ = writeln!(self.rules, "t{idx}_{at}_{has_some}: {rule}");
            }
        }
        for has_some in [0, 1] {
            let _ = writeln!(self.rules, "t{idx}_{n}_{has_some}: \"\"");
        }
        let (begin, end) = match body {
            CallBody::Python => (format!("{}(", tool.name), ")"),
            CallBody::Braces { .. } => (format!("call:{}{{", tool.name), "}"),
            _ => (format!("<function={}>\n", tool.name), "</function>"),
        };
        format!("{} t{idx}_0_0 {}", name(begin), json!(end))
    }

    /// An argument with its name.
    fn argument(&mut self, place: &str, tool: &Tool, key: &str, body: CallBody) -> String {
        /// What a text without quotation marks can hold: nothing that begins a tag.
        const TEXT: &str = "/[^<]*/";
        let pointer = key.replace('~', "~0").replace('/', "~1");
        let schema = json!({
            "$ref": format!("#/$defs/{place}/properties/{pointer}"),
            "$defs": {place: tool.definition(place)},
        });
        let property = &tool.parameters["properties"][key];
        let texts = property["enum"].as_array().map(|texts| {
            let texts = texts.iter().filter_map(Value::as_str);
            let texts: Vec<String> = texts.map(|text| json!(text).to_string()).collect();
            format!("({})", texts.join(" | "))
        });
        let plain = tool.is_text(key).then(|| texts.unwrap_or(TEXT.to_owned()));
        let json = format!("%json {}", with_spacing(&schema));
        match (body, plain) {
            (CallBody::Python, _) => format!("{} {json}", json!(format!("{key}="))),
            (CallBody::Braces { quote }, Some(plain)) => {
                let quote = (self.text)(quote);
                format!("{} {quote} {plain} {quote}", json!(format!("{key}:")))
            }
            (CallBody::Braces { .. }, None) => format!("{} {json}", json!(format!("{key}:"))),
            (_, plain) => {
                let begin = json!(format!("<parameter={key}>\n"));
                match plain.unwrap_or(json) {
                    // One regular expression, because the text may end with a line break too.
                    plain if plain == TEXT => format!("{begin} /[^<]*\\n<\\/parameter>\\n/"),
                    value => format!("{begin} {value} \"\\n</parameter>\\n\""),
                }
            }
        }
    }
}
