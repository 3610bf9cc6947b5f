//! A socket as a sender and a receiver.

use crate::{Receiver, Sender, UdpSocket};

impl UdpSocket {
    /// Makes a sender and a receiver. Each may move to a thread of its own.
    pub fn split<B: AsRef<[u8]>>(self) -> (Sender<UdpSocket, B>, Receiver) {
        (self.sender(), self.receiver())
    }

    /// Makes a sender. Order is kept within each of several.
    pub fn sender<B: AsRef<[u8]>>(&self) -> Sender<UdpSocket, B> {
        Sender::new(self.clone())
    }

    /// Makes a receiver. Of several, each gets some of the datagrams.
    pub fn receiver(&self) -> Receiver {
        Receiver::new(self.clone())
    }
}
