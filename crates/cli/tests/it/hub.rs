//! `hf:` models from a Hub of our own.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::fixture::{Home, NOWHERE, assert_ends, git_hash, json, noise, sha256, stderr, stdout};
use crate::server::{COMMIT, Hub, Mend, Reply, Request, Server};

const BLOBS: &str = "cache/hub/models--org--name/blobs";

fn snapshot(file: &str) -> String {
    format!("cache/hub/models--org--name/snapshots/{COMMIT}/{file}")
}

/// The store closes the connection in the middle of its first answer.
fn dropping(body: &[u8]) -> Hub {
    let mend = |_: &_, nth, mut reply: Reply| {
        reply.cut = (nth == 0).then_some(reply.body.len() / 2);
        reply
    };
    Hub::start(&[("a.gguf", body)], Box::new(mend))
}

#[test]
fn a_file_is_fetched_into_the_shared_layout() {
    let (home, body) = (Home::new(), noise(300_000, 1));
    let hub = Hub::of(&[("a.gguf", &body)]);
    let output = home.with_hub(&hub.api.url, &["pull", "hf:org/name/a.gguf", "--json"]);
    assert_ends(&output, 0, &[]);
    let report = json(&output);
    assert_eq!(
        (&report["bytes"], &report["fetched_bytes"]),
        (&300_000.into(), &300_000.into())
    );
    assert_eq!(
        report["path"].as_str(),
        home.path(&snapshot("a.gguf")).to_str()
    );
    assert_eq!(fs::read(home.path(&snapshot("a.gguf"))).unwrap(), body);
    let link = fs::read_link(home.path(&snapshot("a.gguf"))).unwrap();
    assert_eq!(
        link.to_str(),
        Some(format!("../../blobs/{}", sha256(&body)).as_str())
    );
    assert_eq!(
        fs::read_to_string(home.path("cache/hub/models--org--name/refs/main")).unwrap(),
        COMMIT
    );
}

#[test]
fn an_embedding_model_comes_with_its_modules() {
    let (home, weights, dense) = (Home::new(), noise(9000, 40), noise(3000, 41));
    let files: [(&str, &[u8]); 7] = [
        ("config.json", b"{}"),
        ("modules.json", b"[]"),
        ("config_sentence_transformers.json", b"{ }"),
        ("1_Pooling/config.json", b"{  }"),
        ("2_Dense/model.safetensors", &dense),
        ("model.safetensors", &weights),
        ("onnx/config.json", b"{   }"),
    ];
    let hub = Hub::of(&files);
    assert_ends(
        &home.with_hub(&hub.api.url, &["pull", "hf:org/name"]),
        0,
        &[],
    );
    for (name, bytes) in &files[..6] {
        assert_eq!(
            fs::read(home.path(&snapshot(name))).unwrap(),
            *bytes,
            "{name}"
        );
    }
    assert!(!home.path(&snapshot("onnx/config.json")).exists());
}

#[test]
fn a_drop_in_the_middle_is_taken_up_by_the_same_run() {
    let (home, body) = (Home::new(), noise(300_000, 2));
    let hub = dropping(&body);
    let output = home.with_hub(&hub.api.url, &["pull", "hf:org/name/a.gguf"]);
    assert_ends(&output, 0, &[]);
    assert_eq!(fs::read(home.path(&snapshot("a.gguf"))).unwrap(), body);
    let ranges: Vec<_> = hub
        .store
        .requests()
        .iter()
        .map(|r| r.headers.get("range").cloned())
        .collect();
    assert_eq!(ranges, [None, Some("bytes=150000-".to_owned())]);
}

#[test]
fn a_drop_in_the_middle_is_taken_up_by_the_next_run() {
    let (home, body) = (Home::new(), noise(300_000, 3));
    let hub = dropping(&body);
    let args = ["pull", "hf:org/name/a.gguf", "--attempts", "1"];
    assert_ends(
        &home.with_hub(&hub.api.url, &args),
        5,
        &["thane: cannot reach"],
    );
    let incomplete = home
        .path(BLOBS)
        .join(format!("{}.incomplete", sha256(&body)));
    assert_eq!(fs::metadata(incomplete).unwrap().len(), 150_000);
    assert!(!home.path(&snapshot("a.gguf")).exists());
    assert_ends(
        &home.with_hub(&hub.api.url, &args),
        0,
        &["going on at 150.0 kB"],
    );
    assert_eq!(fs::read(home.path(&snapshot("a.gguf"))).unwrap(), body);
    assert_eq!(home.files(BLOBS), [sha256(&body)]);
}

#[test]
fn a_server_that_knows_no_ranges_starts_from_the_first_byte() {
    let (home, body) = (Home::new(), noise(300_000, 4));
    let whole = body.clone();
    let mend = move |_: &_, nth, mut reply: Reply| {
        if nth > 0 {
            return Reply::new(200, whole.clone());
        }
        reply.cut = Some(1000);
        reply
    };
    let hub = Hub::start(&[("a.gguf", &body)], Box::new(mend));
    assert_ends(
        &home.with_hub(&hub.api.url, &["pull", "hf:org/name/a.gguf"]),
        0,
        &[],
    );
    assert_eq!(fs::read(home.path(&snapshot("a.gguf"))).unwrap(), body);
}

#[test]
fn wrong_bytes_are_refused_and_removed() {
    let (home, body) = (Home::new(), noise(50_000, 5));
    let mend = |_: &_, _, mut reply: Reply| {
        reply.body[123] ^= 1;
        reply
    };
    let hub = Hub::start(&[("a.gguf", &body)], Box::new(mend));
    let output = home.with_hub(&hub.api.url, &["pull", "hf:org/name/a.gguf"]);
    assert_ends(
        &output,
        5,
        &[
            "is damaged",
            &format!("expected sha256 {}", sha256(&body)),
            "was removed",
        ],
    );
    assert_eq!(home.files(BLOBS), [""; 0]);
    assert!(!home.path(&snapshot("a.gguf")).exists());
}

#[test]
fn a_damaged_leftover_is_no_obstacle() {
    let (home, body) = (Home::new(), noise(50_000, 6));
    let hub = Hub::of(&[("a.gguf", &body)]);
    fs::create_dir_all(home.path(BLOBS)).unwrap();
    fs::write(
        home.path(BLOBS)
            .join(format!("{}.incomplete", sha256(&body))),
        [7; 20_000],
    )
    .unwrap();
    assert_ends(
        &home.with_hub(&hub.api.url, &["pull", "hf:org/name/a.gguf"]),
        0,
        &["is damaged; starting over"],
    );
    assert_eq!(fs::read(home.path(&snapshot("a.gguf"))).unwrap(), body);
}

#[test]
fn a_longer_answer_than_announced_is_refused() {
    let (home, body) = (Home::new(), noise(50_000, 7));
    let hub = Hub::start(
        &[("a.gguf", &body)],
        Box::new(|_, _, _| Reply::new(200, vec![0; 5_000_000])),
    );
    assert_ends(
        &home.with_hub(&hub.api.url, &["pull", "hf:org/name/a.gguf"]),
        5,
        &["expected 50000"],
    );
    assert!(!home.path(&snapshot("a.gguf")).exists());
}

#[test]
fn the_token_goes_to_the_endpoint_and_nowhere_else() {
    let (home, body) = (Home::new(), noise(1000, 8));
    let hub = Hub::of(&[("a.gguf", &body)]);
    let output = home
        .thane(&["pull", "hf:org/name/a.gguf", "-v"])
        .envs([
            ("HF_ENDPOINT", hub.api.url.as_str()),
            ("HF_TOKEN", "hf_secret"),
        ])
        .output()
        .unwrap();
    assert_ends(&output, 0, &[]);
    let sent = |server: &Server| -> Vec<bool> {
        server
            .requests()
            .iter()
            .map(|r| r.headers.values().any(|v| v.contains("hf_secret")))
            .collect()
    };
    assert_eq!(sent(&hub.api), [true, true]);
    assert_eq!(sent(&hub.store), [false]);
    // Neither the token nor the store's signed address is for a terminal.
    assert!(!stderr(&output).contains("secret"), "{}", stderr(&output));
}

#[test]
fn the_token_may_be_in_a_file() {
    let (home, body) = (Home::new(), noise(1000, 9));
    let hub = Hub::of(&[("a.gguf", &body)]);
    fs::create_dir_all(home.path(".cache/huggingface")).unwrap();
    fs::write(home.path(".cache/huggingface/token"), "hf_file\n").unwrap();
    assert_ends(
        &home.with_hub(&hub.api.url, &["pull", "hf:org/name/a.gguf"]),
        0,
        &[],
    );
    assert_eq!(
        hub.api.requests()[0].headers["authorization"],
        "Bearer hf_file"
    );
}

#[test]
fn refusals_say_what_to_do() {
    let cases: [(u16, Option<&str>, &[&str]); 4] = [
        (
            404,
            Some("RepoNotFound"),
            &[
                "hf:org/name/a.gguf does not exist at http",
                "or is private",
                "try: check the spelling",
            ],
        ),
        (
            401,
            None,
            &[
                "does not exist at http",
                "or is private",
                "try: set HF_TOKEN",
            ],
        ),
        (
            403,
            Some("GatedRepo"),
            &[
                "org/name is gated",
                "accept the terms at http",
                "/org/name, then set HF_TOKEN",
            ],
        ),
        (418, None, &["answered 418"]),
    ];
    for (status, code, texts) in cases {
        let home = Home::new();
        let server = Server::start(move |_| {
            let reply = Reply::new(status, "");
            code.into_iter()
                .fold(reply, |reply, code| reply.with("X-Error-Code", code))
        });
        assert_ends(
            &home.with_hub(&server.url, &["pull", "hf:org/name/a.gguf"]),
            5,
            texts,
        );
        assert_eq!(
            server.requests().len(),
            1,
            "{status}: asking again does not help"
        );
    }
}

#[test]
fn a_passing_failure_is_tried_again() {
    let home = Home::new();
    let server = Server::start(|_| Reply::new(503, ""));
    let output = home.with_hub(&server.url, &["pull", "hf:org/name", "--attempts", "2"]);
    assert_ends(&output, 5, &["answered 503"]);
    assert_eq!(server.requests().len(), 2);
}

const INDEX: &str = r#"{"metadata":{},"weight_map":{"x":"model-00001-of-00002.safetensors","y":"model-00002-of-00002.safetensors"}}"#;

#[test]
fn a_repository_is_fetched_with_its_shards_and_without_the_rest() {
    let (home, one, two) = (Home::new(), noise(9000, 10), noise(8000, 11));
    let hub = Hub::of(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{ }"),
        ("model.safetensors.index.json", INDEX.as_bytes()),
        ("model-00001-of-00002.safetensors", &one),
        ("model-00002-of-00002.safetensors", &two),
        ("README.md", b"no"),
        ("pytorch_model.bin", b"no"),
    ]);
    let output = home.with_hub(&hub.api.url, &["pull", "hf:org/name", "--json"]);
    assert_ends(&output, 0, &[]);
    assert_eq!(
        json(&output)["path"].as_str(),
        home.path(snapshot("").trim_end_matches('/')).to_str()
    );
    let want = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ];
    assert_eq!(home.files(&snapshot("")), want);
    let last: Vec<_> = hub
        .store
        .requests()
        .iter()
        .map(|r| r.path[1..9].to_owned())
        .collect();
    assert_eq!(
        last,
        [&sha256(&one)[..8], &sha256(&two)[..8]],
        "weights come last"
    );

    let (before, stored) = (hub.api.requests().len(), hub.store.requests().len());
    assert_eq!(
        json(&home.with_hub(&hub.api.url, &["pull", "hf:org/name", "--json"]))["fetched_bytes"],
        0
    );
    assert_eq!(
        (hub.api.requests().len(), hub.store.requests().len()),
        (before + 1, stored),
        "only the listing again"
    );

    let offline = home.with_hub(&hub.api.url, &["pull", "hf:org/name", "--offline"]);
    assert_ends(&offline, 0, &[]);
    assert_eq!(hub.api.requests().len(), before + 1);

    let models = json(&home.run(&["ls", "--json"]));
    let row = &models["models"][0];
    assert_eq!(
        (&row["name"], &row["source"], &row["whole"]),
        (&"hf:org/name".into(), &"hub".into(), &true.into())
    );
}

#[test]
fn a_cut_off_repository_does_not_pass_for_whole() {
    let (home, one) = (Home::new(), noise(9000, 12));
    let mend = |_: &_, _, mut reply: Reply| {
        reply.cut = Some(100);
        reply
    };
    let hub = Hub::start(
        &[("config.json", b"{}"), ("model.safetensors", &one)],
        Box::new(mend),
    );
    assert_ends(
        &home.with_hub(&hub.api.url, &["pull", "hf:org/name", "--attempts", "1"]),
        5,
        &[],
    );
    assert_ends(
        &home.run(&["pull", "hf:org/name", "--offline"]),
        5,
        &["hf:org/name is not in the cache"],
    );
    assert_eq!(
        json(&home.run(&["ls", "--json"]))["models"][0]["whole"],
        false
    );
}

#[test]
fn a_server_cannot_write_outside_the_cache() {
    let home = Home::new();
    let index = INDEX.replace("model-00002-of-00002", "../../../../../escape");
    let hub = Hub::of(&[
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index.as_bytes()),
    ]);
    assert_ends(
        &home.with_hub(&hub.api.url, &["pull", "hf:org/name"]),
        2,
        &["is not a plain name"],
    );
    for (name, value) in [
        ("X-Linked-Etag", "\"../../escape\""),
        ("X-Repo-Commit", "../../escape"),
    ] {
        let server = Server::start(move |_| {
            let given = [
                ("X-Linked-Etag", "\"abc\""),
                ("X-Repo-Commit", COMMIT),
                ("X-Linked-Size", "1"),
            ];
            let reply = Reply::new(200, "x");
            given.into_iter().fold(reply, |r, (n, v)| {
                r.with(n, if n == name { value } else { v })
            })
        });
        assert_ends(
            &home.with_hub(&server.url, &["pull", "hf:org/name/a.gguf"]),
            5,
            &["invalid answer"],
        );
    }
    assert!(home.files("").iter().all(|file| !file.contains("escape")));
}

#[test]
fn one_of_several_gguf_files_must_be_named() {
    let home = Home::new();
    let hub = Hub::of(&[("a.gguf", b"a"), ("b.gguf", b"b")]);
    let output = home.with_hub(&hub.api.url, &["pull", "hf:org/name"]);
    assert_ends(
        &output,
        2,
        &[
            "several models",
            "try: hf:org/name/a.gguf",
            "try: hf:org/name/b.gguf",
        ],
    );
    assert_ends(
        &home.with_hub(&hub.api.url, &["pull", "hf:org/name/b.gguf"]),
        0,
        &[],
    );
}

#[test]
fn check_finds_and_mends_a_damaged_file() {
    let (home, body) = (Home::new(), noise(5000, 13));
    let hub = Hub::of(&[("a.gguf", &body)]);
    let pull = |args: &[&str]| {
        home.with_hub(
            &hub.api.url,
            &[&["pull", "hf:org/name/a.gguf"], args].concat(),
        )
    };
    assert_ends(&pull(&[]), 0, &[]);
    let (blob, damaged) = (home.path(BLOBS).join(sha256(&body)), noise(5000, 14));
    fs::write(&blob, &damaged).unwrap();
    // Offline nothing could take the place of the file.
    let offline = pull(&["--check", "--offline"]);
    assert_ends(&offline, 2, &["a.gguf is damaged", "without --offline"]);
    assert_eq!(fs::read(&blob).unwrap(), damaged);
    assert_ends(&pull(&["--check"]), 0, &["is damaged", "; it was removed"]);
    assert_eq!(fs::read(home.path(&snapshot("a.gguf"))).unwrap(), body);
}

#[test]
fn offline_makes_no_request() {
    let (home, hub) = (Home::new(), Hub::of(&[("a.gguf", b"a")]));
    for (name, value) in [("HF_HUB_OFFLINE", "1"), ("THANE_OFFLINE", "yes")] {
        let mut command = home.thane(&["pull", "hf:org/name/a.gguf"]);
        let output = command
            .env("HF_ENDPOINT", &hub.api.url)
            .env(name, value)
            .output()
            .unwrap();
        assert_ends(
            &output,
            5,
            &[
                "is not in the cache and the network is switched off",
                "try: ",
            ],
        );
    }
    assert_eq!(hub.api.requests().len(), 0);
}

#[test]
fn no_network_says_so() {
    let output = Home::new().run(&["pull", "hf:org/name"]);
    assert_ends(
        &output,
        5,
        &[
            &format!("cannot reach {NOWHERE}/api/models/org/name"),
            "refused",
            "HF_ENDPOINT",
            "HTTPS_PROXY",
        ],
    );
}

#[test]
fn a_dead_process_leaves_no_lock_behind() {
    let (home, body) = (Home::new(), noise(100, 15));
    let hub = Hub::of(&[("a.gguf", &body)]);
    let locks = home.path("cache/hub/.locks/models--org--name");
    fs::create_dir_all(&locks).unwrap();
    fs::write(locks.join(format!("{}.lock", sha256(&body))), "1").unwrap();
    assert_ends(
        &home.with_hub(&hub.api.url, &["pull", "hf:org/name/a.gguf"]),
        0,
        &[],
    );
}

#[test]
fn rm_frees_a_file_or_a_repository() {
    let (home, one, two) = (Home::new(), noise(4000, 16), noise(3000, 17));
    let hub = Hub::of(&[("a.gguf", &one), ("b.gguf", &two)]);
    for file in ["a", "b"] {
        assert_ends(
            &home.with_hub(&hub.api.url, &["pull", &format!("hf:org/name/{file}.gguf")]),
            0,
            &[],
        );
    }
    assert_eq!(
        json(&home.run(&["rm", "hf:org/name/a.gguf", "--json"]))["freed_bytes"],
        4000
    );
    assert_eq!(home.files(BLOBS), [sha256(&two)]);
    assert_eq!(home.files(&snapshot("")), ["b.gguf"]);
    let freed = json(&home.run(&["rm", "hf:org/name", "--json"]))["freed_bytes"]
        .as_u64()
        .unwrap();
    assert!((3000..3200).contains(&freed), "{freed}");
    assert!(!home.path("cache/hub/models--org--name").exists());
    assert_ends(
        &home.run(&["rm", "hf:org/name"]),
        2,
        &["hf:org/name is not in the cache"],
    );
}

#[test]
fn rm_stays_in_the_cache() {
    let home = Home::new();
    fs::create_dir_all(home.path("cache/models")).unwrap();
    fs::create_dir_all(home.path("outside")).unwrap();
    fs::write(home.path("outside/precious"), "x").unwrap();
    std::os::unix::fs::symlink(home.path("outside"), home.path("cache/models/link")).unwrap();
    let outside = home.path("outside");
    for spec in [
        "../outside",
        "../../outside",
        outside.to_str().unwrap(),
        "link",
        "./link",
        "a/b",
    ] {
        assert_ends(&home.run(&["rm", spec]), 2, &["outside the cache"]);
    }
    for spec in ["..", ".", "nothing"] {
        assert_ends(&home.run(&["rm", spec]), 2, &["is not in the cache"]);
    }
    assert_eq!(
        fs::metadata(home.path("outside/precious")).unwrap().size(),
        1
    );
}

/// A repository of a `config.json` and weights, whose endpoint answers otherwise.
fn lying(mend: impl Fn(&Request, usize, Reply) -> Reply + Send + Sync + 'static) -> Hub {
    let files: [(&str, &[u8]); 2] = [
        ("config.json", b"{\"a\": 1}"),
        ("model.safetensors", b"weights"),
    ];
    let mend_api: Box<Mend> = Box::new(mend);
    Hub::with_api(&files, Box::new(|_, _, reply| reply), mend_api)
}

/// Issue 30, 3.7: 4.7 GB of `config.json`, announced or not.
#[test]
fn small_files_have_a_size_cap() {
    let announced = lying(|request, _, reply| match request.path.as_str() {
        "/small/config.json" => reply.with("Content-Length", "4700000000"),
        _ => reply,
    });
    let home = Home::new();
    let output = home.with_hub(&announced.api.url, &["pull", "hf:org/name"]);
    assert_ends(
        &output,
        5,
        &[
            "hf:org/name/config.json: expected at most 16777216 bytes",
            "found 4700000000",
            "try: another repository",
        ],
    );
    let endless = lying(|request, _, mut reply| {
        if request.path == "/small/config.json" {
            (reply.endless, reply.body) = (true, vec![b' '; 1 << 20]);
        }
        reply
    });
    let output = home.with_hub(&endless.api.url, &["pull", "hf:org/name"]);
    assert_ends(
        &output,
        5,
        &["config.json: expected at most 16777216 bytes"],
    );
    let listing = lying(|request, _, mut reply| {
        if request.path.starts_with("/api/") {
            (reply.endless, reply.body) = (true, vec![b' '; 1 << 20]);
        }
        reply
    });
    let output = home.with_hub(&listing.api.url, &["pull", "hf:org/name"]);
    assert_ends(
        &output,
        5,
        &["invalid answer: expected at most 33554432 bytes, found more"],
    );
    // Weights without a length could fill the disk.
    let weights = lying(|request, _, mut reply| {
        if request.path.ends_with("/model.safetensors") {
            reply.headers.retain(|(name, _)| *name == "X-Linked-Etag");
            (reply.status, reply.endless, reply.body) = (200, true, vec![0; 1 << 20]);
        }
        reply
    });
    let output = home.with_hub(&weights.api.url, &["pull", "hf:org/name"]);
    assert_ends(
        &output,
        5,
        &["invalid answer: neither Content-Length nor X-Linked-Size"],
    );
}

/// Issue 30, 3.7: a gzip of a few kB that unpacks to 1 GB.
#[test]
fn compressed_answers_are_refused() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    (0..64).for_each(|_| packed.write_all(&vec![b' '; 1 << 20]).unwrap());
    let packed = packed.finish().unwrap();
    for place in ["/small/config.json", "/api/"] {
        let packed = packed.clone();
        let hub = lying(
            move |request, _, reply| match request.path.starts_with(place) {
                true => Reply {
                    body: packed.clone(),
                    ..reply
                }
                .with("Content-Encoding", "gzip"),
                false => reply,
            },
        );
        let home = Home::new();
        let output = home.with_hub(&hub.api.url, &["pull", "hf:org/name"]);
        assert_ends(
            &output,
            5,
            &["invalid answer: expected plain bytes, found Content-Encoding gzip"],
        );
        assert_eq!(home.files("cache/hub/models--org--name/snapshots"), [""; 0]);
    }
}

/// Issue 30, 3.7: small files have git's hash for an etag.
#[test]
fn small_files_are_checked_against_their_hash() {
    let (home, right) = (Home::new(), git_hash(b"{\"a\": 1}"));
    let hub = lying(
        |request, _, reply| match (request.path.as_str(), request.method.as_str()) {
            ("/small/config.json", "GET") => Reply {
                body: b"{\"a\": 2}".to_vec(),
                ..reply
            },
            _ => reply,
        },
    );
    let output = home.with_hub(&hub.api.url, &["pull", "hf:org/name"]);
    let wrong = git_hash(b"{\"a\": 2}");
    assert_ends(
        &output,
        5,
        &[&format!(
            "hf:org/name/config.json is damaged: expected git hash {right}, found {wrong}"
        )],
    );
    assert_eq!(home.files(BLOBS), [""; 0]);
    // What was damaged later is found by --check, in the folders of modules too.
    let files: [(&str, &[u8]); 3] = [
        ("config.json", b"{}"),
        ("model.safetensors", b"weights"),
        ("1_Pooling/config.json", b"{ }"),
    ];
    let hub = Hub::of(&files);
    assert_ends(
        &home.with_hub(&hub.api.url, &["pull", "hf:org/name"]),
        0,
        &[],
    );
    for name in ["config.json", "1_Pooling/config.json"] {
        let whole = fs::read(home.path(&snapshot(name))).unwrap();
        fs::write(home.path(&snapshot(name)), &b"[]]"[..whole.len()]).unwrap();
        let output = home.with_hub(&hub.api.url, &["pull", "hf:org/name", "--check"]);
        assert_ends(
            &output,
            0,
            &[
                name,
                "is damaged: its git hash is not the one that it should have",
            ],
        );
        assert_eq!(
            fs::read(home.path(&snapshot(name))).unwrap(),
            whole,
            "{name}"
        );
    }
}

/// Issue 30, 3.7: the server says how long to wait.
#[test]
fn retry_after_is_kept() {
    // A server that finds nothing before the time is over.
    let busy = |status: u16, wait: fn() -> (String, Duration)| {
        let due = Mutex::new(None);
        lying(move |_, _, reply| {
            let mut due = due.lock().unwrap();
            let Some(due) = *due else {
                let (text, time) = wait();
                *due = Some(Instant::now() + time);
                return Reply::new(status, "").with("Retry-After", text);
            };
            match Instant::now() < due {
                true => Reply::new(404, ""),
                false => reply,
            }
        })
    };
    let two_seconds = || ("2".to_owned(), Duration::from_secs(2));
    // A date has whole seconds, so that up to one is lost.
    let until_a_date = || {
        let date = SystemTime::now() + Duration::from_secs(3);
        (httpdate::fmt_http_date(date), Duration::from_millis(1900))
    };
    for hub in [busy(429, two_seconds), busy(503, until_a_date)] {
        let output = Home::new().with_hub(&hub.api.url, &["pull", "hf:org/name"]);
        assert_ends(&output, 0, &["it asks to wait ", " s; waiting"]);
    }
    let hub = busy(429, || ("86400".to_owned(), Duration::ZERO));
    let output = Home::new().with_hub(&hub.api.url, &["pull", "hf:org/name"]);
    assert_ends(
        &output,
        5,
        &[
            "answered 429; it asks to wait 86400 s",
            "try: the same again in 86400 s",
        ],
    );
    assert_eq!(
        hub.api.requests().len(),
        1,
        "a day is not waited for, and nothing is asked before it is over"
    );
}

/// Issue 30, 3.7: a byte at a time, in the listing, a small file, a large file, or the head of an
/// answer.
#[test]
fn a_server_that_sends_a_byte_at_a_time_holds_nobody() {
    let pause = Duration::from_millis(250);
    let (config, weights) = ([b' '; 1000], noise(300_000, 60));
    // The address of a large file is its hash.
    let large = format!("/{}", sha256(&weights));
    let slow = |place: &str, slow_head: bool| {
        let place = place.to_owned();
        let mend = move |request: &Request, reply: Reply| match request.path.starts_with(&place) {
            true => Reply {
                slow_head,
                ..reply.slowly(pause)
            },
            false => reply,
        };
        let of_store = mend.clone();
        Hub::with_api(
            &[("config.json", &config), ("model.safetensors", &weights)],
            Box::new(move |request, _, reply| of_store(request, reply)),
            Box::new(move |request, _, reply| mend(request, reply)),
        )
    };
    let hubs = [
        (slow(&large, false), "only "),
        (slow("/api/", false), "only "),
        (slow("/api/", true), "no answer in time"),
        (slow("/small/", false), "only "),
    ];
    for (place, (hub, why)) in hubs.iter().enumerate() {
        // How slow the server is shows where this machine gives the program time to read.
        let mut timeouts = ["1", "4", "16"].into_iter();
        let output = timeouts.find_map(|timeout| {
            let limits = ["--timeout", timeout, "--attempts", "2"];
            let args = [&["pull", "hf:org/name"], &limits[..]].concat();
            let output = Home::new().with_hub(&hub.api.url, &args);
            assert_ends(&output, 5, &["thane: cannot reach"]);
            stderr(&output).contains(why).then_some(output)
        });
        assert!(output.is_some(), "{place}: {why}");
    }
}

/// Issue 30, 4: `list` and `remove`, and names that are nearly right.
#[test]
fn ls_and_rm_have_the_names_that_others_give_them() {
    let home = Home::new();
    let hub = Hub::of(&[("a.gguf", b"a")]);
    assert_ends(
        &home.with_hub(&hub.api.url, &["pull", "hf:org/name"]),
        0,
        &[],
    );
    assert!(stdout(&home.run(&["list"])).starts_with("hf:org/name "));
    assert_ends(
        &home.run(&["remove", "hf:org/nam"]),
        2,
        &[
            "hf:org/nam is not in the cache",
            "did you mean hf:org/name?",
        ],
    );
    assert_ends(
        &home.run(&["run", "nam", "x"]),
        2,
        &["unknown model `nam`; did you mean hf:org/name?"],
    );
    assert_ends(&home.run(&["remove", "hf:org/name"]), 0, &[]);
}

#[test]
fn a_password_of_the_endpoint_is_not_shown() {
    let (home, hub) = (Home::new(), Hub::of(&[("a.gguf", b"a")]));
    let with_password = |url: &str| url.replace("://", "://me:secret@");
    let (there, nowhere) = (with_password(&hub.api.url), with_password(NOWHERE));
    for (url, name, code, shown) in [
        (&there, "hf:org/name/a.gguf", 0, "GET http://***@127.0.0.1:"),
        (
            &there,
            "hf:org/none",
            5,
            "does not exist at http://***@127.0.0.1:",
        ),
        (
            &nowhere,
            "hf:org/name",
            5,
            "cannot reach http://***@127.0.0.1:9/",
        ),
        (&"me:secret@h".to_owned(), "hf:org/name", 5, "***@h"),
    ] {
        let output = home.with_hub(url, &["pull", name, "-v", "--json", "--attempts", "1"]);
        assert_ends(&output, code, &[shown]);
        let said = stderr(&output) + &stdout(&output);
        assert!(!said.contains("secret"), "{said}");
    }
}

/// RFC 9110, 15.3.7.3: bytes of two versions of a file are not joined. Nothing knows a hash here,
/// so only the ETag and the length of the whole file tell versions apart.
#[test]
fn halves_of_two_versions_are_not_joined() {
    let versions = [noise(300_000, 5), noise(300_000, 6)];
    let etag = |version: usize| format!("\"v{}-etag\"", version + 1);
    // What the server says of the rest of the second version, and whether it honors If-Range.
    for (rest_etag, total, honors, said) in [
        (
            Some(1),
            300_000,
            false,
            "expected ETag \"v1-etag\", found \"v2-etag\"",
        ),
        (
            None,
            300_000,
            false,
            "expected ETag \"v1-etag\", found none",
        ),
        (
            Some(0),
            900_000,
            false,
            "expected 300000 bytes of the file, found 900000",
        ),
        (
            Some(1),
            300_000,
            true,
            "expected ETag \"v1-etag\", found \"v2-etag\"",
        ),
    ] {
        let (versions, home) = (versions.clone(), Home::new());
        let [first, second] = versions.clone();
        let server = Server::start(move |request| {
            let whole = |body: &[u8], version: usize| {
                let reply = Reply::new(200, body).with("ETag", etag(version));
                reply.with("X-Repo-Commit", COMMIT)
            };
            let range = request.headers.get("range");
            match (request.method.as_str(), range) {
                ("HEAD", _) => whole(&first, 0),
                (_, None) => Reply {
                    cut: Some(150_000),
                    ..whole(&first, 0)
                },
                (_, Some(range)) => {
                    assert_eq!(range, "bytes=150000-");
                    assert_eq!(request.headers["if-range"], etag(0));
                    if honors {
                        return whole(&second, 1);
                    }
                    let range = format!("bytes 150000-299999/{total}");
                    let reply = Reply::new(206, &second[150_000..]).with("Content-Range", range);
                    match rest_etag {
                        Some(version) => reply.with("ETag", etag(version)),
                        None => reply,
                    }
                }
            }
        });
        let args = ["pull", "hf:org/name/a.gguf", "--attempts", "4"];
        assert_ends(&home.with_hub(&server.url, &args), 5, &[said]);
        assert!(!home.path(&snapshot("a.gguf")).exists(), "{said}");
        let incomplete = home.path(BLOBS).join("v1-etag.incomplete");
        assert_eq!(fs::read(incomplete).unwrap(), b"", "{said}");
    }
}

/// A server whose rest is of the same version, and one with a weak ETag, which promises nothing.
#[test]
fn halves_of_one_version_are_joined() {
    let body = noise(300_000, 5);
    for (etag, n_ranges) in [("\"v1\"", 1), ("W/\"v1\"", 0)] {
        let (home, n_asked) = (Home::new(), AtomicUsize::new(0));
        let first = body.clone();
        let server = Server::start(move |request| {
            let reply = |status: u16, bytes: &[u8]| {
                let reply = Reply::new(status, bytes).with("ETag", etag);
                reply.with("X-Repo-Commit", COMMIT)
            };
            let n_before = match request.method.as_str() {
                "HEAD" => return reply(200, &first),
                _ => n_asked.fetch_add(1, Ordering::SeqCst),
            };
            match request.headers.contains_key("range") {
                true => reply(206, &first[150_000..])
                    .with("Content-Range", "bytes 150000-299999/300000"),
                false => Reply {
                    cut: (n_before == 0).then_some(150_000),
                    ..reply(200, &first)
                },
            }
        });
        let output = home.with_hub(&server.url, &["pull", "hf:org/name/a.gguf"]);
        assert_ends(&output, 0, &[]);
        assert_eq!(fs::read(home.path(&snapshot("a.gguf"))).unwrap(), body);
        let requests = server.requests();
        let ranges = requests.iter().filter(|r| r.headers.contains_key("range"));
        assert_eq!(ranges.count(), n_ranges, "{etag}");
    }
}

/// XDG's specification: relative paths in its variables do not count. Nothing is written where a
/// program happens to be started.
#[test]
fn the_working_directory_is_no_cache() {
    let hub = Hub::of(&[("a.gguf", b"GGUF")]);
    for (name, value, code) in [
        ("XDG_CACHE_HOME", "x", 0),
        ("HOME", "x", 2),
        ("HOME", "", 2),
    ] {
        let home = Home::new();
        let place = home.path("place");
        fs::create_dir(&place).unwrap();
        let mut pull = home.thane(&["pull", "hf:org/name/a.gguf"]);
        pull.env_remove("THANE_CACHE")
            .env("HF_ENDPOINT", &hub.api.url);
        let output = pull.env(name, value).current_dir(&place).output().unwrap();
        let said = "expected HOME or XDG_CACHE_HOME to be an absolute path, found none";
        match code {
            0 => assert_ends(&output, 0, &[]),
            code => assert_ends(&output, code, &[said, "try: --cache FOLDER"]),
        }
        assert_eq!(home.files("place"), [""; 0], "{name}={value}");
    }
}
