//! The integration tests: one binary, so that it links once.

mod cases;
mod conformance;
mod networks;

mod ranks;
mod reference;
mod values;
