//! The integration tests: one binary, so that it links once.

mod api;
mod bootstrap;
mod cases;
mod chaos;
mod communicator;
mod conformance;
mod contexts;
mod deaths;
mod errors;
mod limits;
mod nccl;
mod networks;
mod order;
mod processes;

#[path = "../shared/random.rs"]
mod random;
mod ranks;
mod reference;
mod tolerance;
mod values;
