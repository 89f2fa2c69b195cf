//! `thane completions`: prints completion scripts for shells.

use clap_complete::Shell;

use crate::app::App;
use crate::exit::{Failure, Outcome};

/// Print a script that completes verbs and flags in a shell.
///
/// bash: thane completions bash > ~/.local/share/bash-completion/completions/thane
///
/// zsh: thane completions zsh > _thane, in a folder of $fpath
///
/// fish: thane completions fish > ~/.config/fish/completions/thane.fish
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell: bash, elvish, fish, powershell or zsh.
    #[arg(value_name = "SHELL", hide_possible_values = true, value_enum)]
    shell: Shell,
}

pub fn run(args: &Args, command: &clap::Command, app: &App) -> Outcome {
    if app.output.is_json() {
        return Err(Failure::no_json("a script"));
    }
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command.clone(), "thane", &mut script);
    Ok(app.output.data(&String::from_utf8_lossy(&script))?)
}
