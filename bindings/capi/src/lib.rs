//! The C ABI: the functions of `include/distcollective.h` over the public Rust API.
//!
//! The header documents every function. This crate parses arguments, looks up handles and calls the
//! Rust API; it has no rules of its own.
//!
//! | module | contents |
//! |---|---|
//! | `status` | statuses, this thread's last error, and `call`, which runs each function's body |
//! | `handle` | handles and the table of the objects behind them |
//! | `arguments` | the types of arguments, with the unsafe code that uses their pointers |
//! | `copy_out` | text and bytes for the caller's buffers |
//! | `library` | version, names, the log |
//! | `network`, `network_objects` | networks and tensors; what is behind their handles |
//! | `local_layers` | the layers without a collective |
//! | `layer`, `dist_collective` | what layers have; the attributes of DistCollective layers |
//! | `plugin` | layers that the caller implements |
//! | `engine`, `context` | building and running an engine |
//! | `bound_layer` | a layer by itself on a communicator |
//! | `environment`, `communicator` | ranks |
//! | `collectives`, `bytes` | eager collectives; bytes of unknown length |
//! | `messages` | messages from one rank to another |
//! | `tensor_dict`, `broadcast` | dictionaries of tensors; their broadcast |
//! | `buffer`, `stream`, `owned_work` | memory; streams and work; work that hands operands back |
//!
//! # How a function is built
//!
//! ```ignore
//! /// `dcl_engine_t`.
//! pub(super) struct CEngine {
//!     pub(super) engine: Engine,
//! }
//!
//! impl Object for CEngine {
//!     const TYPE: &'static str = "dcl_engine_t";
//! }
//!
//! #[unsafe(no_mangle)]
//! extern "C" fn dcl_engine_build(
//!     network: Handle<CNetwork>,
//!     engine: OutPointer<Handle<CEngine>>,
//! ) -> Status {
//!     call(|| {
//!         let network = network.get()?;
//!         let engine = engine.check("engine")?;
//!         let built = network.network.read()?.build()?;
//!         engine.set(Handle::new(CEngine { engine: built }));
//!         Ok(())
//!     })
//! }
//! ```
//!
//! - *Arguments.* Each has a type of `arguments`, `copy_out` or `handle` with the layout of the C
//!   type: `InPointer` is `const T *`, `OutPointer` is `T *`, `TextPointer` is `const char *`,
//!   `ConstVoidPointer` is `const void *`, `VoidPointer` is `void *`. Enumerators are plain `i32`,
//!   because C may pass any number; `arguments` has a function that parses each.
//! - *Handles.* `Handle<T>` is a `dcl_..._t *`. `get` returns an `Arc` of the object, so the object
//!   stays alive during the call. An object whose calls may be exclusive has its state in a
//!   `TryRwLock`: a [shared] call uses `read`, an [exclusive] one `write`.
//! - *Status.* The body is a closure of `call`. It returns `Result<()>`, whose error is a
//!   `CallError`; errors of the Rust API convert with `?`. `call` turns an error or a panic into a
//!   status and this thread's last error, so no panic reaches C.
//! - *Order.* The body checks all arguments first, output pointers too (`check`). It writes outputs
//!   last, so that they are written only on success.
//!
//! To add a function:
//!
//! 1. Declare it in the header. Its comment ends with a tag such as `[local, shared]`.
//! 2. Write it in the module of its object, and wrap it in `include/distcollective.hpp`.
//! 3. `cargo test -p c_header` compares the declarations.
//! 4. `cargo test -p distcollective-capi` calls the function with wrong arguments. If a parameter's
//!    name or type is new, add it to the tables of `tests/c_abi/arguments.rs`.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the handles of the C ABI need pointers of 64 bits");

/// `RegisterCustomOps`, which ONNX Runtime calls.
pub use distcollective_onnxruntime::register_custom_ops;

mod arguments;
mod bound_layer;
mod broadcast;
mod buffer;
mod bytes;
mod collectives;
mod communicator;
mod context;
mod copy_out;
mod dist_collective;
mod engine;
mod environment;
mod handle;
mod layer;
mod library;
mod local_layers;
mod messages;
mod network;
mod network_objects;
mod owned_work;
mod plugin;
mod status;
mod stream;
mod tensor_dict;
