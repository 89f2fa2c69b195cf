//! A conversation on the terminal: a line editor with a history, commands, answers.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, Completer, Config, Editor, Helper, Highlighter, Hinter};

use crate::exit::{Code, Failure, Outcome};
use crate::output::Output;
use crate::sampling::{self, Choice};
use crate::talk::Talk;

const HELP: &str = "\
/clear             begin anew
/system [TEXT]     begin anew with this as the system message, or with none
/set NAME VALUE    temperature, top-k, top-p, min-p, repetition-penalty, seed or max-tokens
/show              what is set, and how full the context is
/bye               end (also /exit, /quit, Ctrl-D)

A line that ends with \\ goes on in the next one; a pasted text is one message, whatever its lines.
Ctrl-C ends an answer, or clears the line; twice in an empty line it ends the conversation.";

/// Lines that end with a backslash go on.
#[derive(Completer, Helper, Highlighter, Hinter)]
struct Lines;

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if context.input().ends_with('\\') { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

/// What the user typed.
enum Typed {
    Message(String),
    Command(String, String),
    Nothing,
    End,
    Interrupted,
}

/// Questions and answers until the user ends them.
pub fn converse(talk: &mut Talk<'_>, choice: Choice, cache: &std::path::Path) -> Outcome {
    let history = cache.join("history");
    let output = talk.output();
    output.say(&format!("/help lists commands, Ctrl-D ends the conversation; {}.", choice.reason));
    let mut options = choice.options;
    let mut editor = editor(&history)?;
    let mut was_interrupted = false;
    loop {
        let typed = read(&mut editor, &output)?;
        if matches!(typed, Typed::Interrupted) {
            if was_interrupted {
                return Err(Failure::new(Code::Interrupted, anyhow::anyhow!("interrupted")));
            }
            output.say("Ctrl-C once more, or Ctrl-D, ends the conversation.");
        }
        was_interrupted = matches!(typed, Typed::Interrupted);
        match typed {
            Typed::Nothing | Typed::Interrupted => {}
            Typed::End => return Ok(()),
            Typed::Message(text) => {
                save(&mut editor, &history, &text);
                talk.turn(text)?;
                output.say("");
            }
            Typed::Command(name, rest) => match name.as_str() {
                "/bye" | "/exit" | "/quit" => return Ok(()),
                "/help" | "/?" => output.say(HELP),
                "/clear" => {
                    talk.clear();
                    output.say("The conversation begins anew.");
                }
                "/system" => talk.set_system(Some(rest.as_str()).filter(|text| !text.is_empty())),
                "/show" => output.say(&format!("{}\n{}", shown(&options), talk.fill())),
                "/set" => set(talk, &mut options, &rest),
                other => output.say(&format!("thane: the command {other} is unknown; /help lists all")),
            },
        }
    }
}

fn editor(history: &PathBuf) -> Result<Editor<Lines, FileHistory>, Failure> {
    let other = |e: ReadlineError| Failure::new(Code::Other, e);
    // Where stdout is a file, the prompt still belongs on the terminal.
    let behavior = if io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
    let config = Config::builder().behavior(behavior).max_history_size(1000).map_err(other)?.build();
    let mut editor = Editor::with_config(config).map_err(other)?;
    editor.set_helper(Some(Lines));
    // There is none before the first conversation.
    let _ = editor.load_history(history);
    Ok(editor)
}

fn save(editor: &mut Editor<Lines, FileHistory>, history: &PathBuf, text: &str) {
    let _ = editor.add_history_entry(text);
    // A history that cannot be kept is no reason to end.
    if let Some(folder) = history.parent() {
        let _ = std::fs::create_dir_all(folder);
    }
    let _ = editor.save_history(history);
}

fn read(editor: &mut Editor<Lines, FileHistory>, output: &Output) -> Result<Typed, Failure> {
    let line = output.at_prompt(|| editor.readline("> "));
    Ok(match line {
        Err(ReadlineError::Eof) => Typed::End,
        Err(ReadlineError::Interrupted) => Typed::Interrupted,
        Err(error) => return Err(Failure::new(Code::Other, error)),
        Ok(line) => {
            let text = line.replace("\\\n", "\n");
            let trimmed = text.trim();
            match trimmed.strip_prefix('/') {
                _ if trimmed.is_empty() => Typed::Nothing,
                // A path is no command, and neither is a text of several lines.
                Some(rest)
                    if !trimmed.contains('\n') && rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '?') =>
                {
                    let (name, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
                    if name[1..].contains('/') {
                        return Ok(Typed::Message(text));
                    }
                    Typed::Command(name.to_owned(), rest.trim().to_owned())
                }
                _ => Typed::Message(text),
            }
        }
    })
}

fn shown(o: &thane_engine::sample::SampleOptions) -> String {
    format!(
        "temperature {}, top-k {}, top-p {}, min-p {}, repetition-penalty {}, seed {}",
        o.temperature, o.top_k, o.top_p, o.min_p, o.repetition_penalty, o.seed
    )
}

fn set(talk: &mut Talk<'_>, options: &mut thane_engine::sample::SampleOptions, rest: &str) {
    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let value = value.trim();
    let mut new = options.clone();
    let float = |to: &mut f32| value.parse().map(|value| *to = value).is_ok();
    let is_number = match name.trim_start_matches('-') {
        "temperature" => float(&mut new.temperature),
        "top-p" => float(&mut new.top_p),
        "min-p" => float(&mut new.min_p),
        "repetition-penalty" => float(&mut new.repetition_penalty),
        "top-k" => value.parse().map(|value| new.top_k = value).is_ok(),
        "seed" => value.parse().map(|value| new.seed = value).is_ok(),
        "max-tokens" => value.parse().map(|value| talk.max_tokens = value).is_ok(),
        _ => return talk.output().say("thane: expected /set NAME VALUE with a name of /help"),
    };
    if !is_number {
        return talk.output().say(&format!("thane: expected a number for {name}, found `{value}`"));
    }
    match sampling::sampler(new.clone()) {
        Ok(sampler) => {
            talk.set_sampler(sampler);
            *options = new;
            talk.output().say(&shown(options));
        }
        Err(failure) => {
            let _ = failure.print(&mut io::stderr());
        }
    }
}
