//! The C ABI, from C and C++: the header is compiled, the shared library's symbols are compared with it, and programs call it with right
//! and wrong arguments, from many threads, and with the cases of the conformance suite. It needs a C compiler.

// The name that the modules of the suite know it by.
extern crate dcl as distcollective;

mod arguments;
mod compiler;
mod conformance;
mod exports;
mod header;
mod programs;

#[path = "../../../tests/suite/cases.rs"]
#[allow(dead_code, reason = "the suite uses more of it")]
mod cases;
#[path = "../../../tests/shared/header.rs"]
mod declared;
#[path = "../../../tests/shared/random.rs"]
mod random;
#[path = "../../../tests/suite/reference.rs"]
#[allow(dead_code, reason = "the suite uses more of it")]
mod reference;
#[path = "../../../tests/suite/values.rs"]
#[allow(dead_code, reason = "the suite uses more of it")]
mod values;
