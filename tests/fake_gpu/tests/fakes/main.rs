//! The stand-ins do what the real libraries do, as far as the project's tests need it, and are as
//! strict as their headers say.
//!
//! Every test runs in a process of its own, which has the libraries in its path and reads its own
//! script.

mod arithmetic;
mod capture;
mod child;
mod collectives;
mod cuda;
mod events;
mod faults;
mod lifecycle;
mod memory;
mod nccl;
mod nvrtc;
mod streams;
mod variants;
