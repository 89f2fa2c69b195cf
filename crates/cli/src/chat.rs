//! A conversation on the terminal: a line editor with a history, commands, answers.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::path::Path;

use rustyline::error::ReadlineError;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, Completer, Config, Context, Editor, Helper, Highlighter};
use thane_engine::sample::SampleOptions;
use thane_runtime::SamplingChoice;

use crate::exit::{Failure, Outcome, interrupted, other, without_os_numbers};
use crate::output::Output;
use crate::sampling;
use crate::talk::Talk;
use thane_mil::nearest::did_you_mean;

const HELP: &str = "\
/clear             start a new conversation
/system [TEXT]     start a new conversation with this system message, or none
/set NAME VALUE    change temperature, top-k, top-p, min-p,
                   repetition-penalty, presence-penalty, frequency-penalty,
                   seed or max-tokens
/show              show the settings and how full the context is
/bye               end the conversation (also /exit, /quit, Ctrl-D)

End a line with \\ to continue the message on the next line. A pasted text is one
message. Ctrl-C stops an answer or clears the line; on an empty line, press it
twice to end the conversation.";

/// What `/set` takes.
const SETTINGS: [&str; 9] = [
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "repetition-penalty",
    "presence-penalty",
    "frequency-penalty",
    "seed",
    "max-tokens",
];

const COMMANDS: [&str; 8] = [
    "/clear", "/system", "/set", "/show", "/help", "/bye", "/exit", "/quit",
];

/// Continues lines that end with a backslash, and remembers whether the line had text, since the
/// editor does not return its text after Ctrl-C.
#[derive(Completer, Default, Helper, Highlighter)]
struct Lines {
    /// Whether there is text on the line.
    has_text: Cell<bool>,
    /// Whether there was text since the prompt.
    had_text: Cell<bool>,
}

impl Lines {
    fn begin(&self) {
        self.has_text.set(false);
        self.had_text.set(false);
    }
}

/// Gives no hints. The editor asks for hints after each change of the line, which tells when there
/// is text.
impl Hinter for Lines {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.has_text.set(!line.is_empty());
        self.had_text.set(self.had_text.get() || !line.is_empty());
        None
    }
}

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if context.input().ends_with('\\') {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

/// What the user typed.
enum Typed {
    Message(String),
    Command(String, String),
    Nothing,
    End,
    Interrupted(Interrupted),
}

/// What was on the line when Ctrl-C was pressed.
enum Interrupted {
    /// Nothing since the prompt.
    Untouched,
    /// The text was deleted.
    Emptied,
    Text,
}

/// Runs a conversation until the user ends it. Messages are kept in the file `history`, if one is
/// given.
pub fn converse(talk: &mut Talk<'_>, choice: &SamplingChoice, history: Option<&Path>) -> Outcome {
    let output = talk.output();
    output.say(&format!(
        "{}; {}. /help lists commands, Ctrl-D ends the conversation.",
        talk.model_name(),
        sampling::reason(choice)
    ));
    let mut options = choice.options.clone();
    let mut editor = editor(history)?;
    // Whether the next Ctrl-C on an empty line ends the conversation.
    let mut is_armed = false;
    // Whether the user knows that messages are not kept.
    let mut is_told = false;
    loop {
        let typed = read(&mut editor, &output)?;
        let was_armed = std::mem::take(&mut is_armed);
        match typed {
            Typed::Nothing | Typed::Interrupted(Interrupted::Text) => {}
            Typed::Interrupted(Interrupted::Untouched) if was_armed => {
                return Err(interrupted());
            }
            Typed::Interrupted(_) => {
                is_armed = true;
                output.say("Ctrl-C once more, or Ctrl-D, ends the conversation.");
            }
            Typed::End => return Ok(()),
            Typed::Message(text) => {
                // A history that cannot be saved is no reason to end.
                if let Err(e) = save(&mut editor, history, &text)
                    && !std::mem::replace(&mut is_told, true)
                {
                    let what = format!("thane: messages are not kept for later: {e}");
                    output.say(&without_os_numbers(&what));
                }
                output.in_answer(|| talk.turn(text))?;
                output.say("");
            }
            Typed::Command(name, rest) => match name.as_str() {
                "/bye" | "/exit" | "/quit" => return Ok(()),
                "/help" | "/?" => output.say(HELP),
                "/clear" => {
                    talk.clear();
                    output.say("A new conversation starts.");
                }
                "/system" => talk.set_system(Some(rest.as_str()).filter(|text| !text.is_empty())),
                "/show" => output.say(&format!(
                    "{}\n{}",
                    shown(&options, talk.generator.most_tokens(0)),
                    talk.fill()
                )),
                "/set" => set(talk, &mut options, &rest),
                other => output.say(&format!(
                    "thane: the command {other} is unknown{}; /help lists all",
                    did_you_mean(other, COMMANDS)
                )),
            },
        }
    }
}

fn editor(history: Option<&Path>) -> Result<Editor<Lines, FileHistory>, Failure> {
    // The prompt belongs on the terminal even if stdout is a file.
    let behavior = if io::stdout().is_terminal() {
        Behavior::Stdio
    } else {
        Behavior::PreferTerm
    };
    let config = Config::builder()
        .behavior(behavior)
        .max_history_size(1000)
        .map_err(other)?
        .build();
    let mut editor = Editor::with_config(config).map_err(other)?;
    editor.set_helper(Some(Lines::default()));
    if let Some(history) = history {
        // The file does not exist before the first conversation.
        let _ = editor.load_history(history);
    }
    Ok(editor)
}

/// Adds a message to the history, and saves the history if there is a file.
fn save(
    editor: &mut Editor<Lines, FileHistory>,
    history: Option<&Path>,
    text: &str,
) -> Result<(), ReadlineError> {
    let _ = editor.add_history_entry(text);
    let Some(history) = history else {
        return Ok(());
    };
    if let Some(folder) = history.parent() {
        std::fs::create_dir_all(folder)?;
    }
    editor.save_history(history)
}

fn read(editor: &mut Editor<Lines, FileHistory>, output: &Output) -> Result<Typed, Failure> {
    if let Some(lines) = editor.helper() {
        lines.begin();
    }
    match output.at_prompt(|| editor.readline("> ")) {
        Err(ReadlineError::Eof) => Ok(Typed::End),
        Err(ReadlineError::Interrupted) => Ok(Typed::Interrupted(match editor.helper() {
            Some(lines) if lines.has_text.get() => Interrupted::Text,
            Some(lines) if lines.had_text.get() => Interrupted::Emptied,
            _ => Interrupted::Untouched,
        })),
        Err(error) => Err(other(error)),
        Ok(line) => Ok(typed(&line)),
    }
}

fn typed(line: &str) -> Typed {
    let text = line.replace("\\\n", "\n");
    let trimmed = text.trim();
    match trimmed.strip_prefix('/') {
        _ if trimmed.is_empty() => Typed::Nothing,
        // A path is no command, and neither is text of several lines.
        Some(rest)
            if !trimmed.contains('\n')
                && rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '?') =>
        {
            let (name, rest) = trimmed
                .split_once(char::is_whitespace)
                .unwrap_or((trimmed, ""));
            if name[1..].contains('/') {
                return Typed::Message(text);
            }
            Typed::Command(name.to_owned(), rest.trim().to_owned())
        }
        _ => Typed::Message(text),
    }
}

fn shown(o: &SampleOptions, max_tokens: usize) -> String {
    format!(
        "temperature {}, top-k {}, top-p {}, min-p {}, repetition-penalty {}, presence-penalty {}, \
         frequency-penalty {}, seed {}, max-tokens {max_tokens}",
        o.temperature,
        o.top_k,
        o.top_p,
        o.min_p,
        o.repetition_penalty,
        o.presence_penalty,
        o.frequency_penalty,
        o.seed
    )
}

fn set(talk: &mut Talk<'_>, options: &mut SampleOptions, rest: &str) {
    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let value = value.trim();
    let mut new = options.clone();
    let float = |to: &mut f32| value.parse().map(|value| *to = value).is_ok();
    let is_number = match name.trim_start_matches('-') {
        "temperature" => float(&mut new.temperature),
        // As with the flag of this name, filters apply before the temperature.
        name @ ("top-p" | "min-p") => {
            new.temperature_first = false;
            float(match name {
                "top-p" => &mut new.top_p,
                _ => &mut new.min_p,
            })
        }
        "repetition-penalty" => {
            new.repetition_last_n = new.repeat_last_n;
            float(&mut new.repetition_penalty)
        }
        "presence-penalty" => float(&mut new.presence_penalty),
        "frequency-penalty" => float(&mut new.frequency_penalty),
        "top-k" => value.parse().map(|value| new.top_k = value).is_ok(),
        "seed" => value.parse().map(|value| new.seed = value).is_ok(),
        "max-tokens" => value
            .parse()
            .map(|value| talk.generator.max_tokens = Some(value))
            .is_ok(),
        "" => {
            return talk
                .output()
                .say("thane: expected /set NAME VALUE; /help lists the names");
        }
        other => {
            return talk.output().say(&format!(
                "thane: /set knows no `{other}`{}; /help lists the names",
                did_you_mean(other, SETTINGS)
            ));
        }
    };
    if !is_number {
        return talk.output().say(&format!(
            "thane: expected a number for {name}, found `{value}`"
        ));
    }
    match talk.generator.set_sampling(new.clone()) {
        Ok(()) => {
            *options = new;
            talk.output()
                .say(&shown(options, talk.generator.most_tokens(0)));
        }
        Err(error) => {
            let _ = Failure::from(error).print(&mut io::stderr());
        }
    }
}
