//! A user with namespaces of his own, who has unmounts refused in them: the program `stranger`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::cgroup::{Cgroup, Hierarchy};
use crate::mount::{Mount, Scratch};
use crate::process::{Running, copy_program};
use crate::reaper;
use crate::tree::call::Truth;
use crate::tree::refusal::Refused;

/// The process, in a control group of its own: of one account only so many mounts are looked at.
#[derive(Debug)]
pub struct Stranger {
    process: Running,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _group: Cgroup,
}

impl Stranger {
    /// Starts one by a command that makes the namespaces, where the host has a volume. `directory`: of the test's own.
    #[must_use]
    pub fn start(through: &[&str], seed: u64, volume: &Mount, directory: &Scratch) -> Self {
        let (program, aside) = (directory.path().join("stranger"), directory.path().join("aside"));
        if !program.exists() {
            // The build directory may be closed to users.
            copy_program(&reaper::built("stranger"), &program);
            std::fs::create_dir(&aside).expect("a directory can be made");
        }
        let (first, rest) = through.split_first().expect("a command");
        let mut command = Command::new(first);
        command.args(rest).arg(program).arg(seed.to_string());
        command.args([volume.kubelet_root(), volume.point(), aside.as_path()] as [&Path; 3]);
        let mut process = Running::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let group = Cgroup::new(*Hierarchy::all().first().expect("a hierarchy"));
        group.take(process.pid());
        let input = process.child().stdin.take().expect("standard input is a pipe");
        let output = BufReader::new(process.child().stdout.take().expect("standard output is a pipe"));
        let mut stranger = Self { process, input, output, _group: group };
        assert_eq!(stranger.line(), "ready\n");
        stranger
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the stranger answers");
        line
    }

    fn ask(&mut self, what: &str) -> Value {
        writeln!(self.input, "{what}").expect("the stranger reads");
        serde_json::from_str(&self.line()).expect("a line of JSON")
    }

    /// Has it make an unmount that is refused, and perhaps change something then; `None` if it was not refused.
    pub fn refuse(&mut self) -> Option<Refused> {
        Refused::of_json(&self.ask("refuse"))
    }

    /// Has it unmount what was refused last, if that can be seen; what the call did.
    pub fn release(&mut self) -> Option<Truth> {
        let answer = self.ask("release");
        Some(Truth {
            pid: u32::try_from(answer["pid"].as_u64()?).ok()?,
            mount: answer["mount"].as_u64()?,
            unique: answer["unique"].as_u64()?,
            errno: i32::try_from(answer["errno"].as_i64()?).ok()?,
        })
    }

    /// Its id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
