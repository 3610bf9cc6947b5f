//! What the control socket asks is asked of the bridge.

use superpacket::feature::Feature;

use super::{Control, ErrorCode, Refusal};
use crate::report::{PortFeatures, PortReport, PortStats};
use crate::settings::TooBig;
use crate::{Bridge, BridgeError};

impl From<BridgeError> for Refusal {
    fn from(error: BridgeError) -> Self {
        let code = match error {
            BridgeError::NoSuchPort { .. } => ErrorCode::UnknownPort,
            _ => ErrorCode::Refused,
        };
        Refusal::new(code, error)
    }
}

impl Control for Bridge {
    fn ports(&self) -> Vec<PortReport> {
        Bridge::ports(self)
    }

    fn features(&self) -> Vec<PortFeatures> {
        Bridge::features(self)
    }

    fn stats(&self) -> Vec<PortStats> {
        Bridge::stats(self)
    }

    fn set_feature(&self, port: &str, feature: Feature, on: bool, force: bool) -> Result<PortFeatures, Refusal> {
        Ok(Bridge::set_feature(self, port, feature, on, force)?)
    }

    fn set_limit(&self, port: &str, name: &str, value: u64) -> Result<PortReport, Refusal> {
        Ok(Bridge::set_limit(self, port, name, value)?)
    }

    fn set_too_big(&self, port: &str, what: TooBig) -> Result<PortReport, Refusal> {
        Ok(Bridge::set_too_big(self, port, what)?)
    }
}
