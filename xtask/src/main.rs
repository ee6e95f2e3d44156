//! `cargo xtask <command>`: the one list of this project's commands.

mod control_plane;

use clap::{Parser, Subcommand};

/// Everything one does with this project beside writing it.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    ControlPlane(control_plane::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::ControlPlane(arguments) => control_plane::run(arguments),
    }
}
