//! `--server`: a running server in place of a model on this machine.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fixture::{Home, NOWHERE, assert_ends, chat_folder, json, stderr, stdout};
use crate::serve_client::Server;
use crate::serve_operation::certificate;
use crate::server::{Reply, Server as Web};

fn served() -> Server {
    let flags = ["--numerics", "f32", "--api-key", "secret"];
    Server::start(&flags)
}

fn url(server: &Server) -> String {
    format!("http://{}", server.address)
}

#[test]
fn run_prints_what_the_model_says_here() {
    let (server, home) = (served(), Home::new());
    let url = url(&server) + "/v1/";
    let model = chat_folder();
    let local = [
        "run",
        model.to_str().unwrap(),
        "--numerics",
        "f32",
        "--context",
        "512",
    ];
    let remote = ["run", "tiny-chat", "--server", &url, "--api-key", "secret"];
    let cases: [&[&str]; 6] = [
        &["the air and the sea", "--max-tokens", "40"],
        &["the sea", "--system", "a cat", "--max-tokens", "9"],
        &[
            "the sea",
            "--raw",
            "--max-tokens",
            "9",
            "--repetition-penalty",
            "1.3",
        ],
        &[
            "the sea",
            "--max-tokens",
            "30",
            "--stop",
            "e",
            "--stop",
            "a",
        ],
        &[
            "the sea",
            "--max-tokens",
            "30",
            "--temperature",
            "0.8",
            "--seed",
            "5",
            "--top-k",
            "9",
        ],
        &[
            "the sea",
            "--max-tokens",
            "30",
            "--json-schema",
            r#"{"enum": ["sky", "stone"]}"#,
        ],
    ];
    for flags in cases {
        let greedy: &[&str] = match flags.contains(&"--temperature") {
            true => &[],
            false => &["--temperature", "0"],
        };
        let [here, there] = [&local[..], &remote].map(|fixed| {
            let output = home.run(&[fixed, flags, greedy].concat());
            assert_ends(&output, 0, &[]);
            (
                stdout(&output),
                stderr(&output).contains("was cut after --max-tokens"),
            )
        });
        assert_eq!(here, there, "{flags:?}");
        assert!(!here.0.is_empty(), "{flags:?}");
    }
    let mut variables = home.thane(&["run", "tiny-chat", "the sea", "--max-tokens", "3"]);
    variables.env("THANE_RUN_SERVER", &url);
    variables.env("THANE_RUN_API_KEY", "secret");
    assert_ends(&variables.output().unwrap(), 0, &[]);
}

#[test]
fn faults_of_a_server_are_told() {
    let (server, home) = (served(), Home::new());
    let url = url(&server);
    let web = Web::start(|request| match request.path.as_str() {
        "/slow/v1/chat/completions" => Reply::new(200, "data: {}\n\n"),
        "/odd/v1/chat/completions" => Reply::new(200, "data: <html>\n\n"),
        "/late/v1/chat/completions" => {
            Reply::new(200, "data: {\"error\": {\"message\": \"out of luck\"}}\n\n")
        }
        _ => Reply::new(503, "<html>busy</html>"),
    });
    let [slow, odd, late, busy] =
        ["/slow", "/odd", "/late", ""].map(|path| format!("{}{path}", web.url));
    let key = ["--api-key", "secret"];
    for (address, flags, code, said) in [
        (
            &*url,
            &[][..],
            2,
            "status 401: expected the header Authorization",
        ),
        (&url, &["--api-key", "other"], 2, "try: --api-key KEY"),
        (
            &url,
            &[&key[..], &["--top-p", "7"]].concat(),
            2,
            "status 400: `top_p`: expected",
        ),
        (NOWHERE, &[], 5, "cannot be reached: "),
        (
            "127.0.0.1:80",
            &[],
            2,
            "such as http://127.0.0.1:8080, found `127.0.0.1:80`",
        ),
        ("ftp://a", &[], 2, "found `ftp://a`"),
        (&url, &["--context", "9"], 2, "--context"),
        (&url, &["--json"], 2, "--json is given"),
        (
            &slow,
            &[],
            5,
            "ended before its answer did: the connection was closed",
        ),
        (&odd, &[], 5, "does not answer as OpenAI's API does"),
        (&late, &[], 5, "out of luck"),
        (&busy, &[], 5, "status 503: <html>busy</html>"),
    ] {
        let fixed = ["run", "tiny-chat", "the sea", "--server", address];
        assert_ends(&home.run(&[&fixed[..], flags].concat()), code, &[said]);
    }
    let fixed = ["run", "gone", "the sea", "--server", &url];
    let output = home.run(&[&fixed[..], &key].concat());
    assert_ends(
        &output,
        2,
        &["expected one of tiny-chat, bert-mean, found `gone`"],
    );
    assert_ends(
        &home.run(&["run", "tiny-chat", "hi", "--api-key", "x"]),
        2,
        &["--server"],
    );
}

/// A server whose vectors have the same bits in any company.
fn embedding() -> Server {
    let flags = ["--numerics", "f32", "--deterministic"];
    let models = ["bert-mean", "qwen3-embedding"].map(crate::embed::model);
    Server::of_models(&models, &flags, &[])
}

/// Kinds of files and flags.
const FILES: [(&str, &[&str]); 8] = [
    ("npy", &[]),
    ("npy", &["--format", "float16", "--dimensions", "5"]),
    ("jsonl", &["--format", "int8"]),
    ("parquet", &["--format", "binary"]),
    ("safetensors", &["--format", "ubinary", "--packing", "lsb"]),
    (
        "jsonl",
        &[
            "--format",
            "ubinary",
            "--dimensions",
            "8",
            "--packing",
            "pplx",
        ],
    ),
    ("npy", &["--id", ""]),
    ("parquet", &["--field", "text"]),
];

#[test]
fn embed_writes_the_files_that_the_model_writes_here() {
    let (server, home) = (embedding(), Home::new());
    let url = url(&server);
    let file = home.path("texts.jsonl");
    let row = |i: usize| {
        let text = "a cat ".repeat(i % 9) + "the sea";
        serde_json::json!({"text": text, "id": i}).to_string()
    };
    let rows: Vec<String> = (0..300).map(row).collect();
    std::fs::write(&file, rows.join("\n")).unwrap();
    let file = file.to_str().unwrap();
    for name in ["bert-mean", "qwen3-embedding"] {
        // By a link in the folder where the program runs, so that both have one name.
        let model = crate::embed::model(name);
        std::os::unix::fs::symlink(&model, home.path(name)).unwrap();
        let here = ["embed", name, "--numerics", "f32", "--batch-tokens", "1"];
        let there = ["embed", name, "--server", &url];
        for (idx, (kind, flags)) in FILES.into_iter().enumerate() {
            let [here, there] = [("here", &here[..]), ("there", &there)].map(|(place, fixed)| {
                let out = home.path(&format!("{place}-{name}-{idx}.{kind}"));
                let fixed = [
                    fixed,
                    &["--file", file, "-o", out.to_str().unwrap(), "--json"],
                ];
                let args = [&fixed.concat(), flags].concat();
                let run = home.thane(&args).current_dir(home.path("")).output();
                let output = run.unwrap();
                assert_ends(&output, 0, &[]);
                let mut report = json(&output);
                for field in ["out", "seconds"] {
                    report[field].take();
                }
                (report, std::fs::read(&out).unwrap())
            });
            assert_eq!(here.0, there.0, "{name} {flags:?}");
            assert!(here.1 == there.1, "{name} {kind} {flags:?}");
        }
    }
}

#[test]
fn embed_compares_texts_with_a_server_and_tells_its_faults() {
    let (server, home) = (embedding(), Home::new());
    let url = url(&server);
    for name in ["bert-mean", "qwen3-embedding"] {
        let model = crate::embed::model(name);
        let local = ["embed", model.to_str().unwrap(), "--numerics", "f32"];
        let remote = ["embed", name, "--server", &url];
        let cosines = [&local[..], &remote].map(|fixed| {
            let texts = ["--similarity", "the sea", "a cat"];
            let output = home.run(&[fixed, &texts].concat());
            stdout(&output).trim().parse::<f64>().unwrap()
        });
        assert!((cosines[0] - cosines[1]).abs() < 2e-6, "{cosines:?}");
    }
    for (args, code, said) in [
        (
            &["gone", "--server", &url][..],
            2,
            "status 404: expected one of",
        ),
        (&["bert-mean", "--server", &url, "--chunks"], 2, "--chunks"),
        (
            &["bert-mean", "--server", &url, "--dimensions", "9999"],
            2,
            "`dimensions`: expected",
        ),
        (&["bert-mean", "--server", NOWHERE], 5, "cannot be reached"),
    ] {
        assert_ends(
            &home.run(&[&["embed"], args, &["a"]].concat()),
            code,
            &[said],
        );
    }
    let long = home.path("long.txt");
    std::fs::write(&long, format!("a\nb\n{}\n", "sea ".repeat(9999))).unwrap();
    let args = [
        "embed",
        "bert-mean",
        "--server",
        &url,
        "--file",
        long.to_str().unwrap(),
    ];
    assert_ends(
        &home.run(&args),
        2,
        &["long.txt, line 3", "status 400: input[2]"],
    );
}

#[test]
fn embed_resumes_with_a_server() {
    let server = served();
    let (url, home) = (url(&server), Home::new());
    let (file, out) = (home.path("texts.txt"), home.path("out.npy"));
    let texts: Vec<String> = (0..1000).map(|i| format!("{i} cats")).collect();
    std::fs::write(&file, texts.join("\n") + "\n" + &"sea ".repeat(9999)).unwrap();
    let (file, out) = (file.to_str().unwrap(), out.to_str().unwrap());
    let args = [
        "embed",
        "bert-mean",
        "--server",
        &url,
        "--api-key",
        "secret",
    ];
    let args = [&args[..], &["--file", file, "-o", out]].concat();
    let said = [
        "texts.txt, line 1001",
        "try: the same command again; ",
        "out.npy.partial keeps 1000 finished texts",
    ];
    assert_ends(&home.run(&args), 2, &said);
    std::fs::write(file, texts.join("\n")).unwrap();
    assert_ends(
        &home.run(&args),
        0,
        &["resuming after 1000 texts", "1000 texts, 1000 vectors"],
    );
}

#[test]
fn vectors_of_other_servers_are_checked() {
    let web = Web::start(|request| match request.path.as_str() {
        "/v1/models" => Reply::new(200, r#"{"data": [{"id": "m"}]}"#),
        "/v1/embeddings" => Reply::new(200, r#"{"data": [{"index": 0, "embedding": [1, -0.5]}]}"#),
        "/few/v1/embeddings" => Reply::new(200, r#"{"data": []}"#),
        "/long/v1/embeddings" => {
            let numbers = vec!["1"; 1 << 20].join(",");
            let item = format!(r#"{{"index": 0, "embedding": [{numbers}]}}"#);
            Reply::new(200, format!(r#"{{"data": [{item}]}}"#))
        }
        "/many/v1/embeddings" => {
            let pieces = ["{\"x\": [", &"[],".repeat(1 << 20), "0], \"data\": []}"];
            Reply::new(200, pieces.concat())
        }
        "/odd/v1/embeddings" => Reply::new(200, r#"{"data": [{"index": 0, "embedding": "AAAA"}]}"#),
        "/alone/v1/models" => Reply::new(404, "nope"),
        "/alone/v1/embeddings" => Reply::new(200, r#"{"data": [{"index": 0, "embedding": [2]}]}"#),
        _ => Reply::new(200, "{}"),
    });
    let home = Home::new();
    let run = |path: &str, texts: &[&str]| {
        let url = format!("{}{path}", web.url);
        home.run(&[&["embed", "m", "--server", &url], texts].concat())
    };
    let output = run("", &["a"]);
    assert_ends(&output, 0, &[]);
    assert_eq!(stdout(&output), "[1.0,-0.5]\n");
    // A server need not list models.
    let output = run("/alone", &["a"]);
    assert_ends(&output, 0, &[]);
    assert_eq!(stdout(&output), "[2.0]\n");
    assert_ends(
        &run("", &["a", "b"]),
        5,
        &["expected vectors of 2 texts, found fewer"],
    );
    assert_ends(
        &run("/few", &["a"]),
        5,
        &["expected vectors of 1 texts, found fewer"],
    );
    assert_ends(
        &run("/odd", &["a"]),
        5,
        &["neither numbers nor fp32 in base64 for input[0]"],
    );
    // A server may send what a vector can need, and no more.
    for path in ["/long", "/many"] {
        let said = "expected an answer of at most 1115136 bytes, found more";
        assert_ends(&run(path, &["a"]), 5, &[said]);
    }
}

#[test]
fn vectors_of_other_servers_are_finite() {
    let n_asked = AtomicUsize::new(0);
    let web = Web::start(move |request| {
        let item =
            |index: usize, vector: &str| format!(r#"{{"index": {index}, "embedding": {vector}}}"#);
        // The first request of a run asks for the number of dimensions.
        let is_first = n_asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        let items = match request.path.as_str() {
            path if path.ends_with("/models") => {
                n_asked.store(0, Ordering::Relaxed);
                return Reply::new(200, r#"{"data": []}"#);
            }
            _ if is_first => item(0, "[1]"),
            path => {
                let bad = match path.split('/').nth(1) {
                    // fp32 in base64.
                    Some("nan") => r#""AADAfw==""#,
                    Some("infinity") => r#""AACAfw==""#,
                    Some("null") => "[null]",
                    _ => "[-1e39]",
                };
                [item(0, "[1]"), item(1, bad)].join(",")
            }
        };
        Reply::new(200, format!(r#"{{"data": [{items}]}}"#))
    });
    let home = Home::new();
    let file = home.path("texts.txt");
    std::fs::write(&file, "a\nb\n").unwrap();
    for (path, found) in [
        ("nan", "a vector with NaN"),
        ("infinity", "a vector with inf"),
        ("large", "a vector with -inf"),
        ("null", "neither numbers nor"),
    ] {
        let url = format!("{}/{path}", web.url);
        let out = home.path("out.npy");
        let args = [
            "--file",
            file.to_str().unwrap(),
            "-o",
            out.to_str().unwrap(),
        ];
        let output = home.run(&[&["embed", "m", "--server", &url][..], &args].concat());
        let said = [
            "texts.txt, line 2: ",
            &format!("{url} gives {found}"),
            "input[1]",
        ];
        assert_ends(&output, 5, &said);
        assert!(!out.exists(), "{path}");
    }
}

#[test]
fn passwords_of_addresses_are_not_shown() {
    let web = Web::start(|_| Reply::new(500, r#"{"error": {"message": "no\nthane: forged"}}"#));
    let home = Home::new();
    let with_password = |url: &str| url.replace("://", "://me:secret@");
    for (url, code, shown) in [
        (with_password(NOWHERE), 5, "the server at http://***@127"),
        (with_password(&web.url), 5, "status 500: no\\nthane: forged"),
        ("me:secret@localhost:80".to_owned(), 2, "`***@localhost:80`"),
    ] {
        for verb in ["run", "embed"] {
            let output = home.run(&["-v", verb, "m", "hello", "--server", &url]);
            assert_ends(&output, code, &[shown]);
            let said = stderr(&output);
            assert!(!said.contains("secret"), "{said}");
        }
    }
    // They are sent.
    let authorization = &web.requests()[0].headers["authorization"];
    assert_eq!(authorization, "Basic bWU6c2VjcmV0");
}

#[test]
fn certificates_to_trust_can_be_named() {
    let home = Home::new();
    let Some((certificate, key)) = certificate(&home) else {
        return;
    };
    let server = Server::start(&["--tls-cert", &certificate, "--tls-key", &key]);
    let url = format!("https://{}", server.address);
    let ask = |flags: &[&str], variable: Option<&str>| {
        let args = [
            "run",
            "tiny-chat",
            "hi",
            "--max-tokens",
            "1",
            "--server",
            &url,
        ];
        let mut thane = home.thane(&[&args, flags].concat());
        thane.envs(variable.map(|file| ("SSL_CERT_FILE", file)));
        thane.output().unwrap()
    };
    assert_ends(&ask(&["--ca-file", &certificate], None), 0, &[]);
    assert_ends(&ask(&[], Some(&certificate)), 0, &[]);
    let other = Home::new();
    let (other, _) = self::certificate(&other).unwrap();
    assert_ends(&ask(&["--ca-file", &certificate], Some(&other)), 0, &[]);
    let refused = ["cannot be reached", "certificate", "--ca-file FILE"];
    assert_ends(
        &ask(&["--ca-file", &other], Some(&certificate)),
        5,
        &refused,
    );
    assert_ends(&ask(&[], None), 5, &refused);
    // A certificate, and a block that says that it is one.
    let block = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let bad = home.path("bad.pem").to_str().unwrap().to_owned();
    let whole = std::fs::read_to_string(&certificate).unwrap();
    std::fs::write(&bad, format!("{whole}\n{block}")).unwrap();
    for (file, said) in [
        ("gone", "gone: No such file"),
        (key.as_str(), "found none"),
        (&bad, "block 2 is no certificate"),
    ] {
        assert_ends(&ask(&["--ca-file", file], None), 2, &[said]);
        assert_ends(&ask(&[], Some(file)), 5, &[said]);
    }
}
