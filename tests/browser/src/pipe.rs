//! Chromium's DevTools protocol over its pipe: calls with responses, and events in the order of their arrival.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::program::Program;

/// Maximum time until the browser sends a message.
const DEADLINE: Duration = Duration::from_secs(20);

/// The end of each message.
const END: u8 = 0;

/// The browser reads from descriptor 3 and writes to 4; the shell redirects its own input and output there.
const SHELL: &str = r#"exec "$0" "$@" 3<&0 4>&1 1>&2 </dev/null"#;

/// Flags of the browser. The sandbox is off, because Chromium refuses to run it as root. That is safe: only the test's
/// own content is loaded.
const FLAGS: [&str; 9] = [
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--no-zygote",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--proxy-server=direct://",
];

/// A running browser, connected by its DevTools pipe; it ends when this value is dropped.
pub(crate) struct Browser {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    calls: u64,
    events: Vec<Value>,
    _child: Child,
    profile: TempDir,
}

impl Browser {
    /// Starts a browser with a fresh profile.
    pub(crate) fn start(program: &Program) -> Result<Self> {
        let profile = tempfile::tempdir().context("make a folder for the browser's profile")?;
        let log = std::fs::File::create(profile.path().join("log")).context("make the browser's log")?;
        let mut child = Command::new("sh")
            .args(["-c", SHELL])
            .arg(&program.file)
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .envs(program.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("start the browser")?;
        let input = child.stdin.take().context("the browser has no standard input")?;
        let output = BufReader::new(child.stdout.take().context("the browser has no standard output")?);
        Ok(Self { input, output, calls: 0, events: Vec::new(), _child: child, profile })
    }

    /// Calls a method of the page with this session, or of the browser without one; returns its result.
    pub(crate) async fn call(&mut self, session: Option<&str>, method: &str, parameters: Value) -> Result<Value> {
        self.calls += 1;
        let id = self.calls;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(END);
        self.input.write_all(&bytes).await.with_context(|| format!("send {method} to the browser"))?;
        loop {
            let mut response = self.read().await.with_context(|| format!("read the browser's response to {method}"))?;
            if response["id"] != id {
                self.events.push(response);
                continue;
            }
            if let Some(error) = response.get("error") {
                bail!("{method} with {parameters}: {error}", parameters = message["params"]);
            }
            return Ok(response["result"].take());
        }
    }

    /// Returns the events since the beginning.
    pub(crate) fn events(&self) -> &[Value] {
        &self.events
    }

    /// Waits for an event that matches, and returns it. The first `known` events are skipped.
    pub(crate) async fn wait_for_event(
        &mut self,
        known: usize,
        what: &str,
        is_wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let mut checked = known;
        loop {
            if let Some(event) = self.events.iter().skip(checked).find(|event| is_wanted(event)) {
                return Ok(event.clone());
            }
            checked = self.events.len();
            let event = self.read().await.with_context(|| format!("wait for {what}"))?;
            self.events.push(event);
        }
    }

    async fn read(&mut self) -> Result<Value> {
        let mut message = Vec::new();
        let read = timeout(DEADLINE, self.output.read_until(END, &mut message)).await;
        let length = read
            .with_context(|| format!("no message from the browser in {DEADLINE:?}"))?
            .context("read from the browser")?;
        if length == 0 {
            let log = std::fs::read_to_string(self.profile.path().join("log")).unwrap_or_default();
            bail!("the browser ended: {log}");
        }
        serde_json::from_slice(message.strip_suffix(&[END]).unwrap_or(&message)).context("parse the browser's message")
    }
}
