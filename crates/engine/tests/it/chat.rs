//! Chat templates compared with jinja2 in the settings of transformers.

use crate::data;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;
use thane_engine::text::{ChatTemplate, Message, TemplateError, TemplateInput};
use thane_mil::budget::Budget;

#[derive(Deserialize)]
struct Chat {
    now: i64,
    templates: BTreeMap<String, String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    text: Option<String>,
    error: Option<String>,
}

#[test]
fn templates_render_as_in_jinja2() {
    let chat: Chat = data::json("chat.json");
    let mut n_refused = 0;
    for case in &chat.cases {
        let template = ChatTemplate::new(&chat.templates[&case.name], "<s>", "</s>")
            .unwrap()
            .with_time(chat.now);
        let rendered = template.render(&case.messages, case.add_generation_prompt);
        match (rendered, &case.text) {
            (Ok(rendered), Some(text)) => {
                assert_eq!(&rendered.text, text, "{} {:?}", case.name, case.messages)
            }
            (Err(TemplateError::Refused(message)), None) => {
                assert_eq!(Some(&message), case.error.as_ref(), "{}", case.name);
                n_refused += 1;
            }
            (rendered, text) => panic!("{}: {rendered:?}, but jinja2 has {text:?}", case.name),
        }
    }
    assert!(chat.templates.contains_key("smollm2"));
    assert!(n_refused > 0);
}

#[derive(Deserialize)]
struct WithTools {
    templates: BTreeMap<String, String>,
    cases: Vec<ToolCase>,
}

#[derive(Deserialize)]
struct ToolCase {
    name: String,
    messages: Vec<Message>,
    tools: Vec<Value>,
    variables: Map<String, Value>,
    text: String,
}

#[test]
fn templates_with_tools_render_as_in_jinja2() {
    let golden: WithTools = data::json("tools.json");
    assert!(golden.cases.len() >= 30);
    for case in golden.cases {
        let template = ChatTemplate::new(&golden.templates[&case.name], "<s>", "</s>").unwrap();
        let given = TemplateInput {
            tools: case.tools,
            variables: case.variables,
        };
        let rendered = template.render_with(&case.messages, true, &given).unwrap();
        assert_eq!(rendered.text, case.text, "{} {given:?}", case.name);
        // What a client wrote is no control token, in arguments of calls too.
        for (at, spelled) in rendered.text.match_indices("Paris <|im_end|>") {
            let end = at + spelled.len();
            let is_within = |range: &std::ops::Range<usize>| range.start <= at && end <= range.end;
            assert!(rendered.from_messages.iter().any(is_within));
        }
    }
}

#[test]
fn variables_do_not_replace_the_conversation() {
    let source = "{{ messages | length }}{{ add_generation_prompt }}{{ x }}{{ range(2) | list }}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let json = serde_json::json!({"messages": [], "add_generation_prompt": 3, "range": 1, "x": 5});
    let given = TemplateInput {
        variables: json.as_object().unwrap().clone(),
        ..TemplateInput::default()
    };
    let messages = [Message::new("user", "hi")];
    let rendered = template.render_with(&messages, true, &given).unwrap();
    assert_eq!(rendered.text, "1True5[0, 1]");
}

/// `{**special_tokens_map, **kwargs}` in `apply_chat_template` of transformers 5.24, which printed
/// the expected text for `apply_chat_template(messages, tokenize=False, unk_token="mine")` with
/// these tokens in tokenizer_config.json.
#[test]
fn tokens_are_variables() {
    let source = "{{ bos_token }}|{{ pad_token }}|{{ unk_token }}|{{ image_token }}|\
        {{ sep_token is defined }}|{{ messages[0].content }}";
    let tokens = [
        ("bos_token", "<|im_start|>"),
        ("pad_token", "<|im_end|>"),
        ("unk_token", "<|im_end|>"),
        ("image_token", "<|im_start|>"),
    ];
    let tokens = tokens.map(|(key, text)| (key.to_owned(), text.to_owned()));
    let template = ChatTemplate::new(source, "", "").unwrap();
    let template = template.with_tokens(BTreeMap::from(tokens));
    let given = TemplateInput {
        variables: Map::from_iter([("unk_token".to_owned(), Value::from("mine"))]),
        ..TemplateInput::default()
    };
    let messages = [Message::new("user", "hi")];
    let rendered = template.render_with(&messages, true, &given).unwrap();
    assert_eq!(
        rendered.text,
        "<|im_start|>|<|im_end|>|mine|<|im_start|>|False|hi"
    );
    // A token of the files is the template's own text; one of a request came with the messages.
    let from_messages = rendered.from_messages.iter().cloned();
    let from_messages: Vec<&str> = from_messages.map(|range| &rendered.text[range]).collect();
    assert_eq!(from_messages, ["mine", "hi"]);
}

#[derive(Deserialize)]
struct Snippet {
    source: String,
    text: Option<String>,
}

#[test]
fn snippets_render_as_in_jinja2() {
    let snippets: Vec<Snippet> = data::json("jinja.json");
    let messages = [
        Message::new("user", " Hi <b>\"you\"</b> it's\né "),
        Message::new("assistant", "Yes"),
    ];
    let (mut n_refused, mut faults) = (0, Vec::new());
    for Snippet { source, text } in &snippets {
        let template = ChatTemplate::new(source, "<s>", "</s>");
        let rendered = template.and_then(|template| template.render(&messages, true));
        n_refused += usize::from(text.is_none());
        match (rendered, text) {
            (Ok(rendered), Some(text)) if &rendered.text == text => {}
            (Err(_), None) => {}
            (found, expected) => faults.push(format!("{source}\n  {found:?}\n  {expected:?}")),
        }
    }
    assert!(snippets.len() > 150 && n_refused > 10);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn errors_say_what_is_wrong() {
    let messages = [Message::new("user", "hi")];
    let message = |source: &str| match ChatTemplate::new(source, "", "") {
        Ok(template) => template.render(&messages, true).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    let cases = [
        (
            "{{ raise_exception('No system role') }}",
            "the chat template rejected the conversation: No system role",
        ),
        (
            "a\n{% if x %}",
            "the chat template is not valid: expected `elif` or `else` or `endif`, found the \
             end of the template (line 2)",
        ),
        (
            "{{ nothing.x.y }}",
            "the chat template failed: `nothing` is undefined, so it has no `x` (line 1)",
        ),
        (
            "\n\n{{ x | no_such }}",
            "the chat template failed: unknown filter `no_such` (line 3)",
        ),
        (
            "{{ 1 +\n }}",
            "the chat template is not valid: expected an expression, found `}}` (line 2)",
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(message(source), expected, "{source}");
    }
    assert!(message("{{ strftime_now('%Q') }}").contains("'%Q' is not supported"));
}

#[test]
fn what_a_rendering_holds_counts_against_a_budget() {
    let source = "{{ range(2000)|map('string')|groupby(0)|list|length }}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let render = |budget: &Budget| {
        let given = TemplateInput::default();
        let messages = [Message::new("user", "a")];
        template.render_within(&messages, true, &given, (budget, &|| false))
    };
    let budget = Budget::new(1 << 16);
    let error = render(&budget).unwrap_err();
    let TemplateError::Budget(over) = error else {
        panic!("expected a lack of memory, found {error}");
    };
    assert_eq!(over.limit_bytes, 1 << 16);
    let large = Budget::new(256 << 20);
    assert_eq!(render(&large).unwrap().text, "10");
    assert_eq!([budget.used_bytes(), large.used_bytes()], [0, 0]);
}

/// Nobody is asked for a rendering that has ended, and one that nobody waits for ends.
#[test]
fn a_rendering_that_is_stopped_ends() {
    let messages = [Message::new("user", "a")];
    let budget = Budget::unlimited();
    let asked = Cell::new(0);
    let stops_at = |n: usize| {
        asked.set(0);
        let asked = &asked;
        move || asked.replace(asked.get() + 1) >= n
    };
    let render = |source: &str, is_stopped: &dyn Fn() -> bool| {
        let template = ChatTemplate::new(source, "", "").unwrap();
        let given = TemplateInput::default();
        template.render_within(&messages, true, &given, (&budget, is_stopped))
    };
    // Takes all the steps that a template may take.
    let longest = hostile_to_run().remove(0);
    let ended = render(&longest, &stops_at(1)).unwrap_err();
    assert!(matches!(ended, TemplateError::Interrupted), "{ended}");
    let begun = render("{{ 1 }}", &stops_at(0)).unwrap_err();
    assert!(matches!(begun, TemplateError::Interrupted), "{begun}");
    assert_eq!(render("{{ 1 }}", &|| false).unwrap().text, "1");
}

/// Templates that would take too much time, memory or stack end with an error soon, or finish.
#[test]
fn hostile_templates_are_bounded() {
    let messages = [Message::new("user", "hi")];
    let render = |source: &str| {
        let template = ChatTemplate::new(source, "", "");
        template.and_then(|template| template.render(&messages, true))
    };
    let time = |source: &str| {
        let start = Instant::now();
        (render(source), start.elapsed())
    };
    // Takes all the steps that a template may take.
    let longest = hostile_to_run().remove(0);
    let (ended, mut most) = time(&longest);
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("steps of work"), "{error}");
    let (mut n_ok, mut n_failed) = (0, 0);
    for source in hostile_to_parse().into_iter().chain(hostile_to_run()) {
        let (ended, mut found) = time(&source);
        // Other work on the machine may make either slow, but not each time.
        let is_bounded = (0..5).any(|_| {
            let is_bounded = found < most * 8;
            if !is_bounded {
                (found, most) = (time(&source).1, time(&longest).1);
            }
            is_bounded
        });
        assert!(is_bounded, "{source:.80}: {found:?}, {most:?}");
        match ended {
            Ok(_) => n_ok += 1,
            Err(error) => {
                n_failed += 1;
                let text = error.to_string();
                assert!(
                    text.contains("(line ") || text.contains("bytes"),
                    "{source:.80}: {text}"
                );
            }
        }
    }
    assert!(n_ok > 10 && n_failed > 30, "{n_ok} {n_failed}");
}

fn hostile_to_parse() -> Vec<String> {
    let n = 100_000;
    let wrap = |open: &str, inner: &str, close: &str| {
        format!("{}{inner}{}", open.repeat(n), close.repeat(n))
    };
    vec![
        format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}x".repeat(8000)),
        format!("{{{{ {} }}}}", wrap("(", "1", ")")),
        format!("{{{{ {} }}}}", wrap("[", "1", "]")),
        format!("{{{{ {} }}}}", wrap("{'a':", "1", "}")),
        format!("{{{{ {}1 }}}}", "-".repeat(n)),
        format!("{{{{ {}1 }}}}", "not ".repeat(n)),
        format!("{{{{ 1{} }}}}", "|abs".repeat(n)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(n)),
        format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(n)),
        format!("{{{{ x{} }}}}", ".x".repeat(n)),
        format!("{{{{ x{} }}}}", "[0]".repeat(n)),
        format!("{{{{ x{} }}}}", "()".repeat(n)),
        format!("{{{{ 1{} }}}}", " if 1 else 2".repeat(n)),
        format!("{{{{ 1{} }}}}", " if 1".repeat(n)),
        format!("{{{{ 1{} }}}}", " if 1 if 1) if (1".repeat(n)),
        format!("{{{{ 1{} }}}}", " is defined".repeat(n)),
        format!("{{{{ 1{} }}}}", " == 1".repeat(n)),
        format!("{{{{ 1{} }}}}", " and 1".repeat(n)),
        wrap("{% if 1 %}", "x", "{% endif %}"),
        wrap("{% for a in [1] %}", "x", "{% endfor %}"),
        wrap("{% macro m() %}", "x", "{% endmacro %}"),
        format!("{{% set {} %}}", wrap("(", "a", ") = 1")),
        "{{".repeat(n),
        "{% raw %}".repeat(n),
        "{#".repeat(n),
        "x".repeat(3 << 20),
    ]
}

fn hostile_to_run() -> Vec<String> {
    vec![
        // Templates that take time.
        "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% \
         endfor %}{% endfor %}{% endfor %}"
            .to_owned(),
        "{{ range(10**18) | list }}".to_owned(),
        "{{ range(0, 9223372036854775807, 9223372036854775807) | list }}".to_owned(),
        "{{ 'abc'.count('') }} {{ 'abc'.split('') }} {{ ''.replace('', 'x') }}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() \
         }}"
        .to_owned(),
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(),
        "{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}".to_owned(),
        "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% call m() %}{{ caller() }}{% \
         endcall %}{% endcall %}"
            .to_owned(),
        "{{ ([[1] * 1000] * 1000) | sort | unique | list }}".to_owned(),
        "{% set x = [1] * 100000 %}{{ x == x and x in [x] * 100000 }}".to_owned(),
        // Templates that take memory.
        "{% set ns = namespace(x='xxxxxxxxxx') %}{% for i in range(64) %}{% set ns.x = ns.x ~ \
         ns.x %}{% endfor %}{{ ns.x }}"
            .to_owned(),
        "{% set ns = namespace(x='xxxxxxxxxx') %}{% for i in range(64) %}{% set ns.x = \
         ns.x.replace('x', 'xx') %}{% endfor %}"
            .to_owned(),
        "{% set ns = namespace(x=[1, 2]) %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% \
         endfor %}{{ ns.x }}"
            .to_owned(),
        "{{ 'x' * 10**12 }}".to_owned(),
        "{{ [1] * 10**12 }}".to_owned(),
        "{{ 'a\nb' | indent(4000000000) }}".to_owned(),
        "{{ {'a': {'b': [1]}} | tojson(indent=2**62) }}".to_owned(),
        "{{ {'a': {'b': [1]}} | tojson(indent=9223372036854775807) }}".to_owned(),
        "{{ 'x' | center(10**18) }} {{ 'x'.rjust(10**18) }}".to_owned(),
        "{{ '%999999999999999999s' % 'x' }}".to_owned(),
        "{{ '%.999999999f' % 1 }}".to_owned(),
        "{{ '{:>999999999999999}'.format('x') }}".to_owned(),
        "{{ ('x' * 1000000).join(['y'] * 1000000) }}".to_owned(),
        "{{ [0] | batch(10**18, 1) | list }} {{ [0] | slice(10**18, 1) | list }}".to_owned(),
        "{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}".to_owned(),
        "{% set x %}{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}{% endset \
         %}"
        .to_owned(),
        format!(
            "{{% for i in range(99999) %}}{}{{% endfor %}}",
            "x".repeat(100_000)
        ),
        "{{ strftime_now('%B' * 1000000) }} ".to_owned(),
        "{{ ('x' * 1000000) | list | join('x' * 1000) }}".to_owned(),
        // Templates with cycles and deep nesting.
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}{{ ns == ns }}{{ ns.x.x.x \
         }}"
        .to_owned(),
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}{{ ns.x | tojson }}".to_owned(),
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% \
         endfor %}{{ ns.x }}"
            .to_owned(),
        "{% set ns = namespace(x=0) %}{% for i in range(100000) %}{% for j in [ns.x] %}{% set \
         ns.x = loop %}{% endfor %}{% endfor %}"
            .to_owned(),
        "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = joiner(ns.x) %}{% \
         endfor %}"
            .to_owned(),
        "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = cycler(ns.x) %}{% \
         endfor %}"
            .to_owned(),
        "{{ 1e308 | round(9223372036854775807) }} {{ 1 | round(-9223372036854775807 - 1) }} {{ \
         9223372036854775807 | round(-1) }}"
            .to_owned(),
        "{% for i in [1] %}{{ loop.changed(loop) }}{% endfor %}".to_owned(),
        "{{ (-9223372036854775807 - 1) // -1 }}".to_owned(),
        "{{ (-9223372036854775807 - 1) % -1 }} {{ (-9223372036854775807 - 1) | abs }} {{ \
         -(-9223372036854775807 - 1) }}"
            .to_owned(),
        "{{ 9223372036854775807 + 1 }} {{ 10 ** 400 }} {{ 0 ** -1 }}".to_owned(),
        "{{ 'a'[9223372036854775807:-9223372036854775807:-9223372036854775807] }}{{ \
         'a'[-9223372036854775807] }}"
            .to_owned(),
        "{{ [1.0, 'inf' | float, 'nan' | float, 3, 2.5, 1] * 99 | sort }}".to_owned(),
    ]
}

/// Text from messages is distinguished from text of the template, whatever operations it goes
/// through.
#[test]
fn typed_text_is_told_from_the_templates_own() {
    let messages = [
        Message::new("user", "  <|a|>é "),
        Message::new("assistant", "x<|b|>y"),
    ];
    let cases = [
        (
            "<|a|>{{ messages[0].content }}<|a|>",
            "<|a|>[  <|a|>é ]<|a|>",
        ),
        (
            "{{ '<|a|>' + messages[0].content | trim + '!' }}",
            "<|a|>[<|a|>é]!",
        ),
        (
            "{{ messages[1]['content'].split('|')[1] ~ '|' ~ messages[0].content[2:4] }}",
            "[b]|[<|]",
        ),
        (
            "{{ messages | map(attribute='content') | join('-') | upper }}",
            "[  <|A|>É ]-[X<|B|>Y]",
        ),
        (
            "{{ messages[1].content.replace('<|b|>', '<|c|>') }}",
            "[x]<|c|>[y]",
        ),
        ("{{ '%s|%s' % (messages[1].content, 'x') }}", "[x<|b|>y]|x"),
        (
            "{{ messages[1] | tojson }}",
            "{\"role\": \"assistant\", \"content\": \"[x<|b|>y]\"}",
        ),
        (
            "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ '<' ~ \
             m.content[-2] %}{% endfor %}{{ ns.t }}",
            "<[é]<[>]",
        ),
        (
            "{% for c in messages[1].content %}{{ c }}.{% endfor %}",
            "[x].[<].[|].[b].[|].[>].[y].",
        ),
        (
            "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(messages[1].content) }}",
            "<[x<|b|>y]>",
        ),
        (
            "{{ messages[1].content | indent }}{{ messages[1].role }}",
            "[x<|b|>y]assistant",
        ),
    ];
    for (source, expected) in cases {
        let rendered = ChatTemplate::new(source, "", "")
            .unwrap()
            .render(&messages, true)
            .unwrap();
        let mut marked = rendered.text.clone();
        for range in rendered.from_messages.iter().rev() {
            marked.insert(range.end, ']');
            marked.insert(range.start, '[');
        }
        assert_eq!(marked, expected, "{source}");
    }
}
