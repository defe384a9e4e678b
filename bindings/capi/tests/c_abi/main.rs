//! Tests the C ABI from C and C++. They compile the header, compare the shared library's symbols
//! with it, and run programs: with right and wrong arguments, with many threads, and with the cases
//! of the conformance suite. They need a C compiler.

// The modules of the suite use this name.
extern crate dcl as distcollective;

mod arguments;
mod compiler;
mod conformance;
mod exports;
mod header;
mod programs;
mod python_plans;

#[path = "../../../../tests/suite/cases.rs"]
#[allow(dead_code, reason = "the suite uses more of it")]
mod cases;
#[path = "../../../../tests/shared/header.rs"]
mod declared;
#[path = "../../../../tests/shared/random.rs"]
mod random;
#[path = "../../../../tests/suite/reference.rs"]
#[allow(dead_code, reason = "the suite uses more of it")]
mod reference;
#[path = "../../../../tests/suite/values.rs"]
#[allow(dead_code, reason = "the suite uses more of it")]
mod values;
