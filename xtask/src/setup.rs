//! Steps that change the machine: shown before they are taken, taken as the right user, or, where this user may
//! not, left as commands to copy.

use std::env;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use nix::unistd::geteuid;

use crate::workspace;

/// How this user can do what only root may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// Is root already.
    Root,
    /// Through sudo, which may ask for a password.
    Sudo,
    None,
}

impl Privilege {
    /// What this process has.
    pub(crate) fn of_this_user() -> Self {
        if geteuid().is_root() {
            Self::Root
        } else if find_program(&search_path(), "sudo").is_some() {
            Self::Sudo
        } else {
            Self::None
        }
    }

    /// The same; an error if that is none. `needy`: what needs root, with its verb; `command`: the one to run as root then.
    pub(crate) fn for_root(needy: &str, command: &str) -> Result<Self> {
        match Self::of_this_user() {
            Self::None => {
                bail!("{needy} root, and there is no sudo here: run `cargo xtask {command}` as root")
            }
            privilege => Ok(privilege),
        }
    }

    /// `argv` started as root, with `environment` on top; None when this user cannot.
    pub(crate) fn as_root(self, argv: &[String], environment: &[(String, String)]) -> Option<Command> {
        let mut words: Vec<String> = Vec::new();
        match self {
            Self::None => return None,
            Self::Root => {}
            Self::Sudo => words.push("sudo".to_owned()),
        }
        // By `env`, not by sudo's own options, which its policy may refuse.
        if !environment.is_empty() {
            words.push("env".to_owned());
            words.extend(environment.iter().map(|(name, value)| format!("{name}={value}")));
        }
        words.extend(argv.iter().cloned());
        let (program, arguments) = words.split_first()?;
        let mut command = Command::new(program);
        command.args(arguments);
        Some(command)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    argv: Vec<String>,
    environment: Vec<(String, String)>,
    root: bool,
    keeps_services_stopped: bool,
}

impl Step {
    pub(crate) fn user(argv: &[&str]) -> Self {
        Self {
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
            environment: Vec::new(),
            root: false,
            keeps_services_stopped: false,
        }
    }

    pub(crate) fn root(argv: &[&str]) -> Self {
        Self { root: true, ..Self::user(argv) }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Without starting the services that Debian's packages bring.
    pub(crate) fn with_services_stopped(mut self) -> Self {
        self.keeps_services_stopped = true;
        self
    }

    /// Whether only root may do this.
    pub(crate) fn needs_root(&self) -> bool {
        self.root
    }

    fn command(&self, privilege: Privilege) -> Option<Command> {
        if self.root {
            let mut argv = Vec::new();
            if self.keeps_services_stopped {
                argv.extend(["sh", "-c", WITH_SERVICES_STOPPED, "sh"].map(str::to_owned));
            }
            argv.extend(self.argv.iter().cloned());
            return privilege.as_root(&argv, &self.environment);
        }
        let (program, arguments) = self.argv.split_first()?;
        let mut command = Command::new(program);
        workspace::forget_outer_cargo(&mut command);
        command
            .args(arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(workspace::root());
        Some(command)
    }
}

/// The step as a line for a shell.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.root {
            f.write_str("sudo ")?;
        }
        for (name, value) in &self.environment {
            write!(f, "{name}={value} ")?;
        }
        f.write_str(&self.argv.join(" "))
    }
}

/// `invoke-rc.d` and `deb-systemd-invoke` ask this program before they start anything; 101 means no. One that the
/// administrator put there stays as it is.
const WITH_SERVICES_STOPPED: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
"$@"
"#;

/// Prints what is about to be done and why, then does it. Where this user may not, prints the commands and fails.
pub(crate) fn carry_out(why: &str, steps: &[Step], privilege: Privilege) -> Result<()> {
    if privilege == Privilege::None && steps.iter().any(Step::needs_root) {
        print_commands(steps);
        bail!("{why}, which needs root, and there is no sudo here: run the commands above");
    }
    // Package managers refuse to run twice at a time, and parts of the tests run side by side.
    let _alone = lock(&workspace::target(), "setup.lock")?;
    eprintln!("xtask: {why}. About to run:");
    print_commands(steps);
    for step in steps {
        match step.command(privilege) {
            Some(mut command) => workspace::check(&mut command)?,
            None => bail!("cannot run {step}"),
        }
    }
    Ok(())
}

/// Installs a subcommand of cargo in this version from crates.io, unless there is one already.
pub(crate) fn ensure_cargo_tool((tool, version): (&str, &str), why: &str) -> Result<()> {
    if find_program(&search_path(), tool).is_some() {
        return Ok(());
    }
    let step = Step::user(&["cargo", "install", tool, "--version", version, "--locked"]);
    carry_out(why, &[step], Privilege::of_this_user())
}

/// Locks a file of a directory, until it is dropped, and makes both.
pub(crate) fn lock(directory: &Path, name: &str) -> Result<File> {
    let path = directory.join(name);
    let context = || format!("cannot lock {}", path.display());
    fs::create_dir_all(directory).with_context(context)?;
    let file = File::create(&path).with_context(context)?;
    file.lock().with_context(context)?;
    Ok(file)
}

/// One indented line per step.
pub(crate) fn print_commands(steps: &[Step]) {
    for step in steps {
        eprintln!("    {step}");
    }
}

/// The directories in which programs are looked for: PATH, cargo's own, and root's, which a user's PATH may lack.
pub(crate) fn search_path() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> =
        env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let cargo_home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    directories.extend(cargo_home.map(|home| home.join("bin")));
    directories.extend(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    directories
}

/// The first file called `name` in `directories`.
pub(crate) fn find_program(directories: &[PathBuf], name: &str) -> Option<PathBuf> {
    directories.iter().map(|directory| directory.join(name)).find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<String> {
        std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn a_root_step_goes_through_sudo_with_its_environment() {
        let step = Step::root(&["apt-get", "update"]).with("DEBIAN_FRONTEND", "noninteractive");
        let command = step.command(Privilege::Sudo).expect("sudo can");
        assert_eq!(words(&command), ["sudo", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "update"]);
        let command = step.command(Privilege::Root).expect("root can");
        assert_eq!(words(&command), ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "update"]);
        assert!(step.command(Privilege::None).is_none());
    }

    #[test]
    fn a_step_for_root_is_refused_without_a_way_to_become_root() {
        let error = carry_out("x is missing", &[Step::root(&["false"])], Privilege::None).unwrap_err();
        assert!(error.to_string().contains("needs root"), "{error}");
    }

    #[test]
    fn a_step_that_fails_ends_the_set_up_and_names_itself() {
        let steps = [Step::user(&["false", "one"]), Step::user(&["/must/not/be/started"])];
        let error = carry_out("x is missing", &steps, Privilege::None).unwrap_err();
        assert!(error.to_string().starts_with("false one failed"), "{error}");
    }

    #[test]
    fn a_step_is_shown_as_a_line_to_copy() {
        let step = Step::root(&["apt-get", "install", "x"]).with("A", "b").with_services_stopped();
        assert_eq!(step.to_string(), "sudo A=b apt-get install x");
    }
}
