//! What all threads go by when they steer: settings, the table of RFS, and the workers that there
//! are.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crossbeam_channel::Sender;
use superpacket_steer::{Cpu, FlowHashKey, SockFlowTable};

use crate::handover::{BacklogReceiver, Doorbell, WorkerLifetime};
use crate::order::Order;
use crate::runtime::Shared;
use crate::settings::{InPlace, SteeringSettings};

/// How a worker is reached.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHandle {
    pub(crate) orders: Sender<Order>,
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) lifetime: Arc<WorkerLifetime>,
}

impl WorkerHandle {
    /// Gives the worker a backlog to empty; `false` if it has ended, and another is being made.
    pub(crate) fn give(&self, backlog: BacklogReceiver<Arc<Shared>>) -> bool {
        let taken = self.lifetime.give(|| self.orders.send(Order::Backlog(backlog)).is_ok());
        if taken {
            self.bell.force();
        }
        taken
    }
}

/// What holds at one time.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) settings: SteeringSettings,
    pub(crate) sock_flows: Option<Arc<SockFlowTable>>,
    pub(crate) workers: BTreeMap<Cpu, WorkerHandle>,
}

/// What holds now. Threads look at it when the bridge's epoch changes.
#[derive(Debug)]
pub(crate) struct State {
    now: RwLock<Arc<Snapshot>>,
    /// The secret key of the keyed hash.
    pub(crate) key: FlowHashKey,
    /// Holds for ports whose settings say nothing of processing in place.
    pub(crate) in_place: InPlace,
}

impl State {
    /// No worker.
    pub(crate) fn new(
        settings: SteeringSettings,
        sock_flows: Option<Arc<SockFlowTable>>,
        key: FlowHashKey,
        in_place: InPlace,
    ) -> Self {
        State {
            now: RwLock::new(Arc::new(Snapshot { settings, sock_flows, workers: BTreeMap::new() })),
            key,
            in_place,
        }
    }

    /// What holds now.
    pub(crate) fn now(&self) -> Arc<Snapshot> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes it. Who does so must have threads look at it.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Snapshot)) {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut now));
    }
}
