//! Compares what the library assumes of each MPI's binary interface with that MPI's header, as its
//! compiler sees it. The header of the MPI 5 standard is in the PyPI package mpich;
//! `DCL_TEST_MPI_ABI_HEADER` is its path.

use std::process::Command;
use std::{env, fs};

use crate::root;

#[expect(dead_code, reason = "the library uses the rest")]
#[path = "../../../../src/mpi/abi.rs"]
mod abi;

use abi::{Abi, Constants, Mpich, OpenMpi, STATUS_INTS, Standard};

/// Prints the numbers in the order of [`expected`].
const PROGRAM: &str = r#"
#include HEADER
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#define HANDLE(value) (sizeof(value) == sizeof(int) ? (uintptr_t)(unsigned)(uintptr_t)(value) : (uintptr_t)(value))
int main(void) {
    printf("%d %d %d %zu %zu ", MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_THREAD_MULTIPLE,
           offsetof(MPI_Status, MPI_SOURCE) / sizeof(int), sizeof(MPI_Comm));
    printf("%d %d ", MPI_SUCCESS, sizeof(MPI_Status) <= STATUS_INTS * sizeof(int));
    printf("%ju %ju %ju %ju %ju\n", (uintmax_t)HANDLE(MPI_COMM_WORLD), (uintmax_t)HANDLE(MPI_COMM_SELF),
           (uintmax_t)HANDLE(MPI_UINT64_T), (uintmax_t)HANDLE(MPI_ERRORS_RETURN), (uintmax_t)HANDLE(MPI_COMM_NULL));
    SYMBOLS
    return 0;
}
"#;

/// The addresses of Open MPI's constants, as its library has them.
const OPEN_MPI_SYMBOLS: &str = r#"printf("%ju %ju %ju %ju %ju\n", (uintmax_t)&ompi_mpi_comm_world,
    (uintmax_t)&ompi_mpi_comm_self, (uintmax_t)&ompi_mpi_uint64_t, (uintmax_t)&ompi_mpi_errors_return,
    (uintmax_t)&ompi_mpi_comm_null);"#;

/// Compares the numbers of `A` with those of a header. `symbols` prints what its symbols are.
fn compare<A: Abi>(compiler: &str, header: &str, symbols: &str) {
    let folder = test_support::Folder::create();
    let (source, program) = (folder.file("constants.c"), folder.file("constants"));
    let text = PROGRAM.replace("HEADER", header).replace("SYMBOLS", symbols);
    fs::write(&source, text.replace("STATUS_INTS", &STATUS_INTS.to_string())).expect("a file");
    test_support::succeed(Command::new(compiler).arg("-w").arg("-o").arg(&program).arg(&source));
    let printed = test_support::succeed(&mut Command::new(&program));
    let mut lines = printed.lines();
    let words: Vec<&str> = lines.next().expect("a line").split(' ').collect();
    let handle = size_of::<A::Handle>();
    let expected = [A::ANY_SOURCE, A::ANY_TAG, A::THREAD_MULTIPLE, A::SOURCE_AT as i32, handle as i32, 0, 1];
    assert_eq!(words[..expected.len()], expected.map(|number| number.to_string()), "{compiler}");
    let of_symbols: Vec<usize> =
        lines.next().unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
    let names =
        ["comm_world", "comm_self", "uint64_t", "errors_return", "comm_null"].map(|name| format!("ompi_mpi_{name}"));
    let symbol = |name: &str| of_symbols.get(names.iter().position(|other| *other == name)?).copied();
    let Constants { world, own, uint64, errors_return, null } = A::constants(&symbol).expect("all are known");
    let constants = [world, own, uint64, errors_return, null].map(|number| number.to_string());
    assert_eq!(words[expected.len()..], constants, "{compiler}");
}

#[test]
fn the_interface_of_open_mpi_is_that_of_its_header() {
    if test_support::has("mpicc.openmpi") {
        compare::<OpenMpi>("mpicc.openmpi", "<mpi.h>", OPEN_MPI_SYMBOLS);
    }
}

#[test]
fn the_interface_of_mpich_is_that_of_its_header() {
    if test_support::has("mpicc.mpich") {
        compare::<Mpich>("mpicc.mpich", "<mpi.h>", "");
    }
}

#[test]
fn the_standard_interface_is_that_of_its_header() {
    match env::var("DCL_TEST_MPI_ABI_HEADER") {
        Ok(header) => compare::<Standard>("cc", &format!("\"{}\"", root().join(header).display()), ""),
        Err(_) => eprintln!("skipped: DCL_TEST_MPI_ABI_HEADER is not set"),
    }
}
