//! Commands to poll threads: open and close ports, process backlogs, and end.

use std::sync::Arc;

use crossbeam_channel::Sender;
use superpacket_port::{Receive, Transmit};

use crate::handover::BacklogReceiver;
use crate::runtime::SharedPort;

/// A command to a poll thread.
pub(crate) enum ThreadCommand {
    /// Opens a port: receive from these queues, given with their numbers, and send by this end. The
    /// reserved memory is for the queues.
    Open {
        shared: Arc<SharedPort>,
        receivers: Vec<(u16, Box<dyn Receive>)>,
        transmit: Box<dyn Transmit>,
        reserved: ReservedMemory,
    },
    /// Stops using the port with this number; `done` is dropped when all its buffers are returned.
    Close { number: u16, done: Sender<()> },
    /// Processes the packets of this backlog from now on.
    Backlog(BacklogReceiver<Arc<SharedPort>>),
    /// Ends when no backlog is left.
    Retire,
    /// Sends the packets that are held, and ends.
    Stop,
}

/// Memory reserved for a thread that cannot fail. The thread frees it right before it allocates as
/// much.
#[derive(Default)]
pub(crate) struct ReservedMemory(Vec<u8>);

impl ReservedMemory {
    /// Reserves this many bytes, without touching them; `None` if there is no memory.
    pub(crate) fn try_new(bytes: usize) -> Option<Self> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).ok()?;
        Some(ReservedMemory(memory))
    }

    /// Frees the memory for its purpose.
    pub(crate) fn give_back(self) {
        drop(self.0);
    }
}
