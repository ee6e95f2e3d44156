//! `cargo xtask <command>`: the one list of this project's commands.

#![allow(
    clippy::disallowed_methods,
    reason = "these commands change things as users do, without a controller's identity"
)]

mod aws;
mod bench;
mod cargo;
mod cluster;
mod conformance;
mod console;
mod control_plane;
mod demo;
mod differential;
mod docs;
mod image;
mod interrupt;
mod process;
mod report_folder;
mod root;
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
    Cluster(cluster::Arguments),
    Conformance(conformance::Arguments),
    ControlPlane(control_plane::Arguments),
    Demo(demo::Arguments),
    Differential(differential::Arguments),
    Docs(docs::Arguments),
    Image(image::Arguments),
    Soak(soak::Arguments),
    Test(test::Arguments),
}

fn main() -> anyhow::Result<()> {
    let given: Vec<String> = std::env::args_os().map(|text| text.to_string_lossy().into_owned()).collect();
    // A test cluster starts its nodes by executing this program again, with a word that is not a command.
    if let [_, first, rest @ ..] = given.as_slice()
        && first == real_cluster::inside::INSIDE
    {
        return real_cluster::inside::run(rest);
    }
    match Arguments::parse().command {
        Command::Aws(arguments) => aws::run(&arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Cluster(arguments) => cluster::run(arguments),
        Command::Conformance(arguments) => conformance::run(arguments),
        Command::ControlPlane(arguments) => control_plane::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::Differential(arguments) => differential::run(arguments),
        Command::Docs(arguments) => docs::run(arguments),
        Command::Image(arguments) => image::run(arguments),
        Command::Soak(arguments) => soak::run(arguments),
        Command::Test(arguments) => test::run(arguments),
    }
}
