//! Hubs that lie to a push, and places that must not see the token.

use std::fs;

use serde_json::{Value, json};

use crate::fixture::{Home, NOWHERE, assert_ends, stderr};
use crate::publisher::Publisher;
use crate::push::{REPO, bundle, push, with};
use crate::server::{Reply, Request, Server};

const FLAGS: [&str; 5] = ["--formats", "mlpackage", "--no-card", "--attempts", "2"];

/// Changes the JSON answers of one kind of request.
fn changing(
    part: &'static str,
    change: impl Fn(&mut Value) + Send + Sync + 'static,
) -> impl Fn(&Request, Reply) -> Reply + Send + Sync {
    move |request, mut reply| {
        if request.path.contains(part) && reply.status == 200 {
            let mut body: Value = serde_json::from_slice(&reply.body).unwrap();
            change(&mut body);
            reply.body = body.to_string().into_bytes();
        }
        reply
    }
}

#[track_caller]
fn refused(lie: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static, said: &str) {
    let hub = Publisher::lying(lie);
    hub.state.lock().unwrap().part_bytes = 6000;
    assert_ends(&push(&Home::new(), &hub, &FLAGS), 5, &[said]);
}

#[test]
fn hubs_that_lie_to_a_push_are_refused() {
    refused(
        changing("/preupload/", |body| {
            drop(body["files"].as_array_mut().unwrap().pop())
        }),
        "no answer for ",
    );
    refused(
        changing("/preupload/", |body| {
            body["files"][0]["uploadMode"] = "xet".into()
        }),
        "expected `lfs` or `regular`",
    );
    refused(
        changing("objects/batch", |body| {
            drop(body["objects"].as_array_mut().unwrap().pop())
        }),
        "no answer for ",
    );
    refused(
        changing("objects/batch", |body| {
            let other = json!({"oid": "0".repeat(64), "size": 1});
            body["objects"].as_array_mut().unwrap().push(other);
        }),
        "was not asked for",
    );
    refused(
        changing("objects/batch", |body| {
            body["objects"][0] = json!({
                "oid": body["objects"][0]["oid"], "size": body["objects"][0]["size"],
                "error": {"code": 507, "message": "no room"},
            });
        }),
        "was not taken: no room",
    );
    for (size, said) in [
        ("0", "expected a chunk_size above 0"),
        ("1", "expected addresses of"),
    ] {
        refused(
            changing("objects/batch", move |body| {
                for object in body["objects"].as_array_mut().unwrap() {
                    if object["actions"]["upload"]["header"].is_object() {
                        object["actions"]["upload"]["header"]["chunk_size"] = size.into();
                    }
                }
            }),
            said,
        );
    }
    refused(
        changing("/commit/", |body| body["commitOid"] = "../x".into()),
        "expected a commit as `commitOid`",
    );
    refused(
        changing("/tree/", |body| body[0]["size"] = 7.into()),
        "bytes in the commit, found 7 bytes",
    );
    refused(
        changing("/revision/", |body| body["sha"] = "main".into()),
        "expected a commit as `sha`",
    );
}

#[test]
fn the_token_and_the_bytes_go_where_they_belong() {
    let (home, hub) = (Home::new(), Publisher::new());
    assert_ends(&push(&home, &hub, &FLAGS), 0, &[]);
    let has_token = |request: &Request| request.headers.values().any(|v| v.contains("hf_secret"));
    assert!(hub.api.requests().iter().all(has_token));
    assert!(!hub.store.requests().iter().any(has_token));
    // Another host is named to check an upload, or by a redirect.
    let evil = Server::start(|_| Reply::new(200, "{}"));
    let url = evil.url.clone();
    let verify = changing("objects/batch", move |body| {
        for object in body["objects"].as_array_mut().unwrap() {
            if object["actions"]["verify"].is_object() {
                object["actions"]["verify"]["href"] = url.clone().into();
            }
        }
    });
    let hub = Publisher::lying(verify);
    assert_ends(&push(&home, &hub, &FLAGS), 0, &[]);
    assert!(!evil.requests().is_empty());
    assert!(!evil.requests().iter().any(has_token));
    for part in ["/preupload/", "/up/", "/commit/", "objects/batch"] {
        let evil = Server::start(|_| Reply::new(200, "{}"));
        let url = evil.url.clone();
        refused(
            move |request, reply| match request.path.contains(part) {
                true => Reply::new(307, "").with("Location", url.clone()),
                false => reply,
            },
            "expected an answer, found a redirect to http://127.0.0.1:",
        );
        assert!(evil.requests().is_empty(), "{part}");
    }
}

#[test]
fn what_cannot_be_pushed_is_said_before_anything_is_sent() {
    let (home, hub) = (Home::new(), Publisher::new());
    let bundle = bundle().to_str().unwrap();
    let output = home.with_hub(&hub.api.url, &["push", bundle, REPO, "--no-card"]);
    assert_ends(
        &output,
        2,
        &[
            "expected a token for http://",
            "try: set HF_TOKEN to a token",
        ],
    );
    let chat = crate::fixture::chat_folder();
    for (args, code, said) in [
        (
            &["push", chat.to_str().unwrap(), REPO][..],
            2,
            "expected a Core ML package",
        ),
        (
            &["push", bundle, "org/name"],
            2,
            "expected a repository as hf:org/name",
        ),
        (&["push", bundle, "hf:org/name/x"], 2, "found a part of one"),
        (
            &["push", bundle, REPO, "--revision", "../x"],
            2,
            "may not leave their folder",
        ),
        (
            &["push", bundle, REPO, "--pr", "--revision", "x"],
            2,
            "cannot be used with",
        ),
        (&["push", bundle, REPO, "--sign", bundle], 2, "cannot"),
        (
            &["push", bundle, REPO, "--offline"],
            5,
            "the network is switched off",
        ),
    ] {
        assert_ends(&with(&home, &hub, args), code, &[said]);
    }
    assert_eq!(hub.traffic()[0], 0);
}

/// The Hub is asked before models are compiled: of a package that no compiler reads, the network is
/// what is said.
#[test]
fn the_hub_is_asked_before_models_are_compiled() {
    let home = Home::new();
    let broken = home.path("broken.mlpackage");
    fs::create_dir_all(broken.join("Data/com.apple.CoreML")).unwrap();
    fs::write(broken.join("Manifest.json"), "{}").unwrap();
    fs::write(broken.join("Data/com.apple.CoreML/model.mlmodel"), "x").unwrap();
    let broken = broken.to_str().unwrap();
    for (flags, remedy) in [
        (&[][..], "--dry-run --offline"),
        (&["--dry-run"], "HTTPS_PROXY behind a proxy"),
    ] {
        let args = ["push", broken, REPO, "--attempts", "1"];
        let mut nowhere = home.thane(&[&args[..], flags].concat());
        nowhere.env("HF_TOKEN", "x").env("HF_ENDPOINT", NOWHERE);
        let output = nowhere.output().unwrap();
        assert_ends(&output, 5, &["cannot reach http://127.0.0.1:9", remedy]);
        assert!(!stderr(&output).contains("give a path to a file"));
    }
    let hub = Publisher::new();
    let args = ["push", broken, REPO];
    assert_ends(&with(&home, &hub, &args), 2, &["broken.mlpackage"]);
}

#[test]
fn what_is_no_package_has_a_remedy_that_helps() {
    let home = Home::new();
    for (bundle, said) in [
        ("nope", "thane convert MODEL --target a19 -o NAME.mlpackage"),
        ("smollm2-135m", "thane convert smollm2-135m --target a19"),
        ("hf:org/small", "-o small.mlpackage"),
    ] {
        let mut nowhere = home.thane(&["push", bundle, REPO]);
        nowhere.env("HF_TOKEN", "x").env("HF_ENDPOINT", NOWHERE);
        assert_ends(&nowhere.output().unwrap(), 2, &[said]);
    }
    let pull = home.run(&["pull", REPO, "--require-signature", "nokey.pem"]);
    let said = ["nokey.pem: it is no file", "the publisher's public key"];
    assert_ends(&pull, 2, &said);
    assert!(!stderr(&pull).contains("genpkey"));
    let args = ["push", "nope", REPO, "--sign", "nokey.pem"];
    assert_ends(&home.run(&args), 2, &["nokey.pem", "genpkey"]);
    let empty = home.run(&["cache", "verify"]);
    assert_ends(&empty, 0, &["nothing in "]);
}

#[test]
fn branches_and_pull_requests() {
    let (home, hub) = (Home::new(), Publisher::new());
    let branch = [&FLAGS[..], &["--revision", "next"]].concat();
    assert_ends(&push(&home, &hub, &branch), 0, &[]);
    assert!(hub.files("org/name", "next").contains_key("thane.json"));
    assert!(!hub.files("org/name", "main").contains_key("thane.json"));
    let report = crate::fixture::json(&push(&home, &hub, &[&FLAGS[..], &["--pr"]].concat()));
    let opened = format!("{}/org/name/discussions/1", hub.api.url);
    assert_eq!(report["pull_request"], opened);
    assert!(
        hub.files("org/name", "refs/pr/1")
            .contains_key("thane.json")
    );
    assert!(!hub.files("org/name", "main").contains_key("thane.json"));
    let name = format!("{REPO}@next");
    assert_ends(&with(&home, &hub, &["pull", &name]), 0, &[]);
    let private = [&FLAGS[..], &["--private"]].concat();
    let other = Publisher::new();
    assert_ends(&push(&home, &other, &private), 0, &[]);
    let public = Publisher::lying(changing("/revision/", |body| {
        body["private"] = false.into()
    }));
    let output = push(&home, &public, &private);
    assert_ends(
        &output,
        2,
        &["expected a private repository, found a public one"],
    );
    assert!(public.store.requests().is_empty());
    let created = other.api.requests();
    let created = created
        .iter()
        .find(|r| r.path == "/api/repos/create")
        .unwrap();
    let body: Value = serde_json::from_slice(&created.body).unwrap();
    assert_eq!(
        body,
        json!({
            "name": "name", "organization": "org", "type": "model", "private": true,
            "visibility": "private",
        })
    );
}

/// A commit whose answer is lost was made all the same; another one would be a second commit.
#[test]
fn a_lost_answer_to_a_commit_is_found_out() {
    let n_lost = std::sync::atomic::AtomicUsize::new(0);
    let hub = Publisher::lying(move |request, mut reply| {
        let lost = || n_lost.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        if request.path.contains("/commit/") && lost() {
            reply.cut = Some(3);
        }
        reply
    });
    let output = push(&Home::new(), &hub, &FLAGS);
    assert_ends(&output, 0, &[]);
    let state = hub.state.lock().unwrap();
    // The first commit is that of the new repository.
    assert_eq!(state.n_commits, 2);
    let made = crate::fixture::json(&output)["commit"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        state.branches[&("org/name".to_owned(), "main".to_owned())],
        made
    );
}
