//! The operator `DistCollective` for ONNX Runtime: models that NVIDIA's Polygraphy has sharded run
//! in the stock ONNX Runtime, with a process for each rank.
//!
//! This crate is an rlib. `libdistcollective.so` and the Python package's extension module are
//! linked with it and export [`RegisterCustomOps`](register_custom_ops), which ONNX Runtime calls
//! for `register_custom_ops_library`. Nothing is linked to ONNX Runtime: it hands over its
//! functions.
//!
//! | module | contents |
//! |---|---|
//! | `api` | ONNX Runtime's functions, whose statuses become errors |
//! | `operator` | the operator, and how it is registered |
//! | `node` | a node's attributes, read leniently |
//! | `kernel` | one node of a session: it is bound at the first run |
//! | `shapes` | the shapes of outputs, when a model is loaded |
//! | `session` | which communicator a session has |
//!
//! # Communicators
//!
//! A session has the communicator that its config entry [`CONFIG_KEY`] names, which
//! [`SessionCommunicator::value`] gives. Without the entry it has the communicator of the process's
//! [`Environment`](distcollective::Environment). If there is none, the first session initializes
//! one from the launcher's variables, which lives as long as the process.
//!
//! # Order and agreement
//!
//! ONNX Runtime runs the nodes of equal models in the same order on every rank if the sessions have
//! equal options. Ranks compare each node's name, attributes and type in its first run, and which
//! node it is and its length in every run, so models and orders that differ are an error on every
//! rank.
//!
//! Nodes that run at the same time on one communicator have no order that all ranks share. An
//! operator cannot see the execution mode of a session, and in parallel mode ONNX Runtime still
//! runs the CPU's nodes one after the other, unless a configuration divides them into several
//! streams. So the second of two nodes that run at once ends the communicator: an error on every
//! rank.

mod api;
mod kernel;
mod node;
mod operator;
mod session;
mod shapes;

pub use operator::register_custom_ops;
pub use session::{CONFIG_KEY, SessionCommunicator};
