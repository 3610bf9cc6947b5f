//! Steering in the bridge: what a receive queue does with each packet.

mod dispatch;
mod in_place;
mod state;
mod utilisation;

pub(crate) use dispatch::{Dispatch, QueueWindow, Watch};
pub(crate) use state::{Snapshot, State, WorkerHandle};
pub(crate) use utilisation::Utilisation;
