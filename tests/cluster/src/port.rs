//! Ports of processes that tests start.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A port of this machine for a process that is started with [`ReservedPort::flags`].
///
/// The port is bound, without listening, until this value is dropped. Otherwise another test's socket or outgoing
/// connection could take the port before the process listens.
#[derive(Debug)]
pub struct ReservedPort {
    address: SocketAddr,
    _bound: TcpSocket,
}

impl ReservedPort {
    /// Reserves a free port.
    ///
    /// # Errors
    /// When all ports are in use.
    pub fn new() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseport(true)?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        Ok(Self { address: socket.local_addr()?, _bound: socket })
    }

    /// Returns the port with its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the flags of a manager that listens on the port.
    pub fn flags(&self) -> [String; 2] {
        [format!("--secure-port={}", self.address.port()), "--permit-port-sharing=true".to_owned()]
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpListener};

    use super::*;

    fn listen(address: SocketAddr, shares: bool) -> io::Result<tokio::net::TcpListener> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(shares)?;
        socket.bind(address)?;
        socket.listen(1)
    }

    #[tokio::test]
    async fn reserved_port_is_free_only_for_a_process_that_shares_it() {
        let port = ReservedPort::new().expect("a port");
        let number = port.address().port();
        assert!(TcpListener::bind(port.address()).is_err(), "another test listens");
        assert!(listen(port.address(), false).is_err(), "without the flag");
        for address in [port.address(), (Ipv4Addr::UNSPECIFIED, number).into(), (Ipv6Addr::UNSPECIFIED, number).into()]
        {
            let listener = listen(address, true).expect("the process listens");
            tokio::net::TcpStream::connect(port.address()).await.expect("the process accepts");
            drop(listener);
        }
        assert!(tokio::net::TcpStream::connect(port.address()).await.is_err(), "no process listens");
    }
}
