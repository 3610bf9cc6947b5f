//! The steering state that all threads share: settings, the RFS table and the workers.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crossbeam_channel::Sender;
use superpacket_steer::{Cpu, FlowHashKey, SockFlowTable};

use crate::command::ThreadCommand;
use crate::handover::{BacklogReceiver, Doorbell, WorkerLifetime};
use crate::runtime::SharedPort;
use crate::settings::{InPlace, SteeringSettings};

/// A handle with which receiving threads give a worker backlogs and wake it.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHandle {
    pub(crate) commands: Sender<ThreadCommand>,
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) lifetime: Arc<WorkerLifetime>,
}

impl WorkerHandle {
    /// Gives the worker a backlog; returns `false` if the worker has ended and is being replaced.
    pub(crate) fn give(&self, backlog: BacklogReceiver<Arc<SharedPort>>) -> bool {
        let taken =
            self.lifetime.give(|| self.commands.send(ThreadCommand::Backlog(backlog)).is_ok());
        if taken {
            self.bell.force();
        }
        taken
    }
}

/// An immutable snapshot of the steering settings, the RFS table and the workers.
#[derive(Clone, Debug)]
pub(crate) struct SteeringSnapshot {
    pub(crate) settings: SteeringSettings,
    pub(crate) sock_flows: Option<Arc<SockFlowTable>>,
    pub(crate) workers: BTreeMap<Cpu, WorkerHandle>,
}

/// The current steering state of a bridge. Threads read it again when the bridge's epoch changes.
#[derive(Debug)]
pub(crate) struct SteeringState {
    now: RwLock<Arc<SteeringSnapshot>>,
    /// The secret key of the flow hash.
    pub(crate) key: FlowHashKey,
    /// When packets are processed on the receiving thread, for ports that do not set this
    /// themselves.
    pub(crate) in_place: InPlace,
}

impl SteeringState {
    /// Returns a state without workers.
    pub(crate) fn new(
        settings: SteeringSettings,
        sock_flows: Option<Arc<SockFlowTable>>,
        key: FlowHashKey,
        in_place: InPlace,
    ) -> Self {
        SteeringState {
            now: RwLock::new(Arc::new(SteeringSnapshot {
                settings,
                sock_flows,
                workers: BTreeMap::new(),
            })),
            key,
            in_place,
        }
    }

    /// Returns the current state.
    pub(crate) fn now(&self) -> Arc<SteeringSnapshot> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the steering state. The caller must make the threads read it again.
    pub(crate) fn change(&self, change: impl FnOnce(&mut SteeringSnapshot)) {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut now));
    }
}
