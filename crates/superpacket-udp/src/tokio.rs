//! Senders and receivers that are awaited.

use std::io;
use std::sync::Arc;

use ::tokio::io::Interest;
use ::tokio::net::UdpSocket as Readiness;

use crate::{Destination, Received, Receiver, Sender, UdpSocket};

/// A [`Sender`] that is awaited.
#[derive(Debug)]
pub struct AsyncSender<B> {
    sender: Sender<UdpSocket, B>,
    readiness: Arc<Readiness>,
}

/// A [`Receiver`] that is awaited.
#[derive(Debug)]
pub struct AsyncReceiver {
    receiver: Receiver,
    readiness: Arc<Readiness>,
}

impl UdpSocket {
    /// Makes a sender and a receiver that are awaited. Each may move to a task of its own.
    ///
    /// # Errors
    /// If the socket cannot be registered with tokio.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    pub fn split_async<B: AsRef<[u8]>>(self) -> io::Result<(AsyncSender<B>, AsyncReceiver)> {
        // Another descriptor of the same socket: it only tells when the socket is ready.
        let readiness = Arc::new(Readiness::from_std(self.as_std().try_clone()?)?);
        let (sender, receiver) = self.split();
        Ok((
            AsyncSender { sender, readiness: Arc::clone(&readiness) },
            AsyncReceiver { receiver, readiness },
        ))
    }
}

impl<B: AsRef<[u8]>> AsyncSender<B> {
    /// Queues a datagram.
    #[inline]
    pub fn push(&mut self, destination: impl Into<Destination>, datagram: B) {
        self.sender.push(destination, datagram);
    }

    /// As [`Sender::flush`]. May be cancelled: the next flush goes on.
    ///
    /// # Errors
    /// The system's; see [`Sender`](Sender#errors).
    pub async fn flush(&mut self) -> io::Result<()> {
        let Self { sender, readiness } = self;
        readiness.async_io(Interest::WRITABLE, || sender.try_flush()).await
    }

    /// As [`flush`](Self::flush), and drops what stays after an error, as a full queue would have
    /// it.
    ///
    /// # Errors
    /// The system's.
    pub async fn flush_lossy(&mut self) -> io::Result<()> {
        let result = self.flush().await;
        self.sender.clear();
        result
    }

    /// The sender: for its counters and socket.
    pub const fn get_ref(&self) -> &Sender<UdpSocket, B> {
        &self.sender
    }

    /// The sender: to be told of a refusal, or to drop what stays after an error.
    pub const fn get_mut(&mut self) -> &mut Sender<UdpSocket, B> {
        &mut self.sender
    }
}

impl AsyncReceiver {
    /// As [`Receiver::receive`]. May be cancelled: nothing is lost.
    ///
    /// # Errors
    /// The system's.
    pub async fn receive(&mut self) -> io::Result<Received<'_>> {
        let Self { receiver, readiness } = self;
        let messages = readiness.async_io(Interest::READABLE, || receiver.fill()).await?;
        Ok(receiver.lend(messages))
    }

    /// The receiver.
    pub const fn get_ref(&self) -> &Receiver {
        &self.receiver
    }
}
