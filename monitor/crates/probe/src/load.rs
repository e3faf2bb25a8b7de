//! Loading and attaching: every hook on the best attach mode that the configuration and this kernel allow.

use std::ffi::OsStr;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::maps::{Array, Map, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::{
    BtfTracePoint, CgroupAttachMode, CgroupSysctl, FEntry, KProbe, ProgramError, RawTracePoint, TracePoint,
};
use aya::{Ebpf, EbpfLoader, Endianness};
pub use iterating::load_iterators;
use kevtmon_ebpf::lanes::Limits;
use kevtmon_sources::kernel::KernelFacts;
use kevtmon_sources::procfs::Proc;
use nix::errno::Errno;
use thiserror::Error;
use zerocopy::IntoBytes as _;

use super::attached::{self, Attached};
use super::btf::{Btf, BtfError};
use super::budgets::Budgets;
use super::hooks::{
    Attach, HOOKS, Hook, HookStatus, Program, SWITCHED_OFF, wants_programs, wants_untyped_programs,
};
use super::iterators::{self, Iterators};
use super::lanes::Lanes;
use super::mount_table::MountTables;
use super::object::programs;
use super::plugins::Plugins;
use super::skipped::SkippedRuns;
use super::syscall_context::{self, ContextError, Expected};
use super::tracefs::{self, TRACEFS};
use super::{BpfConfig, BpfError, CountReader, cgroup, counters, refusal, task};

const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";

/// The status of every hook, and the programs of those that have any.
pub struct LoadedHooks {
    /// One per hook, in the order of the table.
    pub statuses: Vec<HookStatus>,
    /// The ring that the programs write to; `None` if nothing was loaded.
    pub programs: Option<BpfSource>,
    /// Why nothing could be loaded, if something was wanted.
    pub failure: Option<Arc<BpfError>>,
    /// What lists who may hold a mount, or why nothing does.
    pub iterators: Result<Iterators, String>,
}

/// Programs in the kernel, and the ring they write to.
pub struct BpfSource {
    /// Keeps the programs attached; dropped with the source.
    _attached: Arc<Attached>,
    pub(super) loggers: Vec<aya_log::EbpfLogger<&'static dyn log::Log>>,
    pub(super) ring: RingBuf<MapData>,
    pub(super) armed: Array<MapData, u32>,
    pub(super) counts: Arc<PerCpuArray<MapData, u64>>,
    pub(super) budgets: Option<Budgets>,
    pub(super) skipped: Vec<SkippedRuns>,
    /// The gateways that have a lane of their own; to be taken and kept, as are the next two.
    pub lanes: Option<Lanes>,
    /// Where CNI plugins are.
    pub plugins: Option<Plugins>,
    /// What tells whether mounts have changed since a call.
    pub mount_tables: Option<MountTables>,
}

impl BpfSource {
    /// Reads the kernel's counters.
    pub fn counts(&self) -> CountReader {
        let counts = Arc::clone(&self.counts);
        Arc::new(move || counters::read_all(&counts))
    }
}

/// Loads the object and attaches every hook by the best attach mode that works.
pub fn load(config: &BpfConfig) -> LoadedHooks {
    let is_wanted = config.iterators || HOOKS.iter().any(|hook| wants_programs(hook, config.hooks.of(hook)));
    // Without a reason, none of the attach modes that are tried takes programs.
    let withheld = config.withheld.or((!is_wanted).then_some(""));
    if let Some(reason) = withheld {
        let of_iterators = if config.iterators { reason } else { SWITCHED_OFF };
        return LoadedHooks {
            statuses: without_programs(config, reason),
            programs: None,
            failure: None,
            iterators: Err(of_iterators.to_owned()),
        };
    }
    let loaded = Object::load(config).and_then(|mut object| {
        let statuses = HOOKS
            .iter()
            .map(|hook| {
                HookStatus::select(hook, config.hooks.of(hook), |programs| {
                    object.attach(hook, programs).map_err(|error| refusal::reason(&error))
                })
            })
            .collect();
        let iterators = match config.iterators {
            true => object.iterators().map_err(|error| refusal::reason(&error)),
            false => Err(SWITCHED_OFF.to_owned()),
        };
        Ok((statuses, iterators, object.into_source(config.log)?))
    });
    // Type information costs some 30 MB while it is parsed.
    kevtmon_types::allocator::release_free_memory();
    match loaded {
        Ok((statuses, iterators, source)) => {
            LoadedHooks { statuses, programs: Some(source), failure: None, iterators }
        }
        Err(error) => {
            let reason = refusal::reason(&*error);
            let statuses = without_programs(config, &reason);
            LoadedHooks { statuses, programs: None, failure: Some(error), iterators: Err(reason) }
        }
    }
}

fn without_programs(config: &BpfConfig, reason: &str) -> Vec<HookStatus> {
    let refuse = |_: &'static [Program]| Err(reason.to_owned());
    HOOKS.iter().map(|hook| HookStatus::select(hook, config.hooks.of(hook), refuse)).collect()
}

/// Why a attach mode is refused.
#[derive(Debug, Error)]
enum AttachError {
    #[error("type information")]
    Offsets(#[source] BtfError),
    #[error(transparent)]
    Object(#[from] Arc<BpfError>),
    #[error("the object core has no program {program}")]
    NoProgram { program: &'static str },
    #[error("{program}")]
    Program {
        program: &'static str,
        #[source]
        source: ProgramError,
    },
    #[error("needs tracefs at {TRACEFS}, which is not mounted and cannot be mounted")]
    NoTracefs(#[source] Errno),
    #[error("the format of {event} in tracefs")]
    NoFormat {
        event: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error("needs the root of the control groups v2")]
    NoCgroup(#[source] io::Error),
    #[error("cannot attach the iterators")]
    Iterators(#[source] io::Error),
}

/// Offsets as bytes, by the global that they are written to.
type Offsets = Vec<(&'static str, Result<Vec<u8>, BtfError>)>;

/// A program, and the kernel's types.
type Found<'o> = (&'o mut aya::programs::Program, &'o Result<aya::Btf, Arc<BpfError>>);

/// The object, in the kernel.
struct Object {
    /// An error where only programs that need none can be loaded.
    types: Result<aya::Btf, Arc<BpfError>>,
    syscalls: Result<Expected, BtfError>,
    offsets: Offsets,
    ebpf: Ebpf,
}

impl Object {
    fn load(config: &BpfConfig) -> Result<Self, Arc<BpfError>> {
        let has_untyped = HOOKS.iter().any(|hook| wants_untyped_programs(hook, config.hooks.of(hook)));
        let (types, syscalls, offsets) = match type_information(config.types.as_deref()) {
            Ok(TypeInformation { types, syscalls, offsets }) => (Ok(types), syscalls, offsets),
            Err(error) if has_untyped => {
                let expected = Expected::WITHOUT_TYPES;
                let context = (syscall_context::OFFSETS.global, Ok(expected.layout.as_bytes().to_vec()));
                (Err(Arc::new(error)), Ok(expected), vec![context])
            }
            Err(error) => return Err(Arc::new(error)),
        };
        let ebpf = load_object(config, types.as_ref().ok(), &offsets)?;
        Ok(Self { types, syscalls, offsets, ebpf })
    }

    /// Attaches all of the programs or none, but for those that can be done without: of them it gives those that were refused,
    /// and why.
    fn attach(&mut self, hook: &Hook, programs: &[Program]) -> Result<Option<String>, AttachError> {
        let resolved = |global| self.offsets.iter().find(|(name, _)| *name == global);
        if programs.iter().any(|program| program.attach.needs_types()) {
            if let Err(error) = &self.types {
                return Err(AttachError::Object(Arc::clone(error)));
            }
            if let Some((_, Err(error))) = hook.offsets.and_then(|offsets| resolved(offsets.global)) {
                return Err(AttachError::Offsets(error.clone()));
            }
        }
        programs.iter().try_for_each(|program| self.check_context(program))?;
        let needed = || programs.iter().filter(|program| !is_extra(program));
        let attached = needed()
            .try_for_each(|program| self.load_program(program))
            .and_then(|()| needed().try_for_each(|program| self.attach_program(program)));
        if let Err(error) = attached {
            needed().for_each(|program| self.unload_program(program));
            return Err(error);
        }
        let mut lacks = Vec::new();
        for program in programs {
            let Attach::Function(function) = program.attach else { continue };
            let is_there = |way: &&Program| way.attach.function() == Some(function);
            if let Err(reason) = self.attach_first(programs.iter().filter(is_there)) {
                tracing::info!(hook = hook.name, program = program.name, reason, "does without a program");
                lacks.push(format!("without {reason}"));
            }
        }
        Ok((!lacks.is_empty()).then(|| lacks.join("; ")))
    }

    /// Attaches the first of these that the kernel allows; if it allows none, the error has its reasons.
    fn attach_first<'p>(&mut self, programs: impl Iterator<Item = &'p Program>) -> Result<(), String> {
        let mut refused = Vec::new();
        for program in programs {
            match self.load_program(program).and_then(|()| self.attach_program(program)) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    self.unload_program(program);
                    refused.push(refusal::reason(&error));
                }
            }
        }
        Err(refused.join(", "))
    }

    /// Whether the program would read what it is given where it is.
    fn check_context(&self, program: &Program) -> Result<(), AttachError> {
        let events = program.attach.syscall_events();
        if events.is_empty() {
            return Ok(());
        }
        tracefs::mount().map_err(AttachError::NoTracefs)?;
        let expected = self.syscalls.as_ref().map_err(|error| AttachError::Offsets(error.clone()))?;
        events.into_iter().try_for_each(|event| {
            let format = tracefs::format_of_syscall(&event);
            let format = format.map_err(|source| AttachError::NoFormat { event: event.clone(), source })?;
            Ok(syscall_context::check(expected, &event, &format)?)
        })
    }

    fn load_program(&mut self, program: &Program) -> Result<(), AttachError> {
        let (found, types) = self.find(program)?;
        let types = || types.as_ref().map_err(|error| AttachError::Object(Arc::clone(error)));
        match program.attach {
            Attach::BtfTracepoint(name) => {
                let types = types()?;
                <&mut BtfTracePoint>::try_from(found).and_then(|found| found.load(name, types))
            }
            Attach::Tracepoint(_) | Attach::UntypedTracepoint(_) | Attach::Starts(_) | Attach::Returns(_) => {
                <&mut TracePoint>::try_from(found).and_then(TracePoint::load)
            }
            Attach::Function(name) => {
                let types = types()?;
                <&mut FEntry>::try_from(found).and_then(|found| found.load(name, types))
            }
            Attach::Kprobe(_) => <&mut KProbe>::try_from(found).and_then(KProbe::load),
            Attach::Sysctl => <&mut CgroupSysctl>::try_from(found).and_then(CgroupSysctl::load),
            Attach::OnRequest | Attach::RawTracepoint(_) => {
                <&mut RawTracePoint>::try_from(found).and_then(RawTracePoint::load)
            }
        }
        .map_err(|source| AttachError::Program { program: program.name, source })
    }

    fn attach_program(&mut self, program: &Program) -> Result<(), AttachError> {
        let (found, _) = self.find(program)?;
        match program.attach {
            Attach::BtfTracepoint(_) => {
                <&mut BtfTracePoint>::try_from(found).and_then(|found| found.attach().map(drop))
            }
            Attach::RawTracepoint(name) => {
                <&mut RawTracePoint>::try_from(found).and_then(|found| found.attach(name).map(drop))
            }
            Attach::Tracepoint(_) | Attach::UntypedTracepoint(_) | Attach::Starts(_) | Attach::Returns(_) => {
                let mut events = program.attach.syscall_events().into_iter();
                <&mut TracePoint>::try_from(found)
                    .and_then(|found| events.try_for_each(|event| found.attach("syscalls", &event).map(drop)))
            }
            Attach::Function(_) => <&mut FEntry>::try_from(found).and_then(|found| found.attach().map(drop)),
            Attach::Kprobe(name) => {
                <&mut KProbe>::try_from(found).and_then(|found| found.attach(name, 0).map(drop))
            }
            Attach::Sysctl => {
                let root = cgroup::open_root(&Proc::default()).map_err(AttachError::NoCgroup)?;
                // Beside the programs of others: the kernel takes no flag for a link, which always is.
                let mode = CgroupAttachMode::Single;
                <&mut CgroupSysctl>::try_from(found).and_then(|found| found.attach(root, mode).map(drop))
            }
            Attach::OnRequest => Ok(()),
        }
        .map_err(|source| AttachError::Program { program: program.name, source })
    }

    fn unload_program(&mut self, program: &Program) {
        let Ok((found, _)) = self.find(program) else { return };
        // Fails only for one that was not loaded.
        let _ = attached::unload(found);
    }

    fn find(&mut self, program: &Program) -> Result<Found<'_>, AttachError> {
        let found = self.ebpf.program_mut(program.name);
        Ok((found.ok_or(AttachError::NoProgram { program: program.name })?, &self.types))
    }

    fn into_source(self, log: bool) -> Result<BpfSource, BpfError> {
        let mut ebpf = self.ebpf;
        let (ring, armed) = (map(&mut ebpf, "EVENTS")?, map(&mut ebpf, "ARMED")?);
        let counts = map(&mut ebpf, "COUNTS")?;
        let budgets = Budgets::new(
            [map(&mut ebpf, "USERS")?, map(&mut ebpf, "SOURCES")?],
            map(&mut ebpf, "GROUPS")?,
            map(&mut ebpf, "SHARED_BUDGETS")?,
        );
        let lanes = Lanes::new(map(&mut ebpf, "GATEWAYS")?, map(&mut ebpf, "CONTAINERS")?);
        let plugins = Plugins::new(
            map(&mut ebpf, "CNI_DIRECTORIES")?,
            map(&mut ebpf, "CNI_MOUNT_NAMESPACES")?,
            map(&mut ebpf, "CNI_CALLERS")?,
            map(&mut ebpf, "FOLLOWED")?,
        );
        let mut loggers = Vec::new();
        if log {
            match aya_log::EbpfLogger::init(&mut ebpf) {
                Ok(logger) => loggers.push(logger),
                Err(error) => tracing::warn!(%error, "cannot read the log of the kernel programs"),
            }
        }
        let state = map(&mut ebpf, "MOUNT_TABLE")?;
        let attached = Arc::new(Attached(ebpf));
        let mount_tables = MountTables::new(Arc::downgrade(&attached), state);
        Ok(BpfSource {
            skipped: SkippedRuns::of(&attached.0),
            _attached: attached,
            mount_tables: Some(mount_tables),
            loggers,
            ring,
            armed,
            counts: Arc::new(counts),
            budgets: Some(budgets),
            lanes: Some(lanes),
            plugins: Some(plugins),
        })
    }
}

/// Where a kprobe finds the arguments of its function in the registers that it is given, in bytes: part of the kernel's interface
/// (`bpf_user_pt_regs_t`).
#[cfg(target_arch = "x86_64")]
const KPROBE_ARGUMENTS: [u32; 6] = [112, 104, 96, 88, 72, 64];
#[cfg(not(target_arch = "x86_64"))]
const KPROBE_ARGUMENTS: [u32; 6] = [0, 8, 16, 24, 32, 40];

/// Whether the others do without it.
fn is_extra(program: &Program) -> bool {
    program.attach.function().is_some()
}

fn load_object(config: &BpfConfig, types: Option<&aya::Btf>, offsets: &Offsets) -> Result<Ebpf, BpfError> {
    if programs().is_empty() {
        return Err(BpfError::NoObject);
    }
    let log_level = if config.log { u8::MAX } else { 0 };
    let limits = Limits {
        ring_bytes: config.ring_bytes.into(),
        host_mntns: Proc::default().first_mntns().map_or(0, u64::from),
        user: config.user_rate,
        source: config.source_rate,
    };
    let key = RandomState::new().build_hasher().finish();
    let mut loader = EbpfLoader::new();
    loader
        .btf(types)
        .override_global("AYA_LOG_LEVEL", &log_level, true)
        .override_global("LIMITS", limits.as_bytes(), true)
        .override_global("HANDLE_KEY", &key, true)
        .override_global("KPROBE_ARGUMENTS", &KPROBE_ARGUMENTS, true)
        .map_max_entries("EVENTS", config.ring_bytes);
    for (global, bytes) in offsets {
        if let Ok(bytes) = bytes {
            loader.override_global(global, &bytes[..], true);
        }
    }
    if !config.log {
        loader.map_max_entries("AYA_LOGS", 4096);
    }
    loader.load(programs()).map_err(|error| BpfError::Load(Box::new(error)))
}

/// What the kernel says about its types.
struct TypeInformation {
    types: aya::Btf,
    syscalls: Result<Expected, BtfError>,
    offsets: Offsets,
}

/// The kernel's types, and the offsets that are resolved from them. Without those of the task no hook works.
fn type_information(file: Option<&Path>) -> Result<TypeInformation, BpfError> {
    let (path, bytes) = read_types(file)?;
    let malformed = |source| BpfError::Btf { path: path.clone(), source };
    let btf = Btf::parse(&bytes).map_err(malformed)?;
    let of_task = (task::OFFSETS.resolve)(&btf).map_err(malformed)?;
    let of_hooks = HOOKS.iter().filter_map(|hook| hook.offsets);
    let of_hooks = of_hooks
        .chain([syscall_context::OFFSETS, iterators::OFFSETS])
        .map(|wanted| (wanted.global, (wanted.resolve)(&btf)));
    let offsets: Offsets = [(task::OFFSETS.global, Ok(of_task))].into_iter().chain(of_hooks).collect();
    let syscalls = Expected::of(&btf);
    let types =
        aya::Btf::parse(&bytes, Endianness::default()).map_err(|source| BpfError::AyaBtf { path, source })?;
    Ok(TypeInformation { types, syscalls, offsets })
}

/// The types that the kernel has, else those of the file.
fn read_types(file: Option<&Path>) -> Result<(PathBuf, Vec<u8>), BpfError> {
    match (std::fs::read(BTF_PATH), file) {
        (Ok(bytes), _) => Ok((BTF_PATH.into(), bytes)),
        (Err(source), None) => Err(BpfError::NoBtf { path: BTF_PATH, source }),
        (Err(_), Some(file)) => Ok((file.to_owned(), types_of_file(file)?)),
    }
}

/// Nothing in it says of which kernel it is, but its name.
fn types_of_file(file: &Path) -> Result<Vec<u8>, BpfError> {
    let path = file.to_owned();
    let name = format!("{}.btf", KernelFacts::read().release);
    if file.file_name() != Some(OsStr::new(&name)) {
        return Err(BpfError::OtherRelease { path, name });
    }
    std::fs::read(file).map_err(|source| BpfError::Types { path, source })
}

/// Takes a map out of the object.
fn map<M: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, name: &'static str) -> Result<M, BpfError> {
    let map = ebpf.take_map(name).ok_or(BpfError::NoMap(name))?;
    M::try_from(map).map_err(|source| BpfError::Map { name, source: Box::new(source) })
}

mod iterating;
#[cfg(test)]
mod tests;
