//! How families write tool calls and reasoning in their answers. A model's chat template or its
//! vocabulary names the markers, so a row applies whichever file a model came in.

/// How an answer writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSyntax {
    /// Text of the chat template, or spelling of a token, by which the syntax is known.
    pub marker: &'static str,
    /// Text before a call, or before a list of calls.
    pub begin: &'static str,
    /// Text after a call, or after a list of calls.
    pub end: &'static str,
    /// What is between.
    pub body: CallBody,
}

/// What stands for one tool call, or for a list of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallBody {
    /// `{"name": "f", "arguments": {"x": 1}}`.
    Json {
        /// The field of the arguments.
        arguments: &'static str,
    },
    /// `[f(x=1, y="a"), g()]`: Python, with literals as arguments.
    Python,
    /// `call:f{x:1,y:<quote>a<quote>}`.
    Braces {
        /// Text around a string.
        quote: &'static str,
    },
    /// `<function=f>`, then `<parameter=x>`, a line with the value, and `</parameter>` for each
    /// argument, then `</function>`.
    Tags,
}

/// All syntaxes. The first whose marker is found applies.
pub const CALL_SYNTAXES: &[CallSyntax] = &[
    // Qwen3-Coder and Qwen3.5.
    CallSyntax {
        marker: "<function=",
        begin: "<tool_call>",
        end: "</tool_call>",
        body: CallBody::Tags,
    },
    // Hermes, Qwen2.5, Qwen3 and SmolLM3.
    CallSyntax {
        marker: "<tool_call>",
        begin: "<tool_call>",
        end: "</tool_call>",
        body: CallBody::Json {
            arguments: "arguments",
        },
    },
    // LFM2.
    CallSyntax {
        marker: "<|tool_call_start|>",
        begin: "<|tool_call_start|>",
        end: "<|tool_call_end|>",
        body: CallBody::Python,
    },
    // FunctionGemma.
    CallSyntax {
        marker: "<start_function_call>",
        begin: "<start_function_call>",
        end: "<end_function_call>",
        body: CallBody::Braces { quote: "<escape>" },
    },
    // Gemma 4.
    CallSyntax {
        marker: "<|tool_call>",
        begin: "<|tool_call>",
        end: "<tool_call|>",
        body: CallBody::Braces { quote: "<|\"|>" },
    },
    // Llama 3.1 and later: the answer is the call.
    CallSyntax {
        marker: "<|python_tag|>",
        begin: "",
        end: "",
        body: CallBody::Json {
            arguments: "parameters",
        },
    },
];

/// The calls of models whose chat template has no tools, or whose own calls have an unknown form. A
/// message asks the model to write calls so. No template has the form, so it has no marker.
pub const GENERIC_CALLS: CallSyntax = CallSyntax {
    marker: "",
    begin: "<tool_call>",
    end: "</tool_call>",
    body: CallBody::Json {
        arguments: "arguments",
    },
};

/// How an answer writes what the model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtSyntax {
    /// Text before the thoughts, by which the syntax is known in a chat template.
    pub begin: &'static str,
    /// Text after the thoughts.
    pub end: &'static str,
}

/// The syntaxes of thoughts. The first whose beginning is found applies.
pub const THOUGHT_SYNTAXES: &[ThoughtSyntax] = &[
    // Qwen3, SmolLM3, DeepSeek-R1 and most others.
    ThoughtSyntax {
        begin: "<think>",
        end: "</think>",
    },
    // Gemma 4.
    ThoughtSyntax {
        begin: "<|channel>thought",
        end: "<channel|>",
    },
];
