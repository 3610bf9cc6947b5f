//! Creates senders and receivers of a socket.

use crate::{Receiver, Sender, UdpSocket};

impl UdpSocket {
    /// Returns a sender and a receiver. They may move to different threads.
    pub fn split<B: AsRef<[u8]>>(self) -> (Sender<UdpSocket, B>, Receiver) {
        (self.sender(), self.receiver())
    }

    /// Returns a sender. If there are several senders, order is kept within each.
    pub fn sender<B: AsRef<[u8]>>(&self) -> Sender<UdpSocket, B> {
        Sender::new(self.clone())
    }

    /// Returns a receiver. If there are several receivers, each gets some of the datagrams.
    pub fn receiver(&self) -> Receiver {
        Receiver::new(self.clone())
    }
}
