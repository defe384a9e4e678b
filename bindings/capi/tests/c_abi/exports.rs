//! What the shared library exports, and how it is linked.

use std::collections::BTreeSet;
use std::fs;

use object::elf::{DF_1_NODELETE, DT_FLAGS_1, DT_SONAME};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

use crate::compiler::library;
use crate::declared;

/// The dynamic section of the shared library.
pub struct Linked {
    exported: BTreeSet<String>,
    pub soname: String,
    /// The flags of `DT_FLAGS_1`.
    flags: u64,
}

impl Linked {
    pub fn read() -> Self {
        let bytes = fs::read(library()).expect("the library");
        let file = ElfFile64::<Endianness>::parse(&*bytes).expect("an ELF file");
        let table = file.elf_dynamic_table().expect("a dynamic section");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let entry = |tag| table.iter().find(|entry| entry.tag == tag);
        let defined = file.dynamic_symbols().filter(ObjectSymbol::is_definition);
        Linked {
            exported: defined.map(|symbol| symbol.name().expect("text").to_owned()).collect(),
            soname: entry(DT_SONAME).map(|name| text(table.string(name).expect("text"))).unwrap_or_default(),
            flags: entry(DT_FLAGS_1).map_or(0, |flags| flags.val),
        }
    }
}

#[test]
fn what_is_exported_is_what_is_declared() {
    let exported = Linked::read().exported;
    let declared: BTreeSet<String> = declared::functions().into_iter().map(|function| function.name).collect();
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
    assert!(declared.len() > 100, "{declared:?}");
    assert_eq!(only(&declared, &exported), [""; 0], "declared, not exported");
    // ONNX Runtime's, which no C program calls.
    assert_eq!(only(&exported, &declared), ["RegisterCustomOps"], "exported, not declared");
}

#[test]
fn the_library_has_its_name_and_stays() {
    let linked = Linked::read();
    let said = declared::TEXT.split_once("libdistcollective.so.").expect("the header tells the name").1;
    let said: String = said.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    assert_eq!(linked.soname, format!("libdistcollective.so.{}", said.trim_end_matches('.')));
    assert!(linked.flags & u64::from(DF_1_NODELETE) != 0, "NODELETE is not among the flags {:#x}", linked.flags);
}
