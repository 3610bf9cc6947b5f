//! Distributes a port's receive queues and transmit ends over the bridge's threads, and takes them
//! back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender};
use superpacket::packet::Layer;
use superpacket_port::{LinkState, Port, PortCounters, PortError};

use super::fdb::check_layer;
use super::kernel_path::PortKernelPath;
use super::memory::reserve;
use super::opened::{OpenedPort, warn_of_interface};
use super::slot::PortSlot;
use super::{Inner, lock};
use crate::claim::interface_of;
use crate::command::{ReservedMemory, ThreadCommand};
use crate::error::BridgeError;
use crate::poll_thread::PollThread;
use crate::runtime::SharedPort;
use crate::settings::MAX_PORTS;
use crate::settings::PortSettings;

/// Maximum time for which the bridge waits until a thread has released a port.
const LET_GO: Duration = Duration::from_secs(2);

/// Returns the number of the thread that receives from this queue of the port with this number.
/// Successive ports start at successive threads, so that the threads have about the same number of
/// queues.
pub(super) fn poll_thread_of(queue: usize, number: usize, poll_threads: usize) -> usize {
    (queue + number) % poll_threads.max(1)
}

impl Inner {
    /// Opens a new port, and adds it to the bridge.
    pub(super) fn add(
        &self,
        settings: &PortSettings,
        shared_interfaces: bool,
    ) -> Result<(), BridgeError> {
        self.join(
            settings,
            OpenedPort::new(settings, shared_interfaces, || {
                self.kernel(self.kernel_partners(settings.port.name()))
            })?,
        )
    }

    /// Adds an open port to the bridge.
    pub(super) fn join(
        &self,
        settings: &PortSettings,
        opened: OpenedPort,
    ) -> Result<(), BridgeError> {
        let OpenedPort { mut port, claim, kernel_path } = opened;
        let name = settings.port.name();
        let number = {
            let slots = lock(&self.slots);
            if let Some(other) = slots.iter().flatten().next()
                && other.shared.layer != port.layer()
            {
                let layer = if port.layer() == Layer::Ip { "IP" } else { "Ethernet" };
                return Err(BridgeError::Layer { port: name.into(), layer });
            }
            slots.iter().position(Option::is_none).unwrap_or(slots.len())
        };
        if number >= MAX_PORTS {
            return Err(BridgeError::TooManyPorts { limit: MAX_PORTS });
        }
        check_layer(port.layer(), settings)?;
        let state = port.state();
        let shared = SharedPort::new(
            number as u16,
            settings.clone(),
            port.capabilities(),
            port.layer(),
            state,
        );
        let shared = Arc::new(shared.with_vlan_filtering(lock(&self.settings).filters_by()));
        self.table.set_limit(shared.number, settings.limits.address_limit);
        self.set_static(&shared);
        let queues = self
            .connect(&shared, port.as_mut())
            .inspect_err(|_| self.table.close(shared.number))?;
        let slot = PortSlot {
            hardware_address: port.hardware_address(),
            shared,
            port: Some(port),
            claim,
            state,
            error: None,
            queues,
            reopened: 0,
            kernel_notifies: self.kernel_notifies(&settings.port),
            before: PortCounters::default(),
            queue_drops_before: Vec::new(),
            kernel_path: PortKernelPath::new(kernel_path),
            next_try: Instant::now(),
        };
        let string = settings.port.is_named().then(|| settings.port.string());
        tracing::info!(port = name, string, mtu = state.mtu, queues, "port opened");
        if state.link == LinkState::Down && interface_of(&settings.port).is_some() {
            tracing::warn!(
                port = name,
                "the interface is down: packets are dropped until it is up"
            );
        }
        warn_of_interface(&settings.port);
        // The number is still free, because all callers hold `changes`.
        let mut slots = lock(&self.slots);
        if number == slots.len() {
            slots.push(Some(slot));
        } else {
            slots[number] = Some(slot);
        }
        Ok(())
    }

    /// Gives each thread a transmit end of an open port, and the receive queues that this thread is
    /// to poll. Returns the number of receive queues.
    pub(super) fn connect(
        &self,
        shared: &Arc<SharedPort>,
        port: &mut dyn Port,
    ) -> Result<usize, PortError> {
        let poll_threads = lock(&self.poll_threads);
        let workers = lock(&self.workers);
        let mut transmitters = Vec::with_capacity(poll_threads.len());
        for _ in 0..poll_threads.len() + workers.all().count() {
            transmitters.push(port.transmitter()?);
        }
        let mut shares: Vec<Vec<_>> = poll_threads.iter().map(|_| Vec::new()).collect();
        let receivers = port.receivers();
        let queues = receivers.len();
        for (queue, receive) in receivers.into_iter().enumerate() {
            // If the bridge is about to end, there are no threads any more.
            if let Some(share) = shares.get_mut(poll_thread_of(
                queue,
                usize::from(shared.number),
                poll_threads.len(),
            )) {
                share.push((queue as u16, receive));
            }
        }
        let reserved: Result<Vec<_>, _> =
            shares.iter().map(|share| reserve(port.name(), share.len(), queues)).collect();
        let reserved = reserved?;
        // Workers get their parts first: they must be able to send before a receiving thread hands
        // them packets.
        for (worker, transmit) in workers.all().zip(transmitters.drain(poll_threads.len()..)) {
            let reserved = ReservedMemory::default();
            worker.send_command(ThreadCommand::Open {
                shared: shared.clone(),
                receivers: Vec::new(),
                transmit,
                reserved,
            });
        }
        for (((thread, receivers), transmit), reserved) in
            poll_threads.iter().zip(shares).zip(transmitters).zip(reserved)
        {
            thread.send_command(ThreadCommand::Open {
                shared: shared.clone(),
                receivers,
                transmit,
                reserved,
            });
        }
        Ok(queues)
    }

    /// Takes a port from all threads, and waits until they have released it.
    pub(super) fn disconnect(&self, number: u16) {
        let close = |tell: &dyn Fn(&Sender<()>)| {
            let (done, wait) = crossbeam_channel::bounded::<()>(0);
            tell(&done);
            drop(done);
            // The channel disconnects when the last thread drops its end, which it does on
            // releasing the port.
            if wait.recv_timeout(LET_GO) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(number, "a thread did not release a port in time");
            }
        };
        let order = |thread: &PollThread, done: &Sender<()>| {
            thread.send_command(ThreadCommand::Close { number, done: done.clone() })
        };
        close(&|done| lock(&self.poll_threads).iter().for_each(|thread| order(thread, done)));
        // The workers come last: they process the packets that the receiving threads handed over.
        close(&|done| lock(&self.workers).all().for_each(|worker| order(worker, done)));
    }

    /// Forgets the addresses and multicast groups that were learned behind a port.
    pub(super) fn forget(&self, number: u16) {
        self.table.forget(number);
        if let Some(snooping) = &self.context.snooping {
            snooping.forget(number);
        }
    }

    /// Closes a port and removes it from the bridge.
    pub(super) fn remove(&self, number: u16) {
        self.disconnect(number);
        self.forget(number);
        self.table.close(number);
        let slot = lock(&self.slots).get_mut(usize::from(number)).and_then(Option::take);
        if let Some(slot) = slot {
            self.context.monitors.port_removed(&slot.shared.name);
            tracing::info!(port = %slot.shared.name, "port closed");
        }
    }

    /// Logs a warning if the bridge has fewer than two ports.
    pub(super) fn warn_of_one_port(&self) {
        let slots = lock(&self.slots);
        let mut ports = slots.iter().flatten();
        if let (Some(slot), None) = (ports.next(), ports.next()) {
            tracing::warn!(port = %slot.shared.name, "the bridge has only one port: its packets are dropped");
        }
    }
}
