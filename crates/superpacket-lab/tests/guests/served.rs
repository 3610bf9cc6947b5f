//! A server that returns every byte that it gets.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use superpacket_lab::{Host, LabError};

/// The port that the server listens at.
pub const PORT: u16 = 7000;

/// Starts a server on a host that returns the bytes of each connection, in a thread that ends with
/// the process.
pub fn echo(host: &Host, address: IpAddr) -> Result<(), LabError> {
    let listen = || {
        TcpListener::bind(SocketAddr::new(address, PORT))
            .map_err(|error| LabError::system("listening", error))
    };
    let listener = host.run(listen)?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || give_back(stream));
        }
    });
    Ok(())
}

fn give_back(mut stream: TcpStream) -> io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        match stream.read(&mut bytes)? {
            0 => return stream.shutdown(std::net::Shutdown::Write),
            count => stream.write_all(&bytes[..count])?,
        }
    }
}
