//! Steering in the bridge: decides on which CPU each packet of a receive queue is processed.

mod dispatch;
mod in_place;
mod state;
mod utilisation;

pub(crate) use dispatch::{Dispatch, QueueWindow, WorkerWait};
pub(crate) use state::{SteeringSnapshot, SteeringState, WorkerHandle};
pub(crate) use utilisation::Utilisation;
