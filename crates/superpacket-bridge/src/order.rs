//! What poll threads are told: ports that come and go, backlogs to empty, and when to end.

use std::sync::Arc;

use crossbeam_channel::Sender;
use superpacket_io::port::{Receive, Transmit};

use crate::handover::BacklogReceiver;
use crate::runtime::Shared;

/// An order to a poll thread.
pub(crate) enum Order {
    /// A port is there: receive by these queues, by number, send by this end.
    Open { shared: Arc<Shared>, receivers: Vec<(u16, Box<dyn Receive>)>, transmit: Box<dyn Transmit> },
    /// The port of this number is not to be used any more; the sender is dropped when all its
    /// buffers are back.
    Close { number: u16, done: Sender<()> },
    /// A receive queue has packets for this thread.
    Backlog(BacklogReceiver<Arc<Shared>>),
    /// End when nobody has packets for this thread any more.
    Retire,
    /// Send what is held, and end.
    Stop,
}
