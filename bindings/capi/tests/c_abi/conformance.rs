//! Runs the cases of the conformance suite through C. This side writes the inputs and the expected
//! outputs; `conformance.c` runs them.

use std::fs;

use distcollective::{Groups, Rank, Root};
use test_support::{root, succeed};

use crate::cases::{Case, ShapeChoice, pairwise};
use crate::compiler::{Language, Under, folder, program, started};
use crate::values::to_bytes;

/// A file of cases: 64-bit numbers, and bytes that are padded to a multiple of 8.
struct Cases(Vec<u8>);

impl Cases {
    fn number(&mut self, number: i64) {
        self.0.extend(number.to_ne_bytes());
    }

    fn bytes(&mut self, bytes: Option<&[u8]>) {
        self.number(bytes.map_or(-1, |bytes| bytes.len() as i64));
        self.0.extend(bytes.unwrap_or_default());
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }

    fn case(&mut self, case: &Case) {
        let (is_partition, groups) = match case.groups() {
            Groups::All => (false, Vec::new()),
            Groups::Group(members) => (false, vec![members]),
            Groups::Partition(partition) => (true, partition.groups().to_vec()),
        };
        self.number(case.operation.number().into());
        self.number(case.reduce_op.map_or(5, |reduce_op| reduce_op.number().into()));
        self.number(case.data_type.number().into());
        self.number(case.wire_type.map_or(0, |wire_type| wire_type.number().into()));
        self.number(case.layer_root().map_or(-1, |root| match root {
            Root::Rank(rank) => rank.0.into(),
            Root::GroupRank(rank) => rank.0.into(),
        }));
        self.number(case.in_place.into());
        let dims = case.dims();
        self.number(dims.len() as i64);
        dims.iter().for_each(|dim| self.number(*dim as i64));
        self.number(is_partition.into());
        self.number(groups.len() as i64);
        self.number(case.group_len() as i64);
        groups.iter().flatten().for_each(|rank| self.number(rank.0.into()));
        for rank in (0..case.n).map(Rank) {
            self.bytes(Some(&to_bytes(case.data_type, case.input(rank))));
            self.bytes(case.expected(rank).map(|bits| to_bytes(case.data_type, bits)).as_deref());
        }
    }
}

/// Runs cases for `n` ranks.
fn conforms(n: u32, under: Under, cases: &[Case]) {
    let source = root().join("bindings/capi/tests/c_abi/conformance.c");
    let Some(program) = program(Language::C, &source, under, &[]) else { return };
    let Some(mut command) = started(&program, under) else { return };
    let mut file = Cases(Vec::new());
    file.number(n.into());
    file.number(cases.len() as i64);
    cases.iter().for_each(|case| file.case(case));
    let path = folder("conformance").join(format!("{n}-{under:?}"));
    fs::write(&path, file.0).expect("a file");
    eprintln!("{}", succeed(command.arg(&path)));
    fs::remove_file(path).expect("it is there");
}

/// Every `step`-th case, without large ones.
fn some(n: u32, step: usize) -> Vec<Case> {
    let small = |case: &Case| !matches!(case.shape, ShapeChoice::Large | ShapeChoice::Windows);
    pairwise(n).into_iter().filter(small).step_by(step).collect()
}

#[test]
fn three_ranks() {
    conforms(3, Under::Nothing, &pairwise(3));
}

#[test]
fn four_ranks() {
    conforms(4, Under::Nothing, &pairwise(4));
}

#[test]
#[ignore = "compiles with sanitizers, which takes long; CI runs it"]
fn under_sanitizers() {
    conforms(4, Under::Sanitizers, &some(4, 2));
}

#[test]
#[ignore = "takes long under valgrind; CI runs it"]
fn under_valgrind() {
    conforms(3, Under::Valgrind, &some(3, 16));
}
