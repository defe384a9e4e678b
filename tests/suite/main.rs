//! The integration tests: one binary, so that it links once.

mod cases;
mod communicator;
mod conformance;
mod contexts;
mod errors;
mod networks;
mod processes;

mod ranks;
mod reference;
mod values;
