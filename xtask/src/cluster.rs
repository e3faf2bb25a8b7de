//! `cargo xtask cluster`: a whole Kubernetes of one node that stays until it is taken down, made of what the end-to-end
//! tests are made of.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::build::host_triple;
use crate::kubernetes;
use crate::prerequisites::{self, Prerequisite, program};
use crate::setup::{self, Privilege};
use crate::test::{E2E, install_end_to_end_prerequisites};
use crate::workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// What to do
    #[arg(value_enum, default_value_t)]
    action: Action,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Start it in the background, and print what a shell needs to use it; the first time it is built
    #[default]
    Up,
    /// End it, and all that it has made
    Down,
}

/// How long the harness waits for each thing: much starts at once.
pub(crate) const PATIENCE: &str = "180";

pub(crate) fn cluster(options: &Options) -> Result<()> {
    let privilege = Privilege::of_this_user();
    if privilege == Privilege::None {
        bail!("the cluster needs root, and there is no sudo here: run `cargo xtask cluster` as root");
    }
    let mut environment = vec![("KEVTMON_TEST_PATIENCE".to_owned(), PATIENCE.to_owned())];
    if options.action == Action::Up {
        workspace::check(workspace::cargo("build").args(["--package", E2E, "--bins"]))?;
        let programs = programs(privilege)?.into_iter();
        environment.extend(programs.map(|(name, path)| (name.to_owned(), path.display().to_string())));
    }
    let path = std::env::join_paths(setup::search_path())?;
    environment.push(("PATH".to_owned(), path.display().to_string()));
    let action = if options.action == Action::Up { "up" } else { "down" };
    let argv = [
        workspace::target().join(host_triple()?).join("debug/cluster-holder").display().to_string(),
        action.to_owned(),
    ];
    let Some(mut command) = privilege.as_root(&argv, &environment) else { bail!("the cluster needs root") };
    workspace::check(&mut command)
}

/// Installs and builds what a cluster is made of: the variables that tell the harness where it is.
pub(crate) fn programs(privilege: Privilege) -> Result<[(&'static str, PathBuf); 2]> {
    install_end_to_end_prerequisites(privilege)?;
    prerequisites::ensure("clusters", &PREREQUISITES, privilege)?;
    Ok([
        ("KEVTMON_KUBELET", kubernetes::kubelet(privilege)?),
        ("KEVTMON_CONTROL_PLANE", kubernetes::control_plane(privilege)?),
    ])
}

const PREREQUISITES: [Prerequisite; 2] = [
    program("etcd", "etcd-server", "keeps what the API server knows"),
    program("openssl", "openssl", "makes the key of the service accounts"),
];
