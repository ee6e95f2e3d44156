//! The moto server: a process that is killed when its owner exits or is killed.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::python;

/// A shell program that kills moto at the end of its standard input, which the owner holds open.
const WRAPPER: &str = r#"
trap '' HUP INT TERM
"$@" < /dev/null > "$LOG" 2>&1 &
while read -r _; do :; done
kill -s KILL "$!"
"#;

/// The Python program.
const PROGRAM: &str = include_str!("serve.py");

/// Maximum time until moto responds; loading its modules is slow on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// A running moto.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    wrapper: Child,
}

impl Server {
    /// Returns this process's server; starts it if necessary.
    ///
    /// # Errors
    /// If Python is missing or too old, or moto cannot be installed or started.
    pub async fn shared() -> Result<Arc<Self>> {
        tokio::task::spawn_blocking(|| {
            static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(server) = shared.upgrade() {
                return Ok(server);
            }
            let server = Arc::new(Self::start(None)?);
            *shared = Arc::downgrade(&server);
            Ok(server)
        })
        .await?
    }

    /// Starts a server at a port, or at any free port; blocks until it responds.
    ///
    /// # Errors
    /// Same as [`Server::shared`].
    pub fn start(port: Option<u16>) -> Result<Self> {
        let python = python::with_moto()?;
        let port = match port {
            Some(port) => port,
            None => TcpListener::bind("127.0.0.1:0").context("find a free port for moto")?.local_addr()?.port(),
        };
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let log = std::env::temp_dir().join(format!("moto-{port}.log"));
        let mut wrapper = Command::new("sh")
            .args(["-c", WRAPPER, "moto"])
            .arg(&python)
            .args(["-c", PROGRAM, "-H", "127.0.0.1", "-p", &port.to_string()])
            .env("LOG", &log)
            // Data of machine images are not needed, and hundreds of them are slow to load.
            .env("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", python.display()))?;
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                drop(wrapper.stdin.take());
                let output = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("moto does not respond at {address} after {} s; its output:\n{output}", START_TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { address, wrapper })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.wrapper.stdin.take());
        // The wrapper exits at the end of its input. Waiting for it leaves no zombie process.
        let _ = self.wrapper.wait();
        let _ = std::fs::remove_file(std::env::temp_dir().join(format!("moto-{}.log", self.address.port())));
    }
}
