//! The `thane` command line.
//!
//! The verbs are in the library of the same crate. Exit codes are documented at
//! [`thane_cli::exit`].

mod help;
mod tips;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use thane_cli::app::{App, Global};
use thane_cli::cmd::serve::ModelFlags;
use thane_cli::config::{Config, ModelEntry};
use thane_cli::exit::{Code, Failure, Outcome};
use thane_cli::output::of_stdout;
use thane_cli::screen::printable_painted;
use thane_cli::{cmd, grammars, variables};

/// Run, embed, convert and audit language models as Core ML programs, on any machine.
#[derive(Debug, Parser)]
#[command(name = "thane", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// Verbs with their modules of [`cmd`]; the last two also take the command line.
macro_rules! verbs {
    ($($(#[$attribute:meta])? $verb:ident $module:ident,)*) => {
        #[derive(Debug, Subcommand)]
        enum Verb {
            $($(#[$attribute])? $verb(cmd::$module::Args),)*
            Completions(cmd::completions::Args),
            Man(cmd::man::Args),
        }

        fn dispatch(verb: &Verb, command: &clap::Command, app: &App) -> Outcome {
            match verb {
                $(Verb::$verb(args) => cmd::$module::run(args, app),)*
                Verb::Completions(args) => cmd::completions::run(args, command, app),
                Verb::Man(args) => cmd::man::run(args, command, app),
            }
        }
    };
}

verbs! {
    #[command(alias = "chat")]
    Run run,
    Serve serve,
    Ps ps,
    Stop stop,
    Logs logs,
    Batch batch,
    Pull pull,
    Push push,
    #[command(visible_alias = "list", alias = "models")]
    Ls ls,
    Show show,
    Inspect inspect,
    Ops ops,
    Perplexity perplexity,
    Quality quality,
    #[command(visible_alias = "remove")]
    Rm rm,
    Cache cache,
    Convert convert,
    Compress compress,
    Plan plan,
    Check check,
    Predict predict,
    Diff diff,
    Verify verify,
    Embed embed,
    Rerank rerank,
    Buckets buckets,
    Bench bench,
    Audit audit,
    Explain explain,
    Bisect bisect,
}

/// The command line.
fn command() -> clap::Command {
    help::with_help(variables::with_variables(Cli::command()))
}

fn main() -> ExitCode {
    if grammars::is_asked() {
        grammars::serve();
        return ExitCode::SUCCESS;
    }
    // A panic that a guard catches while it reads a file is reported as a fault of the file.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !thane_engine::text::guard::is_guarded() {
            hook(panic);
        }
    }));
    let command = command();
    let (cli, verb) = match parse(&command) {
        Ok(parsed) => parsed,
        Err(Refusal::File(failure)) => return ended(&failure),
        Err(Refusal::Clap(e)) => {
            // Help and version are no errors. clap knows which stream they belong to.
            if e.use_stderr() {
                let _ = print_error(e);
                return Code::Usage.into();
            }
            let printed = e.print().and_then(|()| std::io::stdout().flush());
            return match printed.map_err(|e| Failure::from(of_stdout(e))) {
                Ok(()) => Code::Ok.into(),
                Err(failure) => ended(&failure),
            };
        }
    };
    let outcome = App::new(&cli.global, |name| std::env::var_os(name)).and_then(|app| {
        variables::warnings(&command, &verb, |name| std::env::var_os(name))
            .iter()
            .for_each(|line| app.output.say(line));
        let outcome = dispatch(&cli.verb, &command, &app);
        app.interrupt.settle();
        app.output.clear();
        outcome
    });
    match outcome {
        Ok(()) => Code::Ok.into(),
        Err(failure) => ended(&failure),
    }
}

/// Tells the user of a failure.
fn ended(failure: &Failure) -> ExitCode {
    let _ = failure.print(&mut std::io::stderr());
    failure.code().into()
}

/// Why there is no command to run.
enum Refusal {
    /// Help or version, or an error of the command line.
    Clap(clap::Error),
    /// The file of `--config`.
    File(Failure),
}

impl From<clap::Error> for Refusal {
    fn from(error: clap::Error) -> Self {
        Self::Clap(error)
    }
}

/// The command line, with what the file of `--config` adds to it; and the name of the verb.
fn parse(command: &clap::Command) -> Result<(Cli, String), Refusal> {
    let matches = command.clone().try_get_matches()?;
    let cli = Cli::from_arg_matches(&matches)?;
    let verb = matches.subcommand_name().unwrap_or_default().to_owned();
    let (Verb::Serve(args), Some((_, given))) = (&cli.verb, matches.subcommand()) else {
        return Ok((cli, verb));
    };
    let Some(path) = &args.config else {
        return Ok((cli, verb));
    };
    let of_model = ModelFlags::augment_args(clap::Command::new("model"));
    let config = Config::read(path, command, &verb, &of_model).map_err(Refusal::File)?;
    let again = |model: Option<&ModelEntry>| {
        let arguments = config.arguments(std::env::args_os(), given, model);
        let matches = command.clone().try_get_matches_from(arguments);
        let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches));
        parsed.map_err(|e| Refusal::File(config.refused(&e, model)))
    };
    let mut whole = again(None)?;
    for model in &config.models {
        let own = again(Some(model))?;
        if let (Verb::Serve(args), Verb::Serve(own)) = (&mut whole.verb, &own.verb) {
            args.add_of_file(model, own);
        }
    }
    Ok((whole, verb))
}

/// Prints an error of the command line. It quotes values of flags and variables, so on a terminal
/// control characters are shown as symbols.
fn print_error(error: clap::Error) -> std::io::Result<()> {
    let error = &tips::checked(error);
    let mut stderr = std::io::stderr();
    if !stderr.is_terminal() {
        return error.print();
    }
    // clap shows values between its colors, so a color in a value cannot be told from them.
    let paints = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let text = match paints && !tips::has_escape(std::env::args_os(), std::env::vars_os()) {
        true => error.render().ansi().to_string(),
        false => error.render().to_string(),
    };
    stderr.write_all(printable_painted(&text).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(command: &clap::Command, check: &mut impl FnMut(&str, &clap::Arg)) {
        command
            .get_arguments()
            .for_each(|arg| check(command.get_name(), arg));
        command.get_subcommands().for_each(|sub| visit(sub, check));
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_flag_has_a_variable_of_its_name_and_a_help_text() {
        let mut built = command();
        built.build();
        let mut n_flags = 0;
        visit(&built, &mut |verb, arg| {
            let Some(long) = arg
                .get_long()
                .filter(|long| !["help", "version"].contains(long))
            else {
                return;
            };
            let is_global = arg.is_global_set() || verb == "thane";
            let of_verb = if is_global {
                String::new()
            } else {
                format!("{verb}-")
            };
            let variable = format!("THANE_{of_verb}{long}")
                .to_uppercase()
                .replace('-', "_");
            assert_eq!(
                arg.get_env().and_then(|e| e.to_str()),
                Some(variable.as_str()),
                "{verb} --{long}"
            );
            assert!(arg.get_help().is_some(), "{verb} --{long}");
            n_flags += 1;
        });
        assert!(
            n_flags > 50,
            "{n_flags}: the walk found the flags of all verbs"
        );
    }
}
