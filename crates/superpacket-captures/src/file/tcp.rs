//! Captures that are sent over TCP connections, known as PCAP-over-IP: the bytes of a capture file,
//! and nothing else.

use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

/// An address to connect to or to listen on, which users can give instead of a file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TcpEnd {
    /// `tcp://HOST:PORT`: connects to this address.
    Connect(String),
    /// `tcp-listen://ADDRESS:PORT`: waits for one connection to this address.
    Listen(String),
}

impl TcpEnd {
    /// Parses a path that is a `tcp://` or `tcp-listen://` address; returns `None` for a file name.
    pub(crate) fn parse(path: &Path) -> Option<Self> {
        let text = path.to_str()?;
        let end = match text.strip_prefix("tcp://") {
            Some(address) => Self::Connect(address.trim_end_matches('/').to_owned()),
            None => {
                Self::Listen(text.strip_prefix("tcp-listen://")?.trim_end_matches('/').to_owned())
            }
        };
        Some(end)
    }

    /// Connects to the address, or listens on it until a peer has connected.
    ///
    /// # Errors
    /// If the address has no port, or the system refuses.
    pub(crate) fn open(&self) -> io::Result<TcpStream> {
        let (Self::Connect(address) | Self::Listen(address)) = self;
        let port = address.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(_))) {
            let problem = "needs an address and a port, such as tcp://localhost:57012";
            return Err(io::Error::new(ErrorKind::InvalidInput, problem));
        }
        let stream = match self {
            Self::Connect(address) => TcpStream::connect(address)?,
            Self::Listen(address) => TcpListener::bind(address)?.accept()?.0,
        };
        // What is flushed is meant to arrive.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_file_names() {
        let end = |text: &str| TcpEnd::parse(Path::new(text));
        assert_eq!(end("tcp://[::1]:4242"), Some(TcpEnd::Connect("[::1]:4242".to_owned())));
        assert_eq!(end("tcp://host:1/"), Some(TcpEnd::Connect("host:1".to_owned())));
        assert_eq!(end("tcp-listen://0.0.0.0:5"), Some(TcpEnd::Listen("0.0.0.0:5".to_owned())));
        for file in ["-", "tcp", "tcp:/x", "./tcp://host:1", "in.pcap"] {
            assert_eq!(end(file), None, "{file}");
        }
        for text in ["tcp://host", "tcp://[::1]", "tcp-listen://:x", "tcp://"] {
            let error = end(text).expect("an address").open().expect_err("no port").to_string();
            assert!(error.contains("an address and a port"), "{text}: {error}");
        }
    }
}
