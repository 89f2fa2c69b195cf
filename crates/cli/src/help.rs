//! What `-h` and `--help` show: which flags of a verb `-h` has, two examples of each verb, and what
//! stands in `thane --help` only.
//!
//! `-h` has a line for each flag that is used often, the most used first; `--help` has all flags in
//! full. The text of a flag is its documentation in the verb's file: the first paragraph for `-h`,
//! all of it for `--help`.

use clap::{Arg, Command};

use thane_cli::exit::Code;
use thane_cli::output::counted;

/// Three lines for each verb: its name and the flags of `-h`, the most used first, then two
/// commands that work as they stand, once the files that they name are there.
const PAGES: &str = r#"run: system max-tokens temperature json-schema context raw numerics threads
thane run smollm2-135m "Why is the sky blue?"
thane run smollm2-135m --temperature 0.7 --max-tokens 200 "Tell me a story."
serve: host port config alias slots context lazy keep-alive numerics threads memory api-key-file log
thane serve smollm2-135m minilm
thane serve smollm2-135m --port 9000 --slots 8 --context 4096
ps:
thane ps
thane ps --json
stop:
thane stop
thane stop 127.0.0.1:8080
logs: lines follow
thane logs
thane logs 8080 --follow
batch: out model force slots context numerics threads
thane batch requests.jsonl -o answers.jsonl
thane batch requests.jsonl -o answers.jsonl --model gpt-4o-mini=smollm2-135m
pull: check
thane pull smollm2-135m
thane pull smollm2-135m --check
ls:
thane ls
thane ls --json
show: tensors context
thane show gemma3-270m
thane show smollm2-135m --tensors
inspect: function stats
thane inspect smollm2-135m --function decode
thane inspect model.mlpackage --stats
ops: missing
thane ops
thane ops --missing
perplexity: file tokens numerics threads
thane perplexity smollm2-135m --file text.txt
thane perplexity smollm2-135m --file text.txt --tokens 500 --numerics f32
quality: file retrieval tokens answers record numerics threads
thane quality smollm2-135m --file text.txt
thane quality minilm.mlpackage minilm --retrieval wikitext2
rm:
thane rm smollm2-135m
thane rm hf:org/name
convert: out force task form context buckets compress
thane convert smollm2-135m --form ane --context 2048 -o smollm2.mlpackage
thane convert minilm --task embed --buckets 64,128 -o minilm.mlpackage
compress: out force compress compress-tables scale calibrate
thane compress model.mlpackage -o small.mlpackage
thane compress model.mlpackage --compress pal4g32 -o small.mlpackage
plan: target context verify
thane plan smollm2-135m --target a19
thane plan gemma3-270m --target m4 --context 8192 --for throughput
check:
thane check model.mlpackage
thane check model.mlpackage --json
predict: function input out force numerics
thane predict model.mlpackage --input x=x.npy -o results
thane predict model.mlpackage --function decode --numerics ane -o results
diff: tolerance inputs no-run
thane diff a.mlpackage b.mlpackage
thane diff a.mlpackage b.mlpackage --tolerance 1e-3 --inputs samples
verify: cosine kl numerics
thane verify minilm.mlpackage
thane verify minilm.mlpackage --numerics ane --cosine 0.99
embed: file out force similarity format dimensions truncate
thane embed minilm --file texts.jsonl -o vectors.npy
thane embed minilm --similarity "The cat sleeps." "A kitten naps."
rerank: file out top numerics threads
thane rerank hf:BAAI/bge-reranker-v2-m3 "why is the sky blue" --file texts.txt
thane rerank ./reranker "a cat" "A kitten naps." "The sea is blue." --top 1
buckets: file histogram count target
thane buckets minilm --file texts.jsonl
thane buckets minilm --histogram lengths.json --target a18 --count 3
bench: lengths threads batch rounds numerics
thane bench decode smollm2-135m
thane bench embed minilm --threads 1,2 --batch 1,32
audit: target format out require-ane deny baseline fix
thane audit model.mlpackage --target m4,a19
thane audit model.mlpackage --require-ane 100 --deny warning --format sarif -o audit.sarif
explain: list target
thane explain -14
thane explain ANE070
bisect: out rule target
thane bisect model.mlpackage -o part.mlpackage
thane bisect model.mlpackage --rule ANE070 --target m4 -o part.mil
completions:
thane completions bash
thane completions zsh
man:
thane man
thane man audit"#;

/// The flags of `-h` of a verb, and its examples.
fn page(verb: &str) -> Option<(&'static str, [&'static str; 2])> {
    let lines: Vec<&str> = PAGES.lines().collect();
    let mut pages = lines.as_chunks::<3>().0.iter();
    pages.find_map(|[head, first, second]| {
        let (name, common) = head.split_once(':')?;
        (name == verb).then_some((common.trim_start(), [*first, *second]))
    })
}

/// What stands behind `thane -h`.
const SHORT: &str = "\
A model is a path (GGUF file or Hugging Face folder), hf:org/name[/file][@revision], or a name of
the catalog such as smollm2-135m. `thane VERB -h` has two examples, `thane VERB --help` all flags.";

/// The end of `thane --help`, after the exit codes.
const ENVIRONMENT: &str = "\
Environment: every flag above has a variable, such as THANE_QUIET for --quiet; flags of a verb have
its name in it, such as THANE_RUN_MAX_TOKENS. HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN,
HF_TOKEN_PATH, HF_HUB_OFFLINE, XDG_CACHE_HOME, HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE, NO_COLOR,
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS and OTEL_SERVICE_NAME mean what they mean
elsewhere.";

/// Flags in this order stand before all others.
const BEHIND_COMMON: usize = 1000;

/// Gives the program and each verb their help; flags of every verb are shown by `thane -h` alone.
pub fn with_help(command: Command) -> Command {
    let globals: Vec<Arg> = command
        .get_arguments()
        .filter(|arg| arg.is_global_set())
        .cloned()
        .collect();
    let codes: String = Code::ALL
        .map(|code| format!("  {:<4} {}\n", code as u8, code.meaning()))
        .concat();
    let command = command
        .after_help(SHORT)
        .after_long_help(format!(
            "{SHORT}\n\nExit codes of all verbs:\n{codes}\n{ENVIRONMENT}"
        ))
        .mut_args(|arg| arg.hide_env(true));
    command.mut_subcommands(|sub| {
        let sub = with_own_flags(sub);
        let page = page(sub.get_name());
        let common = page.map_or("", |(common, _)| common);
        let n_hidden = sub
            .get_arguments()
            .filter(|arg| is_rare(arg, common))
            .count();
        let examples = page.map_or_else(String::new, |(_, examples)| {
            format!("Examples:\n  {}\n\n", examples.join("\n  "))
        });
        let all = "lags of every verb (--json, -q, -v, ..) with `thane -h`.";
        let more = match n_hidden {
            0 => format!("F{all}"),
            n => format!("{} with --help; f{all}", counted(n, "more flag")),
        };
        let verb = sub.get_name().to_owned();
        let has_flags = sub.get_arguments().any(|arg| arg.get_long().is_some());
        let variables = match has_flags {
            true => format!(
                "\nA flag is also an environment variable: THANE_{}_FLAG.",
                verb.to_uppercase()
            ),
            false => String::new(),
        };
        sub.mut_args(|arg| arranged(arg, common))
            .args(globals.iter().map(|arg| of_every_verb(arg, common)))
            .after_help(format!("{examples}{more}"))
            .after_long_help(format!("{examples}F{all}{variables}"))
    })
}

/// Verbs that build a checkpoint as `convert` does, and whose help is about something else.
const LIKE_CONVERT: [&str; 2] = ["explain", "bisect"];

/// Hides flags of `convert` where they are not what a verb is about; they count all the same.
fn with_own_flags(sub: Command) -> Command {
    if !LIKE_CONVERT.contains(&sub.get_name()) {
        return sub;
    }
    // They stand under headings, and a verb's own flags do not.
    sub.mut_args(|arg| {
        let is_of_convert = arg.get_help_heading().is_some();
        arg.hide(is_of_convert)
    })
}

/// A flag of every verb, which the page of a verb shows if it names the flag.
fn of_every_verb(arg: &Arg, common: &str) -> Arg {
    match place(arg, common) {
        Some(_) => arranged(arg.clone(), common),
        None => arg.clone().hide(true),
    }
}

/// Where a flag stands in `-h`.
fn place(arg: &Arg, common: &str) -> Option<usize> {
    let long = arg.get_long()?;
    common.split(' ').position(|name| name == long)
}

fn is_rare(arg: &Arg, common: &str) -> bool {
    arg.get_long().is_some() && !arg.is_hide_set() && place(arg, common).is_none()
}

fn arranged(arg: Arg, common: &str) -> Arg {
    let (rare, place) = (is_rare(&arg, common), place(&arg, common));
    let arg = arg.hide_env(true).hide_short_help(rare);
    match place {
        Some(place) => arg.display_order(place),
        None if rare => arg.display_order(BEHIND_COMMON),
        None => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a command as a shell would pass them.
    fn words(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        for (i, piece) in text.split('"').enumerate() {
            match i % 2 {
                0 => words.extend(piece.split_whitespace().map(str::to_owned)),
                _ => words.push(piece.to_owned()),
            }
        }
        words
    }

    fn verbs() -> Vec<Command> {
        crate::command()
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help")
            .cloned()
            .collect()
    }

    /// What `thane VERB -h` prints on a terminal of 100 columns.
    fn short(verb: &str) -> String {
        let error = crate::command()
            .term_width(100)
            .try_get_matches_from(["thane", verb, "-h"])
            .unwrap_err();
        error.to_string()
    }

    #[test]
    fn every_verb_has_two_examples_that_it_takes() {
        for sub in verbs() {
            let name = sub.get_name();
            let (_, examples) = page(name).unwrap_or_else(|| panic!("{name} has no page"));
            for example in examples {
                let parsed = crate::command().try_get_matches_from(words(example));
                let verb = parsed.map(|m| m.subcommand_name().map(str::to_owned));
                assert_eq!(
                    verb.unwrap_or_else(|e| panic!("{example}: {e}")).as_deref(),
                    Some(name)
                );
                assert!(short(name).contains(example), "{example}");
            }
        }
    }

    #[test]
    fn short_help_has_a_line_for_each_flag_and_lists_no_flag_of_every_verb() {
        for sub in verbs() {
            let name = sub.get_name();
            let (common, _) = page(name).unwrap();
            for flag in common.split_whitespace() {
                assert!(
                    sub.get_arguments().any(|arg| arg.get_long() == Some(flag)),
                    "{name} has no --{flag}"
                );
            }
            let text = short(name);
            let flags: Vec<&str> = text
                .lines()
                .filter(|l| l.trim_start().starts_with('-'))
                .collect();
            let n_common = common.split_whitespace().count();
            assert_eq!(flags.len(), n_common + 1, "{text}");
            // A text that goes on in the next line is indented further than any flag; only what
            // `bench` measures has so many values.
            let broken: Vec<&str> = text
                .lines()
                .filter(|line| line.starts_with("          ") && !line.ends_with("predict]"))
                .collect();
            assert!(broken.is_empty(), "{name}: {broken:?}");
            assert!(
                !text.contains("--catalog") && !text.contains("[env"),
                "{text}"
            );
            assert!(text.lines().count() <= 40, "{text}");
        }
    }

    #[test]
    fn long_help_has_the_flags_of_a_verb_and_names_variables_where_there_are_flags() {
        let long = |verb: &str| {
            let command = crate::command().term_width(100);
            let error = command.try_get_matches_from(["thane", verb, "--help"]);
            error.unwrap_err().to_string()
        };
        for verb in LIKE_CONVERT {
            let text = long(verb);
            assert!(
                text.contains("--target") && !text.contains("--kv"),
                "{text}"
            );
        }
        assert!(long("audit").contains("--kv"));
        assert!(long("bisect").contains("THANE_BISECT_FLAG"));
        assert!(!long("completions").contains("THANE_"));
    }

    #[test]
    fn help_of_the_program_lists_verbs_in_a_line_each_and_exit_codes_once() {
        let help = |flag| {
            crate::command()
                .term_width(100)
                .try_get_matches_from(["thane", flag])
                .unwrap_err()
                .to_string()
        };
        let (short, long) = (help("-h"), help("--help"));
        for sub in verbs() {
            let about = sub.get_about().unwrap().to_string();
            assert!(
                short.contains(&about),
                "{about}: it takes more than a line of:\n{short}"
            );
        }
        for code in Code::ALL {
            let row = format!("  {:<4} {}", code as u8, code.meaning());
            assert!(long.contains(&row) && !short.contains(&row), "{row}");
        }
        assert!(short.contains("--catalog"));
    }

    #[test]
    fn the_documentation_has_the_same_exit_codes() {
        let page = include_str!("../../../docs/output.md");
        for code in Code::ALL {
            let row = format!("| {} | {} |", code as u8, code.meaning());
            assert_eq!(page.matches(&row).count(), 1, "{row}");
        }
    }
}
