//! Opens the port, and refuses addresses that would let others in.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address has no meaning here.
    #[error("expected an address of this machine, found `{host}`: {source}")]
    Host {
        /// The address as given.
        host: String,
        /// What the system said.
        source: io::Error,
    },
    /// Others could reach the address, and no key is asked of them.
    #[error(
        "expected a key, because other machines can reach {address}, found none: without one, \
         only addresses of this machine alone (127.0.0.1, ::1) are allowed"
    )]
    NoKey {
        /// The address.
        address: IpAddr,
    },
    /// Another program has the port.
    #[error("port {} of {} is in use by another program", address.port(), address.ip())]
    InUse {
        /// Address and port.
        address: SocketAddr,
    },
    /// The system refuses the port.
    #[error("{address} cannot be opened: {source}")]
    Open {
        /// Address and port.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// Opens a port of this machine; port 0 is any free one. Without a key, only loopback addresses
/// are allowed.
pub fn listen(host: &str, port: u16, has_key: bool) -> Result<TcpListener, ListenError> {
    let no_host = |source| ListenError::Host {
        host: host.to_owned(),
        source,
    };
    // Brackets belong to URLs: `[::1]`.
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let address = (name, port)
        .to_socket_addrs()
        .and_then(|mut found| found.next().ok_or_else(|| io::ErrorKind::NotFound.into()))
        .map_err(no_host)?;
    if !has_key && !address.ip().is_loopback() {
        let address = address.ip();
        return Err(ListenError::NoKey { address });
    }
    TcpListener::bind(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address },
        io::ErrorKind::AddrNotAvailable => no_host(source),
        _ => ListenError::Open { address, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_need_a_key() {
        for host in ["0.0.0.0", "::"] {
            let error = listen(host, 0, false).unwrap_err();
            assert!(
                matches!(error, ListenError::NoKey { .. }),
                "{host}: {error}"
            );
        }
        let listener = listen("localhost", 0, false).unwrap();
        assert!(listener.local_addr().unwrap().ip().is_loopback());
        listen("0.0.0.0", 0, true).unwrap();
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let taken = listen("127.0.0.1", 0, false).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = listen("127.0.0.1", port, false).unwrap_err().to_string();
        assert!(error.contains("is in use by another program"), "{error}");
        // TEST-NET-1 is nobody's.
        let error = listen("192.0.2.1", 0, true).unwrap_err().to_string();
        assert!(
            error.contains("expected an address of this machine"),
            "{error}"
        );
    }
}
