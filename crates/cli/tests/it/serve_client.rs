//! A server as a process, and a client of a few lines: one request per connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::fixture::{Home, PATIENCE, chat_folder};

/// A running server, which ends with the test.
pub struct Server {
    pub child: Child,
    pub address: String,
    pub home: Home,
}

impl Server {
    /// Serves the tiny language model as `tiny-chat` and an embedding model as `bert-mean`.
    pub fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, &[])
    }

    pub fn start_with(flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let models = [chat_folder(), crate::embed::model("bert-mean")];
        Self::of_models(&models, flags, variables)
    }

    /// Serves the models of these folders.
    pub fn of_models(models: &[PathBuf], flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let models: Vec<&str> = models.iter().map(|m| m.to_str().unwrap()).collect();
        let fixed = ["--port", "0", "--context", "512"];
        Self::of_arguments(&[&models[..], &fixed, flags].concat(), variables)
    }

    /// A server with these arguments alone.
    pub fn of_arguments(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let home = Home::new();
        let mut child = home
            .thane(&[&["serve"], arguments].concat())
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let Some((_, address)) = line.trim().split_once("://") else {
            let mut error = String::new();
            let mut stderr = child.stderr.take().unwrap();
            stderr.read_to_string(&mut error).unwrap();
            panic!("expected an address, found {line:?}: {error}");
        };
        let address = address.replace("0.0.0.0", "127.0.0.1");
        Self {
            child,
            address,
            home,
        }
    }

    /// Sends a request, and waits for the head of the answer.
    pub fn send(&self, head: &str, body: impl AsRef<[u8]>) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_ref()).unwrap();
        Answer::read(stream)
    }

    pub fn get(&self, path: &str, headers: &str) -> Answer {
        let host = &self.address;
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n");
        self.send(&head, "")
    }

    pub fn post(&self, path: &str, body: &str, headers: &str) -> Answer {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{headers}Connection: close\r\n\r\n",
            self.address,
            body.len()
        );
        self.send(&head, body)
    }

    pub fn chat(&self, fields: Value) -> Answer {
        let body = with(json!({"model": "tiny-chat"}), fields);
        self.post("/v1/chat/completions", &body.to_string(), "")
    }

    /// Number of requests that run or wait.
    pub fn n_requests(&self) -> u64 {
        self.get("/health", "").json()["requests"].as_u64().unwrap()
    }

    pub fn interrupt(&self) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-INT", &id]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer whose head was read.
pub struct Answer {
    pub status: u16,
    pub head: String,
    rest: BufReader<TcpStream>,
}

impl Answer {
    pub fn read(stream: TcpStream) -> Self {
        let mut rest = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(
                rest.read_line(&mut head).unwrap() > 0,
                "a head, not {head:?}"
            );
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self {
            status,
            head: head.to_lowercase(),
            rest,
        }
    }

    /// One chunk of a body without a length; `None` at the end.
    pub fn chunk(&mut self) -> Option<String> {
        let mut line = String::new();
        self.rest.read_line(&mut line).unwrap();
        let n = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut bytes = vec![0; n + 2];
        self.rest.read_exact(&mut bytes).unwrap();
        bytes.truncate(n);
        (n > 0).then(|| String::from_utf8(bytes).unwrap())
    }

    pub fn text(mut self) -> String {
        let mut text = String::new();
        if self.head.contains("transfer-encoding: chunked") {
            while let Some(chunk) = self.chunk() {
                text += &chunk;
            }
        } else {
            self.rest.read_to_string(&mut text).unwrap();
        }
        text
    }

    pub fn json(self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// The events of a stream, without the `[DONE]` at its end.
    pub fn events(self) -> Vec<Value> {
        assert!(
            self.head.contains("content-type: text/event-stream"),
            "{}",
            self.head
        );
        let text = self.text();
        let mut events: Vec<&str> = text.split_terminator("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"), "{text}");
        let data = events
            .iter()
            .map(|event| event.strip_prefix("data: ").unwrap());
        data.map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    /// Requires an error of OpenAI's shape; returns its message.
    #[track_caller]
    pub fn refused(self, status: u16, kind: &str, param: Value) -> String {
        assert_eq!(self.status, status, "{}", self.head);
        let error = self.json()["error"].clone();
        assert_eq!(
            (&error["type"], &error["param"]),
            (&json!(kind), &param),
            "{error}"
        );
        assert!(error.get("code").is_some(), "{error}");
        error["message"].as_str().unwrap().to_owned()
    }
}

/// The events of a stream whose names are also in their data.
pub fn named_events(answer: Answer) -> Vec<Value> {
    assert!(
        answer.head.contains("content-type: text/event-stream"),
        "{}",
        answer.head
    );
    let text = answer.text();
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// An object with these fields too.
pub fn with(mut object: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else {
        panic!("expected an object, found {fields}")
    };
    object.as_object_mut().unwrap().extend(fields);
    object
}
