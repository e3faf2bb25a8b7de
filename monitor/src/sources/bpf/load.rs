//! Loading and attaching.

use std::path::Path;
use std::sync::Arc;

use aya::maps::{Array, MapData, PerCpuArray, RingBuf};
use aya::programs::{BtfTracePoint, TracePoint};
use aya::{Btf, Ebpf, EbpfLoader, Endianness};
use zerocopy::IntoBytes as _;

use super::{BpfConfig, BpfError, CounterReader, NEIGHBOR, SWITCHED_OFF, UMOUNT, btf, counters, status};
use crate::error_chain::chain;
use crate::observation::SourceStatus;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/kevtmon-ebpf.o"));

const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";
const TRACEFS: &str = "/sys/kernel/tracing";

/// Neighbor programs: without one of them the rung does not tell the whole truth.
const NEIGHBOR_TRACEPOINTS: [&str; 3] = ["neigh_update", "neigh_cleanup_and_release", "neigh_timer_handler"];
const UMOUNT_TRACEPOINTS: [&str; 2] = ["sys_enter_umount", "sys_exit_umount"];

/// Programs in the kernel, and the ring they write to.
pub struct BpfSource {
    /// Keeps the programs attached; dropped with the source.
    _attached: Ebpf,
    pub(super) logger: Option<aya_log::EbpfLogger<&'static dyn log::Log>>,
    pub(super) ring: RingBuf<MapData>,
    pub(super) armed: Array<MapData, u32>,
    pub(super) counts: Arc<PerCpuArray<MapData, u64>>,
    /// One per hook.
    pub statuses: Vec<SourceStatus>,
}

impl BpfSource {
    /// Reads the kernel's counters.
    #[must_use]
    pub fn counters(&self) -> CounterReader {
        let counts = Arc::clone(&self.counts);
        Arc::new(move || counters::read_counters(&counts))
    }

    /// Whether a hook is attached.
    #[must_use]
    pub fn is_up(&self, hook: &str) -> bool {
        self.statuses.iter().any(|status| status.source == hook && status.up)
    }
}

/// Loads the programs and attaches what this kernel allows.
///
/// # Errors
/// When nothing at all can be loaded; a single hook that fails is in the statuses instead.
pub fn load(config: &BpfConfig) -> Result<BpfSource, BpfError> {
    if OBJECT.is_empty() {
        return Err(BpfError::NoObject);
    }
    let (offsets, types) = type_information()?;
    let log_level = if config.log { u8::MAX } else { 0 };
    let offsets = offsets.as_bytes();
    let mut loader = EbpfLoader::new();
    loader
        .btf(Some(&types))
        .override_global("OFFSETS", offsets, true)
        .override_global("AYA_LOG_LEVEL", &log_level, true)
        .map_max_entries("EVENTS", config.ring_bytes);
    if !config.log {
        loader.map_max_entries("AYA_LOGS", 4096);
    }
    let mut ebpf = loader.load(OBJECT).map_err(|error| BpfError::Load(Box::new(error)))?;

    let neighbor = match config.neighbor {
        true => attach_neighbor(&mut ebpf, &types).map(|()| "tp_btf"),
        false => Err(SWITCHED_OFF.to_owned()),
    };
    let umount = match config.umount {
        true => attach_umount(&mut ebpf).map(|()| "tracepoint"),
        false => Err(SWITCHED_OFF.to_owned()),
    };
    drop(types);
    // Type information costs some 30 MB while it is parsed.
    crate::allocator::give_back();

    let ring = RingBuf::try_from(take(&mut ebpf, "EVENTS")?).map_err(map_error("EVENTS"))?;
    let armed = Array::try_from(take(&mut ebpf, "ARMED")?).map_err(map_error("ARMED"))?;
    let counts = PerCpuArray::try_from(take(&mut ebpf, "COUNTS")?).map_err(map_error("COUNTS"))?;
    let statuses = vec![status(NEIGHBOR, neighbor), status(UMOUNT, umount)];
    let logger = match config.log.then(|| aya_log::EbpfLogger::init(&mut ebpf)) {
        Some(Ok(logger)) => Some(logger),
        Some(Err(error)) => {
            tracing::warn!(%error, "the programs cannot log");
            None
        }
        None => None,
    };
    Ok(BpfSource { _attached: ebpf, logger, ring, armed, counts: Arc::new(counts), statuses })
}

fn type_information() -> Result<(kevtmon_ebpf::Offsets, Btf), BpfError> {
    let bytes = std::fs::read(BTF_PATH).map_err(|source| BpfError::NoBtf { path: BTF_PATH, source })?;
    let offsets = btf::Btf::parse(&bytes)
        .and_then(|types| btf::resolve(&types))
        .map_err(|source| BpfError::Btf { path: BTF_PATH, source })?;
    let types = Btf::parse(&bytes, Endianness::default())
        .map_err(|source| BpfError::AyaBtf { path: BTF_PATH, source })?;
    Ok((offsets, types))
}

fn attach_neighbor(ebpf: &mut Ebpf, types: &Btf) -> Result<(), String> {
    for name in NEIGHBOR_TRACEPOINTS {
        let program: &mut BtfTracePoint =
            program(ebpf, name)?.try_into().map_err(|error| format!("{name}: {error}"))?;
        program.load(name, types).map_err(|error| format!("{name}: {}", chain(&error)))?;
    }
    // Attached only when all of them loaded: half a rung would report half the truth.
    for name in NEIGHBOR_TRACEPOINTS {
        let program: &mut BtfTracePoint =
            program(ebpf, name)?.try_into().map_err(|error| format!("{name}: {error}"))?;
        program.attach().map_err(|error| format!("{name}: {}", chain(&error)))?;
    }
    Ok(())
}

fn attach_umount(ebpf: &mut Ebpf) -> Result<(), String> {
    mount_tracefs()?;
    for name in UMOUNT_TRACEPOINTS {
        let program: &mut TracePoint =
            program(ebpf, name)?.try_into().map_err(|error| format!("{name}: {error}"))?;
        program.load().map_err(|error| format!("{name}: {}", chain(&error)))?;
        program.attach("syscalls", name).map_err(|error| format!("{name}: {}", chain(&error)))?;
    }
    Ok(())
}

/// The ids of tracepoints are only told by tracefs, which some nodes do not mount at boot. This is where
/// every tool expects it, so it is left there.
fn mount_tracefs() -> Result<(), String> {
    let events = Path::new(TRACEFS).join("events/syscalls");
    if events.exists() || Path::new("/sys/kernel/debug/tracing/events/syscalls").exists() {
        return Ok(());
    }
    nix::mount::mount(
        Some("tracefs"),
        TRACEFS,
        Some("tracefs"),
        nix::mount::MsFlags::MS_NOSUID | nix::mount::MsFlags::MS_NODEV | nix::mount::MsFlags::MS_NOEXEC,
        None::<&str>,
    )
    .map_err(|errno| format!("needs tracefs at {TRACEFS}, it is not there and cannot be mounted: {errno}"))?;
    tracing::info!(path = TRACEFS, "mounted tracefs");
    Ok(())
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut aya::programs::Program, String> {
    ebpf.program_mut(name).ok_or_else(|| format!("the embedded object has no program {name}"))
}

fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<aya::maps::Map, BpfError> {
    ebpf.take_map(name).ok_or(BpfError::NoMap(name))
}

fn map_error(name: &'static str) -> impl FnOnce(aya::maps::MapError) -> BpfError {
    move |source| BpfError::Map { name, source: Box::new(source) }
}
