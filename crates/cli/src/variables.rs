//! Environment variables for flags: `--format` of `audit` is also `THANE_AUDIT_FORMAT`.
//!
//! The variable has the name of the verb, so that a variable for one verb cannot change another.
//! Variables of global flags have no verb (`THANE_QUIET`); [`crate::app`] names them.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

fn variable(verb: &str, flag: &str) -> String {
    format!("THANE_{}_{}", verb.to_uppercase(), flag.to_uppercase()).replace('-', "_")
}

/// Earlier name of the variable for a flag, which was the same for every verb.
fn old_variable(flag: &str) -> String {
    format!("THANE_{}", flag.to_uppercase()).replace('-', "_")
}

/// Adds the variable to every flag of every verb. Help does not show the value of the variable. A
/// negative number is a value of the flag before it, which says what it takes instead.
pub fn with_variables(command: Command) -> Command {
    let hidden = |arg: Arg| {
        let is_flag = arg.get_long().is_some() && arg.get_action().takes_values();
        let arg = arg.hide_env_values(true);
        with_switch(match is_flag {
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
    };
    command.mut_args(hidden).mut_subcommands(|sub| {
        let verb = sub.get_name().to_owned();
        sub.mut_args(|arg| match arg.get_long() {
            Some(flag) => {
                let name = variable(&verb, flag);
                hidden(arg.env(name))
            }
            None => arg,
        })
    })
}

/// Lets the variable of a flag without a value be true or false, and nothing else.
fn with_switch(arg: Arg) -> Arg {
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        return arg;
    }
    let variable = arg.get_env().unwrap_or_default();
    let variable = variable.to_string_lossy().into_owned();
    arg.value_parser(move |text: &str| {
        // Clap gives `true` for the flag itself.
        switch(text).ok_or_else(|| {
            format!("{variable} must be true or false, 1 or 0, yes or no, or on or off")
        })
    })
}

/// Parses the value of such a variable; an empty one is false.
fn switch(text: &str) -> Option<bool> {
    match text.to_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" | "" => Some(false),
        _ => None,
    }
}

/// A warning for each variable with an earlier name that is set for a flag of `verb`.
pub fn warnings(
    command: &Command,
    verb: &str,
    var: impl Fn(&str) -> Option<OsString>,
) -> Vec<String> {
    let Some(sub) = command.find_subcommand(verb) else {
        return Vec::new();
    };
    let globals: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
    let flags = sub
        .get_arguments()
        .filter_map(Arg::get_long)
        .filter(|flag| !globals.contains(flag));
    flags
        .filter(|flag| var(&old_variable(flag)).is_some() && var(&variable(verb, flag)).is_none())
        .map(|flag| {
            format!(
                "thane: {} is not read anymore: set {} instead",
                old_variable(flag),
                variable(verb, flag)
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name);
        let audit = Command::new("audit")
            .arg(flag("format"))
            .arg(flag("self-check"));
        with_variables(
            Command::new("thane")
                .arg(flag("quiet").global(true))
                .subcommand(audit),
        )
    }

    #[test]
    fn a_variable_carries_the_name_of_its_verb() {
        let command = command();
        let audit = command.find_subcommand("audit").unwrap();
        let names: Vec<_> = audit
            .get_arguments()
            .map(|a| a.get_env().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["THANE_AUDIT_FORMAT", "THANE_AUDIT_SELF_CHECK"]);
    }

    #[test]
    fn a_switch_is_a_yes_or_a_no() {
        for (text, value) in [
            ("TRUE", Some(true)),
            ("on", Some(true)),
            ("0", Some(false)),
            ("", Some(false)),
        ] {
            assert_eq!(switch(text), value, "{text}");
        }
        assert_eq!((switch("bogus"), switch("2")), (None, None));
    }

    #[test]
    fn an_old_variable_is_named_with_the_new_one() {
        let set = |names: &'static [&str]| {
            move |name: &str| names.contains(&name).then(|| OsString::from("x"))
        };
        let warnings = |names| warnings(&command(), "audit", set(names));
        assert_eq!(
            warnings(&["THANE_FORMAT", "THANE_OUT", "THANE_QUIET"]),
            ["thane: THANE_FORMAT is not read anymore: set THANE_AUDIT_FORMAT instead"]
        );
        assert!(warnings(&["THANE_FORMAT", "THANE_AUDIT_FORMAT"]).is_empty());
    }
}
