//! Asynchronous senders and receivers, based on tokio.

use std::io;
use std::sync::Arc;

use ::tokio::io::Interest;
use ::tokio::net::UdpSocket as Readiness;

use crate::{Destination, Received, Receiver, Sender, UdpSocket};

/// An asynchronous [`Sender`].
#[derive(Debug)]
pub struct AsyncSender<B> {
    sender: Sender<UdpSocket, B>,
    readiness: Arc<Readiness>,
}

/// An asynchronous [`Receiver`].
#[derive(Debug)]
pub struct AsyncReceiver {
    receiver: Receiver,
    readiness: Arc<Readiness>,
}

impl UdpSocket {
    /// Returns an asynchronous sender and receiver. They may move to different tasks.
    ///
    /// # Errors
    /// If the socket cannot be registered with tokio.
    ///
    /// # Panics
    /// If called outside of a tokio runtime with I/O.
    pub fn split_async<B: AsRef<[u8]>>(self) -> io::Result<(AsyncSender<B>, AsyncReceiver)> {
        // A second descriptor of the same socket, which only tells when the socket is ready.
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

    /// Like [`Sender::flush`]. After cancellation, the next flush continues.
    ///
    /// # Errors
    /// Any error of the system; see [`Sender`](Sender#errors).
    pub async fn flush(&mut self) -> io::Result<()> {
        let Self { sender, readiness } = self;
        readiness.async_io(Interest::WRITABLE, || sender.try_flush()).await
    }

    /// Like [`flush`](Self::flush), but drops the datagrams that could not be sent because of an
    /// error, as a full queue would.
    ///
    /// # Errors
    /// Any error of the system.
    pub async fn flush_lossy(&mut self) -> io::Result<()> {
        let result = self.flush().await;
        self.sender.clear();
        result
    }

    /// Returns the sender, for its counters and socket.
    pub const fn get_ref(&self) -> &Sender<UdpSocket, B> {
        &self.sender
    }

    /// Returns the sender, to set a [callback](Sender::set_notice) for refused runs, or to drop the
    /// datagrams that remain unsent after an error.
    pub const fn get_mut(&mut self) -> &mut Sender<UdpSocket, B> {
        &mut self.sender
    }
}

impl AsyncReceiver {
    /// Like [`Receiver::receive`]. Cancellation loses no datagrams.
    ///
    /// # Errors
    /// Any error of the system.
    pub async fn receive(&mut self) -> io::Result<Received<'_>> {
        let Self { receiver, readiness } = self;
        let messages = readiness.async_io(Interest::READABLE, || receiver.fill()).await?;
        Ok(receiver.received(messages))
    }

    /// Returns the receiver, for its socket.
    pub const fn get_ref(&self) -> &Receiver {
        &self.receiver
    }
}
