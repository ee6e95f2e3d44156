//! `cargo xtask <command>`: the one list of this project's commands.

#![allow(
    clippy::disallowed_methods,
    reason = "these commands change things as users do, without a controller's identity"
)]

mod aws;
mod bench;
mod cargo;
mod control_plane;
mod demo;
mod differential;
mod docs;
mod image;
mod interrupt;
mod page;
mod soak;
mod test;

use clap::{Parser, Subcommand};

/// Developer commands: tests, demos, benchmarks, images.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Aws(aws::Arguments),
    Bench(bench::Arguments),
    ControlPlane(control_plane::Arguments),
    Demo(demo::Arguments),
    Differential(differential::Arguments),
    Docs(docs::Arguments),
    Image(image::Arguments),
    Soak(soak::Arguments),
    Test(test::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Aws(arguments) => aws::run(&arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::ControlPlane(arguments) => control_plane::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::Differential(arguments) => differential::run(arguments),
        Command::Docs(arguments) => docs::run(arguments),
        Command::Image(arguments) => image::run(arguments),
        Command::Soak(arguments) => soak::run(arguments),
        Command::Test(arguments) => test::run(arguments),
    }
}
