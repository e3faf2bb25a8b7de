//! The functions of a linked object: the stack that each uses itself, and what it calls.

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail};
use object::read::{Object as _, ObjectSection as _, ObjectSymbol as _};
use object::{RelocationTarget, SectionIndex, SectionKind, SymbolIndex, SymbolKind};

/// Where functions are that are no programs.
const COMMON: &str = ".text";

const FRAME_POINTER: usize = 10;

/// `src_reg` of a call of a function of the program, as opposed to one of the kernel's.
const PSEUDO_CALL: usize = 1;

const CLASS: u8 = 0x07;
const CLASS_LD: u8 = 0x00;
const CLASS_LDX: u8 = 0x01;
const CLASS_ST: u8 = 0x02;
const CLASS_STX: u8 = 0x03;
const CLASS_ALU: u8 = 0x04;
const CLASS_ALU64: u8 = 0x07;
const LOAD_CONSTANT: u8 = 0x18;
const CALL: u8 = 0x85;
const ADD_CONSTANT: u8 = 0x07;
const MOVE_REGISTER: u8 = 0xbf;

/// A function of the object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// Of its symbol.
    pub(super) name: String,
    /// Whether the kernel calls it.
    pub(super) is_program: bool,
    /// How deep in its frame it goes, in bytes.
    pub(super) stack: u64,
    /// What it calls, or has helpers call: places in the list of functions.
    pub(super) callees: Vec<usize>,
}

/// Where something is in the object: section and offset.
type Place = (SectionIndex, u64);

/// The functions of an object file.
pub(super) fn read(content: &[u8]) -> Result<Vec<Function>> {
    let file = object::File::parse(content).context("not an object file")?;
    let common = file.section_by_name(COMMON).map(|section| section.index());
    let mut functions = Vec::new();
    let mut code: Vec<(Place, Vec<Instruction>)> = Vec::new();
    let mut by_place = HashMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
        let Some(index) = symbol.section_index() else { continue };
        let name = symbol.name().context("a function has no name")?.to_owned();
        let section = file.section_by_index(index).and_then(|section| section.data());
        let body = section.ok().and_then(|section| part(section, symbol.address(), symbol.size()));
        let body = body.with_context(|| format!("{name} is not in its section"))?;
        let place = (index, symbol.address());
        code.push((place, body.chunks_exact(Instruction::SIZE).filter_map(Instruction::read).collect()));
        by_place.insert(place, functions.len());
        let is_program = Some(index) != common;
        functions.push(Function { name, is_program, stack: 0, callees: Vec::new() });
    }
    let references = references(&file);
    for (function, (place, instructions)) in functions.iter_mut().zip(code) {
        function.stack = stack(&instructions);
        function.callees = callees(&file, &references, &by_place, place, &instructions)
            .with_context(|| format!("cannot tell what {} calls", function.name))?;
    }
    Ok(functions)
}

fn part(bytes: &[u8], start: u64, size: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(start).ok()?..usize::try_from(start.checked_add(size)?).ok()?)
}

/// The symbols that the linker left for the loader to put in.
fn references(file: &object::File<'_>) -> HashMap<Place, SymbolIndex> {
    let code = file.sections().filter(|section| section.kind() == SectionKind::Text);
    code.flat_map(|section| {
        let index = section.index();
        section.relocations().filter_map(move |(offset, relocation)| match relocation.target() {
            RelocationTarget::Symbol(symbol) => Some(((index, offset), symbol)),
            _ => None,
        })
    })
    .collect()
}

/// The functions that the code at `place` calls or refers to.
fn callees(
    file: &object::File<'_>,
    references: &HashMap<Place, SymbolIndex>,
    functions: &HashMap<Place, usize>,
    (section, start): Place,
    instructions: &[Instruction],
) -> Result<Vec<usize>> {
    let mut callees = Vec::new();
    for (offset, instruction) in (start..).step_by(Instruction::SIZE).zip(instructions) {
        let is_call = instruction.code == CALL && instruction.source == PSEUDO_CALL;
        if !is_call && instruction.code != LOAD_CONSTANT {
            continue;
        }
        let constant = i64::from(instruction.constant);
        // Calls count instructions, from the one behind them.
        let distance = if is_call { (constant + 1) * Instruction::SIZE as i64 } else { constant };
        let target = match references.get(&(section, offset)) {
            Some(symbol) => {
                let symbol = file.symbol_by_index(*symbol).context("a relocation of no symbol")?;
                // A function is named itself, or by its distance in its section.
                let distance = if symbol.kind() == SymbolKind::Section { distance } else { 0 };
                symbol.section_index().zip(symbol.address().checked_add_signed(distance))
            }
            None => offset.checked_add_signed(distance).filter(|_| is_call).map(|address| (section, address)),
        };
        match target.and_then(|target| functions.get(&target)) {
            Some(callee) => callees.push(*callee),
            None if is_call => bail!("the call at {offset:#x} is of no function of this object"),
            // A number, a map, or a constant in memory.
            None => {}
        }
    }
    Ok(callees)
}

/// An instruction of the kernel's machine; one that loads a long constant takes two, the second of which does nothing.
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    destination: usize,
    source: usize,
    offset: i16,
    constant: i32,
}

impl Instruction {
    const SIZE: usize = 8;

    fn read(bytes: &[u8]) -> Option<Self> {
        let [code, registers, offset_low, offset_high, constant @ ..] = *bytes.first_chunk::<8>()?;
        Some(Self {
            code,
            destination: usize::from(registers & 0xf),
            source: usize::from(registers >> 4),
            offset: i16::from_le_bytes([offset_low, offset_high]),
            constant: i32::from_le_bytes(constant),
        })
    }
}

/// How deep in its frame a function goes: as the compiler addresses it, by the frame pointer and by copies of it to which it
/// adds a constant. A pointer that moves along in a loop is not followed.
fn stack(instructions: &[Instruction]) -> u64 {
    // Where in the frame each register points; four bits could name more registers than there are.
    let mut known: [Option<i64>; 16] = [None; 16];
    known[FRAME_POINTER] = Some(0);
    let mut lowest = 0;
    for instruction in instructions {
        let Instruction { code, destination, source, .. } = *instruction;
        let accessed = match code & CLASS {
            CLASS_LDX => known[source],
            CLASS_ST | CLASS_STX => known[destination],
            _ => None,
        };
        let accessed = accessed.map(|base| base + i64::from(instruction.offset));
        let result = match code {
            MOVE_REGISTER => known[source],
            ADD_CONSTANT => known[destination].map(|base| base + i64::from(instruction.constant)),
            _ => None,
        };
        lowest = [accessed, result].into_iter().flatten().fold(lowest, i64::min);
        if code == CALL {
            known[..=5].fill(None);
        } else if matches!(code & CLASS, CLASS_LD | CLASS_LDX | CLASS_ALU | CLASS_ALU64) {
            known[destination] = result;
        }
    }
    lowest.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use object::write::{Object, Relocation, SectionId, StandardSection, Symbol, SymbolId, SymbolSection};
    use object::{Architecture, BinaryFormat, Endianness, RelocationFlags, SymbolFlags, SymbolScope, elf};

    use super::*;

    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

    fn instruction(code: u8, destination: u8, source: u8, offset: i16, constant: i32) -> [u8; 8] {
        let mut bytes = [code, destination | source << 4, 0, 0, 0, 0, 0, 0];
        bytes[2..4].copy_from_slice(&offset.to_le_bytes());
        bytes[4..].copy_from_slice(&constant.to_le_bytes());
        bytes
    }

    fn store(register: u8, offset: i16) -> [u8; 8] {
        instruction(0x7b, register, 0, offset, 0)
    }

    fn call(constant: i32) -> [u8; 8] {
        instruction(CALL, 0, 1, 0, constant)
    }

    fn stack_of(code: &[[u8; 8]]) -> u64 {
        stack(&code.iter().filter_map(|bytes| Instruction::read(bytes)).collect::<Vec<_>>())
    }

    #[test]
    fn the_lowest_access_by_the_frame_pointer_counts() {
        let load = instruction(0x79, 1, 10, -24, 0);
        let store_constant = instruction(0x7a, 10, 0, -32, 7);
        assert_eq!(stack_of(&[EXIT]), 0);
        assert_eq!(stack_of(&[store(10, -8), store(10, -16), store(10, -8)]), 16);
        assert_eq!(stack_of(&[store(10, -8), load, EXIT]), 24);
        assert_eq!(stack_of(&[store_constant, EXIT]), 32);
        assert_eq!(stack_of(&[store(1, -400), EXIT]), 0);
    }

    #[test]
    fn a_copy_of_the_frame_pointer_is_followed_until_it_is_overwritten() {
        let copy = |to, from| instruction(MOVE_REGISTER, to, from, 0, 0);
        let add = |to, constant| instruction(ADD_CONSTANT, to, 0, 0, constant);
        assert_eq!(stack_of(&[copy(2, 10), add(2, -48)]), 48);
        assert_eq!(stack_of(&[copy(2, 10), add(2, -48), copy(3, 2), add(3, -16)]), 64);
        assert_eq!(stack_of(&[copy(6, 10), add(6, -48), store(6, -8)]), 56);
        // A loaded value, a constant of two instructions, what a call returns.
        for overwrite in [instruction(0x79, 2, 1, 0, 0), instruction(0x18, 2, 0, 0, 0), call(-1)] {
            assert_eq!(stack_of(&[copy(2, 10), add(2, -48), overwrite, add(2, -100)]), 48, "{overwrite:?}");
        }
        assert_eq!(stack_of(&[copy(6, 10), call(-1), add(6, -48)]), 48, "a call keeps this register");
    }

    /// An object with a program in a section of its own.
    struct Built {
        object: Object<'static>,
        section: SectionId,
    }

    impl Built {
        fn new(program: &[[u8; 8]]) -> Self {
            let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
            let section = object.add_section(Vec::new(), b"tp_btf/neigh_update".to_vec(), SectionKind::Text);
            let mut built = Self { object, section };
            built.function("program", section, program);
            built
        }

        fn common(&mut self) -> SectionId {
            self.object.section_id(StandardSection::Text)
        }

        fn function(&mut self, name: &str, section: SectionId, code: &[[u8; 8]]) -> SymbolId {
            let symbol = self.undefined(name);
            self.object.add_symbol_data(symbol, section, &code.concat(), 8);
            symbol
        }

        fn undefined(&mut self, name: &str) -> SymbolId {
            self.object.add_symbol(Symbol {
                name: name.as_bytes().to_vec(),
                value: 0,
                size: 0,
                kind: SymbolKind::Text,
                scope: SymbolScope::Linkage,
                weak: false,
                section: SymbolSection::Undefined,
                flags: SymbolFlags::None,
            })
        }

        /// Has the program's instruction at this offset refer to `symbol`.
        fn relocate(&mut self, offset: u64, symbol: SymbolId, r_type: u32) {
            let flags = RelocationFlags::Elf { r_type };
            let relocation = Relocation { offset, symbol, addend: 0, flags };
            self.object.add_relocation(self.section, relocation).expect("a relocation");
        }

        fn read(&self) -> Result<Vec<Function>> {
            read(&self.object.write().expect("an object"))
        }

        /// The names of what the program calls.
        fn callees(&self) -> Vec<String> {
            let functions = self.read().expect("functions");
            let program = functions.iter().find(|function| function.name == "program").expect("the program");
            program.callees.iter().map(|callee| functions[*callee].name.clone()).collect()
        }

        fn refusal(&self) -> String {
            format!("{:#}", self.read().expect_err("an unknown target"))
        }
    }

    #[test]
    fn programs_are_what_is_in_sections_of_their_own() {
        let mut built = Built::new(&[store(10, -8), EXIT]);
        let common = built.common();
        built.function("shared", common, &[store(10, -16), EXIT]);
        let functions = built.read().expect("functions");
        let mut told: Vec<_> =
            functions.iter().map(|function| (&*function.name, function.is_program, function.stack)).collect();
        told.sort_unstable();
        assert_eq!(told, [("program", true, 8), ("shared", false, 16)]);
    }

    #[test]
    fn calls_in_a_section_are_found_by_their_distance() {
        let mut built = Built::new(&[call(1), EXIT]);
        built.function("next", built.section, &[EXIT]);
        assert_eq!(built.callees(), ["next"]);
        let mut into_the_middle = Built::new(&[call(2), EXIT]);
        into_the_middle.function("next", into_the_middle.section, &[EXIT, EXIT]);
        assert_eq!(
            into_the_middle.refusal(),
            "cannot tell what program calls: the call at 0x0 is of no function of this object"
        );
    }

    #[test]
    fn calls_of_other_sections_are_found_by_their_relocation() {
        // The linker leaves a distance of 0 where it names the function, and the real one where it names the section.
        let mut built = Built::new(&[EXIT, call(-1), call(1), EXIT]);
        let common = built.common();
        let first = built.function("first", common, &[EXIT, EXIT]);
        built.function("second", common, &[EXIT]);
        let section = built.object.section_symbol(common);
        built.relocate(8, first, elf::R_BPF_64_32);
        built.relocate(16, section, elf::R_BPF_64_32);
        assert_eq!(built.callees(), ["first", "second"]);
    }

    #[test]
    fn a_call_of_what_the_object_lacks_is_an_error() {
        let mut built = Built::new(&[call(-1), EXIT]);
        let missing = built.undefined("missing");
        built.relocate(0, missing, elf::R_BPF_64_32);
        assert!(built.refusal().contains("no function"), "{}", built.refusal());
    }

    #[test]
    fn a_function_that_is_handed_to_a_helper_counts_as_called() {
        let constant = |constant| instruction(LOAD_CONSTANT, 1, 0, 0, constant);
        let helper = instruction(CALL, 0, 0, 0, 181);
        let mut built = Built::new(&[constant(8), [0; 8], constant(8), [0; 8], helper, EXIT]);
        let common = built.common();
        built.function("other", common, &[EXIT]);
        built.function("callback", common, &[EXIT]);
        let section = built.object.section_symbol(common);
        built.relocate(0, section, elf::R_BPF_64_64);
        assert_eq!(built.callees(), ["callback"]);
    }
}
