//! The project's own commands: `cargo xtask <command>`, one file per command.
//!
//! In: a command line. Out: built files in `target/`, a running daemon, or a verdict as exit code. Each command does
//! the set-up that it needs; `toolchain`, `packages` and `setup` examine and change the machine.
#![expect(clippy::print_stderr, reason = "a build tool talks to whoever started it")]

mod bench;
mod btf;
mod build;
mod cluster;
mod cross;
mod demo;
mod dist;
mod ebpf;
mod kubernetes;
mod lint;
mod run;
mod test;
mod vm;

mod debian;
mod packages;
mod prerequisites;
mod runtimes;
mod setup;
mod side_by_side;
mod static_link;
mod toolchain;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, runs and tests kevtmon. Each command does the set-up that it needs.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure what kevtmon costs and how fast it is (needs root)
    Bench(bench::Options),
    /// A Kubernetes 1.20 of one node on this machine, to try things out (needs root: goes through sudo)
    Cluster(cluster::Options),
    /// Build the kernel programs into target/bpf/kevtmon-ebpf.o
    Ebpf,
    /// Keep the part of a kernel's type information that the daemon reads, for its tests
    #[command(hide = true)]
    Btf(btf::Options),
    /// Build the kernel programs and the daemon
    Build(build::Options),
    /// Build everything and start the daemon in the foreground (needs root: goes through sudo)
    Run(run::Options),
    /// Build the daemon and show its output for two real faults (needs root: goes through sudo)
    Demo(demo::Options),
    /// Pack what is delivered into target/dist: tarball, Debian package, image, SBOM
    Dist(dist::Options),
    /// Install what the tests need, build, and run them (`e2e` needs root: goes through sudo)
    Test(test::Options),
    /// Check formatting, clippy and the house rules
    Lint(lint::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Bench(options) => bench::bench(&options),
        Command::Cluster(options) => cluster::cluster(&options),
        Command::Btf(options) => btf::btf(&options),
        Command::Ebpf => ebpf::ebpf().map(|_object| ()),
        Command::Build(options) => build::build(&options).map(|_binary| ()),
        Command::Run(options) => run::run(&options),
        Command::Demo(options) => demo::demo(&options),
        Command::Dist(options) => dist::dist(&options),
        Command::Test(options) => test::test(&options),
        Command::Lint(options) => lint::lint(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
