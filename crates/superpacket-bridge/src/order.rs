//! What poll threads are told: ports that come and go, backlogs to empty, and when to end.

use std::sync::Arc;

use crossbeam_channel::Sender;
use superpacket_port::{Receive, Transmit};

use crate::handover::BacklogReceiver;
use crate::runtime::Shared;

/// An order to a poll thread.
pub(crate) enum Order {
    /// A port is there: receive by these queues, by number, send by this end. What is set aside is
    /// for the queues.
    Open {
        shared: Arc<Shared>,
        receivers: Vec<(u16, Box<dyn Receive>)>,
        transmit: Box<dyn Transmit>,
        set_aside: SetAside,
    },
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

/// Memory that is kept free for a thread which cannot refuse what it is told to do: it gives it
/// back right before it takes what it needs.
#[derive(Default)]
pub(crate) struct SetAside(Vec<u8>);

impl SetAside {
    /// So many bytes; `None` if there is no memory for them. None of it is touched.
    pub(crate) fn try_new(bytes: usize) -> Option<Self> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).ok()?;
        Some(SetAside(memory))
    }

    /// For whom it is kept now takes it.
    pub(crate) fn give_back(self) {
        drop(self.0);
    }
}
