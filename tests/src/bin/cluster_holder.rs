//! A cluster that stays: `up` starts it in the background and returns when it is ready, `down` ends it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it talks to whoever started it")]
#![allow(clippy::expect_used, reason = "made of the harness of the tests, which fails in the same way")]

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use kevtmon_tests::cluster::Cluster;
use kevtmon_tests::dockerd::IMAGE;

/// Where the process that holds the cluster listens.
const SOCKET: &str = "/run/kevtmon-cluster.sock";
/// What a shell reads to use the cluster.
const ENVIRONMENT: &str = "/run/kevtmon-cluster.env";
/// What that process says.
const LOG: &str = "/run/kevtmon-cluster.log";
/// What ends it.
const END: &[u8] = b"end";

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("up") => up(),
        Some("down") => down(),
        Some("hold") => hold(),
        _ => Err(io::Error::new(ErrorKind::InvalidInput, "up or down?")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn up() -> io::Result<()> {
    if UnixStream::connect(SOCKET).is_ok() {
        return Err(io::Error::other("a cluster is up already"));
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("hold").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(LOG)?);
    let mut holder = command.spawn()?;
    // Not up to the end of its output, which others keep open.
    let mut told = String::new();
    if let Some(stdout) = holder.stdout.take() {
        BufReader::new(stdout).read_line(&mut told)?;
    }
    if told.is_empty() {
        let status = holder.wait()?;
        return Err(io::Error::other(format!("{}\n{status}", fs::read_to_string(LOG)?)));
    }
    print!("{told}");
    println!("The image of its pods is {IMAGE} (busybox), with imagePullPolicy: Never.");
    println!("For kubectl and docker: . {ENVIRONMENT}");
    Ok(())
}

fn down() -> io::Result<()> {
    let Ok(mut holder) = UnixStream::connect(SOCKET) else {
        eprintln!("no cluster is up");
        return Ok(());
    };
    holder.write_all(END)?;
    // The connection ends with the process, and that when everything is cleaned up.
    holder.read_to_end(&mut Vec::new()).map(drop)
}

fn hold() -> io::Result<()> {
    // The end of the terminal is none of the cluster.
    nix::unistd::setsid()?;
    match fs::remove_file(SOCKET) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(SOCKET)?;
    fs::set_permissions(SOCKET, Permissions::from_mode(0o600))?;
    let cluster = Cluster::start();
    tell(&cluster)?;
    let asked = listener.incoming().filter_map(Result::ok).find_map(|mut client| {
        let mut word = [0; END.len()];
        client.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        client.read_exact(&mut word).ok()?;
        (word == END).then_some(client)
    });
    for file in [SOCKET, ENVIRONMENT] {
        drop(fs::remove_file(file));
    }
    drop(cluster);
    // Open until the process ends.
    std::mem::forget(asked);
    Ok(())
}

/// Says how to use the cluster, in a file and in one line.
fn tell(cluster: &Cluster) -> io::Result<()> {
    fs::write(ENVIRONMENT, cluster.environment())?;
    let refused = cluster.node().network().refused();
    println!("The cluster is up. DELs fail of a pod that has a file {}/NAMESPACE.NAME.", refused.display());
    Ok(())
}
