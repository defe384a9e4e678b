//! The integration tests: one binary, so that it links once.

mod api;
mod bootstrap;
mod cases;
mod chaos;
mod communicator;
mod conformance;
mod contexts;
mod deaths;
mod determinism;
mod differing_calls;
mod eager;
mod errors;
mod failed_calls;
mod gloo;
mod layers;
mod limits;
mod local_layers;
mod machines;
mod messages;
mod moved_types;
mod nccl;
mod networks;
mod order;
mod participation;
mod plugins;
mod processes;
mod profiler;
mod profiles;
mod programs;

#[path = "../shared/random.rs"]
mod random;
mod ranks;
mod reference;
mod refused_runs;
mod requests;
mod staging;
mod tensor_dict;
mod tolerance;
mod uneven;
mod values;
mod wire_types;
