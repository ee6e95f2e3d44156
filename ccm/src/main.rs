//! The ccm binary: the cloud controllers with the providers that are built in.

use std::process::ExitCode;

fn main() -> ExitCode {
    ccm::run(&[
        #[cfg(feature = "aws")]
        provider_aws::factory(),
        #[cfg(feature = "kubevirt")]
        provider_kubevirt::factory(),
        provider_mock::factory(),
    ])
}
