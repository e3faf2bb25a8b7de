//! Loading the programs that list who may hold a mount.

use std::io;
use std::sync::Arc;

use aya::programs::Iter;

use super::{AttachError, Object};
use crate::iterators::{Iterators, OFFSETS, PROGRAMS, WANTED};
use crate::{BpfConfig, refusal};

/// Loads what lists who may hold a mount, and nothing else.
/// Errors: why the kernel does not do that.
pub fn load_iterators(config: &BpfConfig) -> Result<Iterators, String> {
    let mut object = Object::load(config).map_err(|error| refusal::reason(&*error))?;
    object.iterators().map_err(|error| refusal::reason(&error))
}

impl Object {
    /// Loads the iterators, all or none.
    pub(super) fn iterators(&mut self) -> Result<Iterators, AttachError> {
        let resolved = self.offsets.iter().find(|(name, _)| *name == OFFSETS.global);
        if let Some((_, Err(error))) = resolved {
            return Err(AttachError::Offsets(error.clone()));
        }
        let types = self.types.as_ref().map_err(|error| AttachError::Object(Arc::clone(error)))?;
        let ebpf = &mut self.ebpf;
        for (program, of) in PROGRAMS {
            let found = ebpf.program_mut(program).ok_or(AttachError::NoProgram { program })?;
            let loaded = <&mut Iter>::try_from(found).and_then(|found| found.load(of, types));
            loaded.map_err(|source| AttachError::Program { program, source })?;
        }
        let mut loaded = Vec::new();
        for (program, _) in PROGRAMS {
            let found = ebpf.program(program).ok_or(AttachError::NoProgram { program })?;
            let found = <&Iter>::try_from(found);
            loaded.push(found.map_err(|source| AttachError::Program { program, source })?);
        }
        let invalid = || AttachError::Iterators(io::ErrorKind::InvalidInput.into());
        let wanted = ebpf.map(WANTED).ok_or_else(invalid)?;
        let programs = loaded.try_into().map_err(|_| invalid())?;
        Iterators::keep(programs, wanted).map_err(AttachError::Iterators)
    }
}
