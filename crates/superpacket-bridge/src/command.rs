//! Commands to the threads that move packets: use or release a port, process a backlog, or end.

use std::sync::Arc;

use crossbeam_channel::Sender;
use superpacket_port::{Receive, Transmit};

use crate::handover::BacklogReceiver;
use crate::runtime::SharedPort;

/// A command to a thread that moves packets.
pub(crate) enum ThreadCommand {
    /// Use an open port: receive from `receive`, queues with their numbers, and send by `transmit`.
    /// `reserved` is memory for the queues.
    Open {
        shared: Arc<SharedPort>,
        receivers: Vec<(u16, Box<dyn Receive>)>,
        transmit: Box<dyn Transmit>,
        reserved: ReservedMemory,
    },
    /// Stop using the port with this number. `done` is dropped when the thread has released all its
    /// buffers.
    Close { number: u16, done: Sender<()> },
    /// Process the packets of this backlog from now on.
    Backlog(BacklogReceiver<Arc<SharedPort>>),
    /// End as soon as the worker has no backlog left.
    Retire,
    /// Send the packets that are held, and end.
    StopReason,
}

/// Memory that is allocated ahead for a thread, so that the thread's own allocation cannot fail.
/// The thread frees it right before it allocates as much.
#[derive(Default)]
pub(crate) struct ReservedMemory(Vec<u8>);

impl ReservedMemory {
    /// Reserves this many bytes, without touching them; `None` if there is not enough memory.
    pub(crate) fn try_new(bytes: usize) -> Option<Self> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).ok()?;
        Some(ReservedMemory(memory))
    }

    /// Frees the memory, so that the caller can allocate as much.
    pub(crate) fn give_back(self) {
        drop(self.0);
    }
}
