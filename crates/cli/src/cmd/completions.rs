//! `thane completions`: prints completion scripts for shells.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::Shell;
use thane_audit::rules;
use thane_audit::target::{CHIPS, DEVICES, RELEASES};
use thane_hub::known::HUB_NAMES;

use super::convert::system as oldest;
use crate::app::App;
use crate::exit::{Failure, Outcome};

/// Print a script that completes verbs and flags in a shell, models, targets and rules.
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

pub fn run(args: &Args, command: &Command, app: &App) -> Outcome {
    if app.output.is_json() {
        return Err(Failure::no_json("a script"));
    }
    let own = app.hub.catalog.iter().map(|entry| entry.name.as_str());
    let models: Vec<&str> = own
        .chain(HUB_NAMES.iter().map(|named| named.name))
        .collect();
    let mut script = Vec::new();
    let mut known = with_values(command.clone(), &models);
    clap_complete::generate(args.shell, &mut known, "thane", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    match args.shell {
        // A model may be a file, too.
        Shell::Zsh => {
            let names = models.join(" ");
            script = script.replace(
                &format!(":({names})"),
                &format!(":{{_files; compadd {names}}}"),
            );
        }
        Shell::Fish => script += &models_of_fish(command, &models),
        _ => {}
    }
    Ok(app.output.data(&script)?)
}

/// The command, whose arguments list the values that are known of what they take.
fn with_values(command: Command, models: &[&str]) -> Command {
    command.mut_subcommands(|sub| {
        sub.mut_args(|arg| match values(&arg, models) {
            Some(values) => arg.value_parser(PossibleValuesParser::new(values)),
            None => arg,
        })
    })
}

/// The values that are known of what an argument takes.
fn values(arg: &Arg, models: &[&str]) -> Option<Vec<String>> {
    let names = arg.get_value_names().unwrap_or_default();
    let name = names.first().map_or("", |name| name.as_str());
    let chips = || CHIPS.iter().map(|chip| chip.name.to_owned());
    let systems = RELEASES.iter().flat_map(|release| release.names());
    let ids = || rules::all().map(|rule| rule.id.to_owned());
    Some(match name {
        "TARGET" => {
            let devices = DEVICES.iter().map(|device| device.name);
            chips()
                .chain(systems.chain(devices).map(str::to_owned))
                .collect()
        }
        "SYSTEM" => systems
            .filter(|name| oldest(name).is_ok())
            .map(str::to_owned)
            .collect(),
        "RULE|SEVERITY" => {
            let severities = ["note", "warning", "error"].map(str::to_owned);
            severities.into_iter().chain(ids()).collect()
        }
        "CODE|TEXT|RULE" => ids().collect(),
        _ if arg.get_id() == "chip" => chips().collect(),
        _ if takes_models(arg) => models.iter().map(|model| (*model).to_owned()).collect(),
        _ => return None,
    })
}

/// Whether an argument is the name of a model, or several.
fn takes_models(arg: &Arg) -> bool {
    arg.is_positional() && ["model", "models"].contains(&arg.get_id().as_str())
}

/// Lines that complete models in fish, whose generator leaves out arguments without a flag.
fn models_of_fish(command: &Command, models: &[&str]) -> String {
    let verbs = command.get_subcommands();
    let verbs = verbs.filter(|verb| verb.get_arguments().any(takes_models));
    let names = models.join(" ");
    let line = |verb: &Command| {
        let name = verb.get_name();
        format!("complete -c thane -n \"__fish_thane_using_subcommand {name}\" -a \"{names}\"\n")
    };
    verbs.map(line).collect()
}
