//! The kcm binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    kcm::app::main(std::env::args().skip(1))
}
