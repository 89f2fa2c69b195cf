//! What is added to errors of the command line, and what is taken out of them.

use std::ffi::OsString;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use thane_mil::nearest::nearest;

/// An error with its good tips only, and with the variable that a wrong value comes from.
pub fn checked(mut error: Error) -> Error {
    if error.kind() == ErrorKind::InvalidUtf8 {
        return not_utf8(std::env::args_os(), std::env::vars_os()).unwrap_or(error);
    }
    drop_weak_tips(&mut error);
    name_variable(&mut error, |name| std::env::var(name).ok(), &arguments());
    error
}

fn arguments() -> Vec<String> {
    let lossy = |argument: OsString| argument.to_string_lossy().into_owned();
    std::env::args_os().map(lossy).collect()
}

/// Whether what an error may quote has an escape sequence.
pub fn has_escape(
    arguments: impl Iterator<Item = OsString>,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> bool {
    let ours = variables.filter(|(name, _)| is_ours(name));
    let values = ours.map(|(_, value)| value);
    let mut quoted = arguments.chain(values);
    quoted.any(|text| text.to_string_lossy().contains('\u{1b}'))
}

fn is_ours(variable: &OsString) -> bool {
    variable.to_string_lossy().starts_with("THANE_")
}

/// Names the argument or the variable that is not UTF-8, which clap does not.
fn not_utf8(
    mut arguments: impl Iterator<Item = OsString>,
    mut variables: impl Iterator<Item = (OsString, OsString)>,
) -> Option<Error> {
    let variable = variables.find(|(name, value)| is_ours(name) && value.to_str().is_none());
    let what = match arguments.find(|argument| argument.to_str().is_none()) {
        Some(argument) => format!("argument `{}`", argument.display()),
        None => {
            let (name, value) = variable?;
            format!("`{}` in the variable {}", value.display(), name.display())
        }
    };
    let text = format!("expected UTF-8, found the bytes of {what}\n");
    Some(Error::raw(ErrorKind::InvalidUtf8, text))
}

fn drop_weak_tips(error: &mut Error) {
    use ContextKind::{InvalidArg, InvalidSubcommand, SuggestedArg, SuggestedSubcommand};
    // `to pass '--x' as a value, use '-- --x'`: whoever mistypes a flag does not mean a value.
    error.remove(ContextKind::Suggested);
    drop_weak(error, InvalidSubcommand, SuggestedSubcommand);
    drop_weak(error, InvalidArg, SuggestedArg);
}

/// Removes a suggestion that is not spelled nearly as what was typed: clap compares with a measure
/// by which `serve` is like `remove`.
fn drop_weak(error: &mut Error, typed: ContextKind, suggested: ContextKind) {
    let Some(ContextValue::String(word)) = error.get(typed) else {
        return;
    };
    let word = word.trim_start_matches('-').to_owned();
    let good = |name: &String| {
        let name = name.trim_start_matches('-');
        nearest(&word, [name]).is_some()
    };
    let kept = match error.get(suggested) {
        Some(ContextValue::String(name)) => vec![name.clone()],
        Some(ContextValue::Strings(names)) => names.clone(),
        _ => return,
    };
    let kept: Vec<String> = kept.into_iter().filter(good).collect();
    match kept.is_empty() {
        true => drop(error.remove(suggested)),
        false => drop(error.insert(suggested, ContextValue::Strings(kept))),
    }
}

/// Says that a wrong value is that of an environment variable, where no argument has it.
fn name_variable(error: &mut Error, var: impl Fn(&str) -> Option<String>, arguments: &[String]) {
    let (Some(ContextValue::String(arg)), Some(ContextValue::String(value))) = (
        error.get(ContextKind::InvalidArg),
        error.get(ContextKind::InvalidValue),
    ) else {
        return;
    };
    let flag = arg.split_whitespace().next().unwrap_or_default();
    let is_given = |a: &String| a == flag || a.starts_with(&format!("{flag}="));
    if !flag.starts_with("--") || arguments.iter().any(is_given) {
        return;
    }
    let flag = flag.trim_start_matches('-').to_uppercase();
    let flag = flag.replace('-', "_");
    let verb = arguments.iter().skip(1).find(|a| !a.starts_with('-'));
    let verb = verb.map_or_else(String::new, |verb| format!("{}_", verb.to_uppercase()));
    let names = [format!("THANE_{verb}{flag}"), format!("THANE_{flag}")];
    let Some(name) = names.iter().find(|n| var(n).as_ref() == Some(value)) else {
        return;
    };
    let said = ContextValue::String(format!("{arg}' of the variable '{name}"));
    error.insert(ContextKind::InvalidArg, said);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(arguments: &[&str]) -> Error {
        let words = [&["thane"], arguments].concat();
        crate::command().try_get_matches_from(words).unwrap_err()
    }

    #[test]
    fn only_near_names_are_suggested() {
        for (arguments, tip) in [
            (&["walk", "x"][..], None),
            (&["audit", "x", "--fail", "1"], None),
            (&["audti", "x"], Some("'audit'")),
            (&["bench", "decode", "x", "--context", "5"], None),
            (&["run", "x", "hi", "--bogus"], None),
            (&["run", "x", "--max-token", "1"], Some("'--max-tokens'")),
        ] {
            let mut error = error(arguments);
            drop_weak_tips(&mut error);
            let text = error.to_string();
            assert!(!text.contains("as a value"), "{text}");
            match tip {
                None => assert!(!text.contains("similar"), "{text}"),
                Some(tip) => assert!(text.contains(&format!("exists: {tip}")), "{text}"),
            }
        }
    }

    #[test]
    fn a_negative_number_is_a_value() {
        for (arguments, said) in [
            (
                &["audit", "x", "--require-ane", "-1"][..],
                "'-1' for '--require-ane",
            ),
            (&["run", "x", "hi", "--top-k", "-1"], "'-1' for '--top-k"),
            (
                &["bench", "decode", "x", "--threads", "-1"],
                "'-1' for '--threads",
            ),
        ] {
            let text = error(arguments).to_string();
            assert!(text.contains(&format!("invalid value {said}")), "{text}");
        }
    }

    #[test]
    fn escape_sequences_of_arguments_and_variables_are_seen() {
        let red = || OsString::from("\u{1b}[31mx");
        for (arguments, variables, seen) in [
            (vec!["x".into()], vec![("A".into(), "x".into())], false),
            (vec!["x".into(), red()], vec![], true),
            (
                vec!["x".into()],
                vec![("THANE_AUDIT_TARGET".into(), red())],
                true,
            ),
        ] {
            let found = has_escape(arguments.into_iter(), variables.into_iter());
            assert_eq!(found, seen);
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_is_not_utf8_is_named() {
        use std::os::unix::ffi::OsStringExt;
        let wrong = || OsString::from_vec(b"x\xff".to_vec());
        let variables = || {
            [
                ("PATH".into(), wrong()),
                ("THANE_AUDIT_TARGET".into(), wrong()),
            ]
        };
        for (arguments, named) in [
            (vec!["thane".into(), wrong()], "argument `x\u{fffd}`"),
            (
                vec!["thane".into()],
                "`x\u{fffd}` in the variable THANE_AUDIT_TARGET",
            ),
        ] {
            let error = not_utf8(arguments.into_iter(), variables().into_iter()).unwrap();
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn a_wrong_variable_is_named() {
        let var = |name: &str| (name == "THANE_RUN_MAX_TOKENS").then(|| "abc".to_owned());
        let arguments = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        // What clap makes of the variable is what it makes of the flag.
        let mut wrong = error(&["run", "x", "--max-tokens", "abc"]);
        name_variable(&mut wrong, var, &arguments(&["thane", "run", "x"]));
        assert!(
            wrong
                .to_string()
                .contains("of the variable 'THANE_RUN_MAX_TOKENS'"),
            "{wrong}"
        );
        let mut wrong = error(&["run", "x", "--max-tokens", "abc"]);
        name_variable(
            &mut wrong,
            var,
            &arguments(&["thane", "run", "x", "--max-tokens", "abc"]),
        );
        assert!(!wrong.to_string().contains("variable"), "{wrong}");
    }
}
