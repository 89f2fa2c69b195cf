//! `thane man`: prints manual pages.

use clap_mangen::Man;

use crate::app::App;
use crate::exit::{Failure, Outcome};
use thane_mil::nearest::did_you_mean;

/// Print the manual page of the command or of a verb, for man(1).
///
/// thane man > ~/.local/share/man/man1/thane.1, or thane man run > thane-run.1 beside it, for `man
/// thane`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A verb [default: the command itself].
    #[arg(value_name = "VERB")]
    verb: Option<String>,
}

pub fn run(args: &Args, command: &clap::Command, app: &App) -> Outcome {
    if app.output.is_json() {
        return Err(Failure::no_json("a manual page"));
    }
    let mut command = command.clone();
    command.build();
    let page = match &args.verb {
        None => command,
        Some(verb) => {
            let found = command
                .get_subcommands()
                .find(|sub| sub.get_name() == verb || sub.get_all_aliases().any(|a| a == verb));
            let found = found.ok_or_else(|| {
                let verbs: Vec<&str> = command
                    .get_subcommands()
                    .map(clap::Command::get_name)
                    .collect();
                usage!(
                    "expected a verb, found `{verb}`{}",
                    did_you_mean(verb, verbs.iter().copied())
                )
                .remedy(format!("one of {}", verbs.join(", ")))
            })?;
            found
                .clone()
                .name(format!("thane-{}", found.get_name()))
                .version(env!("CARGO_PKG_VERSION"))
        }
    };
    let mut text = Vec::new();
    Man::new(page).render(&mut text)?;
    Ok(app.output.data(&String::from_utf8_lossy(&text))?)
}
