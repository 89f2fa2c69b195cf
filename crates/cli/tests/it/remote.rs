//! `--server`: a running server in place of a model on this machine.

use crate::fixture::{Home, NOWHERE, assert_ends, chat_folder, stderr, stdout};
use crate::serve_client::Server;
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
            "the connection closed before the answer ended",
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
        &["expected a model of tiny-chat, bert-mean, found `gone`"],
    );
    assert_ends(
        &home.run(&["run", "tiny-chat", "hi", "--api-key", "x"]),
        2,
        &["--server"],
    );
}
