//! Runs an exec plugin: a program that prints credentials as an `ExecCredential`.
//!
//! Upstream: client-go plugin/pkg/client/auth/exec. Differs from upstream: a run has a time limit
//! (docs/differences.md).

use std::fmt;
use std::io::{IsTerminal as _, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use http::HeaderValue;
use jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use rustix::process::{Pid, Signal, kill_process_group};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::Deserialize;
use serde_json::json;

use super::bearer::bearer;
use crate::lock::try_lock;

/// Maximum time of a run. Then the plugin is killed.
pub(super) const MAX_RUN_TIME: Duration = Duration::from_secs(60);
/// Maximum size of a plugin's output, in bytes.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// Interval between checks for the exit of a plugin that has closed its output.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A client certificate and its key, in PEM.
#[derive(Clone, Hash)]
pub(super) struct ClientIdentity {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl ClientIdentity {
    /// Checks that a TLS connection can use the certificate and the key. If it cannot, the run of the plugin counts as
    /// failed; a failed renewal is repeated soon.
    fn check(&self) -> Result<(), String> {
        let chain: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        // The parser's messages may quote the key.
        let chain = chain.map_err(|_| "its certificate is not valid PEM")?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|_| "its key is not valid PEM")?;
        match CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider()) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InconsistentKeys(_)) => Err("its certificate does not match its key".to_owned()),
            Err(error) => Err(format!("its certificate or key cannot be used: {error}")),
        }
    }
}

/// The credentials that a run has returned: a token, a client certificate, or both.
pub(super) struct Issued {
    /// The `Authorization` header.
    pub(super) token: Option<HeaderValue>,
    /// The end of the credentials' validity; `None`: they are valid until the API server refuses them.
    pub(super) expires: Option<Timestamp>,
    pub(super) identity: Option<ClientIdentity>,
}

/// An exec plugin.
pub(super) struct Plugin {
    config: ExecConfig,
    limit: Duration,
    /// Held during a run. If the program's file system hangs, the start of the program has no time limit, and this lock
    /// prevents further runs.
    running: Mutex<()>,
}

/// A plugin's program, ready to run.
struct Program {
    command: Command,
    /// The program runs in a process group of its own.
    has_group: bool,
}

/// The output of a plugin. Other fields are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default)]
    api_version: String,
    status: Option<ExecStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecStatus {
    expiration_timestamp: Option<String>,
    #[serde(default)]
    token: String,
    #[serde(default)]
    client_certificate_data: String,
    #[serde(default)]
    client_key_data: String,
}

impl Plugin {
    pub(super) fn new(config: ExecConfig) -> Self {
        Self::with_limit(config, MAX_RUN_TIME)
    }

    /// Like [`Plugin::new`], with another time limit.
    pub(super) fn with_limit(config: ExecConfig, limit: Duration) -> Self {
        Self { config, limit, running: Mutex::default() }
    }

    /// Runs the plugin. Blocks the thread.
    ///
    /// # Errors
    /// The reason why there are no credentials. It contains no output of the plugin, which may be a token.
    pub(super) fn run(&self) -> Result<Issued, String> {
        let name = self.config.command.as_deref().unwrap_or_default();
        let Some(_running) = try_lock(&self.running) else {
            return Err(format!("exec plugin {name:?}: its previous run has not ended"));
        };
        let issued = self.program().and_then(|program| output(program, self.limit));
        let issued = issued.and_then(|(status, output)| {
            if status.success() {
                read(&output, self.config.api_version.as_deref())
            } else {
                Err(format!("it failed with {status}; its messages are in the log of this process"))
            }
        });
        let issued =
            issued.and_then(|issued| issued.identity.iter().try_for_each(ClientIdentity::check).map(|()| issued));
        issued.map_err(|problem| format!("exec plugin {name:?}: {problem}"))
    }

    fn program(&self) -> Result<Program, String> {
        let config = &self.config;
        let program = config.command.as_deref().filter(|program| !program.is_empty());
        let program = program.ok_or("the field command is not set")?;
        let is_terminal = std::io::stdin().is_terminal();
        let is_interactive = match config.interactive_mode {
            Some(ExecInteractiveMode::Never) => false,
            Some(ExecInteractiveMode::Always) if !is_terminal => {
                return Err("interactiveMode is Always, but standard input is not a terminal".to_owned());
            }
            Some(ExecInteractiveMode::Always | ExecInteractiveMode::IfAvailable) | None => is_terminal,
        };
        let mut spec = json!({ "interactive": is_interactive });
        if config.provide_cluster_info {
            let cluster = config.cluster.as_ref().ok_or("provideClusterInfo is set, but there is no cluster")?;
            spec["cluster"] = serde_json::to_value(cluster).map_err(|error| error.to_string())?;
        }
        let info = json!({"kind": "ExecCredential", "apiVersion": config.api_version, "spec": spec});
        let mut command = Command::new(program);
        command.args(config.args.iter().flatten());
        for variable in config.env.iter().flatten() {
            if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
                command.env(name, value);
            }
        }
        command.env("KUBERNETES_EXEC_INFO", info.to_string());
        command.stdin(if is_interactive { Stdio::inherit() } else { Stdio::null() });
        if !is_interactive {
            // The plugin reads nothing from the terminal, so it may have a process group of its own.
            command.process_group(0);
        }
        Ok(Program { command, has_group: !is_interactive })
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("command", &self.config.command).finish_non_exhaustive()
    }
}

/// Runs a program, and returns its exit status and output. Kills it after `limit`, with the processes that it has
/// started.
fn output(Program { mut command, has_group }: Program, limit: Duration) -> Result<(ExitStatus, Vec<u8>), String> {
    let deadline = Instant::now() + limit;
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let ended = finish(&mut child, deadline);
    if ended.is_err() {
        kill(&mut child, has_group);
        // Waiting removes the process from the system's table. The wait may take long if the program is on a file
        // system that hangs.
        thread::spawn(move || child.wait());
    }
    ended.map_err(|problem| problem.unwrap_or_else(|| format!("it did not end within {limit:?}")))
}

/// Kills a program with its process group: if only a wrapper script were killed, the programs that it has started would
/// continue. The program must not have been waited for, so that no other process can have its id yet.
fn kill(child: &mut Child, has_group: bool) {
    // If the program has exited in the meantime, there is nothing to kill.
    if has_group && let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
}

/// Waits for the end of a program. The error is `None` if the deadline has passed. After any error, the caller has to
/// wait for the program.
fn finish(child: &mut Child, deadline: Instant) -> Result<(ExitStatus, Vec<u8>), Option<String>> {
    let stdout = child.stdout.take().ok_or_else(|| Some("it has no output".to_owned()))?;
    let (sender, receiver) = mpsc::channel();
    // A process that the plugin has started may keep the output open, so this thread may outlive the run.
    thread::spawn(move || sender.send(read_all(stdout)));
    let output = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())).map_err(|_| None)?;
    let output = output.map_err(Some)?;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok((status, output)),
            Ok(None) if Instant::now() < deadline => thread::sleep(EXIT_CHECK_INTERVAL),
            Ok(None) => return Err(None),
            Err(error) => return Err(Some(error.to_string())),
        }
    }
}

fn read_all(output: ChildStdout) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    output.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Reads the output of a plugin, which is JSON or YAML.
fn read(output: &[u8], version: Option<&str>) -> Result<Issued, String> {
    // The parser's message may quote the token.
    let credential: ExecCredential =
        serde_saphyr::from_slice(output).map_err(|_| "its output is not an ExecCredential".to_owned())?;
    if let Some(version) = version.filter(|version| *version != credential.api_version) {
        return Err(format!("apiVersion is {version}, but its output has {:?}", credential.api_version));
    }
    let status = credential.status.ok_or("its output has no status")?;
    let expires = status.expiration_timestamp.filter(|text| !text.is_empty()).map(|text| text.parse()).transpose();
    let expires = expires.map_err(|error: jiff::Error| format!("expirationTimestamp: {error}"))?;
    let token = Some(&*status.token).filter(|token| !token.is_empty());
    let token = token.map(|token| bearer(token).ok_or("its token has characters that are not valid in a header"));
    let identity = match (status.client_certificate_data.is_empty(), status.client_key_data.is_empty()) {
        (true, true) => None,
        (false, false) => {
            Some(ClientIdentity { certificate: status.client_certificate_data, key: status.client_key_data })
        }
        _ => return Err("it returned only one of certificate and key".to_owned()),
    };
    let issued = Issued { token: token.transpose()?, expires, identity };
    if issued.token.is_none() && issued.identity.is_none() {
        return Err("it returned neither a token nor a certificate".to_owned());
    }
    Ok(issued)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a plugin that runs this shell script.
    pub(in crate::client) fn script(text: &str, limit: Duration) -> Plugin {
        let config = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", text],
            "interactiveMode": "Never", "env": [{"name": "GREETING", "value": "hello"}]});
        Plugin::with_limit(serde_json::from_value(config).expect("a plugin"), limit)
    }

    const VERSION: Option<&str> = Some("client.authentication.k8s.io/v1");

    fn problem(output: &str) -> String {
        read(output.as_bytes(), VERSION).err().unwrap_or_default()
    }

    #[test]
    fn output_is_json_or_yaml_and_complete() {
        let json = r#"{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status":
            {"token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z"}}"#;
        let yaml = "apiVersion: client.authentication.k8s.io/v1\nstatus:\n  token: t\n";
        for output in [json, yaml] {
            let issued = read(output.as_bytes(), VERSION).expect("credentials");
            assert_eq!(issued.token.as_ref().map(HeaderValue::as_bytes), Some(&b"Bearer t"[..]), "{output}");
            assert!(issued.identity.is_none());
        }
        let with =
            |status: &str| format!(r#"{{"apiVersion": "client.authentication.k8s.io/v1", "status": {{{status}}}}}"#);
        assert_eq!(problem(&with(r#""clientCertificateData": "c", "clientKeyData": "k""#)), "");
        for (name, output, expected) in [
            ("rubbish", "s3cret: [".to_owned(), "not an ExecCredential"),
            ("no status", r#"{"apiVersion": "client.authentication.k8s.io/v1"}"#.to_owned(), "no status"),
            ("other version", json.replace("/v1", "/v1beta1"), "apiVersion"),
            ("nothing", with(""), "neither a token nor a certificate"),
            ("key only", with(r#""token": "t", "clientKeyData": "k""#), "only one of"),
            ("time", with(r#""token": "t", "expirationTimestamp": "soon""#), "expirationTimestamp"),
            ("line break", with(r#""token": "s3cret\n""#), "not valid in a header"),
        ] {
            let problem = problem(&output);
            assert!(problem.contains(expected) && !problem.contains("s3cret"), "{name}: {problem}");
        }
    }

    #[test]
    fn plugin_gets_its_arguments_and_environment() {
        let print = r#"printf '{"apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "%s"}}' "$1""#;
        let reads = r#"set -- "$GREETING-$(printf %s "$KUBERNETES_EXEC_INFO" | tr -cd a-z | cut -c1-15)";"#;
        let issued = script(&format!("{reads} {print}"), MAX_RUN_TIME).run().expect("credentials");
        let token = issued.token.expect("a token");
        assert!(token.as_bytes().starts_with(b"Bearer hello-"), "{}", String::from_utf8_lossy(token.as_bytes()));
        assert!(token.as_bytes().len() > b"Bearer hello-".len(), "there is no KUBERNETES_EXEC_INFO");
    }

    #[test]
    fn plugin_that_hangs_is_killed() {
        let limit = Duration::from_millis(300);
        for text in
            ["exec sleep 1000", "sleep 1000 & echo; exec sleep 1000", "exec >&-; exec sleep 1000", "sleep 1000 &"]
        {
            let started = Instant::now();
            let problem = script(text, limit).run().err().expect("no credentials");
            assert!(problem.contains("did not end within 300ms"), "{text}: {problem}");
            assert!(started.elapsed() < Duration::from_secs(30), "{text}: {:?}", started.elapsed());
        }
    }

    /// Returns true if the process with this id has ended, or if there is none.
    fn has_ended(process: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
    }

    #[test]
    fn programs_that_a_plugin_has_started_are_killed_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let started = folder.path().join("started");
        let wrapper = format!("sleep 1000 >&- & echo $! > '{}'; wait", started.display());
        let mut limit = Duration::from_millis(100);
        let program = loop {
            script(&wrapper, limit).run().err().expect("no credentials");
            let program = std::fs::read_to_string(&started).unwrap_or_default();
            if !program.trim().is_empty() {
                break program.trim().to_owned();
            }
            limit *= 2;
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !has_ended(&program) {
            assert!(Instant::now() < deadline, "process {program} still runs");
            thread::sleep(EXIT_CHECK_INTERVAL);
        }
    }

    #[test]
    fn failed_plugin_is_reported_without_its_output() {
        let problem = script("echo s3cret; exit 3", MAX_RUN_TIME).run().err().expect("no credentials");
        assert!(problem.contains("exit status: 3") && !problem.contains("s3cret"), "{problem}");
    }
}
