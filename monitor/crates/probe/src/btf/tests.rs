//! The running kernel's types, those that were kept of others (`cargo xtask btf`), and types that no kernel has yet.

use std::fmt::Write as _;

use super::*;
use crate::hooks::HOOKS;
use crate::{iterators, syscall_context, task};

/// What the daemon reads of each kernel's types, reduced.
const KERNELS: [(&str, &[u8]); 7] = [
    ("5.10", include_bytes!("kernels/5.10.btf")),
    ("6.1", include_bytes!("kernels/6.1.btf")),
    ("6.12", include_bytes!("kernels/6.12.btf")),
    ("6.12-arm64", include_bytes!("kernels/6.12-arm64.btf")),
    ("6.17", include_bytes!("kernels/6.17.btf")),
    ("6.18", include_bytes!("kernels/6.18.btf")),
    ("7.3", include_bytes!("kernels/7.3.btf")),
];

/// Where each of them has each member, as another program found in the whole types.
const OFFSETS: &str = include_str!("kernels/offsets.txt");

fn vmlinux() -> Option<Vec<u8>> {
    std::fs::read("/sys/kernel/btf/vmlinux").ok()
}

fn kernel(name: &str) -> Btf<'static> {
    let (_, bytes) = KERNELS.iter().find(|(kernel, _)| *kernel == name).unwrap();
    Btf::parse(bytes).unwrap()
}

#[test]
fn a_member_of_an_anonymous_union_is_found() {
    let Some(bytes) = vmlinux() else {
        eprintln!("this kernel has no BTF: nothing to resolve");
        return;
    };
    let btf = Btf::parse(&bytes).unwrap();
    assert_eq!(btf.offset("list_head.prev"), Some(8));
    assert!(btf.offset("sk_buff.next").is_some());
    assert_eq!(btf.offset("list_head.nonsense"), None);
    let [(byte, bit), (next_byte, next_bit)] =
        ["signal_struct.is_child_subreaper", "signal_struct.has_child_subreaper"]
            .map(|path| btf.need_bit(path).unwrap());
    assert_eq!(byte * 8 + bit + 1, next_byte * 8 + next_bit);
    assert_eq!(btf.offset("no_such_struct.member"), None);
}

#[test]
fn cut_or_wrong_bytes_are_an_error() {
    assert_eq!(Btf::parse(&[]).err(), Some(BtfError::Malformed(0)));
    assert_eq!(Btf::parse(b"ELF is not BTF").err(), Some(BtfError::Malformed(0)));
    for (kernel, bytes) in KERNELS {
        for len in (0..bytes.len()).step_by(997) {
            // What is cut within the strings only lacks names.
            let Ok(btf) = Btf::parse(&bytes[..len]) else { continue };
            for path in OFFSETS.lines().filter_map(|line| line.split_whitespace().next()) {
                assert!(btf.offset(path).is_none_or(|offset| offset < 1 << 20), "{kernel} {path}");
            }
        }
        assert!(Btf::parse(&bytes[..100]).is_err(), "{kernel}");
    }
}

#[test]
fn members_are_where_each_kernel_has_them() {
    let mut lines = OFFSETS.lines();
    let kernels: Vec<(&str, Btf<'_>)> =
        lines.next().unwrap().split_whitespace().skip(1).map(|name| (name, kernel(name))).collect();
    assert_eq!(kernels.len(), KERNELS.len());
    for line in lines {
        let mut words = line.split_whitespace();
        let path = words.next().unwrap();
        let mut found = path.to_owned();
        for (_, btf) in &kernels {
            let offset = btf.offset(path).map_or("-".to_owned(), |offset| offset.to_string());
            write!(found, " {offset}").unwrap();
        }
        assert_eq!(found, line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
}

#[test]
fn each_kernel_has_all_that_the_programs_read() {
    for (name, _) in KERNELS {
        let is_of_this_machine = name.contains("arm64") == cfg!(target_arch = "aarch64");
        let btf = kernel(name);
        for offsets in
            HOOKS.iter().filter_map(|hook| hook.offsets).chain([task::OFFSETS, syscall_context::OFFSETS])
        {
            let resolved = (offsets.resolve)(&btf);
            // Registers are called by the names that this architecture has for them.
            if is_of_this_machine || offsets.global != "REMOVE_OFFSETS" {
                assert!(resolved.is_ok(), "{name} {}: {:?}", offsets.global, resolved.err());
            }
        }
    }
}

#[test]
fn what_the_iterators_read_is_in_the_kernels_that_have_them() {
    // Those whose types were kept since; 5.10 has none for mappings.
    for name in ["5.10", "6.1", "6.12", "6.18"] {
        let resolved = (iterators::OFFSETS.resolve)(&kernel(name));
        assert_eq!(resolved.is_ok(), name != "5.10", "{name}: {:?}", resolved.err());
    }
}

#[test]
fn helpers_are_known_from_the_kernels_own_list() {
    let helpers = ["get_current_task_btf", "task_pt_regs"];
    for (name, _) in KERNELS {
        let has = helpers.map(|helper| kernel(name).has_helper(helper));
        assert_eq!(has, [name != "5.10"; 2], "{name}");
        assert!(!kernel(name).has_helper("no_such_helper"));
    }
    assert!(kernel("5.10").offset("syscall_tp_t.regs").is_some(), "it has another way to the registers");
}

const INT: u32 = 1;

/// A header, `layout` behind it if there is any, types and strings.
fn types(layout: &[[u8; 4]], words: &[u32]) -> Vec<u8> {
    let strings = b"\0int\0late\0member\0";
    let size = |bytes: usize| u32::try_from(bytes).unwrap();
    let (layout_len, types_len) = (size(layout.len() * 4), size(words.len() * 4));
    let header_len = if layout.is_empty() { 24 } else { 32 };
    let mut header = vec![header_len, layout_len, types_len, layout_len + types_len, size(strings.len())];
    if !layout.is_empty() {
        header.extend([0, layout_len]);
    }
    let mut bytes = MAGIC.to_ne_bytes().to_vec();
    bytes.extend([1, 0]);
    bytes.extend(header.iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend(layout.as_flattened());
    bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend(strings);
    bytes
}

/// `int`, something of this kind with two words and two items of three bytes … and `struct late { int member; }`.
fn after_kind(kind: u32, layout: &[[u8; 4]]) -> Vec<u8> {
    let int = [1, INT << 24, 4, 32];
    let unknown = [0, kind << 24 | 2, 0, 7, 7, 7, 7];
    let late = [5, KIND_STRUCT << 24 | 1, 4, 10, 1, 64];
    types(layout, &[&int[..], &unknown, &late].concat())
}

#[test]
fn a_kind_of_a_later_kernel_is_skipped_if_that_tells_how_long_it_is() {
    for kind in [20, 31, 100, 127] {
        assert!(Btf::parse(&after_kind(kind, &[])).is_err(), "nobody knows where the next type is");
        let mut layout = vec![[0; 4]; kind as usize + 1];
        layout[kind as usize] = [8, 4, 0, 0];
        let bytes = after_kind(kind, &layout);
        assert_eq!(Btf::parse(&bytes).unwrap().offset("late.member"), Some(8), "{kind}");
        assert!(Btf::parse(&after_kind(kind, &layout[..kind as usize])).is_err(), "its kinds end before");
    }
}

#[test]
fn known_kinds_are_as_long_as_ever_whatever_the_layout_says() {
    let layout = [[9; 4]; 20];
    let int = [1, INT << 24, 4, 32];
    let late = [5, KIND_STRUCT << 24 | 1, 4, 10, 1, 64];
    let bytes = types(&layout, &[&int[..], &late].concat());
    assert_eq!(Btf::parse(&bytes).unwrap().offset("late.member"), Some(8));
}

#[test]
fn a_structure_may_have_more_members_than_16_bits_count() {
    const MEMBERS: u32 = 70_000;
    let mut words = vec![1, INT << 24, 4, 32, 5, KIND_STRUCT << 24 | MEMBERS, 4 * MEMBERS];
    for index in 0..MEMBERS {
        words.extend([if index == MEMBERS - 1 { 10 } else { 1 }, 1, index * 32]);
    }
    let bytes = types(&[], &words);
    assert_eq!(Btf::parse(&bytes).unwrap().offset("late.member"), Some((MEMBERS - 1) * 4));
}
