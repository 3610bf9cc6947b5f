//! Steering in the bridge: chooses a CPU for each packet of a receive queue.

mod dispatch;
mod in_place;
mod state;
mod utilisation;

pub(crate) use dispatch::{Dispatch, QueueWindow, WorkerWait};
pub(crate) use state::{SteeringSnapshot, SteeringState, WorkerHandle};
pub(crate) use utilisation::Utilisation;
