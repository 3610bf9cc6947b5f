//! Steering in the bridge: what is asked of it, the CPUs that there are, and what a receive queue
//! does with each packet.

mod cpus;
mod dispatch;
mod in_place;
mod settings;
mod state;
mod utilisation;

pub use cpus::{UsableCpus, possible_cpus};
pub(crate) use dispatch::{Dispatch, Watch};
pub use in_place::InPlace;
pub(crate) use settings::queue_flows;
pub use settings::{HashFunction, HashSettings, PerQueue, PortSteering, SteeringProblem, SteeringSettings};
pub(crate) use state::{Snapshot, State, WorkerHandle};
pub(crate) use utilisation::Utilisation;
